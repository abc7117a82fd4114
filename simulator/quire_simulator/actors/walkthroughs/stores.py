"""A walkthrough of the store of one data directory: its calls, its reports and its effort."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from quire.core.ranges import count, merged, without
from quire.errors import DamagedError, DiskFullError, StorageError
from quire.storage.config import StorageConfig
from quire.storage.inspect import check, contents, space_report
from quire.storage.inspect.scrub_report import DirectoryScrub, SegmentScrubbed
from quire.storage.read.read_exceptions import NoEntry, NoLedger, WouldBlock
from quire.storage.segment.segment import LOG_DIRECTORY, segment_name
from quire_simulator.actors.walkthroughs.driven_store import DrivenStore, Item, Ledger, entry_of
from quire_simulator.actors.walkthroughs.walk import Walk
from quire_simulator.machine.disk import SimDisk

KIB = 1024
BLOCK = 4 * KIB
STEPS = 22
LEDGERS = 6
SIZES = (0, 20, 100, 100, 300, 3_000)
OVERHEADS = (4, 20, 36)
QUIET_S = 30.0
"""Seconds after which nothing waits in a store, whatever its pace."""
REPAIRS_MAX = 100
"""The most times that lacking entries are restored. A record may name only a few of them."""
CHECKED_S = 12.0
"""Seconds after which a store has noticed that there is space, or none."""
RUNS_AT_ONCE = 12 * 80
"""The largest number of runs of entry ids in batches that are appended together: twelve batches of
at most 80 entries."""
FILES_MAX = 6
"""The most files of a log that are no segments with entries: those that are prepared, the spare
file of a compaction, index caches, and notes."""


async def walk_store(walk: Walk) -> None:
    """Use a store in every way, and compare everything that it says and does."""
    await _StoreWalk(walk).run()


def _config(chance: random.Random) -> StorageConfig:
    segment = chance.choice([32, 64, 128]) * KIB
    compacting = chance.random() < 0.7
    return StorageConfig(
        segment_bytes=segment,
        reserve_bytes=chance.choice([16 * KIB, segment]),
        max_runs_per_segment=chance.choice([30, 262_144]),
        max_group_bytes=chance.choice([4 * KIB, 16 * KIB, 64 * KIB]),
        max_queued_bytes=chance.choice([32 * KIB, 1024 * KIB]),
        min_free_bytes=0,
        read_only_dwell_s=chance.choice([0.0, 10.0]),
        log_cache_bytes=chance.choice([0, 32 * KIB]),
        footer_cache_bytes=chance.choice([0, 4 * KIB, 1024 * KIB]),
        index_cache_interval_s=20.0,
        index_cache_segments=2,
        max_open_files=chance.choice([1, 2, 64]),
        compact_minor_ratio=0.3 if compacting else 0.0,
        compact_minor_interval_s=60.0,
        compact_major_ratio=chance.choice([0.0, 0.8]) if compacting else 0.0,
        compact_major_interval_s=300.0,
        compact_bytes_per_s=chance.choice([0, 64 * KIB]),
        compact_reserve_bytes=chance.choice([0, 32 * KIB, segment]),
        scrub_interval_s=chance.choice([0.0, 600.0]),
        scrub_bytes_per_s=chance.choice([0, 64 * KIB]),
    )


class _StoreWalk:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.chance = chance = walk.chance
        self.config = _config(chance)
        cold = chance.choice([0.0, 0.3, 1.0])
        self.disk = SimDisk(
            walk.stage.world.loop.derive("disk of a walkthrough"), "walk",
            cold_read_probability=cold,
        )  # fmt: skip
        self.box = DrivenStore(self.disk, self.config, chance)
        self.sectors = walk.stage.world.loop.derive("bad sectors of a walkthrough")
        self.exact = not walk.stage.plan.knobs
        """Whether limits of scale have their defaults, so that effort can be checked."""
        self._has_started = False
        self._was_full = False

    async def run(self) -> None:
        self.box.open()
        self._started(clean=True)
        ways: list[tuple[Callable[[], object], int]] = [
            (self._append, 8), (self._state, 3), (self._drop, 2), (self._restart, 2),
            (self._kill, 2), (self._compact, 2), (self._suspend, 1), (self._fill, 1),
        ]  # fmt: skip
        calls, weights = [one for one, _ in ways], [one for _, one in ways]
        for _ in range(STEPS):
            done = self.chance.choices(calls, weights)[0]()
            if done is not None:
                await done  # type: ignore[misc]
            await self._look()
        await self._check_all()
        await self._damage()
        await self._restart()
        await self._check_all()
        await self.box.close()
        self._inspect(self.disk)

    # -- changes ------------------------------------------------------------------------------

    def _items(self) -> list[Item]:
        """Return entries for one batch: of one ledger or several, with or without gaps."""
        chance, box = self.chance, self.box
        ids = [one for one in range(1, LEDGERS + 1) if one not in box.refused]
        if len(ids) < 2:
            ids = list(range(1, LEDGERS + 1))  # Refused ledgers are created again.

        def one(ledger_id: int, entry_id: int) -> Item:
            return ledger_id, entry_id, entry_of(ledger_id, entry_id, _size(entry_id))

        def upcoming(ledger_id: int) -> int:
            ledger = box.ledgers.get(ledger_id)
            return 0 if ledger is None else ledger.last + 1

        items: list[Item] = []
        way = chance.choice(["run", "run", "gaps", "turns", "again", "older"])
        if way == "turns":
            some = chance.sample(ids, min(len(ids), 3))
            at = {ledger_id: upcoming(ledger_id) for ledger_id in some}
            for number in range(chance.randint(2, 40)):
                ledger_id = some[number % len(some)]
                items.append(one(ledger_id, at[ledger_id]))
                at[ledger_id] += 1
            return self._fitting(items)
        for ledger_id in chance.sample(ids, chance.choice([1, 1, 2])):
            first, count = upcoming(ledger_id), chance.randint(1, 40)
            if way == "again":
                first = max(0, first - chance.randint(0, 30))
            elif way == "older" and first > 3:
                first = chance.randrange(first)
            step = 2 if way == "gaps" else 1
            items += [one(ledger_id, number) for number in range(first, first + count * step, step)]
        return self._fitting(items)

    def _fitting(self, items: list[Item]) -> list[Item]:
        """Return the first of these entries, so many that they fit into half a segment."""
        left, found = self.config.segment_bytes // 2, []
        for one in items:
            left -= len(one[2]) + 150
            if left < 0:
                break
            found.append(one)
        return found

    def _append(self) -> None:
        """Append some batches, at once or one by one, and check how they are written."""
        box, disk, chance = self.box, self.disk, self.chance
        stats, answered = box.store.stats(), len(box.answered)
        written, syncs = disk.total_written_bytes, disk.total_syncs
        together, count = chance.random() < 0.5, chance.randint(1, 12)
        queued = 0
        size = box.appended_bytes
        for _ in range(count):
            before = box.appended_bytes
            box.append(self._items())
            queued += box.appended_bytes - before
            self.walk.same("queued bytes", box.store.queued_bytes, queued)
            full, most = box.store.queue_full, self.config.max_queued_bytes
            # It is also full while the next segment is prepared.
            self.walk.true(f"a queue of {queued} of {most} bytes is not full",
                           full or queued < most)  # fmt: skip
            if not together:
                box.pump()
                queued = 0
        box.pump()
        now = box.store.stats()
        self.walk.same("queued bytes", box.store.queued_bytes, 0)
        self.walk.same("whether the queue is full", box.store.queue_full, False)
        self.walk.same("the answers", box.answered[answered:],
                       list(range(answered, answered + count)))  # fmt: skip
        self.walk.same("the errors", box.errors, [])
        # State records of background work are batches of their own.
        batches = now.batches - stats.batches
        self.walk.between("the batches", batches, count, 2 * count + 4)
        self.walk.same("bytes written", now.bytes_written - stats.bytes_written,
                       box.appended_bytes - size)  # fmt: skip
        groups = now.groups - stats.groups
        self.walk.between("groups", groups, 1, batches + (now.segments - stats.segments) + 2)
        if self.exact:
            grown = box.appended_bytes - size
            sealed = now.sealed_segments - stats.sealed_segments
            new = now.segments - stats.segments + now.segments_removed - stats.segments_removed
            files = max(sealed, 0) + max(new, 0)
            self._little("syncs", disk.total_syncs - syncs, groups + 6 * files + 4)
            most = grown + 3 * BLOCK * groups + (files + 1) * 6 * BLOCK + grown // 2
            self._little("bytes written", disk.total_written_bytes - written, most)

    def _state(self) -> None:
        """Fence a ledger, or store an explicit LAC."""
        box, chance = self.box, self.chance
        if not box.ledgers:
            return
        ledger_id = chance.choice(sorted(box.ledgers))
        ledger = box.ledgers[ledger_id]
        answers: list[object] = []
        if chance.random() < 0.5:
            box.store.fence(ledger_id, answers.append)
            ledger.fenced = True
        else:
            ledger.explicit_lac = b"lac %16d" % ledger.last
            box.store.write_explicit_lac(ledger_id, ledger.explicit_lac, answers.append)
        if chance.random() < 0.3:
            box.store.fence(ledger_id, answers.append)
            ledger.fenced = True
        self._states()
        box.later(1.0)
        self.walk.same("the answers to records", set(answers), {None})
        barrier: list[object] = []
        box.store.barrier(barrier.append)
        box.later(1.0)
        self.walk.same("the answer to a barrier", barrier, [None])

    def _drop(self) -> None:
        """Drop some ledgers, create a refused one again, or refuse one that is not here."""
        box, chance = self.box, self.chance
        if box.refused and chance.random() < 0.5:
            ledger_id = chance.choice(sorted(box.refused))
            self.walk.same("whether a ledger is refused", box.store.is_refused(ledger_id), True)
            box.create(ledger_id)
            box.append([(ledger_id, 0, entry_of(ledger_id, 0, _size(0)))])
        elif (ledger_id := 100 + chance.randrange(3)) not in box.ledgers and chance.random() < 0.3:
            box.store.refuse_ledger(ledger_id)
            box.refused.add(ledger_id)
        elif box.ledgers:
            gone = chance.sample(sorted(box.ledgers), chance.randint(1, min(3, len(box.ledgers))))
            box.drop(gone)
        box.later(2.0)
        self.walk.same("whether deletions are logged", box.store.deletions_logged, True)

    async def _restart(self) -> None:
        box = self.box
        box.later(1.0)
        before = self._catalogue()
        await box.close()
        self._inspect(self.disk)
        box.open()
        self._started(clean=True)
        self.walk.same("the segments after a restart", self._catalogue(), before)

    async def _kill(self) -> None:
        """End the process, or lose power, when everything is durable."""
        box = self.box
        if self.chance.random() < 0.5:
            box.later(1.0)
        box.pump()
        if self.chance.random() < 0.5:
            self.disk.crash()
        else:
            self.disk.kill()
        await self._bad_sector()
        box.open()
        self._started(clean=False)
        box.later(1.0)

    async def _bad_sector(self) -> None:
        """Start on a copy of the disk that cannot read a block of a segment without a footer.

        The start must succeed. Each entry is right or damaged. If an entry or a fence is missing,
        the store says that it does not know everything that it had.
        """
        box, chance = self.box, self.sectors
        begun = [one for one in box.store._catalogue.segments.values()
                 if one.trailer is None and one.end > one.groups_at]  # fmt: skip
        if not begun:
            return
        segment, disk = chance.choice(begun), self.disk.copy()
        at = chance.randrange(segment.groups_at, segment.end, BLOCK)
        disk.fail_reads(segment.name, at, BLOCK)
        start = DrivenStore(disk, self.config, chance)
        try:
            start.open()
        except (OSError, StorageError) as error:
            self.walk.fail("one_bad_sector_stops_no_start", f"a start ended with {error!r}")
            return
        store = start.store
        for ledger_id in sorted(box.refused):
            self.walk.true(f"ledger {ledger_id} is not refused after a bad sector",
                           store.is_refused(ledger_id) or store.negatives_unknown)  # fmt: skip
        for ledger_id, ledger in sorted(box.ledgers.items()):
            info = store.ledgers.get(ledger_id)
            self.walk.true(f"the fence of ledger {ledger_id} is gone after a bad sector",
                           not ledger.fenced or store.negatives_unknown
                           or (info is not None and info.fenced))  # fmt: skip
            for entry_id, entry in sorted(ledger.entries.items()):
                what = f"entry {ledger_id}/{entry_id} after a bad sector"
                try:
                    (told,) = await store.read_blocking(ledger_id, entry_id, 1, 1 << 20)
                except DamagedError:
                    continue
                except (NoEntry, NoLedger) as error:
                    self.walk.true(f"{what} is denied: {error!r}", store.negatives_unknown)
                else:
                    self.walk.same(what, bytes(told), entry)
        await start.close()

    def _compact(self) -> None:
        """Wait until all that is due was compacted, and check what that has cost and freed."""
        box, config = self.box, self.config
        if not config.compact_ratio:
            box.later(70.0)
            return
        done = len(box.compactions)
        if self.chance.random() < 0.5:
            box.store.request_compaction(minor=True, major=True)
            box.later(QUIET_S)
            self.walk.same("whether a compaction is requested", box.store.compaction_requested,
                           False)  # fmt: skip
        else:
            box.later(config.compact_major_interval_s + QUIET_S)
            left = [one.number for one in box.store.usage() if one.reclaimable]
            self.walk.same("segments that are worth compacting", left, [])
        now = box.store.stats()
        mine = [one for one in box.compactions if not one.error]
        for one in box.compactions[done:]:
            self.walk.same("the error of a compaction", one.error, "")
            self.walk.same("the place of a compaction", one.position, max(one.segments))
            self.walk.true(f"{one} frees nothing", one.after_bytes < one.before_bytes)
            self.walk.between("copied bytes", one.copied_bytes, 0, one.after_bytes)
        self.walk.same("compactions", now.compactions, len(mine))
        self.walk.same("freed bytes", now.compaction_freed_bytes,
                       sum(one.before_bytes - one.after_bytes for one in mine))  # fmt: skip
        copied, written = now.compaction_copied_bytes, now.compaction_written_bytes
        self.walk.same("copied bytes", copied, sum(one.copied_bytes for one in mine))
        self.walk.between("bytes that compactions wrote", written, copied,
                          sum(one.after_bytes for one in mine))  # fmt: skip
        # A seal that found no space is named until the next start.
        self.walk.true(f"an error: {now.last_error}", not now.last_error or self._was_full)

    def _suspend(self) -> None:
        """Suspend compactions for a while. None begins."""
        box, chance = self.box, self.chance
        minor, major = chance.choice([(True, True), (True, True), (True, False), (False, True)])
        box.store.suspend_compaction(minor=minor, major=major, by="the walkthrough")
        held = box.store.compaction_suspended
        told = held and (held.minor, held.major, held.by, held.since_ms)
        self.walk.same("a suspension", told,
                       (minor, major, "the walkthrough", box.clock.now_ms()))  # fmt: skip
        box.later(1.0)
        if minor and major:
            done = len(box.compactions)
            box.later(self.config.compact_major_interval_s)
            self.walk.same("compactions while they are suspended", box.compactions[done:], [])
        box.store.resume_compaction(minor=minor, major=major)
        self.walk.same("a suspension that has ended", box.store.compaction_suspended, None)
        box.later(1.0)

    def _fill(self) -> None:
        """Fill the disk. Adds are refused until there is space again, and fences are not."""
        box, disk = self.box, self.disk
        if not box.ledgers:
            return
        capacity, self._was_full = disk.capacity_bytes, True
        box.later(QUIET_S)
        disk.capacity_bytes = disk._used + self.chance.choice([0, 3 * BLOCK])
        refused = False
        for _ in range(200):
            try:
                box.append(self._items())
            except DiskFullError as error:
                self.walk.true(f"{error!r} gives no reason", "space" in str(error))
                refused = True
                break
            box.pump()
        self.walk.same("whether adds are refused", refused, True)
        box.later(CHECKED_S)
        if box.store.writable:  # The removal of a segment has freed some space.
            disk.capacity_bytes = capacity
            return
        self.walk.same("whether the disk is full", box.store.disk_full, True)
        (state,) = box.store.directories()
        self.walk.same("a full directory", (state.path, state.state, state.kind, state.ledgers),
                       (disk.path, "read-only", "full", len(box.ledgers)))  # fmt: skip
        self.walk.true("no reason is given for a full directory", state.reason)
        ledger_id = self.chance.choice(sorted(box.ledgers))
        answers: list[object] = []
        box.store.fence(ledger_id, answers.append)
        box.ledgers[ledger_id].fenced = True
        box.later(1.0)
        self.walk.same("the answer to a fence on a full disk", answers, [None])
        self._recover_on_a_full_disk(ledger_id)
        disk.capacity_bytes = capacity
        box.later(CHECKED_S + self.config.read_only_dwell_s)
        self.walk.same("whether the store takes adds", box.store.writable, True)
        (state,) = box.store.directories()
        self.walk.same("a directory with space", (state.state, state.reason, state.kind),
                       ("writable", "", ""))  # fmt: skip
        box.later(QUIET_S)

    def _recover_on_a_full_disk(self, ledger_id: int) -> None:
        """Add entries as a recovery does, until the reserve is used up. Fences still have space."""
        box = self.box
        refused = False
        for _ in range(200):
            entry_id = box.ledgers[ledger_id].last + 1
            try:
                box.append([(ledger_id, entry_id, entry_of(ledger_id, entry_id, _size(entry_id)))],
                           reserve=True)  # fmt: skip
            except DiskFullError:
                refused = True
                break
            box.pump()
        self.walk.same("whether the adds of a recovery are refused", refused, True)
        current = box.store.usage()[-1]
        self.walk.between("bytes that are left on a full disk",
                          current.file_bytes - current.end_bytes, 0,
                          self.config.reserve_bytes // 2 + 4 * BLOCK)  # fmt: skip
        if unfenced := [one for one, ledger in sorted(box.ledgers.items()) if not ledger.fenced]:
            answers: list[object] = []
            box.store.fence(unfenced[0], answers.append)
            box.ledgers[unfenced[0]].fenced = True
            box.later(1.0)
            self.walk.same("the answer to a fence without a reserve", answers, [None])

    # -- reads --------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Read something in some way."""
        box, chance = self.box, self.chance
        self._numbers()
        if not box.ledgers:
            return
        ledger_id = chance.choice(sorted(box.ledgers))
        ledger = box.ledgers[ledger_id]
        await self._read(ledger_id, ledger)
        self.walk.same("the ranges of entries", await box.store.entry_ranges(ledger_id),
                       ledger.ranges)  # fmt: skip
        entry_id = chance.randint(0, ledger.last + 1)
        size = box.store.entry_size(ledger_id, entry_id)
        known = len(ledger.entries.get(entry_id, b""))
        self.walk.true(f"entry {entry_id} has a size of {size}, not {known}", size in (None, known))
        for gone in (*box.refused, 999):
            try:
                await box.store.read_blocking(gone, 0, 1, 1 << 20)
            except NoLedger:
                continue
            self.walk.fail("reports_are_true", f"ledger {gone} is not here, but can be read")

    async def _read(self, ledger_id: int, ledger: Ledger) -> None:
        chance, store = self.chance, self.box.store
        first = chance.randint(0, ledger.last + 2)
        count = chance.choice([1, 2, 10, 1_000])
        most = chance.choice([0, 100, 1_000, 10_000, 1 << 20])
        overhead = chance.choice(OVERHEADS)
        wanted = ledger.read(first, count, most, overhead)
        what = f"a read of {count} entries from {ledger_id}/{first} on, {most} bytes"
        try:
            found = [bytes(one) for one in store.read(ledger_id, first, count, most, overhead)]
        except WouldBlock:
            pass
        except NoEntry:
            self.walk.same(what, [], wanted)
        else:
            self._prefix(what, found, wanted)
        before = self.disk.total_read_bytes
        try:
            told = await store.read_blocking(ledger_id, first, count, most, overhead)
        except NoEntry:
            self.walk.same(what, [], wanted)
            return
        found = [bytes(one) for one in told]
        if self.exact:
            self.walk.same(what, found, wanted)
            self.walk.same("the bytes of a read", told.size_bytes, sum(map(len, wanted)))
            self._effort(what, self.disk.total_read_bytes - before, wanted)
        else:
            self._prefix(what, found, wanted)

    def _effort(self, what: str, read: int, found: Sequence[bytes]) -> None:
        """Check the bytes that a read has cost."""
        frames = sum(len(one) + 60 for one in found)
        segments = len(self.box.store._catalogue.segments)
        # Each entry may be in a block of its own, and each segment may have an index to be read.
        most = 2 * frames + 2 * BLOCK * (len(found) + 1) + 12 * BLOCK * segments
        self._little(f"bytes read for {what}", read, most)

    def _little(self, what: str, found: int, most: int) -> None:
        """Check an effort."""
        self.walk.stage.checker.checks += 1
        if found > most:
            self.walk.fail("a_store_works_little", f"{found} {what}, instead of at most {most}")

    def _prefix(self, what: str, found: list[bytes], wanted: list[bytes]) -> None:
        self.walk.same(what, found, wanted[: len(found)])
        self.walk.true(f"{what} returned nothing", found or not wanted)

    async def _check_all(self) -> None:
        """Read every entry, and look at everything that is said."""
        box = self.box
        self._states()
        for ledger_id, ledger in sorted(box.ledgers.items()):
            at = 0
            found: dict[int, bytes] = {}
            for first, last in ledger.ranges:
                at = first
                while at <= last:
                    some = await box.store.read_blocking(ledger_id, at, last - at + 1, 1 << 20)
                    for one in some:
                        found[at] = bytes(one)
                        at += 1
            self.walk.same(f"the entries of ledger {ledger_id}", found, ledger.entries)

    # -- what is said -------------------------------------------------------------------------

    def _states(self) -> None:
        box = self.box
        self.walk.same("the ledgers", box.store.ledger_ids(), sorted(box.ledgers))
        for ledger_id, ledger in box.ledgers.items():
            info = box.store.ledgers[ledger_id]
            self.walk.same(
                f"ledger {ledger_id}", (info.master_key, info.fenced, info.explicit_lac),
                (ledger.key, ledger.fenced, ledger.explicit_lac),
            )  # fmt: skip
            self.walk.same("the last entry", box.store.last_entry_id(ledger_id), ledger.last)
        for ledger_id in range(1, LEDGERS + 1):
            self.walk.same(f"whether ledger {ledger_id} is refused",
                           box.store.is_refused(ledger_id), ledger_id in box.refused)  # fmt: skip

    def _started(self, *, clean: bool) -> None:
        box, report = self.box, self.box.report
        self.walk.same("problems at a start", list(report.problems), [])
        self.walk.same("damaged blocks at a start", report.damaged_blocks, 0)
        self.walk.same("whether something was lost", box.store.negatives_unknown, False)
        if clean and self._has_started:
            self.walk.same("whether the stop was clean", report.clean, True)
        self._has_started = True
        self._states()
        stats = box.store.stats()
        self.walk.same("counters after a start", (stats.batches, stats.bytes_written), (0, 0))

    def _catalogue(self) -> dict[int, tuple[object, ...]]:
        """Return the ledgers with their sizes."""
        return {n: (info.size_bytes, info.last_entry_id)
                for n, info in sorted(self.box.store.ledgers.items())}  # fmt: skip

    def _numbers(self) -> None:
        """Compare the statistics with each other, and with the files."""
        box, store, disk = self.box, self.box.store, self.disk
        stats, usage = store.stats(), store.usage()
        same = self.walk.same
        same("the number of ledgers", stats.ledgers, len(box.ledgers))
        same("live bytes", stats.live_bytes, sum(one.size_bytes for one in store.ledgers.values()))
        same("live bytes by segment", stats.live_bytes, sum(one.live_bytes for one in usage))
        frames = sum(len(e) for one in box.ledgers.values() for e in one.entries.values())
        self.walk.true(f"live bytes are {stats.live_bytes}, less than {frames}",
                       stats.live_bytes >= frames)  # fmt: skip
        same("segments", (stats.segments, stats.sealed_segments),
             (len(usage), sum(one.state == "sealed" for one in usage)))  # fmt: skip
        same("bytes of segments", stats.segment_bytes, sum(one.file_bytes for one in usage))
        same("bytes of sealed segments", stats.sealed_bytes,
             sum(one.file_bytes for one in usage if one.state == "sealed"))  # fmt: skip
        same("refused ledgers", stats.tombstones, len(box.refused))
        same("damage", (stats.damaged_reads, stats.damaged_segments, stats.damaged_ledgers),
             (0, 0, 0))  # fmt: skip
        same("what is unknown", stats.negatives_unknown, False)
        same("whether the store takes adds", (stats.writable, store.writable, store.failed),
             (True, True, None))  # fmt: skip
        # A file that a job uses stays open.
        self.walk.between("open files", stats.open_files, 0, self.config.max_open_files + 2)
        self.walk.between("cached bytes of footers", stats.footer_cache_bytes, 0,
                          self.config.footer_cache_bytes + BLOCK)  # fmt: skip
        self.walk.between("the reserve of compactions", stats.compaction_reserve_bytes, 0,
                          self.config.segment_bytes)  # fmt: skip
        files = disk.list(LOG_DIRECTORY)
        segments = [one for one in files if one.endswith(".seg")]
        live = {segment_name(one.number).rpartition("/")[2] for one in usage}
        same("segments without a file", live - set(segments), set())
        self.walk.between("files that are no segments", len(files) - len(live), 0, FILES_MAX)
        free = (store.free_bytes(), store.total_bytes())
        same("the space of the disk", free, (disk.free_bytes(), disk.total_bytes()))
        (state,) = store.directories()
        same("the directory", (state.path, state.state, state.reason, state.ledgers, state.kind),
             (disk.path, "writable", "", len(box.ledgers), ""))  # fmt: skip
        totals = store.segment_totals()
        same("totals", (sum(one.segments for one in totals), sum(one.live_bytes for one in totals)),
             (len(usage), stats.live_bytes))  # fmt: skip
        for one in usage:
            if one.state == "sealed":
                size = disk.open(segment_name(one.number)).size()
                same(f"the size of segment {one.number}", one.file_bytes, size)
                runs = self.config.max_runs_per_segment
                same("runs in memory of a sealed segment", one.runs_in_memory, 0)
            else:
                runs = self.config.max_runs_per_segment
                # A segment is full only after the adds that were appended together.
                self.walk.between("runs in memory", one.runs_in_memory, 0, runs + RUNS_AT_ONCE)
            self.walk.between("the end of a segment", one.end_bytes, 0, one.file_bytes)

    # -- inspections --------------------------------------------------------------------------

    def _inspect(self, disk: SimDisk, damaged: dict[int, dict[int, list[tuple[int, int]]]] | None
                 = None) -> None:  # fmt: skip
        """Compare what the commands for a data directory say with what is in it.

        `damaged` has the entries that are lacking because of each damaged segment.
        """
        box, same, hurt = self.box, self.walk.same, damaged or {}
        found = check.survey(disk)
        same("problems of the log", list(found.problems), [])
        same("ledgers of the log", list(found.ledgers), sorted(box.ledgers))
        wrong = [one.number for one in check.check_segments(disk, found, lambda size: None)
                 if one.problems]  # fmt: skip
        same("segments with problems", wrong, sorted(hurt))
        report = space_report.look(disk, self.config)
        same("space by ledger", {one.ledger_id: one.fenced for one in report.ledgers},
             {n: one.fenced for n, one in box.ledgers.items()})  # fmt: skip
        same("space of files", report.file_bytes, disk._used)
        scrub = DirectoryScrub(disk)
        told = [one for one in scrub.segments() if not one.clean]
        same("segments that a scrub calls damaged", [one.number for one in told], sorted(hurt))
        for one in told:
            self._lacking(one, hurt[one.number])
        for ledger_id, ledger in box.ledgers.items():
            info = contents.describe_ledger(disk, ledger_id)
            told_of = info and (info.entries, info.fenced, info.last_entry_id)
            same(f"the description of ledger {ledger_id}", told_of,
                 (ledger.ranges, ledger.fenced, ledger.last))  # fmt: skip
        same("the description of no ledger", contents.describe_ledger(disk, 999), None)

    def _lacking(self, one: SegmentScrubbed, wanted: dict[int, list[tuple[int, int]]]) -> None:
        told = {ledger_id: list(ranges) for ledger_id, ranges in one.lacking.items()}
        self.walk.same(f"what segment {one.number} lacks", told, wanted)
        entries = sum(map(count, wanted.values()))
        self.walk.same("the number of lacking entries", one.lacking_entries, entries)

    # -- damage -------------------------------------------------------------------------------

    async def _damage(self) -> None:
        """Damage a block of a sealed segment, have it found, and repair it."""
        box, disk, same = self.box, self.disk, self.walk.same
        box.later(QUIET_S)
        sealed = [one for one in box.store._catalogue.segments.values()
                  if one.trailer is not None and one.live_ledgers
                  and one.trailer.footer_at - one.groups_at >= BLOCK]  # fmt: skip
        if not sealed:
            return
        segment = self.chance.choice(sealed)
        assert segment.trailer is not None
        low, high = segment.groups_at // BLOCK, segment.trailer.footer_at // BLOCK
        block = self.chance.randrange(low, high)
        at = block * BLOCK + self.chance.randrange(BLOCK)
        inode = disk._file(segment.name)
        disk.flip_bit(segment.name, at, 3)
        lost = await self._unreadable()
        lost_at_first = bool(lost)
        self.walk.between("entries in a damaged block",
                          sum(len(box.ledgers[n].entries[at]) for n, some in lost.items()
                              for first, last in some for at in range(first, last + 1)),
                          0, 4 * BLOCK)  # fmt: skip
        box.later(1_400.0 if self.config.scrub_interval_s else QUIET_S)
        stats = box.store.stats()
        found = bool(lost) or bool(self.config.scrub_interval_s)
        if self.config.scrub_interval_s:
            self.walk.between("rounds of the scrub", stats.scrub_rounds, 1, 9)
        if not found:
            # Nothing has read these bytes, so nothing will look at them.
            if disk.exists(segment.name) and disk._file(segment.name) is inode:
                disk.flip_bit(segment.name, at, 3)
            return
        if self.exact:
            self._check_records(segment.number, block, lost)
        await self._restart_with_damage()
        for _ in range(REPAIRS_MAX):
            lost = box.store.lacking(sorted(box.ledgers))
            if not lost:
                break
            self._repair(lost)
        same("damage after the repair", box.store.damage()[disk.path], [])
        same("records of damage", [one for one in disk.list(LOG_DIRECTORY) if "damaged" in one],
             [])  # fmt: skip
        reported = [one for one in box.damaged if one[0] == segment.number]
        both = [(segment.number, False), (segment.number, True)]
        # Without a lost entry, the segment may be rewritten before a scrub comes to it.
        known = (both,) if lost_at_first and self.exact else (both, [])
        self.walk.true(f"reports of damage: {reported}", reported in known)
        # A start has another look at nothing.
        same("lacking ledgers after the repair", set(box.store.lacking_ledgers()), set())

    async def _restart_with_damage(self) -> None:
        """Restart the store, and compare its records of damage with those before."""
        box, path = self.box, self.disk.path
        known, ledgers = box.store.damage()[path], sorted(box.ledgers)
        lacking = box.store.lacking(ledgers)
        if not lacking or self.sectors.random() < 0.5:
            return
        await box.close()
        box.open()
        self.walk.same("records of damage after a restart", box.store.damage()[path], known)
        box.later(CHECKED_S)
        self.walk.same("lacking entries after a restart", box.store.lacking(ledgers), lacking)

    def _check_records(
        self, number: int, block: int, lost: dict[int, list[tuple[int, int]]]
    ) -> None:
        """Compare the record of a damaged block with the entries that could not be read."""
        box, store, same = self.box, self.box.store, self.walk.same
        known = store.lacking(sorted(box.ledgers))
        for ledger_id, ranges in lost.items():
            left = without(ranges, known.get(ledger_id, []))
            same(f"damaged entries of ledger {ledger_id} that no record names", left, [])
        for ledger_id, ranges in known.items():
            for entry_id in _entries(without(ranges, lost.get(ledger_id, []))):
                # It is named although it can be read, if only an older segment has a good copy.
                self.walk.true(f"entry {ledger_id}/{entry_id} is not damaged",
                               (ledger_id, entry_id) in box.again)  # fmt: skip
        if not known:
            return
        records, stats = store.damage()[self.disk.path], store.stats()
        same("damaged segments", [one.number for one in records], [number])
        same("damaged ledgers", sorted(store.lacking_ledgers()), sorted(known))
        same("the numbers of damage", (stats.damaged_segments, stats.damaged_ledgers),
             (1, len(known)))  # fmt: skip
        (record,) = records
        same("the damaged blocks", record.blocks, ((block, block),))
        entries = sum(map(count, known.values()))
        same("the number of lacking entries", record.entries, entries)
        same("what else is damaged", (record.header, record.index, record.more),
             (False, "", False))  # fmt: skip
        self.walk.true("the damage is not described", f"{entries} entr" in record.describe())
        self._inspect(self.disk, {number: known})

    async def _unreadable(self) -> dict[int, list[tuple[int, int]]]:
        """Read every entry by itself, and return those that are damaged. All others are right."""
        box = self.box
        found: dict[int, list[tuple[int, int]]] = {}
        for ledger_id, ledger in sorted(box.ledgers.items()):
            for entry_id, entry in sorted(ledger.entries.items()):
                try:
                    (told,) = await box.store.read_blocking(ledger_id, entry_id, 1, 1 << 20)
                except DamagedError as error:
                    self.walk.true(f"{error!r} names no file", ".seg" in str(error))
                    found.setdefault(ledger_id, []).append((entry_id, entry_id))
                else:
                    if bytes(told) != entry:
                        self.walk.fail("reports_are_true", f"{ledger_id}/{entry_id} is wrong")
        return {ledger_id: merged(ranges) for ledger_id, ranges in found.items()}

    def _repair(self, lost: dict[int, list[tuple[int, int]]]) -> None:
        box = self.box
        for ledger_id, ranges in lost.items():
            for first, last in ranges:
                entries = box.ledgers[ledger_id].entries
                # With small limits, a record also names what is between damaged entries.
                some = [(ledger_id, n, entries[n]) for n in range(first, last + 1) if n in entries]
                box.append(some, reserve=True)
        box.later(200.0)


def _size(entry_id: int) -> int:
    """Return the size of an entry. It has one payload for ever, so the size follows from the id."""
    return SIZES[entry_id // 16 % len(SIZES)] + (entry_id % 3 if entry_id % 64 < 16 else 0)


def _entries(ranges: Sequence[tuple[int, int]]) -> list[int]:
    return [one for first, last in ranges for one in range(first, last + 1)]
