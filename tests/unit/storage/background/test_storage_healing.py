"""Known damage is repaired by newer copies, rewritten, or gone with its ledgers."""

from __future__ import annotations

from typing import Any

import pytest

from quire.codec.log.state_records import BLOCK_BYTES
from quire.storage.background.quarantine_record import record_name
from quire.storage.background.scrub import SegmentScrub
from quire.storage.background.scrubber import target_of
from quire.storage.directories import LedgerDirectories
from quire.storage.read.read_exceptions import NoEntry
from quire.storage.segment.segment import LOG_DIRECTORY, segment_name
from tests.support.storage.scrubbed_store import ON_SUSPICION, Box, filled, look
from tests.support.storage.storage import check, lacks, mixed, sealed


def test_newer_copies_repair_damage_and_the_segment_is_rewritten() -> None:
    box = filled()
    [number, *_] = sealed(box)
    for block in (3, 4, 9):
        box.flip(number, block)
    box.later()
    lacking = lacks(box.store)
    assert lacking == box.unreadable() != {}
    # One after the other: nothing may be dropped until everything exists again.
    for ledger_id in list(lacking)[:-1]:
        box.heal({ledger_id: lacking.pop(ledger_id)})
        box.later()
        assert lacks(box.store) == lacking == box.unreadable()
        assert box.store.stats().damaged_segments == 1
        assert box.store.stats().compactions == 0
    box.heal(lacking)
    box.later()
    assert lacks(box.store) == {}
    assert box.store.stats().damaged_segments == 0
    assert box.store.stats().compactions == 1
    assert box.records() == []
    assert box.events == [(number, False), (number, True)]
    assert look(box, number).clean
    check(box)
    for end in (box.disk.crash, box.disk.kill):
        end()
        assert box.open().problems == ()
        check(box)
        assert look(box, number).clean


def test_queued_copies_repair_nothing_until_they_are_durable() -> None:
    box = filled()
    [number, *_] = sealed(box)
    box.flip(number, 4)
    box.later()
    lacking = lacks(box.store)
    for ledger_id, ranges in lacking.items():
        for first, last in ranges:
            ids = range(first, last + 1)
            box.append([(ledger_id, n, box.written[ledger_id, n][32:]) for n in ids])
    box.clock.ms += 61_000
    box.store.check_space()
    while box.maintenance.run():  # the log does nothing
        pass
    assert lacks(box.store) == lacking
    assert box.store.stats().compactions == 0
    box.disk.crash()
    box.open()
    assert box.unreadable() == lacking


