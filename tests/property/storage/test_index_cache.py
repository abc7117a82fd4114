"""A start from the index cache finds the same as a start from the footers.

Stores live through random histories of adds, fences, deletions, compactions, stops, and index
caches. Repeatedly the process dies, and the remaining disk is opened with and without its cache,
then with caches of other times. These are used only if they make no difference.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from quire.storage.background.index_cache_writer import IndexCacheWriter, Snapshot
from quire.storage.recovery.index_cache import CACHE_NAME, CachedIndex
from quire.storage.segment import sealed_rows
from quire.storage.segment.segment import LogSegment
from quire_simulator.machine.disk import SimDisk
from quire_simulator.machine.inode import InodeContent
from tests.sim.mutants.mutant import edit
from tests.support.crash.crash_sweep import contents_of
from tests.support.long import long_after
from tests.support.storage.storage import SMALL, StoreOnDisk, key_of, sim_disk

CONFIG = replace(
    SMALL,
    segment_bytes=80 * 1024,
    reserve_bytes=16 * 1024,
    max_group_bytes=32 * 1024,
    compact_minor_interval_s=0.0,
    compact_major_interval_s=0.0,
    index_cache_interval_s=0.0,
    index_cache_segments=1,
)
SMALLER = replace(CONFIG, segment_bytes=32 * 1024, max_group_bytes=8 * 1024)
"""More segments, and so more of them while a cache is written; nothing is worth a compaction."""
STEPS = 60
LEDGERS = 12
OTHERS = 3
"""Caches of other times that are tried with each disk."""


class DifferenceError(AssertionError):
    pass


@dataclass(slots=True)
class Counts:
    compared: int = 0
    used: int = 0
    others_used: int = 0
    refused: int = 0
    compactions: int = 0


class History:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = sim_disk(seed, cold_read_probability=0.0)
        self.config, self.most_bytes = ((CONFIG, 5000), (SMALLER, 1500))[seed % 2]
        self.box = StoreOnDisk(self.disk, self.config)
        self.box.open()
        self.next: dict[int, int] = {}
        self.caches: list[InodeContent] = []
        self.deaths: list[SimDisk] = []
        self.counts = Counts()

    def run(self) -> Counts:
        for _ in range(STEPS):
            self._step()
            if self.rng.random() < 0.6:
                self._die_and_compare()
            self.counts.compactions = max(
                self.counts.compactions, self.box.store.stats().compactions
            )
        return self.counts

    def _step(self) -> None:
        box, rng = self.box, self.rng
        what = rng.random()
        known = box.store.ledger_ids()
        if what < 0.5 or not known:
            self._add(rng.choice((500, self.most_bytes)))
        elif what < 0.6:
            box.fence(rng.choice(known))
        elif what < 0.65:
            ledger_id = rng.choice(known)
            lac = struct.pack(">qq", ledger_id, rng.randrange(50))
            box.store.write_explicit_lac(ledger_id, lac, lambda error: None)
        elif what < 0.75:
            box.drop(rng.sample(known, min(len(known), rng.choice((1, 2, 4)))))
        elif what < 0.95:
            box.store.check_space()
            for _ in range(rng.randrange(12)):  # a cache, or a compaction, may be half written
                rng.choice((box.maintenance.run, box.log.run, box.timers.fire))()
        else:
            box.close()
            box.open()
        if rng.random() < 0.7:
            box.pump()
        if rng.random() < 0.3:
            box.idle()

    def _add(self, most_bytes: int) -> None:
        box, rng = self.box, self.rng
        entries = []
        for _ in range(rng.randrange(1, 4)):
            ledger_id = rng.randrange(LEDGERS)
            if ledger_id not in box.store.ledgers and box.store.is_refused(ledger_id):
                box.store.create_ledger(ledger_id, key_of(ledger_id), again=True)
            first = self.next.get(ledger_id, 0)
            count = rng.randrange(1, 4)
            # Now and then entries come again, as a recovery adds them.
            first = max(0, first - 2) if rng.random() < 0.1 else first
            self.next[ledger_id] = max(self.next.get(ledger_id, 0), first + count)
            entries += [(ledger_id, first + at, rng.randbytes(most_bytes)) for at in range(count)]
        box.append(entries)

    def _die_and_compare(self) -> None:
        left = self.disk.copy()
        if self.rng.random() < 0.5:
            left.kill()
        else:
            left.crash()
        cache = contents_of(left).get(CACHE_NAME)
        truth = self._found(left, None)
        self.counts.compared += 1
        if cache is not None:
            self.counts.used += self._compare(left, cache, truth)
            if cache not in self.caches:
                self.caches.append(cache.copy())
                for earlier in self.deaths:  # Newer than the current ones.
                    self._note(self._compare(earlier, cache, self._found(earlier, None)))
                self.deaths = []
        for other in self.rng.sample(self.caches, min(OTHERS, len(self.caches))):
            self._note(self._compare(left, other, truth))
        self.deaths = [*self.deaths[-2:], left]

    def _note(self, used: bool) -> None:
        self.counts.others_used += used
        self.counts.refused += not used

    def _compare(self, disk: SimDisk, cache: InodeContent, truth: Any) -> bool:
        found = self._found(disk, cache)
        if found[1:] != truth[1:]:
            pairs = zip(found[1:], truth[1:], strict=True)
            raise DifferenceError(str([pair for pair in pairs if pair[0] != pair[1]]))
        return str(found[0]).startswith("used")

    def _found(self, disk: SimDisk, cache: InodeContent | None) -> Any:
        contents = {name: one for name, one in contents_of(disk).items() if name != CACHE_NAME}
        if cache is not None:
            contents[CACHE_NAME] = cache.copy()
        box = StoreOnDisk(disk.holding(contents), self.config)
        report = box.open()
        assert not report.negatives_unknown
        catalogue = box.store._catalogue
        ledgers = {
            one.ledger_id: (
                one.master_key, one.fenced, one.explicit_lac, one.last_entry_id,
                sealed_rows.unpack(one.sealed),
                [(part.segment.number, part.first, part.last) for part in one.open_parts],
            )
            for one in catalogue.ledgers.values()
        }  # fmt: skip
        segments = {number: about(one) for number, one in catalogue.segments.items()}
        return report.index_cache, ledgers, segments, catalogue.tombstones


def about(one: LogSegment) -> tuple[object, ...]:
    return (
        one.state, one.live_ledgers, one.live_bytes, one.trailer, list(one.mentions),
        one.groups_at, one.first_group, one.end_group, one.end, one.file_bytes,
    )  # fmt: skip


def run_all(seeds: int) -> list[Counts]:
    return [History(seed).run() for seed in range(seeds)]


def test_a_start_from_the_cache_equals_a_start_from_the_footers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    totals = run_all(6)
    used = sum(one.used for one in totals)
    others_used, refused = sum(o.others_used for o in totals), sum(o.refused for o in totals)
    with capsys.disabled():
        print(f"\nindex cache: {used} used, {others_used} of other times used, {refused} refused")
    assert sum(one.compactions for one in totals) > 2
    assert used > 20
    assert others_used > 20
    assert refused > 20


def without_trailers(patch: pytest.MonkeyPatch) -> None:
    edit(patch, CachedIndex, "trailer_of", ("if known is None or data != known.trailer:", "if 0:"))


def without_coverage(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, CachedIndex, "restore",
        ("self.segments.items():", "[p for p in self.segments.items() if p[0] in trailers]:"),
    )  # fmt: skip
    patch.setattr(CachedIndex, "check", lambda self, live: None)


def with_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, IndexCacheWriter, "_on_step",
        ("self._barrier(partial(self._on_durable, snapshot, file, compactions))",
         "self._on_durable(snapshot, file, compactions, None)"),
    )  # fmt: skip
    edit(patch, CachedIndex, "restore", ("if end.end_group > end_group:", "if False:"))


def newer_than_the_log(patch: pytest.MonkeyPatch) -> None:
    edit(patch, CachedIndex, "restore", ("if end.end_group > end_group:", "if False:"))


def while_deletions_wait(patch: pytest.MonkeyPatch) -> None:
    """Deleted ledgers are left out, and counted in their segments."""
    edit(
        patch, Snapshot, "blocks",
        ("if info.born > self.through:", "if info.born > self.through or info.fenced:"),
    )  # fmt: skip


@pytest.mark.parametrize(
    "defect",
    long_after(1, [
        without_trailers, without_coverage, with_what_is_not_durable, newer_than_the_log,
        while_deletions_wait,
    ]),
    ids=lambda one: one.__name__,
)  # fmt: skip
def test_the_comparison_finds_each_defect(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    with pytest.raises((DifferenceError, KeyError)):
        run_all(16)
