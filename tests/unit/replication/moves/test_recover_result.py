"""The result of a job that copies the ledgers of a bookie, as text for programs."""

from __future__ import annotations

from quire.replication.moves.recover import LedgerMove, RecoverResult, RemainingLedger


def test_unreadable_ledgers_are_counted_once_among_the_remaining_ones() -> None:
    result = RecoverResult(
        "b", False, (LedgerMove(7, 1, 10, 1_000, False),), ledgers=1, fragments=1, entries=10,
        bytes=1_000, open=(8, 9, 10), failed=(RemainingLedger(11, "why"),),
        unreadable=(RemainingLedger(12, "damaged"), RemainingLedger(13, "damaged")),
        unreadable_count=3,
    )  # fmt: skip
    described = result.as_json(2)
    assert set(described) == {
        "bookie", "dry_run", "moves", "ledgers", "fragments", "entries", "bytes", "recovered",
        "fenced", "open", "locked", "failed", "unreadable", "to_move", "left", "complete",
    }  # fmt: skip
    assert described["left"] == {"open": 3, "locked": 0, "failed": 1, "unreadable": 3}
    assert described["to_move"] == {"ledgers": 1, "entries": 10, "bytes": 1_000}
    assert described["open"] == (8, 9)
    assert not described["complete"]
