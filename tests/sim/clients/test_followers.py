"""Followers of one ledger in one client that come, delay, are cancelled and are closed.

Bookies drop connections, metadata changes arrive late, and the ledger is recovered. No follower
waits forever, and each gets every entry once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from quire.client import Client, LedgerReader
from quire.client.read import follow
from quire.client.read.follow import Feeds
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState
from quire.errors import BookieUnavailableError, UsageError
from quire.metadata.interface import Versioned, Watch
from quire.metadata.ledgers.update import update_ledger
from quire.net.channel import BookieChannel
from quire.net.control import ControlChannel, LacAnswer, PollAnswer
from tests.support.bookies.fake_bookies import (
    CONFIG,
    LEDGER,
    PASSWORD,
    FakeBookie,
    FakeCluster,
    FakeLink,
    FakePool,
    no_entry,
    simulated,
)
from tests.support.long import long_after

RUNS = 40
ENTRIES = 60
FOLLOWERS = 12


class Polled(ControlChannel):
    """A poll of a bookie whose LAC is what its entries and its packet prove."""

    def __init__(self, bookie: FakeBookie, told: Told) -> None:
        super().__init__(bookie.name)
        self.bookie = bookie
        self.told = told

    @property
    def usable(self) -> bool:
        return not self.bookie.down

    async def probe(self) -> None:
        self.check()
        self.received_bytes += 1

    def check(self) -> None:
        if self.bookie.down:
            raise BookieUnavailableError(f"connection to bookie {self.bookie.name} lost")

    async def read_lac(self, ledger_id: int) -> LacAnswer:
        await asyncio.sleep(0.001)
        self.check()
        if not self.bookie.entries:
            raise no_entry(self.bookie.name, -1)
        packet = self.told.packet
        return LacAnswer(packet, self.bookie.entries[max(self.bookie.entries)])

    async def long_poll(
        self, ledger_id: int, previous_lac: int, timeout_ms: int, *, last_entry: bool = False
    ) -> PollAnswer:
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while True:
            await asyncio.sleep(0.002)
            self.check()
            entries = self.bookie.entries
            if not entries and last_entry:
                raise no_entry(self.bookie.name, -1)
            lac = max(max(entries, default=0) - 1, self.told.lac if entries else -1)
            if lac > previous_lac or asyncio.get_running_loop().time() >= deadline:
                wanted = max(entries, default=-1) if last_entry else previous_lac + 1
                return PollAnswer(lac, entries.get(wanted, b""))


class Told:
    """The explicit LAC."""

    lac = -1
    packet = b""


class Pool(FakePool):
    told: Told

    async def _connect(self, bookie_id: str, make: Callable[[str], Any]) -> Any:
        bookie = self.fakes[bookie_id]
        await asyncio.sleep(0.001)
        if bookie.down:
            raise BookieUnavailableError(f"bookie {bookie_id} is down")
        return FakeLink(bookie) if make is BookieChannel else Polled(bookie, self.told)


def late(client: Client, chance: random.Random) -> None:
    """Deliver changes of the metadata late, but in order."""
    watch, loop = client.metadata.watch_ledger, asyncio.get_running_loop()

    def watch_late(
        ledger_id: int, changed: Callable[[Versioned[LedgerMetadata] | None], None]
    ) -> Watch:
        delay_s = chance.choice([0, 0.01, 0.5])
        return watch(ledger_id, lambda now: loop.call_later(delay_s, changed, now) and None)

    client.metadata.watch_ledger = watch_late  # type: ignore[method-assign]


class Story:
    def __init__(self, cluster: FakeCluster, client: Client, chance: random.Random) -> None:
        self.cluster = cluster
        self.client = client
        self.chance = chance
        self.told = Told()
        self.ended = 0

    async def write(self) -> None:
        chance, codec = self.chance, self.cluster.codec
        for entry in range(ENTRIES):
            for bookie in self.cluster.bookies.values():
                if not bookie.down:
                    bookie.entries[entry] = self.cluster.entry(entry)
            if chance.random() < 0.3:
                self.told.lac, self.told.packet = entry, codec.pack_lac(entry)
            if chance.random() < 0.5:
                await asyncio.sleep(chance.choice([0, 0.001, 0.02, 0.3]))
        await asyncio.sleep(chance.choice([0, 0.5]))
        if chance.random() < 0.5:
            await self.change(lambda now: now.with_state(LedgerState.IN_RECOVERY))
            await asyncio.sleep(chance.choice([0, 0.02, 1.0]))
        length = self.cluster.length(ENTRIES - 1)
        await self.change(lambda now: now.with_close(ENTRIES - 1, length))

    async def change(self, how: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
        store = self.cluster.store
        await update_ledger(store, LEDGER, await store.read_ledger(LEDGER), how)

    async def break_off(self) -> None:
        """One bookie at a time, which comes back with entries missing."""
        for _ in range(10):
            await asyncio.sleep(self.chance.random() * 0.2)
            bookie = self.cluster[self.chance.choice(sorted(self.cluster.bookies))]
            bookie.die()
            await asyncio.sleep(self.chance.random() * 0.2)
            bookie.down = False

    async def one(self) -> None:
        chance = self.chance
        await asyncio.sleep(chance.random() * 2)
        reader = await self.client.open_ledger(LEDGER, password=PASSWORD)
        work = asyncio.ensure_future(self.follow(reader))
        fate = chance.choice(["stays", "stays", "cancelled", "closed"])
        if fate != "stays":
            await asyncio.wait((work,), timeout=chance.random())
            work.cancel() if fate == "cancelled" else reader.close()
        await asyncio.wait((work,))
        if work.cancelled():
            return
        if fate == "closed" and isinstance(work.exception(), UsageError):
            return
        work.result()
        self.ended += 1

    async def follow(self, reader: LedgerReader) -> None:
        chance = self.chance
        first = chance.randrange(min(reader.last_add_confirmed + 8, ENTRIES))
        if chance.random() < 0.2:
            await reader.wait_confirmed(first)
            return
        upcoming, slow = first, chance.choice([0, 0, 0.01])
        async with aclosing(reader.tail(first)) as tail:
            async for entry in tail:
                assert entry.entry_id == upcoming
                upcoming += 1
                if slow:
                    await asyncio.sleep(chance.random() * slow)
                if chance.random() < 0.02:
                    await reader.refresh()
        assert upcoming == ENTRIES


@pytest.mark.parametrize("seed", long_after(10, range(RUNS)))
def test_no_follower_waits_forever(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(follow, "KEPT_RUNS_MAX", chance.choice([2, 8, 1_024]))

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2))
        async with cluster.client(CONFIG) as client:
            story = Story(cluster, client, chance)
            client._pool.__class__ = Pool
            client._pool.told = story.told  # type: ignore[attr-defined]
            client._feeds = Feeds(client._pool, client.config)
            late(client, chance)
            async with asyncio.TaskGroup() as group:
                for work in (story.write, story.break_off, *[story.one] * FOLLOWERS):
                    group.create_task(work())
            assert story.ended
            assert len(client._feeds) == 0

    simulated(main)
