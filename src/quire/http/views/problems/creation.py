"""The problem that new ledgers cannot be created."""

from __future__ import annotations

from collections.abc import Iterator

from quire.http.views.creatable import DEFAULT_SHAPE, Creatable
from quire.http.views.problems.problem import Problem


def of_shape(creatable: Creatable | None, writable: int) -> Iterator[Problem]:
    """Yield a problem if programs that do not choose a shape cannot create ledgers."""
    if creatable is None or creatable.default or not writable:
        return  # without a writable bookie, another problem says so
    size, write_quorum, ack_quorum = DEFAULT_SHAPE
    options = ""
    if creatable.smaller is not None:
        size_now, write_now, ack_now = creatable.smaller
        options = (
            f". Until then, a ledger can be created with: quire ledger write --ensemble {size_now} "
            f"--write-quorum {write_now} --ack-quorum {ack_now}"
        )
    yield Problem(
        "bad",
        f"No ledger with the default ensemble can be created (ensemble {size}, write quorum "
        f"{write_quorum}, ack quorum {ack_quorum}): {creatable.why_not}",
        f"Start another bookie, or make room on one that is read-only{options}",
        "Programs and streams that do not choose a smaller ensemble fail with "
        "NotEnoughBookiesError. Ledgers that are open can still be written while an ack quorum of "
        "their bookies answers",
    )
