"""A walkthrough of repairs: copies are missing, and everybody is asked about them and repairs them.

The script takes copies of one ledger away, or stops bookies. So it knows which copies each report
must call missing, and what a repair must write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from quire.bookie.server import Bookie
from quire.client.write.writer import LedgerWriter
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.underreplication import SwitchedOff
from quire.core.append.quorum import write_set
from quire.core.replicas import Finding, Kind
from quire.errors import UsageError
from quire.replication.audit import pieces
from quire.replication.audit.audit import Audit
from quire.replication.explain import entry, explain, status
from quire.replication.marks.job_announcements import JobStatus, announced, running_jobs
from quire.replication.marks.locks import LockHeldError, ReplicationLocks
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.marks.pauses import CLUSTER, Pause, Pauses
from quire.replication.repair.repair_findings import repair_ledger
from quire_simulator.actors.walkthroughs.walk import Walk
from quire_simulator.metadata.store import MemoryStore
from quire_simulator.world.world import bookie_id

SHAPES = ((3, 3, 2), (3, 2, 2), (2, 2, 2), (2, 2, 1), (3, 3, 1))
ME = "operator-of-repairs"
AWAY_S = 2.0
HEAD_BYTES_MAX = 64
RESENDS = 3
"""The factor by which a repair may request more than the bytes that are missing."""


async def walk_repair(walk: Walk) -> None:
    """Take copies away, have them found, marked, explained and repaired."""
    one = _RepairWalk(walk)
    await one.switches()
    await one.jobs()
    await one.write()
    if len(one.metadata.segments) == 1:  # With knobs, connections break, and bookies are replaced.
        await one.explained({})
        await one.marks()
        await one.lost_copies()
        await one.lost_bookie()
    await one.end()


class _RepairWalk:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.client = walk.client
        store = walk.client.metadata
        assert isinstance(store, MemoryStore)
        self.store = store
        self.clock = walk.client.clock
        self.locks = ReplicationLocks(store, ME, self.clock)
        self.marked = ReplicationMarks(store)
        self.shape = walk.chance.choice(SHAPES)
        self.payloads: list[bytes] = []
        self.ledger_id = -1

    @property
    def metadata(self) -> LedgerMetadata:
        return self.walk.stage.world.cluster.ledger(self.ledger_id).value

    def entries_of(self, bookie: str) -> list[int]:
        """Return the entries that a member should have."""
        size, quorum, _ = self.shape
        at = self.metadata.segments[0].ensemble.index(bookie)
        return [n for n in range(len(self.payloads)) if at in write_set(n, size, quorum)]

    # -- the cluster's switches and jobs --------------------------------------------------------

    async def switches(self) -> None:
        """Switch autorecovery off and on, and change its delay."""
        same, marks = self.walk.same, self.marked
        await marks.prepare()
        same("whether autorecovery is enabled", await marks.enabled(), True)
        since_ms = self.clock.now_ms()
        same("a switch", await marks.disable(SwitchedOff(ME, since_ms)), True)
        same("a second switch", await marks.disable(SwitchedOff("x", 1)), False)
        found = await status.overview(self.store, clock=self.clock)
        same("autorecovery that is switched off", (found.enabled, found.switched_off),
             (False, SwitchedOff(ME, since_ms)))  # fmt: skip
        self.walk.true("the switch is not explained", "switched off" in found.unexamined)
        told = status.switched_off_text(found.switched_off)
        self.walk.true(f"who switched it off: {told}", told.startswith(f" by {ME} since 20"))
        same("a switch back", await marks.enable(), True)
        same("a second switch back", await marks.enable(), False)
        delay_s = self.walk.chance.randint(1, 99)
        await marks.set_delay(delay_s)
        found = await status.overview(self.store, clock=self.clock)
        same("the overview", (found.enabled, found.delay_s, found.auditor, found.auditor_age_s,
                              found.marked, found.locked, found.failing, found.marked_whole,
                              found.example, found.switched_off),
             (True, delay_s, None, None, 0, 0, 0, True, None, None))  # fmt: skip
        self.walk.true("no auditor is not explained", "no autorecovery process" in found.unexamined)
        await marks.set_delay(0)

    async def jobs(self) -> None:
        """Pause and resume jobs, and announce one."""
        same, pauses = self.walk.same, Pauses(self.store)
        kind = self.walk.chance.choice(["recover", "decommission", "rebalance"])
        target = CLUSTER if kind == "rebalance" else "bookie-9:3181"
        one = Pause(kind, target, ME, self.clock.now_ms())
        same("the pause of a job", await pauses.of(kind, target), None)
        same("a pause", await pauses.pause(one), True)
        same("a second pause", await pauses.pause(one), False)
        same("the pause of a job", await pauses.of(kind, target), one)
        same("all pauses", await pauses.all(), [one])
        same("a resumption", await pauses.resume(kind, target), True)
        same("a second resumption", await pauses.resume(kind, target), False)
        same("all pauses", await pauses.all(), [])
        wrong = Pause("rebalance", "bookie-9:3181", ME, 1)
        await self.walk.refused("a pause of a part", pauses.pause(wrong), UsageError, CLUSTER)
        await self.walk.refused("a pause of nothing", pauses.pause(Pause("x", "y", ME, 1)),
                                UsageError, "'x'")  # fmt: skip
        far = JobStatus("copies", 5, 2, 3_000_000, 1_500_000, paused=True)
        begin_ms = self.clock.now_ms()
        async with announced(self.store, kind, target, ME, self.clock.now_ms, lambda: far):
            await asyncio.sleep(0.5)
            (found,) = await running_jobs(self.store)
            same("a job", (found.kind, found.target, found.by, found.far), (kind, target, ME, far))
            self.walk.between("when a job began", found.started_ms, begin_ms, begin_ms + 100)
            told = found.sentence()
            wanted = f"{kind} {target}, by {ME}: copies, 2 of 5 ledgers, 1.5 of 3.0 MB, paused"
            same("the sentence about a job", told, wanted)
            same("the JSON of a job", found.as_json()["pausable"], True)
            far = JobStatus("ends", 5, 5)
            await asyncio.sleep(6.0)
            (found,) = await running_jobs(self.store)
            same("the progress of a job", found.far, far)
            self.walk.between("when a job said it", found.said_ms, begin_ms + 3_000,
                              self.clock.now_ms())  # fmt: skip
        same("jobs that have ended", await running_jobs(self.store), [])

    # -- the ledger ---------------------------------------------------------------------------

    async def write(self) -> None:
        size, quorum, ack = self.shape
        handle = await self.client.create_ledger(
            ensemble_size=size, write_quorum=quorum, ack_quorum=ack
        )
        self.ledger_id = handle.ledger_id
        for number in range(self.walk.chance.randint(size, 40)):
            payload = self.walk.stage.payload(handle.ledger_id, number)
            self.payloads.append(payload)
            await handle.append(payload)
        await asyncio.sleep(1.0)
        await handle.close()
        # From now on, this script knows better than the invariants what the bookies have.
        self.walk.stage.checker.facts(handle.ledger_id).deleted = True

    async def end(self) -> None:
        await self.client.delete_ledger(self.ledger_id)
        self.walk.same("the reason for a ledger that is gone",
                       await status.why_not(self.store, self.ledger_id, clock=self.clock),
                       None)  # fmt: skip

    # -- reports ------------------------------------------------------------------------------

    async def explained(
        self, lacks: Mapping[str, Sequence[int]], *, gone: str = "", mark: bool = False
    ) -> explain.Explained:
        """Compare the explanation of the ledger with the copies that bookies lack."""
        same, quorum = self.walk.same, self.shape[1]
        last = len(self.payloads) - 1
        deep = self.walk.chance.random() < 0.5
        found = await explain.explain_ledger(self.client, self.ledger_id, deep=deep)
        same("the explanation", (found.ledger, found.state, found.last_entry, found.quorums,
                                 found.auditor, found.enabled, found.deep, found.lock_owner,
                                 found.waiting, found.mark is not None),
             (self.ledger_id, "CLOSED", last, self.shape, None, True, deep, None, None,
              mark))  # fmt: skip
        (segment,) = found.segments
        same("the segment", (segment.first, segment.last, segment.closed), (0, last, True))
        registered = self.walk.stage.world.cluster.presences
        outside = set(registered) - set(self.metadata.segments[0].ensemble)
        same("spare bookies", found.spare, len(outside))
        for replica in segment.replicas:
            wanted, name = self.entries_of(replica.bookie), replica.bookie
            state = "present" if wanted else "empty"
            if lacks.get(name):
                state = "missing"
            if name == gone:
                state = "unreachable"
            told = replica.state if replica.state != "short" else "missing"
            same(f"the replica on {name}", (told, replica.entries, replica.registered),
                 (state, len(wanted), "gone" if name == gone else "writable"))  # fmt: skip
            bad = sorted(n for first, last, *_ in replica.bad for n in range(first, last + 1))
            if state == "missing":
                left = [n for n in (wanted[0], wanted[-1]) if n not in bad]
                same(f"missing entries of {name} that are not named", left, [])
            elif state == "present":
                same(f"what is bad on {name}", replica.bad, ())
        absent = {name: set(some) for name, some in lacks.items()}
        if gone:
            absent[gone] = set(self.entries_of(gone))
        copies = min(quorum - sum(n in some for some in absent.values()) for n in range(last + 1))
        same("the fewest copies", segment.copies_min, copies)
        sentence, command = found.verdict.sentence, found.verdict.command
        same(f"whether {sentence!r} says that all is well",
             sentence.startswith("Nothing is wrong") and not command,
             not absent and not mark)  # fmt: skip
        for name in absent:
            self.walk.true(f"{sentence!r} does not name {name}", name in sentence or not copies)
        await self._entry(absent, gone)
        return found

    async def _entry(self, absent: dict[str, set[int]], gone: str) -> None:
        """Compare what each bookie is said to have of one entry."""
        size, quorum, _ = self.shape
        number = self.walk.chance.randrange(len(self.payloads))
        before = self._asked()
        found = await entry.entry_copies(self.client, self.ledger_id, number)
        now = self._asked()
        ensemble = self.metadata.segments[0].ensemble
        members = [ensemble[at] for at in write_set(number, size, quorum)]
        same = self.walk.same
        same("the copies of an entry", (found.ledger_id, found.entry_id, found.write_quorum,
                                        [one.bookie for one in found.copies]),
             (self.ledger_id, number, quorum, members))  # fmt: skip
        # With knobs, connections break, and requests are repeated.
        for name in () if self.walk.stage.plan.knobs else sorted(before.keys() & now.keys()):
            reads, denied, sent = (after - at for at, after in zip(before[name], now[name]))
            here = name in members and number not in absent.get(name, ())
            same(f"reads of an entry from {name}", (reads, denied),
                 (int(name in members), int(name in members and not here)))  # fmt: skip
            # Before the payload are the head of the entry and its digest.
            size = len(self.payloads[number]) if here else 0
            self.walk.between(f"bytes of an entry from {name}", sent, size,
                              size + HEAD_BYTES_MAX if here else 0)  # fmt: skip
        for one in found.copies:
            state = "missing" if number in absent.get(one.bookie, ()) else "good"
            if one.bookie == gone:
                state = "unreachable"
            payload = self.payloads[number] if state == "good" else None
            same(f"the copy on {one.bookie}", (one.state, one.payload, bool(one.detail),
                                               one.registered),
                 (state, payload, state != "good",
                  "gone" if one.bookie == gone else "writable"))  # fmt: skip

    async def marks(self) -> None:
        """Mark the ledger, and ask why it is not repaired."""
        same, ledger_id = self.walk.same, self.ledger_id
        one, two = self.metadata.segments[0].ensemble[:2]
        same("a mark", await self.locks.mark(ledger_id, [one]), True)
        same("a second mark", await self.locks.mark(ledger_id, [one]), False)
        same("another replica", await self.locks.mark(ledger_id, [two]), True)
        at_ms = self.clock.now_ms()
        await asyncio.sleep(3.0)
        found = await status.why_not(self.store, ledger_id, clock=self.clock)
        assert found is not None
        same("a marked ledger", (found.ledger, sorted(found.replicas), found.lock_owner,
                                 found.lock_age_s, found.failure, found.enabled, found.unreadable,
                                 found.unattended),
             (ledger_id, sorted([one, two]), None, None, None, True, "", True))  # fmt: skip
        self.walk.between("the age of a mark", found.age_s or 0, 2.9, 4.0)
        self.walk.between("the time of a mark", found.marked_ms or 0, at_ms - 1_000, at_ms)
        self.walk.true("nobody is not named", "no autorecovery process" in found.sentence())
        explained = await self.explained({}, mark=True)
        named = explained.mark.replicas if explained.mark else ()
        same("the mark in an explanation", sorted(named), sorted([one, two]))
        overview = await status.overview(self.store, clock=self.clock)
        same("marked ledgers", (overview.marked, overview.failing, overview.locked,
                                overview.example and overview.example.ledger),
             (1, 0, 0, ledger_id))  # fmt: skip
        async with self.locks.hold(ledger_id) as lock:
            await asyncio.sleep(2.0)
            found = await status.why_not(self.store, ledger_id, clock=self.clock)
            assert found is not None
            same("who repairs a ledger", found.lock_owner, ME)
            self.walk.between("since when", found.lock_age_s or 0, 1.9, 3.0)
            self.walk.true("the owner is not named", ME in found.sentence())
            overview = await status.overview(self.store, clock=self.clock)
            same("ledgers in repair", (overview.marked, overview.locked), (1, 1))
            other = ReplicationLocks(self.store, "another", self.clock)
            await self.walk.refused("a second lock", _entered(other, ledger_id), LockHeldError,
                                    ledger_id, ME)  # fmt: skip
            same("the removal of a mark", await self.locks.replicated(lock), True)
        same("whether a ledger is marked", await self.locks.is_marked(ledger_id), False)
        same("who holds a ledger", await self.locks.held_by(ledger_id), None)

    # -- repairs ------------------------------------------------------------------------------

    async def _audit(self) -> list[Finding]:
        audit, client = Audit(), self.client
        for piece in audit.looking([self.ledger_id]):
            audit.saw(await pieces.look(client, piece))
        await audit.probe(client)
        for turn in audit.reading(None):
            for piece in turn:
                audit.has_read(await pieces.read(client, piece))
        for piece in audit.comparing(None):
            audit.has_compared(await pieces.compare_blocks(client, piece))
        return await audit.findings(client)

    async def lost_copies(self) -> None:
        """Take the copies of one or two bookies away, and repair them from findings of an audit."""
        world, same, quorum = self.walk.stage.world, self.walk.same, self.shape[1]
        ensemble = self.metadata.segments[0].ensemble
        count = self.walk.chance.randint(1, max(1, quorum - 1))
        losing = sorted(self.walk.chance.sample(list(ensemble), count))
        lacks = {name: self.entries_of(name) for name in losing}
        for name in losing:
            bookie, dropped = world.bookies[_node(name)], world.claims.dropped
            # No bookie drops a ledger that names it, except for this one.
            world.claims.dropped = lambda me, ledger_id: None
            await world.within(bookie, _drop(bookie, self.ledger_id))
            world.claims.dropped = dropped
        await self.explained(lacks)
        found = await self._audit()
        named = {name: _entries_in(found, name, self.entries_of(name)) for name in losing}
        same("what an audit calls missing", named, lacks)
        same("bookies with findings", sorted({one.bookie for one in found}), losing)
        kinds = {one.kind for one in found} - {Kind.MISSING, Kind.SHORT}
        same("other kinds of findings", kinds, set())
        before = {name: self._counters(name) for name in losing}
        reads = self._reads()
        done = await repair_ledger(self.client, self.locks, self.ledger_id, found)
        entries = sum(map(len, lacks.values()))
        size = sum(len(self.payloads[n]) for some in lacks.values() for n in some)
        same("a repair", (done.ledger, done.written_back, done.moved, done.entries,
                          done.size_bytes, done.left),
             (self.ledger_id, entries, 0, entries, size, []))  # fmt: skip
        for name, (adds, copies) in before.items():
            now = self._counters(name)
            same(f"entries that were added to {name}", now[0] - adds, len(lacks[name]))
            self.walk.between(f"copies to {name}", now[1] - copies, 0, len(lacks[name]))
        # Each entry is read from another bookie, and then from the one that it was written to.
        self.walk.between("reads of a repair", self._reads() - reads, 1,
                          RESENDS * (entries + 2 * len(lacks)) + 4 * len(ensemble))  # fmt: skip
        same("what an audit finds after the repair", await self._audit(), [])
        await self.explained({})

    async def lost_bookie(self) -> None:
        """Stop a bookie of the ensemble, and ask about it while it is away."""
        world, off = self.walk.stage.world, self.walk.chance.random() < 0.3
        handle = await self._another()
        ensemble = world.cluster.ledger(handle.ledger_id).value.segments[0].ensemble
        common = sorted(set(ensemble) & set(self.metadata.segments[0].ensemble))
        lost = self.walk.chance.choice(common or sorted(ensemble))
        if off:
            await self.marked.disable(SwitchedOff(ME, self.clock.now_ms()))
        await world.stop(_node(lost))
        await asyncio.sleep(0.1)
        for ledger_id in (self.ledger_id, handle.ledger_id):
            found = await explain.explain_ledger(self.client, ledger_id)
            if lost in world.cluster.presences or _node(lost) in world.bookies:
                break  # It is back already.
            if lost in world.cluster.ledger(ledger_id).value.segments[0].ensemble:
                self._silent(found, lost, off=off)
        if off:
            await self.marked.enable()
        while lost not in world.cluster.presences or not world.bookies[_node(lost)].recovered:
            await asyncio.sleep(AWAY_S)
        await asyncio.sleep(AWAY_S)
        await handle.close()

    async def _another(self) -> LedgerWriter:
        """Return the writer of a ledger that stays open."""
        size, quorum, ack = self.shape
        handle = await self.client.create_ledger(
            ensemble_size=size, write_quorum=quorum, ack_quorum=ack
        )
        for number in range(size):
            await handle.append(self.walk.stage.payload(handle.ledger_id, number))
        await asyncio.sleep(1.0)
        return handle

    def _silent(self, found: explain.Explained, lost: str, *, off: bool) -> None:
        """Compare the explanation of a ledger while one of its bookies is stopped."""
        same, true, world = self.walk.same, self.walk.true, self.walk.stage.world
        if len(found.segments) > 1:
            return  # The writer has replaced the bookie already.
        (segment,) = found.segments
        ensemble = world.cluster.ledger(found.ledger).value.segments[0].ensemble
        outside = set(world.cluster.presences) - set(ensemble)
        closed = found.ledger == self.ledger_id
        same("the state of a ledger", (found.state, segment.closed, found.enabled, found.spare),
             ("CLOSED" if closed else "OPEN", closed, not off, len(outside)))  # fmt: skip
        states = {one.bookie: (one.state, one.registered) for one in segment.replicas}
        same("the bookies of a segment", sorted(states), sorted(ensemble))
        same("the state of a lost bookie", states[lost], ("unreachable", "gone"))
        others = [states[one][0] in ("present", "empty") for one in ensemble if one != lost]
        same("the states of other bookies", all(others), True)
        same("the fewest copies", segment.copies_min, self.shape[1] - 1)
        if not segment.copies_min:
            return
        sentence, command = found.verdict.sentence, found.verdict.command
        true(f"{sentence!r} does not name {lost}", lost in sentence)
        true(f"{sentence!r} does not say that it is silent", "does not answer" in sentence)
        why = "switched off" if off else "no auditor"
        true(f"{sentence!r} does not say {why!r}", why in sentence)
        # A recovery needs an answer of enough bookies of every write set.
        few = not closed and self.shape[2] < 2
        true(f"{sentence!r} is wrong about a recovery", ("too few bookies" in sentence) == few)
        recovers = f"quire ledger recover {found.ledger}" in sentence
        true(f"{sentence!r} is wrong about a recovery", recovers == (not closed and (
            few or bool(outside))))  # fmt: skip
        if few:
            return
        true(f"{sentence!r} is wrong about {len(outside)} spare bookies",
             ("no bookie can replace" in sentence) == (not outside))  # fmt: skip
        typed = "quire autorecovery enable" if off else f"quire bookie recover {lost}"
        true(f"{command!r} is wrong", not outside or command == typed)

    def _counters(self, name: str) -> tuple[int, int]:
        counters = self.walk.stage.world.bookies[_node(name)].service.counters
        return counters.adds, counters.copies

    def _asked(self) -> dict[str, tuple[int, int, int]]:
        """Return the reads of each running bookie, those of absent entries, and the bytes."""
        return {
            bookie_id(name): (of.reads, of.reads_missing, of.read_bytes)
            for name, bookie in self.walk.stage.world.bookies.items()
            for of in (bookie.service.counters,)
        }

    def _reads(self) -> int:
        return sum(one.service.counters.reads for one in self.walk.stage.world.bookies.values())


async def _drop(bookie: Bookie, ledger_id: int) -> None:
    bookie.store.drop_ledgers([ledger_id])


async def _entered(locks: ReplicationLocks, ledger_id: int) -> None:
    async with locks.hold(ledger_id):
        pass


def _entries_in(found: Sequence[Finding], bookie: str, wanted: Sequence[int]) -> list[int]:
    """Return those of the wanted entries of a bookie that findings name."""
    mine = [one for one in found if one.bookie == bookie]
    return [n for n in wanted if any(one.first <= n <= one.last for one in mine)]


def _node(name: str) -> str:
    node = name.partition(":")[0]
    assert bookie_id(node) == name
    return node