def test_a_newer_copy_in_the_same_segment_repairs_damage() -> None:
    """The page was damaged while the segment was still being written."""
    box = filled(segments=1)
    box.append([(80, n, b"z" * 900) for n in range(12)])
    box.idle()
    current = box.store.usage()[-1].number
    box.flip(current, box.segment(current).groups_at // BLOCK_BYTES + 2)
    box.later()
    lacking = lacks(box.store)
    assert list(lacking) == [80]
    box.heal(lacking)
    box.later()
    assert lacks(box.store) == {} == box.unreadable()
    assert box.store.stats().damaged_segments == 1  # it is written still
    while box.store.usage()[-1].number == current:
        box.append([(81, n, b"fill" * 200) for n in range(len(box.written), len(box.written) + 9)])
        box.pump()
    box.idle()
    box.later()
    assert box.store.stats().damaged_segments == 0
    assert box.unreadable() == {}
    box.disk.crash()
    box.open()
    assert box.unreadable() == {}


def test_a_rewrite_keeps_newer_copies_of_ledgers_it_leaves_out() -> None:
    """The ledger's only entry in the segment was damaged. Its newer copy survives the rewrite."""
    box = filled(segments=1)
    box.append([(90, 0, b"only" * 200)])
    while box.store.usage()[-1].state != "sealed" and len(sealed(box)) < 2:
        box.append([(91, n, b"fill" * 200) for n in range(len(box.written), len(box.written) + 9)])
        box.pump()
    box.idle()
    number = next(n for n in sealed(box) if box.store.ledgers[90].lives_in(n))
    [first] = [run for run in look_runs(box, number) if run[0] == 90]
    box.flip(number, first[1] // BLOCK_BYTES, first[1] % BLOCK_BYTES + 60)
    box.later()
    assert lacks(box.store)[90] == [(0, 0)]
    box.heal(lacks(box.store))
    box.later()
    assert box.store.stats().damaged_segments == 0
    assert not box.store.ledgers[90].lives_in(number)
    assert box.read(90, 0) == [box.written[90, 0]]
    live = [one.live_ledgers for one in box.store.usage()]
    box.drop([90])
    box.idle()
    assert [one.live_ledgers for one in box.store.usage()] != live
    box.disk.crash()
    box.open()
    assert 90 not in box.store.ledgers
    assert box.unreadable() == {}


def look_runs(box: Box, number: int) -> list[tuple[int, int]]:
    """Return (ledger, offset) of all runs of a segment."""
    segment = box.segment(number)
    file = box.disk.open(segment.name)
    scrub = SegmentScrub(file, box.store._directory_id, target_of(segment))
    while scrub.step():
        pass
    file.close()
    return list(zip(scrub._ledgers, scrub._starts, strict=True))


@pytest.mark.parametrize("part", ["rows", "records", "checksums", "summary", "trailer"])
def test_a_damaged_index_is_rebuilt_from_the_groups(part: str) -> None:
    box = filled(segments=1)
    box.fence(2)
    box.append([(95, n, b"old life") for n in range(9)])
    box.idle()
    box.drop([95])
    box.append([(95, n, b"new") for n in range(2)])
    while len(sealed(box)) < 2:
        box.append([(97, n, b"fill" * 200) for n in range(len(box.written), len(box.written) + 9)])
        box.pump()
    box.idle()
    number = next(n for n in sealed(box) if box.store.ledgers[95].lives_in(n))
    trailer = box.segment(number).trailer
    assert trailer is not None
    at = {
        "rows": trailer.footer_at + 3,
        "records": trailer.records_at + 3,
        "checksums": trailer.checksums_at + 3,
        "summary": trailer.summary_at + 3,
        "trailer": trailer.trailer_at + 30,
    }[part]
    box.disk.flip_bit(segment_name(number), at)
    box.later(2)
    assert box.events == [(number, False), (number, True)]
    assert box.store.stats().damaged_segments == 0
    for _ in range(2):
        assert box.unreadable() == {}
        with pytest.raises(NoEntry):
            box.read(95, 2)
        assert box.store.ledgers[2].fenced
        box.disk.crash()
        assert box.open().problems == ()


def test_damage_to_both_index_and_page_is_repaired_from_the_groups() -> None:
    box = filled(segments=1)
    box.append([(85, n, b"z" * 900) for n in range(12)])
    box.pump()
    number = box.store.usage()[-1].number
    block = (box.segment(number).end - 2 * BLOCK_BYTES) // BLOCK_BYTES
    mixed(box, segments=1)
    segment = box.segment(number)
    box.flip(number, block)
    assert segment.trailer is not None
    box.disk.flip_bit(segment_name(number), segment.trailer.summary_at + 3)
    box.store._cache._values.clear()
    box.later()
    lacking = lacks(box.store)
    assert list(lacking) == [85]
    box.heal(lacking)
    box.later()
    assert box.store.stats().damaged_segments == 0
    assert box.unreadable() == {}
    assert look(box, number).clean


def test_everything_may_be_lost_if_both_index_and_tables_are_damaged() -> None:
    box = filled()
    [number, *_] = sealed(box)
    segment = box.segment(number)
    assert segment.trailer is not None
    box.flip(number, segment.groups_at // BLOCK_BYTES + 1, 90)  # the table of a group
    box.disk.flip_bit(segment_name(number), segment.trailer.summary_at + 3)
    box.store._cache._values.clear()
    box.later()
    whole = {
        ledger_id: [(row[0], row[1])]
        for ledger_id, info in sorted(box.store.ledgers.items())
        for row in [bounds(info, number)]
    }
    assert lacks(box.store) == whole
    box.heal({
        ledger_id: [(first, last)] for ledger_id, [(first, last)] in whole.items()
    })  # fmt: skip
    box.later()
    assert lacks(box.store) == {}
    assert box.unreadable() == {}
    assert box.store.stats().damaged_segments == 1  # until its ledgers are deleted
    ledgers = sorted({ledger_id for ledger_id, _ in box.acknowledged})
    box.drop(ledgers)
    box.idle()
    box.later()


def bounds(info: Any, number: int) -> tuple[int, int]:
    from quire.storage.segment.sealed_rows import unpack

    return next((row[1], row[2]) for row in unpack(info.sealed) if row[0] == number)


def test_a_segment_with_a_damaged_header_is_kept_until_nothing_in_it_is_live() -> None:
    box = filled()
    [number, *_] = sealed(box)
    box.disk.flip_bit(segment_name(number), 20)
    box.later()
    assert box.events == [(number, False)]
    assert lacks(box.store) == {} == box.unreadable()
    assert "its header is damaged" in box.store.usage()[0].why
    box.drop(sorted(box.store.ledgers))
    box.idle()
    box.later()
    assert number not in [one.number for one in box.store.usage()]
    assert box.records() == []
    assert box.events[-1] == (number, True)


def test_damage_to_deleted_ledgers_needs_no_repair() -> None:
    box = filled()
    [number, *_] = sealed(box)
    box.flip(number, 4)
    box.later()
    lacking = lacks(box.store)
    box.drop(lacking)
    box.idle()
    assert lacks(box.store) == {}
    box.later()
    assert box.store.stats().damaged_segments == 0
    check(box)


def test_unknown_damage_stops_a_rewrite_and_is_recorded() -> None:
    box = filled()
    [number, *_] = sealed(box)
    box.flip(number, 4)
    box.later()
    box.heal(lacks(box.store))
    box.config = ON_SUSPICION
    box.close()
    box.open()
    box.flip(number, 8)  # After the last check.
    box.later()
    lacking = lacks(box.store)
    assert lacking == box.unreadable() != {}
    box.heal(lacking)
    box.later()
    assert box.store.stats().damaged_segments == 0
    check(box)


def test_a_quarantine_record_that_outlived_its_segment_is_removed() -> None:
    """A crash came between the rewriting and the removal of the record."""
    box = filled()
    [number, *_] = sealed(box)
    box.flip(number, 4)
    box.later()
    file = box.disk.open(record_name(number))
    left = bytes(file.read(0, file.size()) or b"")
    box.heal(lacks(box.store))
    box.later()
    assert box.records() == []
    box.close()
    file = box.disk.create(record_name(number))
    file.write([left], 0)
    file.sync()
    box.disk.sync_directory(LOG_DIRECTORY)
    box.open()
    box.later()
    assert box.store.stats().damaged_segments == 0
    assert box.records() == []
    check(box)


def test_damage_in_several_directories_is_reported_per_directory() -> None:
    boxes = [filled(), filled()]
    both = LedgerDirectories([box.store for box in boxes])
    told: list[tuple[str, int, bool]] = []
    both.on_damage = lambda path, damage, healed: told.append((path, damage.number, healed))
    boxes[1].drop([1, 2])  # a ledger is in one directory
    boxes[0].drop([3, 4, 5, 6])
    for box, block in zip(boxes, (4, 7), strict=True):
        box.idle()
        box.flip(sealed(box)[0], block)
        box.later()
    lacking = [lacks(box.store) for box in boxes]
    assert all(lacking)
    assert lacks(both) == {**lacking[0], **lacking[1]}
    assert told == [(box.disk.path, sealed(box)[0], False) for box in boxes]
