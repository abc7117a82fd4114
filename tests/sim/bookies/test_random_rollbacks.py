"""Older copies of a data directory are restored at random after clean and unclean stops.

The metadata is sometimes restored as well. No acknowledged entry may be denied or lost.

Each seed plays several rounds on one cluster of three bookies. In a round, clients write to ledgers
with three copies and an ack quorum of two, and one bookie hangs for some of the time. Meanwhile
copies of the victim's directory are made. Then the victim stops, its directory is replaced by one
of the copies, and the third bookie is down while every ledger is recovered. At the end of the round
autorecovery repairs everything.

A restore is *telling* where `docs/explanation/storage.md` says that it is noticed: the bookie was
started since the copy was made, or its log grew and had time to report it. Others are counted, with
the entries that they denied. `QUIRE_ROLLBACKS` is the number of restores.
"""

from __future__ import annotations

import asyncio
import os
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from quire.bookie.directories.rollback import LOOK_S
from quire.client.write.writer import LedgerWriter
from quire.codec.wire.v2 import Code
from quire.errors import QuireError
from quire.metadata.bookies.collection import accept, refusals
from quire.storage.recovery.incarnation import ExpectedLog
from quire_simulator.machine.disk import SimDisk
from quire_simulator.world.world import World
from tests.support.sim.rollback import CONFIG, answer_of, healed, payload, recovered_end

ROLLBACKS = int(os.environ.get("QUIRE_ROLLBACKS", "20"))
ROUNDS = 4
"""Restores of one seed."""
PATIENT = replace(CONFIG, gc_interval_s=86_400.0, gc_over_replicated_interval_s=0.0)
"""Nothing is collected meanwhile, as the guide to restoring older metadata requires."""
REPORTED_S = PATIENT.log_position_interval_s + LOOK_S + 0.5
"""Seconds after which the store knows what was written."""


@dataclass
class Ledger:
    writer: LedgerWriter
    client: str
    born_s: float
    acknowledged: int = -1
    closed: bool = False


@dataclass
class Copy:
    """A copy of the victim's directory."""

    disk: SimDisk
    made_s: float
    starts: int
    """The number of starts of the victim."""
    how: str


@dataclass
class Backup:
    """The metadata of the whole cluster."""

    state: Any
    made_s: float
    starts: int


@dataclass
class Tally:
    restores: int = 0
    telling: int = 0
    detected: int = 0
    detected_with_metadata: int = 0
    with_metadata: int = 0
    lacking: int = 0
    """Acknowledged entries that the restored copies lacked."""
    quiet: int = 0
    """Restores that cannot be noticed and that lacked acknowledged entries."""
    quiet_with_metadata: int = 0
    """Those of them with metadata that was restored as well."""
    denied_quietly: int = 0
    """Entries that these denied."""
    lost_quietly: int = 0
    """Entries that ledgers lost by that."""
    needless: int = 0
    """Restores of copies that lacked nothing and counted as lost."""
    kinds: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"{self.restores} restores ({self.with_metadata} with metadata, {self.kinds}): "
            f"{self.telling} telling, {self.detected} detected "
            f"({self.detected_with_metadata} with metadata; {self.needless} lacked nothing);"
            f" {self.lacking} acknowledged entries lacked; unnoticed, as "
            f"documented: {self.quiet} restores ({self.quiet_with_metadata} with metadata), "
            f"{self.denied_quietly} entries denied, {self.lost_quietly} lost"
        )


