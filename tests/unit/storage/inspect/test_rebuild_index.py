"""Segment indexes that are rebuilt from groups."""

from __future__ import annotations

import random
from copy import deepcopy

import pytest

from quire.codec.log.state_records import BLOCK_BYTES
from quire.storage.background import sealer
from quire.storage.inspect.contents import open_segment
from quire.storage.inspect.rebuild import RebuildOutcome
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.segment.footer import Sealed, SealInput, write_footer
from quire.storage.segment.segment import LedgerPart, segment_name
from quire_simulator.machine.disk import PowerLossError
from tests.support.storage.segments import (
    contents,
    filled,
    flip,
    forgetful,
    problems_of,
    rebuilt,
    sealed_numbers,
    spoilt,
)
from tests.support.storage.storage import StoreOnDisk, disk_of, entries, opened, sim_disk

CRASH_SEEDS = 4
"""The number of seeds with which each operation is the last. Each keeps other unsynced parts."""


@pytest.mark.parametrize("part", ["rows", "records", "checksums", "summary", "trailer"])
def test_a_rebuilt_index_equals_the_original(part: str) -> None:
    """The footer is equal byte for byte, and the store finds every entry.

    Without the summary, only a lower bound of a ledger's LAC is known.
    """
    disk = sim_disk()
    box = filled(disk)
    box.close()
    before = contents(disk)
    number = sealed_numbers(disk)[1]
    spoilt(disk, number, part)
    assert problems_of(disk)
    dry = rebuilt(disk, dry_run=True)
    done = rebuilt(disk)
    assert dry == done
    assert [one for one in done.values() if one.outcome is not RebuildOutcome.GOOD] == [
        done[number]
    ]
    assert done[number].outcome is RebuildOutcome.REBUILT
    assert done[number].why
    disk.crash()
    after = contents(disk)
    changed = [name for name in before if before[name] != after[name]]
    if part in ("summary", "trailer"):
        assert changed == [segment_name(number)]
        with open_segment(disk, number) as one:
            assert one.description.trailer is not None
            end = one.description.trailer.summary_at
        assert before[changed[0]][:end] == after[changed[0]][:end]
    else:
        assert changed == []
    assert problems_of(disk) == []
    report = box.open()
    assert report.problems == ()
    for (ledger_id, entry_id), entry in box.acknowledged.items():
        assert box.read(ledger_id, entry_id) == [entry]


@pytest.mark.parametrize("part", ["rows", "trailer"])
def test_deleted_ledgers_do_not_come_back_with_the_index(part: str) -> None:
    """The groups still contain the frames of the deleted ledgers."""
    disk = sim_disk()
    box = StoreOnDisk(disk)
    box.open()
    box.append([(4, entry, bytes(300)) for entry in range(5)])
    box.pump()
    box.drop([4])
    filled_up = 0
    while not box.store.stats().sealed_segments:
        box.append([(1, filled_up, bytes(300))])
        box.pump()
        filled_up += 1
    box.close()
    (number, *_) = sealed_numbers(disk)
    spoilt(disk, number, part)
    assert rebuilt(disk)[number].outcome is RebuildOutcome.REBUILT
    assert problems_of(disk) == []
    box.open()
    assert sorted(box.store.ledgers) == [1]


def test_a_rebuilt_index_omits_ledgers_dropped_before_their_segment_was_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = sim_disk()
    with monkeypatch.context() as patch:
        patch.setattr(sealer, "write_footer", forgetful)
        filled(disk).close()
    (number, *_) = sealed_numbers(disk)
    spoilt(disk, number, "rows")
    assert rebuilt(disk)[number].outcome is RebuildOutcome.REBUILT
    with open_segment(disk, number) as one:
        assert one.summary is not None
        assert list(one.summary.ledger_ids) == [1, 2, 4]


def test_a_rebuilt_index_keeps_mentions_of_ledgers_dropped_before_sealing() -> None:
    """Otherwise the record of that deletion may be dropped while groups have runs of the ledger."""
    disk = sim_disk()
    box = StoreOnDisk(disk)
    box.open()
    entry_id = 0
    for segments in (1, 2):
        box.append(entries(7, 3 * segments, 3))
        box.pump()
        while len(box.store.usage()) == segments:
            box.append(entries(1, entry_id, 10, 200))
            entry_id += 10
    box.drop([7])
    box.idle()
    box.close()
    number = sealed_numbers(disk)[1]
    before = contents(disk)[segment_name(number)]
    spoilt(disk, number, "checksums")
    assert rebuilt(disk)[number].outcome is RebuildOutcome.REBUILT
    assert contents(disk)[segment_name(number)] == before
    with open_segment(disk, number) as one:
        assert [record.ledger_id for record in one.records] == [7]


def test_a_damaged_index_is_not_rebuilt_from_incomplete_groups() -> None:
    disk = sim_disk()
    box = filled(disk)
    box.close()
    number = sealed_numbers(disk)[1]
    with open_segment(disk, number) as one:
        start = one.description.groups_at
    flip(disk, number, start + 50)  # the header of the first group
    spoilt(disk, number, "rows")
    before = contents(disk)
    found = rebuilt(disk)[number]
    assert (found.outcome, "lost" in found.why) == (RebuildOutcome.INCOMPLETE, True)
    assert contents(disk) == before


