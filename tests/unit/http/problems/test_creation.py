"""The problem that new ledgers cannot be created."""

from __future__ import annotations

from typing import Any

from quire.http.views.creatable import Creatable
from quire.http.views.problems.cluster import problems
from quire.http.views.problems.problem import Problem
from tests.support.http.problems import WELL, bookie


def test_ledgers_of_the_default_shape_that_cannot_be_created() -> None:
    bookies = [bookie("a"), bookie("b"), bookie("c", "read-only")]
    why = "3 bookies are wanted; 2 are writable: a, b"

    def shaped(creatable: Creatable, there: list[dict[str, Any]] = bookies[:2]) -> list[Problem]:
        return problems(there, WELL, creatable=creatable)

    assert shaped(Creatable(True)) == []
    (found,) = shaped(Creatable(False, why, (2, 2, 2)))
    assert found.severity == "bad"
    assert found.what == (
        "No ledger with the default ensemble can be created (ensemble 3, write quorum 3, ack "
        f"quorum 2): {why}"
    )
    assert found.next.endswith("quire ledger write --ensemble 2 --write-quorum 2 --ack-quorum 2")
    (found,) = shaped(Creatable(False, why))
    assert "quire ledger write" not in found.next
    nobody = shaped(Creatable(False, why), [bookie("c", "gone")])
    assert not any("default ensemble" in one.what for one in nobody), "nothing can be written"