class Cluster:
    def __init__(self, world: World, tally: Tally) -> None:
        self.world = world
        self.tally = tally
        self.chance = world.loop.derive("rollbacks")
        self.ledgers: list[Ledger] = []
        self.victim = self.hung = self.down = ""
        self.copies: list[Copy] = []
        self.backups: list[Backup] = []
        self.grew_s: list[float] = []
        """The times when the victim had stored acknowledged entries."""
        self.started_s: list[float] = []
        """The times when the victim was started."""
        self.round = self.clients = 0

    @property
    def now_s(self) -> float:
        return self.world.loop.time()

    async def start(self, name: str) -> None:
        await self.world.start(name, PATIENT)
        if name == self.victim:
            self.started_s.append(self.now_s)

    # -- a round --------------------------------------------------------------------------------

    async def play(self) -> None:
        for name in self.world.disks:
            await self.start(name)
        for self.round in range(ROUNDS):
            names = list(self.world.disks)
            self.chance.shuffle(names)
            self.victim, self.hung, self.down = names
            self.copies, self.backups, self.grew_s, self.started_s = [], [], [], []
            await self.work()
            await self.roll_back()
        for bookie in list(self.world.bookies.values()):
            await bookie.stop()

    async def work(self) -> None:
        for _ in range(self.chance.randrange(1, 3)):
            await self.create()
        steps = self.chance.randrange(4, 12)
        for step in range(steps):
            if step == 1 or self.chance.random() < 0.3:
                await self.copy()
            if step == 1 or self.chance.random() < 0.2:
                state = self.world.cluster
                kept = (state.ledgers, state.ledger_ids, state.cookies, state.values, state.tree)
                self.backups.append(Backup(deepcopy(kept), self.now_s, len(self.started_s)))
            if step == steps // 2:
                for ledger in self.mine():
                    self.world.network.partition(ledger.client, self.hung)
            for ledger in self.mine():
                await self.append(ledger, self.chance.choice((1, 3, 20, 120)))
            await asyncio.sleep(self.chance.choice((0.05, 0.5, 3.0, 20.0)))

    def mine(self) -> list[Ledger]:
        """The ledgers that are being written."""
        return [one for one in self.ledgers if not one.closed]

    async def create(self) -> None:
        name, self.clients = f"writer-{self.clients}", self.clients + 1
        client = self.world.client(name)
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        self.ledgers.append(Ledger(writer, name, self.now_s))

    async def append(self, ledger: Ledger, count: int) -> None:
        first = ledger.acknowledged + 1
        await ledger.writer.append_many([payload(n) for n in range(first, first + count)])
        ledger.acknowledged = ledger.writer.last_add_confirmed
        self.grew_s.append(self.now_s + 0.1)

    async def copy(self) -> None:
        """Copy the directory, like a backup of a running, cleanly stopped or dead bookie."""
        how = self.chance.choice(("live", "clean", "unclean"))
        disk = self.world.disks[self.victim]
        if how == "live":
            copy = disk.copy()
            copy.crash()
        else:
            if how == "clean":
                await self.world.stop(self.victim)
            else:
                self.world.crash(self.victim)
            copy = disk.copy()
        self.copies.append(Copy(copy, self.now_s, len(self.started_s), how))
        if how != "live":
            await self.start(self.victim)

    async def roll_back(self) -> None:
        world, tally = self.world, self.tally
        for ledger in self.mine():
            world.network.kill(ledger.client)
            ledger.closed = True
        last = self.chance.choice(("clean", "unclean"))
        if last == "clean":
            await world.stop(self.victim)
        else:
            world.crash(self.victim)
        copy = self.chance.choice(self.copies)
        backup = self.chance.choice(self.backups) if self.chance.random() < 0.3 else None
        known_s = self.now_s if last == "clean" else self.now_s - REPORTED_S
        starts = len(self.started_s)
        world.kill(self.hung)  # Including the requests that waited on its connections.
        world.kill(self.down)
        world.network.heal()
        if backup is not None:
            tally.with_metadata += 1
            known_s, starts = backup.made_s - REPORTED_S, backup.starts
            self.restore(backup)
        telling = copy.starts < starts or any(copy.made_s < one < known_s for one in self.grew_s)
        world.disks[self.victim] = copy.disk
        await self.start(self.hung)
        await self.start(self.victim)
        rollbacks = world.bookies[self.victim].rollbacks
        assert rollbacks is not None
        tally.restores += 1
        kind = f"{copy.how} copy, {last} end"
        tally.kinds[kind] = tally.kinds.get(kind, 0) + 1
        tally.telling += telling
        tally.detected += rollbacks.found
        tally.detected_with_metadata += rollbacks.found if backup is not None else 0
        assert rollbacks.found or not telling, "an older copy was taken for the directory"
        await self.judge(noticed=bool(rollbacks.found), with_metadata=backup is not None)

    def restore(self, backup: Backup) -> None:
        state = self.world.cluster
        kept = deepcopy(backup.state)
        state.ledgers, state.ledger_ids, state.cookies, state.values, state.tree = kept
        self.ledgers = [one for one in self.ledgers if one.born_s < backup.made_s]

    async def accept_the_store(self) -> None:
        """An operator accepts that the metadata went back, as often as a bookie finds that out:
        until then no bookie believes it whether everything was brought back."""
        client = self.world.client(f"operator-{self.round}")
        try:
            while True:
                for name in await refusals(client.metadata):
                    await accept(client.metadata, name)
                await asyncio.sleep(LOOK_S)
        finally:
            await client.close()

    # -- what must hold -------------------------------------------------------------------------

    async def judge(self, *, noticed: bool, with_metadata: bool) -> None:
        lacking, denied = await self.answers()
        self.tally.lacking += lacking
        self.tally.needless += noticed and not lacking
        if not noticed:
            self.tally.quiet += bool(denied)
            self.tally.quiet_with_metadata += bool(denied) and with_metadata
            self.tally.denied_quietly += denied
        else:
            assert not denied, f"{denied} acknowledged entries are denied"
        ends = [await self.recover(one, "hasty") for one in self.ledgers]
        await self.start(self.down)
        for ledger, before in zip(self.ledgers, ends, strict=True):
            end = await self.recover(ledger, "patient")
            assert end is not None
            for one in (end, end if before is None else before):
                if one < ledger.acknowledged:
                    assert not noticed, f"{one} is the last entry, {ledger.acknowledged} was"
                    self.tally.lost_quietly += ledger.acknowledged - one
                    ledger.acknowledged = one
        if noticed:
            operator = asyncio.ensure_future(self.accept_the_store())
            await healed(self.world, self.victim)
            operator.cancel()
            await asyncio.wait([operator])
        else:
            self.ledgers = [one for one in self.ledgers if not denied]
        for name in self.world.bookies:
            assert not self.world.bookies[name].store.negatives_unknown, name
        for ledger in self.ledgers:
            await self.check_readable(ledger)
        if noticed:
            lacking, denied = await self.answers()
            assert (lacking, denied) == (0, 0), "the bookie lacks entries"

    async def answers(self) -> tuple[int, int]:
        """Return how many acknowledged entries the victim lacks, and how many it denies."""
        lacking = denied = 0
        for ledger in self.ledgers:
            for entry_id in range(ledger.acknowledged + 1):
                code = await answer_of(self.world, self.victim, ledger.writer.ledger_id, entry_id)
                lacking += code != Code.OK
                denied += code in (Code.NO_ENTRY, Code.NO_LEDGER)
        return lacking, denied

    async def recover(self, ledger: Ledger, who: str) -> int | None:
        name = f"{who}-{self.round}-{ledger.writer.ledger_id}"
        return await recovered_end(self.world, ledger.writer.ledger_id, name)

    async def check_readable(self, ledger: Ledger) -> None:
        client = self.world.client("reader")
        try:
            reader = await client.open_ledger(ledger.writer.ledger_id)
            found = [one async for one in reader.read(0, ledger.acknowledged)]
        except QuireError as error:
            pytest.fail(f"ledger {ledger.writer.ledger_id} cannot be read: {error}")
        finally:
            await client.close()
        assert [bytes(one.payload) for one in found] == [payload(n) for n in range(len(found))]
        assert len(found) == ledger.acknowledged + 1


def play(seed: int, tally: Tally) -> None:
    world = World.make(seed, 3)
    world.loop.run(Cluster(world, tally).play())


@pytest.mark.long
def test_no_acknowledged_entry_is_denied_or_lost() -> None:
    tally = Tally()
    for seed in range(-(-ROLLBACKS // ROUNDS)):
        try:
            play(seed, tally)
        except BaseException:
            print(f"seed {seed}: {tally}")
            raise
    print(tally)
    assert tally.detected >= tally.telling > 0
    assert tally.lacking > 0


def test_without_marks_entries_are_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExpectedLog, "held_against", lambda expected, found: "")
    with pytest.raises(AssertionError, match="an older copy was taken for the directory"):
        play(0, Tally())
