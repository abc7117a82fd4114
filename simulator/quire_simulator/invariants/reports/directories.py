"""Stop every bookie, and compare what inspections say about its data directories.

A bookie that has stopped knows exactly what is on its disks. Everything that reads the files must
say the same: the commands of `quire bookie disk`, and the next start, with or without its index
cache. Directories that the schedule has damaged are left out, because nobody knows their contents.
"""

from __future__ import annotations

from typing import Any

from quire.bookie.server import Bookie
from quire.core.ranges import Range
from quire.storage.config import StorageConfig
from quire.storage.directory import read_identity
from quire.storage.inspect import check, contents, erase, rebuild, space_report
from quire.storage.inspect.scrub_report import DirectoryScrub
from quire.storage.recovery.index_cache import CACHE_NAME
from quire.storage.recovery.log_recovery import CLEAN_NAME, LogRecovery
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.segment import LogSegment, SegmentState, segment_name
from quire.storage.store import LedgerStore
from quire_simulator.invariants.reports.comparison import Comparison
from quire_simulator.machine.disk import SimDisk
from quire_simulator.world.stage import Stage
from quire_simulator.world.world import World

COOKIE = "current/VERSION"
Ranges = dict[int, list[Range]]
"""The entries that a directory has of each ledger, as ranges (first, last)."""


async def stop_and_inspect(stage: Stage) -> None:
    """Stop all bookies, and inspect the directories of one of them whose disks are good."""
    world, spoiled = stage.world, _spoiled(stage.world)
    good = [
        name
        for name, bookie in world.bookies.items()
        if name not in spoiled and bookie.recovered and bookie.store.failed is None
    ]
    chosen = world.loop.derive("inspection").choice(good) if good else ""
    for name, bookie in list(world.bookies.items()):
        stores = [one for one in stores_of(bookie) if name == chosen and _is_good(one)]
        held = [await _ranges(world, bookie, store) for store in stores]
        if not await world.stop(name):
            continue
        for store, ranges in zip(stores, held):
            disk = next(one for one in world.disks_of(name) if one.path == store.path)
            if ranges is not None and disk.exists(CLEAN_NAME):
                _Inspection(stage, store, disk, ranges).run()


def _spoiled(world: World) -> set[str]:
    """Return the bookies whose directories nobody knows exactly."""
    return {*world.destroyed, *world.tampered, *world.lossy, *world.partly_lost, *world.bit_rot}


def stores_of(bookie: Bookie) -> list[LedgerStore]:
    """Return the ledger stores of all data directories."""
    store = bookie.store
    return [store] if isinstance(store, LedgerStore) else [one.store for one in store._places]


def _is_good(store: LedgerStore) -> bool:
    return store._started and store.failed is None and not store.negatives_unknown


async def _ranges(world: World, bookie: Bookie, store: LedgerStore) -> Ranges | None:
    """Return the entries that a running store has, or None if the bookie died."""

    async def look() -> Ranges:
        return {one: await store.entry_ranges(one) for one in sorted(store.ledgers)}

    return await world.within(bookie, look())


