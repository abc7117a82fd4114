"""Garbage collection, compared with a model of what can happen to a metadata store.

Ledgers are created and deleted, marks are raised, and passes are run. The bookie may die at any
step, also between the two writes of a mark. Backups are made and restored. A pass never drops a
live ledger if a mark was raised after its creation and the bookie remembers that mark.
"""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest

from quire._runtime.clock import SystemClock
from quire.bookie.background.collection_guard import CollectionGuard, Remembered, decode_mark
from quire.bookie.background.garbage import collect_garbage
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.errors import MetadataWentBackError
from quire.metadata.bookies.collection import accept
from tests.support.bookies.bookie import memory_metadata

ME = "127.0.0.1:3181"
STEPS = 120
METADATA = LedgerMetadata(1, 1, 1, (Segment(0, (ME,)),))


class Died(Exception):
    """The bookie died before it remembered its mark."""


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.metadata = memory_metadata()
        self.kept = b""
        self.held: set[int] = set()
        """Ledgers that the bookie holds."""
        self.ledgers: dict[int, Any] = {}
        """The states of their copies, which nothing changes during a pass here."""
        self.deleted: set[int] = set()
        self.proven: set[int] = set()
        """Ledgers that were there when the mark was raised that the bookie knows now."""
        self.proven_on_disk: set[int] = set()
        self.backups: list[Any] = []
        self.next_id = 0
        self.dies = False
        self.refused = self.dropped = 0
        self.guard = self.start()

    # -- what the bookie has ------------------------------------------------------------------

    def ledger_ids(self) -> list[int]:
        return sorted(self.held)

    def drop_ledgers(self, ids: list[int]) -> None:
        lost = set(ids) - self.deleted
        assert not lost & self.proven, f"dropped {lost & self.proven}, which nobody deleted"
        self.held -= set(ids)
        self.dropped += len(ids)

    def start(self) -> CollectionGuard:
        self.proven = set(self.proven_on_disk)
        return CollectionGuard(
            self.metadata,
            ME,
            Remembered(decode_mark(self.kept)) if self.kept else Remembered(),
            self._keep,
            enabled=True,
            clock=SystemClock(),
            random_bytes=self.chance.randbytes,
            log=lambda event, **fields: None,
        )

    async def _keep(self, data: bytes) -> None:
        self.proven |= self._there()
        if self.dies:
            raise Died
        self.kept, self.proven_on_disk = data, set(self.proven)

    def _there(self) -> set[int]:
        return set(self.metadata.cluster.ledgers)

    # -- what happens -------------------------------------------------------------------------

    async def create(self) -> None:
        self.next_id += 1
        await self.metadata.create_ledger(METADATA, self.next_id)
        self.held.add(self.next_id)

    async def delete(self) -> None:
        there = sorted(self._there())
        if there:
            ledger_id = self.chance.choice(there)
            await self.metadata.delete_ledger(ledger_id)
            self.deleted.add(ledger_id)

    async def raise_mark(self) -> None:
        self.dies = self.chance.random() < 0.2
        try:
            await self.guard.raise_mark()
        except MetadataWentBackError:
            self.refused += 1
        except Died:
            self.guard = self.start()

    async def collect(self) -> None:
        instance: str = await self.metadata.instance_id()
        store: Any = self
        try:
            await collect_garbage(
                store, self.metadata, instance, lambda event, **fields: None, self.guard
            )
        except MetadataWentBackError:
            self.refused += 1

    async def restart(self) -> None:
        self.guard = self.start()

    async def backup(self) -> None:
        cluster = self.metadata.cluster
        self.backups.append(deepcopy((cluster.ledgers, cluster.ledger_ids, cluster.tree._nodes)))

    async def restore(self) -> None:
        if self.backups:
            cluster = self.metadata.cluster
            found = deepcopy(self.chance.choice(self.backups))
            cluster.ledgers, cluster.ledger_ids, cluster.tree._nodes = found

    async def accept(self) -> None:
        """An operator gives up what the store does not name."""
        if await accept(self.metadata, ME):
            gone = self.held - self._there()
            self.deleted |= gone


@pytest.mark.parametrize("seeds", range(10))
async def test_no_ledger_is_collected_that_a_mark_proves(seeds: int) -> None:
    refused = dropped = 0
    for seed in range(20 * seeds, 20 * seeds + 20):
        world = World(seed)
        await world.metadata.initialise()
        steps = (
            *[world.create] * 6, *[world.delete] * 2, *[world.raise_mark] * 6,
            *[world.collect] * 4, world.restart, world.backup, world.restore, world.accept,
        )  # fmt: skip
        for _ in range(STEPS):
            await world.chance.choice(steps)()
        refused, dropped = refused + world.refused, dropped + world.dropped
        await world.metadata.close()
    assert refused > 20  # the restores were noticed
    assert dropped > 20  # Garbage is collected nevertheless.
