"""Ledgers on a simulated bookie that a job is to decommission or recover."""

from __future__ import annotations

from quire.client import Client
from tests.support.sim.replication import (
    PLAIN,
    write,
)


async def names(client: Client, bookie: str) -> list[int]:
    """Return the ids of the ledgers whose metadata names the bookie."""
    found = []
    async for ledger_id in client.list_ledgers():
        metadata = await client.ledger_metadata(ledger_id)
        if any(bookie in segment.ensemble for segment in metadata.segments):
            found.append(ledger_id)
    return found


async def filled(client: Client, bookie: str, quorums: tuple[int, int, int] = PLAIN) -> list[int]:
    """Create closed ledgers until three of them are on this bookie, and return the ids of all."""
    ids: list[int] = []
    while len(await names(client, bookie)) < 3:
        ids.append((await write(client, 60 + len(ids), quorums)).ledger_id)
    return ids
