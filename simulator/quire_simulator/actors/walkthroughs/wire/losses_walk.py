"""A walkthrough of a bookie whose disk fails, or which has lost a part of its log.

Such a bookie says that it cannot do something, and denies nothing that may have been there.
"""

from __future__ import annotations

import asyncio

from quire.storage.read.read_exceptions import NoEntry
from quire.storage.segment.segment import LOG_DIRECTORY, segment_name
from quire_simulator.actors.walkthroughs.walk import Walk
from quire_simulator.actors.walkthroughs.wire.known_bookie import KnownBookie
from quire_simulator.actors.walkthroughs.wire.requests_walk import (
    DURABLE_S,
    NEAR_S,
    RequestsWalk,
)
from quire_simulator.faults.log_files import begun_segments

BURSTS = 6


async def walk_losses(walk: Walk) -> None:
    """Let the disk of a bookie fail, and then lose a part of its log."""
    await _LossesWalk(walk).run()


class _LossesWalk(RequestsWalk):
    async def run(self) -> None:
        await self.box.start()
        await self._reconnect()
        for _ in range(BURSTS):
            await self._burst()
        if self.chance.random() < 0.5:
            await self._fail()
        await self._lose()
        for _ in range(BURSTS):
            await self._burst()
        await self._settle(1_000.0)
        await self._check_all()
        await self._stop()

    async def _fail(self) -> None:
        """Let a sync of the disk fail under an add, and use the bookie after that."""
        await self._settle(1_000.0)
        await asyncio.sleep(DURABLE_S)
        known, requests = self.known, self.requests
        client = self.clients[0]
        ledger_id = requests.fresh_id()
        self.box.disk.fail_sync_once()
        requests.begin(client.now_s)
        drawn = requests.failing(client, ledger_id)
        known.open += drawn.expected
        self._record(client, "an add whose sync fails")
        await self._exchange([(client, [drawn])])
        await asyncio.sleep(DURABLE_S)
        known.failed = self.box.bookie.store.failed is not None
        if known.failed:
            self.walk.same("status after a failed sync", self.box.bookie.status, -1)
            self.walk.true("the bookie goes on after a failed sync", self.box.bookie.failed.done())
            await self._reconnect()
            for _ in range(BURSTS // 2):
                await self._burst()
        await self._settle(NEAR_S)
        self._forget_polls()
        self.walk.stage.history.add(self.walk.name, "kills")
        self.box.kill()
        known.failed = False
        self._begin_life()
        await self.box.start()
        # What was being added may be there or not.
        found = self.box.bookie.store.ledgers
        if ledger_id not in found:
            known.ledgers.pop(ledger_id, None)
        elif found[ledger_id].last_entry_id < 0:
            known.ledgers[ledger_id].entries.clear()
        await self._begun()

    async def _lose(self) -> None:
        """Delete a segment of the stopped bookie, so that it does not know what it had."""
        await self._settle(1_000.0)
        await self._burst()
        await self._settle(1_000.0)
        await self.box.inside(self._reported())
        await self._stop()
        begun = begun_segments(self.box.disk)
        if not begun:
            await self._start_again()
            return
        gone = self.chance.choice(begun)
        self.walk.stage.history.add(self.walk.name, "loses", note=f"segment {gone}")
        self.box.disk.remove(segment_name(gone))
        self.box.disk.sync_directory(LOG_DIRECTORY)
        await self._start_again()
        self.walk.same(
            "whether denials are possible after a loss",
            self.box.values()["quire_storage_negatives_unknown"], 1,
        )  # fmt: skip
        self.known.limbo = self.known.readonly = True

    async def _reported(self) -> None:
        """Let the bookie report how far its log goes."""
        rollbacks = self.box.bookie.rollbacks
        assert rollbacks is not None
        await rollbacks.report()

    async def _start_again(self) -> None:
        self._begin_life()
        await self.box.start()
        await self.box.inside(self._adopt(self.known))
        await self._begun()

    async def _adopt(self, known: KnownBookie) -> None:
        """Forget what the bookie has lost. It must not have anything else."""
        store = self.box.bookie.store
        extra = sorted(set(store.ledgers) - set(known.ledgers))
        self.walk.same("ledgers that appear after a loss", extra, [])
        for ledger_id, ledger in list(known.ledgers.items()):
            info = store.ledgers.get(ledger_id)
            if info is None:
                del known.ledgers[ledger_id]
                continue
            self.walk.true(
                f"ledger {ledger_id} has another key", info.master_key in (ledger.key, b"")
            )
            self.walk.true(f"ledger {ledger_id} is fenced", ledger.fenced or not info.fenced)
            ledger.key, ledger.fenced = info.master_key, info.fenced
            ledger.explicit = info.explicit_lac
            ranges = await store.entry_ranges(ledger_id)
            ledger.entries = {}
            for entry in (one for low, high in ranges for one in range(low, high + 1)):
                try:
                    (body,) = await store.read_blocking(ledger_id, entry, 1, 0)
                except NoEntry:
                    continue
                # An entry that was added twice may be there as it was added first.
                known_before = bytes(body) in ledger.former.get(entry, ())
                self.walk.true(f"entry {ledger_id}:{entry} was never added", known_before)
                ledger.entries[entry] = bytes(body)
