"""Follow a run and report the first invariant that does not hold.

The invariants of one ledger (`ledger`) are checked after every history record, every change of the
metadata, and every `SAMPLE_S`. Those of a bookie are checked after it starts, and those of the
whole cluster when the faults have ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar

from quire.bookie.server import Bookie
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.wire.v2 import Buffer
from quire.errors import NoSuchLedgerError, StorageError
from quire.storage.read.read_exceptions import NoEntry, NoLedger
from quire_simulator.invariants.history import PAYLOAD_MAX_BYTES, HistoryRecord, RunHistory, payload
from quire_simulator.invariants.ledger import (
    LEDGER_INVARIANTS,
    Facts,
    bookies_of,
    lacking,
    members_of,
)
from quire_simulator.machine.loop import SimTask
from quire_simulator.machine.transport import MAX_READ_BYTES
from quire_simulator.world.world import World, bookie_id

SAMPLE_S = 0.25
READ_BYTES = 1 << 20
STORE_CALLS_MAX = 3_000
"""The largest number of calls of the metadata store by one client or bookie within a second, apart
from rolls.

The busiest ones read every ledger, of which there are a few dozen.
"""
CALLS_PER_ROLL = 20
"""The number of additional calls for each segment of a stream that its writer completes.

A roll creates, reads and closes ledgers, writes the nodes of the segments, and may delete some.
"""
LISTINGS_PER_ROLL = 2
"""The number of times that a writer reads every segment of its stream when it rolls."""
EXAMINING: ContextVar[bool] = ContextVar("EXAMINING", default=False)
"""Whether the current task only checks what a bookie has. Its reads are not those of clients."""
IN_FLIGHT_S = 5.0
"""Seconds after which a living bookie has received everything that an abandoned client had sent."""


class InvariantError(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what


class Checker:
    """A checker of the invariants during a run. `broken` is the first that did not hold."""

    def __init__(self, world: World, history: RunHistory, on_broken: Callable[[], None]) -> None:
        self.world = world
        self.ledgers: dict[int, Facts] = {}
        self.broken: InvariantError | None = None
        self.checks = 0
        self.is_foreign: Callable[[LedgerMetadata], bool] = lambda metadata: False
        """Return whether a layer above ledgers wrote a ledger with this metadata."""
        self.on_ledger: Callable[[int], None] = lambda ledger_id: None
        """Called when a ledger was changed or deleted."""
        self.sampled: list[Callable[[], None]] = [self.queues_are_bounded]
        """Called every `SAMPLE_S`."""
        self._on_broken = on_broken
        self._rolls: Counter[str] = Counter()
        """The number of segments that each client completed in its current second."""
        history.listener = self.heard
        world.cluster.observer = self.stored
        world.cluster.rewrite_observer = self.rewritten
        world.started = self.bookie_started
        world.claims.served = self.bookie_served
        world.called = self.store_called
        world.claims.dropped = self.bookie_dropped

    def facts(self, ledger_id: int) -> Facts:
        found = self.ledgers.get(ledger_id)
        if found is None:
            found = self.ledgers[ledger_id] = Facts(ledger_id)
            if ledger_id in self.world.cluster.ledgers:
                found.foreign = self.is_foreign(self.world.cluster.ledger(ledger_id).value)
        return found

    def fail(self, invariant: str, what: str) -> None:
        # Ignore what clients do while a finished world is cleared away.
        if self.broken is None and not self.world.loop.is_closed():
            self.broken = InvariantError(invariant, what)
            self.world.trace.record("checker", "broken", invariant=invariant, what=what)
            self._on_broken()

    def check(self, facts: Facts) -> None:
        if self.world.metadata_away or facts.recreated:
            return  # The metadata is older than what clients know, or that of another ledger.
        self.checks += 1
        self._look_at_claims(facts)
        for invariant in LEDGER_INVARIANTS:
            wrong = invariant(facts)
            if wrong is not None:
                self.fail(invariant.__name__, f"ledger {facts.ledger_id}: {wrong}")

    def check_all(self) -> None:
        for facts in self.ledgers.values():
            self.check(facts)

    async def sample(self) -> None:
        """Check everything periodically until cancelled, including changes without a history
        record.
        """
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.check_all()
            for look in self.sampled:
                look()

    @property
    def destroyed(self) -> frozenset[str]:
        """The ids of bookies whose disks were damaged. Their copies do not count."""
        return frozenset(map(bookie_id, self.world.destroyed))

    # -- what happens -------------------------------------------------------------------------

    def heard(self, record: HistoryRecord) -> None:
        if record.ledger_id < 0:
            return
        facts = self.facts(record.ledger_id)
        match record.kind:
            case "acked":
                facts.acked = max(facts.acked, record.last)
            case "observe":
                facts.lac_seen = max(facts.lac_seen, record.last)
            case "read":
                facts.read_last = max(facts.read_last, record.last)
            case "wrong":
                facts.wrong = facts.wrong or f"{record.client}: {record.note}"
            case "denied":
                facts.denied = facts.denied or f"{record.client}: {record.note}"
            case "refused":
                refused = facts.refused_from
                facts.refused_from = record.first if refused is None else min(refused, record.first)
            case "late":
                facts.late = facts.late or f"{record.client}: {record.note}"
            case "delete":
                facts.deleted = True
            case "recovered" | "closed":
                self._closed(facts, record.last, None)
        self.check(facts)

    def stored(self, ledger_id: int) -> None:
        """Handle a change of a ledger's metadata."""
        self.on_ledger(ledger_id)
        if ledger_id not in self.world.cluster.ledgers:
            if ledger_id not in self.ledgers or self.ledgers[ledger_id].foreign:
                self.facts(ledger_id).deleted = True
            return
        facts = self.facts(ledger_id)
        if facts.recreated:
            return
        metadata = self.world.cluster.ledger(ledger_id).value
        segments = ",".join(f"{s.first_entry_id}:{'/'.join(s.ensemble)}" for s in metadata.segments)
        self.world.trace.record(
            "metadata", metadata.state.name, ledger=ledger_id,
            last=metadata.last_entry_id, segments=segments,
        )  # fmt: skip
        facts.changes += 1
        facts.changed_by[self.world.metadata_caller] += 1
        if facts.states[-1] is not metadata.state:
            facts.states.append(metadata.state)
        if metadata.closed:
            # An empty segment does not count. So a client that rolls for nothing is found.
            if facts.foreign and not facts.closed_by and metadata.last_entry_id >= 0:
                self._rolls[self.world.metadata_caller] += 1
            facts.closed_by = facts.closed_by or self.world.metadata_caller
            self._closed(facts, metadata.last_entry_id, metadata.length)
        for segment in metadata.segments:
            if len(set(segment.ensemble)) < len(segment.ensemble):
                facts.crowded = facts.crowded or str(segment)
        facts.checked_through = -1
        self.world.claims.named(ledger_id, bookies_of(metadata))
        self.check(facts)

    def rewritten(self, ledger_id: int) -> None:
        """Count that somebody wrote the metadata of a ledger again without a change."""
        self.facts(ledger_id).rewritten += 1

    def _closed(self, facts: Facts, last: int, length: int | None) -> None:
        if not facts.closes:
            facts.acked_at_close = facts.confirmed
            facts.length_expected = sum(
                len(payload(facts.ledger_id, entry, facts.scale)) for entry in range(last + 1)
            )
            if facts.foreign and length is not None:
                facts.length_expected = length
        if all(last != known[0] or length not in (None, known[1]) for known in facts.closes):
            facts.closes.append((last, -1 if length is None else length))

    def _look_at_claims(self, facts: Facts) -> None:
        """Check that enough bookies claim each acknowledged or closed entry."""
        known = facts.known
        if known <= facts.checked_through or facts.deleted or facts.thin:
            return
        try:
            metadata = self.world.cluster.ledger(facts.ledger_id).value
        except NoSuchLedgerError:
            return
        held, lost = (
            self.world.claims.of(facts.ledger_id), self.world.claims.lost(facts.ledger_id)
        )  # fmt: skip
        for entry_id in range(facts.checked_through + 1, known + 1):
            missing = lacking(metadata, entry_id, held, self.destroyed, lost)
            if missing:
                facts.thin = f"entry {entry_id} is {missing}"
                return
        facts.checked_through = known

    def queues_are_bounded(self) -> None:
        """Check that bookies and writers hold no more bytes than their limits and requests in
        flight allow.
        """
        scale = max((facts.scale for facts in self.ledgers.values()), default=1)
        # Entries of streams and the like are not bounded by the scale of a ledger.
        largest = max(scale * PAYLOAD_MAX_BYTES, self.world.claims.frame_bytes_max)
        at_once = MAX_READ_BYTES + largest
        for name, bookie in self.world.bookies.items():
            if not bookie.recovered:
                continue  # It accepts nothing yet.
            queued, connections = bookie.store.queued_bytes, len(bookie.service.connections)
            limit = bookie.config.max_queued_bytes + connections * at_once
            if queued > limit:
                self.fail("queues_are_bounded", f"{name} holds {queued} bytes, limit {limit}")
        for facts in self.ledgers.values():
            held = facts.backlog()
            if held > facts.backlog_max_bytes:
                what = f"writer of ledger {facts.ledger_id} holds {held} bytes"
                self.fail("queues_are_bounded", f"{what}, limit {facts.backlog_max_bytes}")

    # -- bookies ------------------------------------------------------------------------------

    async def bookie_started(self, name: str, bookie: Bookie) -> None:
        """Check a bookie that has started.

        It must have everything that it ever claimed to be durable, and must report no loss. A
        bookie without its disk must not start.
        """
        if name in self.world.wiped:
            self.fail("an_empty_disk_is_refused", f"{name} started although its data was wiped")
        if name in self.world.outdated:
            self.fail("an_old_disk_is_refused", f"{name} started with a disk that was replaced")
        if name in self.world.destroyed:
            return
        report = self.world.claims.reports[bookie_id(name)]
        complete = not self.world.misses_a_directory(name)
        if complete and name in self.world.partly_lost:
            await self._count_what_is_left(name, bookie)
        self.what_is_lost_is_unknown(name, bookie)
        if (
            back := self.world.claims.returned[bookie_id(name)]
        ) and name not in self.world.tampered:
            what = f"{name} has ledgers {back} again, which it had dropped"
            self.fail("what_is_dropped_stays_gone", what)
        uneasy = bookie.store.negatives_unknown or bool(report.problems)
        damaged = report.damaged_blocks and name not in self.world.tampered
        if (complete and uneasy and name not in self.world.lossy) or damaged:
            self.fail("what_is_durable_stays", f"{name} reports lost or damaged data")
        me, claims, store = bookie_id(name), self.world.claims, bookie.store
        for ledger_id in claims.ledgers_of(me):
            if not complete and store.is_lost(ledger_id):
                continue  # It is in the missing directory.
            try:
                found = await store.entry_ranges(ledger_id)
            except (NoLedger, StorageError):
                found = []
            if self.world.bookies.get(name) is not bookie or name in self.world.destroyed:
                return
            if ledger_id not in self.world.cluster.ledgers or self.facts(ledger_id).recreated:
                continue
            have = {entry for first, last in found for entry in range(first, last + 1)}
            lost = sorted(claims.of(ledger_id).get(me, set()) - have)
            if lost:
                what = f"{name} has lost entries {lost[0]}..{lost[-1]} of ledger {ledger_id}"
                self.fail("what_is_durable_stays", what)
            info = store.ledgers.get(ledger_id)
            if claims.fenced(me, ledger_id) and (info is None or not info.fenced):
                what = f"{name} has lost the fence of ledger {ledger_id}"
                self.fail("what_is_durable_stays", what)
            keyless = info is not None and not info.master_key
            if keyless and not (name in self.world.tampered and store.negatives_unknown):
                what = f"{name} has lost the master key of ledger {ledger_id}"
                self.fail("what_is_durable_stays", what)
            await self._gives_back(name, bookie, ledger_id, found)

    async def _count_what_is_left(self, name: str, bookie: Bookie) -> None:
        """Count what the bookie still names as not lost.

        If it names too much, a read of it fails later.
        """
        me, claims = bookie_id(name), self.world.claims
        for ledger_id in self.ledgers:
            lost = claims.lost(ledger_id).get(me, set())
            info = bookie.store.ledgers.get(ledger_id)
            if info is None:
                continue
            try:
                ranges = await bookie.store.entry_ranges(ledger_id)
            except (NoLedger, StorageError):
                ranges = []
            if self.world.bookies.get(name) is not bookie:
                return
            left = frozenset(n for n in lost if any(first <= n <= last for first, last in ranges))
            claims.keep(me, ledger_id, (left, info.fenced))
        self.world.partly_lost.discard(name)

    def what_is_lost_is_unknown(self, name: str, bookie: Bookie) -> None:
        """Check that the bookie denies no entry of a ledger of which it lost entries with a
        directory.
        """
        for ledger_id in self.ledgers:
            lost = self.lost_entries(name, ledger_id)
            if lost and not bookie.store.absence_unknown(ledger_id):
                what = f"{name} denies entry {min(lost)} of ledger {ledger_id}, which it lost"
                self.fail("what_is_lost_is_unknown", what)

    def lost_entries(self, name: str, ledger_id: int) -> set[int]:
        """Return the entries that the bookie should have but lost with a directory."""
        me, claims, facts = bookie_id(name), self.world.claims, self.ledgers.get(ledger_id)
        lost = claims.lost(ledger_id).get(me, set()) - claims.of(ledger_id).get(me, set())
        if not lost or facts is None or facts.deleted:
            return set()
        try:
            metadata = self.world.cluster.ledger(ledger_id).value
        except NoSuchLedgerError:
            return set()
        return {n for n in lost if n <= facts.known and me in members_of(metadata, n)}

    async def _gives_back(
        self, name: str, bookie: Bookie, ledger_id: int, ranges: list[tuple[int, int]]
    ) -> None:
        """Check that an undamaged disk returns every entry that its index names.

        `bookie_served` checks that each entry is the right one.
        """
        token = EXAMINING.set(True)
        try:
            await self._read_all(name, bookie, ledger_id, ranges)
        finally:
            EXAMINING.reset(token)

    async def _read_all(
        self, name: str, bookie: Bookie, ledger_id: int, ranges: list[tuple[int, int]]
    ) -> None:
        for first, last in ranges:
            upcoming = first
            while upcoming <= last:
                try:
                    entries = await bookie.store.read_blocking(
                        ledger_id, upcoming, last + 1 - upcoming, READ_BYTES
                    )
                except (NoLedger, NoEntry, StorageError) as error:
                    gone = self.world.bookies.get(name) is not bookie
                    if gone or ledger_id not in self.world.cluster.ledgers:
                        return
                    what = f"{name} cannot read entry {upcoming} of ledger {ledger_id}: {error!r}"
                    self.fail("a_good_disk_gives_back_what_it_names", what)
                    return
                upcoming += len(entries)

    def bookie_served(self, me: str, ledger_id: int, first: int, entries: Sequence[Buffer]) -> None:
        """Check that a bookie serves only what was appended, whatever happened to its disk."""
        if self.world.flipped:
            return  # The bookie received wrong bytes already.
        if self.facts(ledger_id).foreign:
            return
        scale = self.facts(ledger_id).scale
        for entry_id, entry in enumerate(entries, first):
            if not bytes(entry).endswith(payload(ledger_id, entry_id, scale)):
                what = f"{me} served a wrong entry {entry_id} of ledger {ledger_id}"
                self.fail("no_bookie_serves_wrong_bytes", what)

    def store_called(self, name: str, count: int) -> None:
        """Check that nobody calls the metadata store without a pause.

        A writer whose segments are tiny completes many of them in a second, with some calls each.
        """
        if count == 1:  # A second of this client begins.
            self._rolls[name] = 0
        rolls, limit = self._rolls[name], STORE_CALLS_MAX
        if rolls:
            ledgers = len(self.world.cluster.ledgers)
            limit += rolls * (CALLS_PER_ROLL + LISTINGS_PER_ROLL * ledgers)
        if count > limit:
            what = f"{name} called the metadata store {count} times in one second"
            self.fail(
                "the_store_is_not_hammered", f"{what}, in which it completed {rolls} segments"
            )

    def bookie_dropped(self, me: str, ledger_id: int) -> None:
        """Check that a bookie that drops a ledger is not one of its bookies any more."""
        if self.world.metadata_away or ledger_id not in self.world.cluster.ledgers:
            return
        metadata = self.world.cluster.ledger(ledger_id).value
        # A pass that saw the deletion may end after the ledger was created again.
        if me in bookies_of(metadata) and not self.facts(ledger_id).recreated:
            what = f"{me} dropped ledger {ledger_id}, which still names it"
            self.fail("a_member_keeps_its_part", what)

    # -- the end ------------------------------------------------------------------------------

    async def replicated(self, *, undisturbed: bool = False) -> None:
        """Check that each acknowledged or closed entry is on the disks of `ack_quorum` bookies.

        They must belong to the write set that the metadata names. In a run that was `undisturbed`,
        entries of a ledger that is `closed_whole` are on the whole write set. In another ledger, a
        recovery may have fenced a member before the entries arrived there, or the writer may have
        continued without a member that did not answer in time.
        """
        for ledger_id, facts in self.ledgers.items():
            if facts.deleted:
                continue
            try:
                metadata = self.world.cluster.ledger(ledger_id).value
            except NoSuchLedgerError:
                self.fail("live_ledgers_are_known", f"ledger {ledger_id} has no metadata")
                continue
            await self._read_everywhere(ledger_id)
            names = list(self.world.bookies)
            held = {bookie_id(name): await self.held(name, ledger_id) for name in names}
            end = metadata.last_entry_id if metadata.closed else facts.confirmed
            for entry_id in range(end + 1):
                missing = lacking(metadata, entry_id, held, self.destroyed)
                if missing:
                    self.fail("replicated", f"ledger {ledger_id} entry {entry_id} is {missing}")
                    break
                lacks = [
                    m for m in members_of(metadata, entry_id) if entry_id not in held.get(m, ())
                ]
                if lacks and undisturbed and facts.closed_whole:
                    what = f"ledger {ledger_id} entry {entry_id} is not on {lacks}"
                    self.fail("a_close_leaves_whole_write_sets", what)
                    break

    async def _read_everywhere(self, ledger_id: int) -> None:
        async def read(name: str, bookie: Bookie) -> None:
            ranges = await bookie.store.entry_ranges(ledger_id)
            await self._gives_back(name, bookie, ledger_id, ranges)

        for name, bookie in list(self.world.bookies.items()):
            if name not in self.world.destroyed and ledger_id in bookie.store.ledgers:
                await self.world.within(bookie, read(name, bookie))

    async def held(self, name: str, ledger_id: int) -> set[int]:
        """Return the entries that a running bookie has on its disk."""
        bookie = self.world.bookies.get(name)
        if bookie is None:
            return set()
        try:
            ranges = await self.world.within(bookie, bookie.store.entry_ranges(ledger_id))
        except (NoLedger, StorageError):  # Damaged data counts as lost here.
            return set()
        return {entry for first, last in ranges or () for entry in range(first, last + 1)}

    def nothing_is_left_behind(self) -> None:
        """Check that no task is alive after every client was closed and every bookie stopped."""
        ours = asyncio.current_task()
        left = [t for t in asyncio.all_tasks() if isinstance(t, SimTask) and t is not ours]
        names = sorted(
            f"{t.get_name()} on {t.node.name}: {t.get_coro()}" for t in left if not t.node.dead
        )
        if names:
            self.fail("nothing_is_left_behind", "; ".join(names))

    def unregistered(self) -> list[str]:
        """Return running bookies that are unregistered, in the wrong mode, or miss a directory."""
        presences = self.world.cluster.presences
        names = []
        for name, bookie in self.world.bookies.items():
            presence = presences.get(bookie_id(name))
            missing = self.world.misses_a_directory(name)
            if presence is None or presence.readonly == bookie.writable or missing:
                names.append(name)
        return names

    def lac_of(self, ledger_id: int) -> int:
        """Return the greatest LAC of the ledger that any running bookie would tell a reader."""
        stores = [bookie.store.ledgers for bookie in self.world.bookies.values()]
        infos = [ledgers[ledger_id] for ledgers in stores if ledger_id in ledgers]
        return max((info.last_add_confirmed for info in infos), default=-1)

    def down(self) -> list[str]:
        """Return bookies that should run but do not."""
        world = self.world
        may_be = world.bookies.keys() | world.wiped
        return [name for name in world.disks if name not in may_be and not world.retired(name)]

    async def garbage_is_collected(self) -> None:
        """Check that nothing of a deleted ledger remains after three passes.

        One pass may not be enough. The last adds of an abandoned writer may still be on their way
        to a slow member of the deleted ledger, and arrive after the first pass. With a low limit
        for what counts as most ledgers, the second pass may wait for the third to confirm that.
        """
        left = await self._garbage()
        for _ in range(2):
            if left:
                await asyncio.sleep(IN_FLIGHT_S)
                left = await self._garbage()
        if left:
            self.fail("garbage_is_collected", left[0])

    async def _garbage(self) -> list[str]:
        """Run one pass on each bookie, and return what remains of deleted ledgers.

        A bookie that dies meanwhile does not count.
        """
        for bookie in list(self.world.bookies.values()):
            await self.world.within(bookie, bookie.collect_garbage())
        return [
            f"deleted ledger {ledger_id} is still on {name}"
            for ledger_id, facts in self.ledgers.items()
            if facts.deleted and ledger_id not in self.world.cluster.ledgers
            for name, bookie in self.world.bookies.items()
            if ledger_id in bookie.store.ledgers
        ]