class _Inspection:
    """The inspection of one data directory of a bookie that was stopped."""

    def __init__(self, stage: Stage, store: LedgerStore, disk: SimDisk, held: Ranges) -> None:
        self._stage = stage
        self._disk = disk
        self._held = held
        self._known: Catalogue = store._catalogue
        self._config: StorageConfig = store._config
        self._end = store.positions()[store.path]

    def _compare(self, invariant: str, source: str) -> Comparison:
        return Comparison(self._stage.checker, invariant, f"{source} {self._disk.path}")

    def run(self) -> None:
        self._next_start()
        self._space()
        self._check()
        self._scrub()
        self._ledgers()
        self._end_of_log()
        self._copies()

    # -- the next start -----------------------------------------------------------------------

    def _next_start(self) -> None:
        """Check that the next start finds what the bookie had, whatever it reads it from."""
        for use_cache in (True, False):
            how = "with" if use_cache else "without"
            told = self._compare("a_start_finds_what_was_stopped", f"a start {how} index cache on")
            found, recovered = _recovered(self._disk, use_cache=use_cache)
            told.equal("problems", recovered.problems, [])
            told.equal("a clean stop", recovered.clean, True)
            told.equal("ledgers", _states(found), _states(self._known))
            told.equal("refused ledgers", found.tombstones, self._known.tombstones)
            # The event loop may not have heard of the last seal when the bookie ended.
            if all(one.state is SegmentState.SEALED for one in self._known.segments.values()):
                told.equal("entries", _entries(found), _entries(self._known))
                told.equal("segments", _segments(found), _segments(self._known))

    # -- inspections --------------------------------------------------------------------------

    def _space(self) -> None:
        told = self._compare("what_an_inspection_tells_is_true", "the space report of")
        disk, report = self._disk, space_report.look(self._disk, self._config)
        told.equal("problems", report.problems, ())
        told.equal("size", (report.total_bytes, report.free_bytes),
                   (disk.capacity_bytes, disk.free_bytes()))  # fmt: skip
        told.equal("bytes of files", report.file_bytes, disk._used)
        known = self._known.ledgers
        told.equal(
            "ledgers",
            {one.ledger_id: (one.live_bytes, one.segments, one.fenced) for one in report.ledgers},
            {
                n: (info.size_bytes, info.sealed_count + len(info.open_parts), info.fenced)
                for n, info in known.items()
            },
        )
        live = [one.live_bytes for one in report.ledgers]
        told.true("its ledgers are not in order", live == sorted(live, reverse=True))
        told.equal("live bytes", sum(one.live_bytes for one in report.segments), sum(live))
        copies = sum(one.copies_bytes for one in report.segments)
        told.equal("bytes of copies", copies, sum(one.copies_bytes for one in report.ledgers))
        for one in report.segments:
            what = f"segment {one.number}"
            told.within(f"{what}: copies", 0, one.copies_bytes, one.live_bytes)
            told.within(f"{what}: live ledgers", 0, one.live_ledgers, one.ledgers)
            told.within(f"{what}: deleted bytes", 0, one.deleted_bytes, one.file_bytes)
            told.within(f"{what}: other bytes", 0, one.other_bytes, one.file_bytes)
            damage = one.damaged_blocks, one.lacking_ledgers, one.lacking_entries
            told.equal(f"{what}: damage", damage, (0, 0, 0))
            told.true(f"{what}: no reason is given for its dead space", one.why)
            segment = self._known.segments.get(one.number)
            if segment is not None and segment.state is SegmentState.SEALED:
                told.equal(f"{what}: state", one.state, "sealed")
                told.equal(f"{what}: size", one.file_bytes, segment.file_bytes)
                told.equal(f"{what}: live ledgers", one.live_ledgers, segment.live_ledgers)

    def _check(self) -> None:
        told = self._compare("what_an_inspection_tells_is_true", "the check of")
        found = check.survey(self._disk)
        told.equal("problems", found.problems, ())
        told.equal("incomplete group", found.torn_group, None)
        told.equal("ledgers", list(found.ledgers), sorted(self._known.ledgers))
        read: list[int] = []
        for one in check.check_segments(self._disk, found, read.append):
            told.equal(f"problems of segment {one.number}", one.problems, ())
            told.true(f"segment {one.number} is called gone", one.state != "gone")
        told.within("bytes that were read", 0, sum(read), self._disk._used)

    def _scrub(self) -> None:
        told = self._compare("what_an_inspection_tells_is_true", "the scrub of")
        scrub = DirectoryScrub(self._disk)
        told.equal("problems", scrub.problems, ())
        checked = 0
        for one in scrub.segments():
            told.true(f"damage in segment {one.number}: {one}", one.clean)
            told.equal(f"lacking entries of segment {one.number}", one.lacking_entries, 0)
            checked += one.checked_bytes
        told.equal("checked bytes", checked, scrub.total_bytes)

    def _ledgers(self) -> None:
        told = self._compare("what_an_inspection_tells_is_true", "the description of a ledger on")
        for ledger_id, info in sorted(self._known.ledgers.items()):
            one = contents.describe_ledger(self._disk, ledger_id)
            if one is None:
                told.fail(f"ledger {ledger_id} is not there")
                continue
            told.equal(f"entries of ledger {ledger_id}", one.entries, self._held.get(ledger_id, []))
            told.equal(
                f"ledger {ledger_id}",
                (one.fenced, one.has_master_key, one.last_entry_id, one.absence_unknown),
                (info.fenced, bool(info.master_key), info.last_entry_id, False),
            )
            told.equal(f"explicit LAC of ledger {ledger_id}",
                       one.has_explicit_lac, info.explicit_lac is not None)  # fmt: skip
            told.equal(f"bytes of ledger {ledger_id}", one.size_bytes, info.size_bytes)
            told.equal(
                f"problems of ledger {ledger_id}", [p.problem for p in one.parts if p.problem], []
            )

    def _end_of_log(self) -> None:
        told = self._compare("what_an_inspection_tells_is_true", "the end of the log of")
        end = contents.end_of_log(self._disk)
        told.equal("a clean stop", end.clean, True)
        told.equal("doubtful groups", (end.unsure_group, end.torn_group, end.problems),
                   (None, None, ()))  # fmt: skip
        told.equal("last group", end.last_group, self._end.end_group - 1)
        files = {one.name: one for one in contents.list_files(self._disk)}
        for number, segment in self._known.segments.items():
            one = files.get(segment_name(number))
            told.true(f"segment {number} is not listed", one)
            if one is not None and one.segment is not None and segment.trailer is not None:
                told.equal(f"trailer of segment {number}", one.segment.trailer, segment.trailer)

    # -- what changes a directory -------------------------------------------------------------

    def _copies(self) -> None:
        """Rebuild the indexes of a copy of the disk, and erase it afterwards."""
        told = self._compare("an_index_is_rebuilt_as_it_was", "the rebuild of")
        disk = self._disk.copy()
        told.equal("outcomes on a good disk", self._rebuild(disk, {"good", "open"}), [])
        sealed = [n for n, one in sorted(self._known.segments.items()) if one.trailer is not None]
        for number in sealed:
            trailer = self._known.segments[number].trailer
            assert trailer is not None
            file = disk.open(segment_name(number))
            at = trailer.footer_at + number % max(1, trailer.file_bytes - trailer.footer_at)
            byte = file.read(at, 1)
            file.write([bytes([(byte or b"\0")[0] ^ 0xFF])], at)
            file.close()
        if disk.exists(CACHE_NAME):
            disk.remove(CACHE_NAME)
        self._rebuild(disk, {"good", "open", "rebuilt"})
        found, recovered = _recovered(disk, use_cache=False)
        told.equal("problems", recovered.problems, [])
        told.equal("ledgers", _states(found), _states(self._known))
        told.equal("entries", _entries(found), _entries(_recovered(self._disk, use_cache=False)[0]))
        told.equal("outcomes afterwards", self._rebuild(disk, {"good", "open"}), [])
        self._erase(disk)

    def _rebuild(self, disk: SimDisk, expected: set[str]) -> list[str]:
        """Rebuild the indexes, and return the outcomes that are not expected."""
        results = rebuild.rebuild(disk, rebuild.plan(disk), lambda size: None, dry_run=False)
        return [f"{one.number}: {one.outcome} {one.why}" for one in results
                if one.outcome.value not in expected]  # fmt: skip

    def _erase(self, disk: SimDisk) -> None:
        told = self._compare("an_erased_directory_is_empty", "the erasure of")
        plan, used = erase.plan_erase(disk, COOKIE), disk._used
        told.equal("planned bytes", plan.size_bytes, used)
        told.equal("first file", plan.files[:1], (COOKIE,))
        erase.erase(disk, plan)
        told.equal("bytes left", disk._used, 0)
        told.equal("what is kept", plan.kept, ())


