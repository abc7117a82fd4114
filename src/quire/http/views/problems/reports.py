"""The problems that reports of bookies show: clocks that differ, and refused requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quire._runtime.units import counted, duration_text, some_of
from quire.http.views.problems.problem import Bookie, Problem

CLOCK_DIFFERENCE_MAX_MS = 30_000
"""The largest difference between two clocks, in milliseconds, that is not reported."""
SEE_CLOCK = "see whether its clock is synchronised: timedatectl status. To synchronise it: "
SYNCHRONISE = "sudo timedatectl set-ntp true"


def of_clocks(bookies: Sequence[Bookie]) -> Iterator[Problem]:
    """Yield the problem of clocks that differ. Only bookies with an HTTP server tell their time."""
    ahead_ms: dict[str, int] = {
        one["id"]: found
        for one in bookies
        if one["state"] != "gone"
        and (found := (one.get("report") or {}).get("clock_ahead_ms")) is not None
    }
    wrong = {name: by for name, by in ahead_ms.items() if abs(by) > CLOCK_DIFFERENCE_MAX_MS}
    if not wrong:
        return
    named = some_of(f"{name} ({_by(by)} it)" for name, by in wrong.items())
    if len(wrong) == len(ahead_ms) > 1 and len({by > 0 for by in wrong.values()}) == 1:
        yield Problem(
            "warn",
            f"The clock of this process differs from the clocks of all {len(wrong)} bookies that "
            f"tell their time, so it is probably wrong: {named}",
            f"On the machine of this process, {SEE_CLOCK}{SYNCHRONISE}",
            "The ages and times that it shows are wrong by the difference. It may also take a "
            "valid certificate for expired, or an expired one for valid",
            "Nothing: Quire never sets a clock",
        )
        return
    first = next(iter(wrong))
    yield Problem(
        "warn",
        f"The clock of {first} is {_by(wrong[first])} the clock of this process"
        if len(wrong) == 1
        else f"The clocks of {counted(len(wrong), 'bookie')} differ from the clock of this "
        f"process: {named}",
        f"On the machine of {'each of ' if len(wrong) > 1 else ''}{some_of(wrong)}, "
        f"{SEE_CLOCK}{SYNCHRONISE}",
        "Stored entries are not affected. The times in its log and in its messages to the cluster "
        "are wrong, and it may take a valid certificate for expired, or an expired one for valid",
        "Nothing: Quire never sets a clock",
        tuple(wrong),
    )


def of_refusals(bookies: Sequence[Bookie]) -> Iterator[Problem]:
    """Yield the problem of bookies whose HTTP server needs a token that this process lacks."""
    names = [one["id"] for one in bookies if one["state"] != "gone" and one.get("report_refused")]
    if not names:
        return
    yield Problem(
        "note",
        f"The HTTP server of {names[0]} refuses this process, which has no token that it accepts"
        if len(names) == 1
        else f"The HTTP servers of {counted(len(names), 'bookie')} refuse this process, which has "
        f"no token that they accept: {some_of(names)}",
        "Give quire ui, quire http or quire explain the token of the bookies with "
        "--http-bookies-token-file FILE, and also --tls-ca if bookies are on other machines",
        "Their rates, single directories, damage, clocks and authorities of certificates are not "
        "known, so problems of these kinds are not reported",
        bookies=tuple(names),
    )


def _by(ahead_ms: int) -> str:
    """Return how far a clock is ahead or behind, in words."""
    return f"{duration_text(abs(ahead_ms) / 1000)} {'ahead of' if ahead_ms > 0 else 'behind'}"
