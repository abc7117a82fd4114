"""Ledger metadata with chosen ensembles and quorums, for the pure rules about replicas."""

from __future__ import annotations

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment

BOOKIES = ("a:1", "b:1", "c:1", "d:1")


def ledger(
    quorums: tuple[int, int, int] = (3, 3, 2),
    firsts: tuple[int, ...] = (0,),
    last: int = 99,
    state: LedgerState = LedgerState.CLOSED,
) -> LedgerMetadata:
    size, write, ack = quorums
    return LedgerMetadata(
        size, write, ack,
        tuple(Segment(first, BOOKIES[:size]) for first in firsts),
        state=state,
        last_entry_id=last if state is LedgerState.CLOSED else -1,
    )  # fmt: skip