def _recovered(disk: SimDisk, *, use_cache: bool) -> tuple[Catalogue, Any]:
    identity, catalogue = read_identity(disk), Catalogue()
    assert identity is not None
    recovered = LogRecovery(disk, identity, catalogue, use_cache=use_cache).run()
    for segment in catalogue.segments.values():
        if segment.file is not None:
            segment.file.close()
    return catalogue, recovered


def _states(catalogue: Catalogue) -> dict[int, tuple[object, ...]]:
    return {
        one.ledger_id: (one.fenced, one.master_key, one.last_entry_id, one.explicit_lac)
        for one in catalogue.ledgers.values()
    }


def _entries(catalogue: Catalogue) -> dict[int, tuple[object, ...]]:
    """Return where the entries of each ledger are: in which sealed segments, and in which runs."""
    return {
        one.ledger_id: (one.sealed, [_runs(part.runs) for part in one.open_parts])
        for one in catalogue.ledgers.values()
    }


def _runs(runs: Any) -> list[tuple[object, ...]]:
    return [(run.first, run.count, run.offset + run.batch.file_offset) for run in runs]


def _segments(catalogue: Catalogue) -> dict[int, tuple[object, ...]]:
    return {n: _segment(one) for n, one in sorted(catalogue.segments.items())}


def _segment(one: LogSegment) -> tuple[object, ...]:
    return (
        one.state.name, one.first_group, one.end_group, one.groups_at, one.end, one.live_bytes,
        one.live_ledgers, one.trailer,
    )  # fmt: skip