@pytest.mark.parametrize("torn", [False, True])
def test_a_rebuilt_index_omits_a_group_that_does_not_count(torn: bool) -> None:
    """An entry that was never acknowledged became a damaged one, which no bookie could restore.

    The last group was torn, or it was written again by a start that was killed before it had sealed
    the segment.
    """
    box = opened()
    box.append(entries(1, 0, 3))
    box.pump()
    box.append([(1, 3, b"z" * 5000)])
    box.pump()
    disk = disk_of(box)
    disk.kill()
    name = segment_name(box.store.usage()[-1].number)
    file = disk.open(name)
    at = bytes(file.read(0, 1 << 20) or b"").index(b"z" * 5000)
    if torn:
        file.write([bytes(512)], (at + 4000) // 512 * 512)
        file.sync()
    file.close()
    assert (box.open().torn_group is not None) is torn
    box.append(entries(2, 0, 1))
    while box.log.run():  # The thread that seals does nothing.
        pass
    disk.kill()
    done = rebuilt(disk)
    first, last = sorted(done)
    assert done[first].outcome is RebuildOutcome.REBUILT
    assert done[last].outcome is RebuildOutcome.OPEN
    assert problems_of(disk) == []
    with open_segment(disk, first) as one:
        assert [row.count for row in one.rows(1)] == [3]
    report = box.open()
    assert (report.problems, report.damaged_blocks, report.negatives_unknown) == ((), 0, False)
    assert len(box.read(1, 0, 9)) == 3 + (not torn)
    assert box.store.last_entry_id(1) == 2 + (not torn)


def test_rebuilding_an_index_does_not_hide_damaged_entries() -> None:
    """A rebuilt index does not make a damaged block valid."""
    disk = sim_disk()
    box = filled(disk)
    box.close()
    number = sealed_numbers(disk)[1]
    with open_segment(disk, number) as one:
        group = next(one.groups())
    block = group.header.payload_offset // BLOCK_BYTES * BLOCK_BYTES
    flip(disk, number, group.header.payload_offset + 100)
    spoilt(disk, number, "checksums")
    assert rebuilt(disk)[number].outcome is RebuildOutcome.REBUILT
    told = problems_of(disk)
    assert any(f"bytes {block} to" in one for one in told)
    assert not any("index" in one for one in told)


def test_the_index_of_a_compacted_segment_is_rebuilt() -> None:
    disk = sim_disk()
    box = filled(disk, sealed=6)
    box.drop([1, 3, 4])
    box.clock.ms += 100 * 24 * 3600 * 1000
    for _ in range(20):
        box.store.check_space()
        box.idle()
        box.clock.ms += 24 * 3600 * 1000
    assert box.store.stats().compactions
    box.close()
    compacted = []
    for number in sealed_numbers(disk):
        with open_segment(disk, number) as one:
            if one.description.header is not None and one.description.header.compacted:
                compacted.append(number)
    assert compacted
    assert problems_of(disk) == []
    before = contents(disk)
    for number in compacted:
        for part in ("rows", "checksums", "records"):
            spoilt(disk, number, part)
            assert rebuilt(disk)[number].outcome is RebuildOutcome.REBUILT
            assert contents(disk) == before


def boastful(seal: SealInput) -> Sealed:
    """Writes an index that names an entry of ledger 0, which is nowhere."""
    batch = LogBatch((), ())
    batch.file_offset = 2 * BLOCK_BYTES
    run = Run(0, 0, 1, 0, 360)
    run.batch = batch
    ledgers = [(0, LedgerPart.of(seal.segment, 0, [run], -1), -1), *seal.ledgers]
    return write_footer(SealInput(seal.directory_id, seal.segment, ledgers, seal.records))


def test_a_crash_while_an_index_is_rebuilt_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test crashes at each operation. No mixture of both indexes may pass as valid."""
    points: set[int] = set()
    begun = sim_disk()
    with monkeypatch.context() as patch:
        patch.setattr(sealer, "write_footer", boastful)
        before = filled(begun, sealed=1)
        before.close()
    for seed in range(CRASH_SEEDS):
        at, finished = 0, False
        while not finished:
            at += 1
            points.add(at)
            disk = deepcopy(begun)
            disk._rng = random.Random(100 * seed + at)
            disk.crash_after(at, disk.crash)
            try:
                done = rebuilt(disk)
                assert all(one.outcome is RebuildOutcome.REBUILT for one in done.values())
                finished = True
            except PowerLossError:
                pass
            else:
                disk.crash()
            box = StoreOnDisk(disk)
            assert not box.open().negatives_unknown
            for (ledger_id, entry_id), entry in before.acknowledged.items():
                assert box.read(ledger_id, entry_id) == [entry]
            box.close()
            rebuilt(disk)
            assert problems_of(disk) == []
    assert len(points) > 8
