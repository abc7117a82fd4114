"""A simulated cluster in which tests damage segments, and check what is reported and repaired."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quire.codec.log.state_records import BLOCK_BYTES
from quire.errors import DamagedError
from quire.replication import ReplicationLocks
from quire.storage.segment.segment import segment_name
from quire_simulator.machine.clock import SimClock
from quire_simulator.world.world import BOOKIE_CONFIG, World
from tests.support.storage.storage import run
from tests.support.waiting import until

SCRUBBING = replace(
    BOOKIE_CONFIG,
    segment_bytes=256 * 1024,
    check_space_s=1.0,
    scrub_interval_s=20.0,
    scrub_bytes_per_s=64 * 1024,
    damage_report_interval_s=2.0,
)


LEDGERS = 3


ENTRIES = 1_500


def payload(ledger: int, entry_id: int) -> bytes:
    return b"%d/%d." % (ledger, entry_id) * (1 + (ledger + entry_id) % 40)


class Scene:
    def __init__(self, world: World, patience_s: float) -> None:
        self.world = world
        self.patience_s = patience_s
        self.client = world.client("client")
        self.locks = ReplicationLocks(self.client.metadata, "tester", SimClock(world.loop))
        self.ledgers: list[int] = []
        self.victim = ""

    async def write(self, count: int = LEDGERS, *, entries: int = ENTRIES) -> None:
        """Write and close `count` ledgers on three bookies, with their entries interleaved."""
        writers = [await self.client.create_ledger(password=b"pw") for _ in range(count)]
        for start in range(0, entries, 50):
            for writer in writers:
                ids = range(start, start + 50)
                await writer.append_many([payload(writer.ledger_id, n) for n in ids])
        for writer in writers:
            while writer._session.pipeline.unacked_bytes_max():
                await asyncio.sleep(0.001)
            await writer.close()
        self.ledgers += [writer.ledger_id for writer in writers]

    @property
    def store(self) -> Any:
        return self.world.bookies[self.victim].store

    def rot(self, chance: random.Random, pages: int = 3) -> tuple[int, list[int]]:
        """Flip a bit in `pages` random blocks, and in the last block, of a sealed segment.

        Returns the number of the segment and the numbers of the blocks.
        """
        sealed = [one.number for one in self.store.usage() if one.state == "sealed"]
        number = chance.choice(sealed)
        segment = self.store._catalogue.segments[number]
        blocks = range(segment.groups_at // BLOCK_BYTES, segment.end // BLOCK_BYTES)
        chosen = sorted({*chance.sample(blocks, pages), blocks[-1]})
        for block in chosen:
            offset = block * BLOCK_BYTES + chance.randrange(BLOCK_BYTES)
            self.world.disks[self.victim].flip_bit(segment_name(number), offset)
        return number, chosen

    def refuses(self, lacking: dict[int, list[tuple[int, int]]]) -> None:
        """Check that reads of damaged entries report damage, and never absence.

        `lacking` has the ranges (first entry, last entry) of damaged entries, by ledger.
        """
        for ledger_id, ranges in lacking.items():
            for first, last in ranges:
                for entry_id in (first, last):
                    with pytest.raises(DamagedError):
                        self.read(ledger_id, entry_id)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await until(condition, what, limit_s=self.patience_s, poll_s=0.5)

    async def unmarked(self) -> None:
        async with asyncio.timeout(self.patience_s):
            for ledger_id in self.ledgers:
                while await self.locks.marked(ledger_id) is not None:
                    await asyncio.sleep(0.5)

    def check(self) -> None:
        """Check that the victim's store returns every entry as it was written."""
        for ledger_id in self.ledgers:
            at = 0
            while at < ENTRIES:
                entries = self.read(ledger_id, at)
                for entry in entries:
                    assert bytes(entry).endswith(payload(ledger_id, at))
                    at += 1

    def read(self, ledger_id: int, first: int) -> list[Any]:
        return list(run(self.store.read_blocking(ledger_id, first, ENTRIES, 1 << 20)))
