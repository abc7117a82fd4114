"""Effects that damage must not have.

Records of an older file, errors that passed, rotten hints, and more ledgers than one record can
name.
"""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from quire.codec.log.state_records import BLOCK_BYTES
from quire.core.ranges import Range, merged, overlapping
from quire.errors import DamagedError, StorageError
from quire.storage.background import quarantine_record
from quire.storage.background.compactor import Compaction
from quire.storage.background.quarantine_record import record_name
from quire.storage.background.scrub import SegmentScrub
from quire.storage.background.scrubber import SCRUB_NAME, target_of
from quire.storage.segment.extents import FrameExtent
from quire.storage.segment.segment import LOG_DIRECTORY, segment_name
from quire_simulator.machine.disk import SimFile
from tests.support.storage.scrubbed_store import EAGER, ON_SUSPICION, Box, filled
from tests.support.storage.storage import key_of, lacks, sealed


def seal_current(box: Box) -> None:
    wanted, upcoming = len(sealed(box)) + 1, 0
    while len(sealed(box)) < wanted:
        box.append([(97, upcoming + k, b"fill" * 200) for k in range(9)])
        upcoming += 9
        box.pump()
    box.idle()


def readable(box: Box) -> set[tuple[int, int]]:
    found = set()
    for ledger_id, entry_id in box.acknowledged:
        try:
            assert box.read(ledger_id, entry_id) == [box.acknowledged[ledger_id, entry_id]]
        except DamagedError:
            continue
        found.add((ledger_id, entry_id))
    return found


FRAME_SIZES = [[4096] * 6, [100, 3996, 4096, 8192, 1, 4095], [5000, 3192, 4096, 20, 9000]]


@pytest.mark.parametrize("sizes", FRAME_SIZES)
@pytest.mark.parametrize("offset", [8192, 8192 + 100, 12288 - 1])
def test_a_damaged_block_affects_only_frames_with_bytes_in_it(
    sizes: list[int], offset: int
) -> None:
    """A frame that ends where a damaged block begins, or begins where it ends, can be salvaged."""
    equal = len(set(sizes)) == 1
    extent = FrameExtent(
        1, 0, offset, len(sizes), sizes[0] if equal else 0, None if equal else sizes, None
    )
    starts = [offset + sum(sizes[:number]) for number in range(len(sizes))]
    for first in range(12):
        for last in range(first, 12):
            low, high = first * BLOCK_BYTES, (last + 1) * BLOCK_BYTES
            expected = [
                (number, number)
                for number, (start, size) in enumerate(zip(starts, sizes))
                if start < high and start + size > low
            ]
            assert extent.hit([(first, last)]) == merged(expected)


@pytest.mark.parametrize("most", [1, 2, 4])
def test_more_ledgers_than_a_quarantine_record_can_name_are_repaired(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine_record, "LEDGERS_MAX", most)
    box = filled()
    [number, *_] = sealed(box)
    for block in range(1, 12):
        box.flip(number, block)
    box.later()
    told: set[int] = set()
    while lacking := lacks(box.store):
        assert len(lacking) <= most
        assert not told & set(lacking), "the damaged entries are repaired"
        told |= set(lacking)
        box.heal(lacking)
        box.later()
    assert len(told) == 6
    assert box.unreadable() == {}
    assert box.store.stats().damaged_segments == 0


def test_a_truncated_quarantine_record_is_known_as_truncated_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restart forgets which ledgers were left out, until the segment is scrubbed again."""
    monkeypatch.setattr(quarantine_record, "LEDGERS_MAX", 2)
    box = filled(ON_SUSPICION, segments=1)
    [number] = sealed(box)
    for block in range(1, 12):
        box.flip(number, block)
    box.store._maintenance.scrubber.suspect(number)
    box.later()
    record = box.store._maintenance.quarantine.records[number]
    assert record.more
    box.close()
    box.open()
    box.later()
    assert box.store._maintenance.quarantine.records[number] == record
    told: set[int] = set()
    while lacking := lacks(box.store):
        told |= set(lacking)
        box.heal(lacking)
        box.later()
    assert len(told) == 6
    assert box.unreadable() == {}


def test_the_quarantine_record_of_a_replaced_file_hides_no_copies_in_the_new_one() -> None:
    """A crash came between the rewriting and the removal of the record.

    The blocks that it names are sound now, and the newer copies may not be.
    """
    box = filled(ON_SUSPICION, segments=1)
    [number] = sealed(box)
    for ledger_id in range(1, 7):
        ids = [entry_id for ledger, entry_id in box.written if ledger == ledger_id]
        for at in range(0, len(ids), 8):
            box.heal({ledger_id: [(ids[at], ids[min(at + 7, len(ids) - 1)])]})
    seal_current(box)
    box.flip(number, 4)
    box.store._maintenance.scrubber.suspect(number)
    left = b""
    release = box.store._maintenance.quarantine.release

    def keep(number: int) -> None:
        nonlocal left
        file = box.disk.open(record_name(number))
        left = bytes(file.read(0, file.size()) or b"")
        release(number)

    box.store._maintenance.quarantine.release = keep  # type: ignore[method-assign]
    box.later()
    assert box.store.stats().compactions == 1
    box.close()
    file = box.disk.create(record_name(number))
    file.write([left], 0)
    file.sync()
    box.disk.sync_directory(LOG_DIRECTORY)
    box.open()
    for newer in sealed(box)[1:]:
        trailer = box.segment(newer).trailer
        assert trailer is not None
        for block in range(1, trailer.footer_at // BLOCK_BYTES):
            box.flip(newer, block, 50)
    before = readable(box)
    assert len(before) > 50
    box.later()
    assert readable(box) == before
    assert box.records().count(record_name(number).rpartition("/")[2]) == 0


def test_a_segment_rebuilt_from_its_groups_can_be_rebuilt_again() -> None:
    """A deletion comes after the runs that it removes in the group where it was logged.

    Copied elsewhere, it must not remove others.
    """
    box = filled(segments=1)
    box.append([(0, n, b"old life") for n in range(9)])
    box.append([(90, n, b"zz") for n in range(9)])
    box.append([(89, n, b"zz") for n in range(9)])
    box.fence(0)
    box.pump()
    box.append([(88, n, b"zz") for n in range(9)])
    box.append([(87, n, b"zz") for n in range(9)])
    box.drop([0])
    box.store.create_ledger(0, key_of(0), again=True)  # a copy is brought back
    box.append([(0, n, b"new") for n in range(2)])
    box.pump()
    seal_current(box)
    number = next(n for n in sealed(box) if box.store.ledgers[0].lives_in(n))
    for _ in range(2):
        trailer = box.segment(number).trailer
        assert trailer is not None
        box.disk.flip_bit(segment_name(number), trailer.summary_at + 3)
        box.store._cache._values.clear()
        box.later(2)
        assert box.store.stats().damaged_segments == 0
        assert box.unreadable() == {}
    trailer = box.segment(number).trailer
    assert trailer is not None
    box.disk.crash()
    box.disk.flip_bit(segment_name(number), trailer.summary_at + 3)
    assert box.open().problems == ()
    assert box.unreadable() == {}
    assert box.store.ledgers[0].fenced


def test_a_preallocated_segment_is_not_reported_as_damaged() -> None:
    box = filled()
    appender = box.store._appender
    old = appender.current
    upcoming = 0
    while appender.current is old:
        box.pump()
        box.append([(50, upcoming + k, b"x" * 700) for k in range(3)])
        upcoming += 3
    assert appender.current is not None
    number = appender.current.number
    box.store._maintenance.scrubber.suspect(number)
    box.store.check_space()
    while box.maintenance.run():  # the log does nothing
        pass
    assert box.events == []
    box.idle()
    box.flip(number, appender.current.groups_at // BLOCK_BYTES, 200)
    box.clock.ms += 61_000
    box.store._maintenance.scrubber.suspect(number)
    box.later(1)
    assert box.events == [(number, False)]


def test_a_lack_of_file_descriptors_is_not_reported_as_damage() -> None:
    box = filled()
    [number, *_] = sealed(box)
    box.store._files.close(box.segment(number))
    real, short = box.disk.open, True

    def opened(name: str) -> SimFile:
        if short and name == segment_name(number):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(name)

    box.disk.open = opened  # type: ignore[method-assign]
    box.flip(number, 4)
    box.later()
    assert box.events == []
    assert lacks(box.store) == {}
    short = False
    box.later(2)
    assert box.events == [(number, False)]
    assert lacks(box.store) == box.unreadable() != {}


def test_a_read_without_a_file_descriptor_reports_no_damage() -> None:
    """The error was once a DamagedError, as if the disk had returned wrong bytes."""
    box = filled()
    [number, *_] = sealed(box)
    segment = box.segment(number)
    box.store._files.close(segment)

    def opened(name: str) -> SimFile:
        raise OSError(errno.EMFILE, "Too many open files")

    box.disk.open = opened  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="cannot be opened: no file descriptor is left") as found:
        box.store._reader._read_cached(segment, 0, 1)
    assert not isinstance(found.value, DamagedError)


@pytest.mark.parametrize("short_from", [1, 2, 3])
def test_a_compaction_without_a_file_descriptor_takes_no_segment_for_damaged(
    short_from: int,
) -> None:
    """Every candidate once counted as damaged, one after the other, until a scrub had read it."""
    box = filled(replace(ON_SUSPICION, compact_minor_ratio=0.5, compact_major_ratio=0.9))
    done: list[Compaction] = []
    box.store.on_compaction = done.append
    for number in sealed(box):
        box.store._files.close(box.segment(number))
    real = box.disk.open
    opened: list[str] = []

    def open_or_refuse(name: str) -> SimFile:
        if name.endswith(".seg"):
            opened.append(name)
            if len(opened) >= short_from:
                raise OSError(errno.EMFILE, "Too many open files")
        return real(name)

    box.drop([1, 2, 3])
    box.pump()
    box.disk.open = open_or_refuse  # type: ignore[method-assign]
    box.later()
    assert len(opened) >= short_from
    assert [one.damage for one in box.store._catalogue.segments.values() if one.damage] == []
    assert not any("damaged" in one.error for one in done)
    assert box.store.stats().scrubbed_segments == 0
    box.disk.open = real  # type: ignore[method-assign]
    box.later()
    assert box.store.stats().compactions > 0
    assert box.failures == []
    assert box.events == []
    assert readable(box) == {one for one in box.acknowledged if one[0] not in (1, 2, 3)}


def test_a_lack_of_file_descriptors_makes_no_entry_with_a_newer_copy_missing() -> None:
    """A newer segment whose index could not be opened once counted as one without copies."""
    box = filled(ON_SUSPICION)
    [number, *_] = sealed(box)
    first: dict[int, list[int]] = {}
    for ledger_id, entry_id in box.acknowledged:
        first.setdefault(ledger_id, []).append(entry_id)
    box.heal({one: [(min(ids), max(ids))] for one, ids in first.items()})
    seal_current(box)
    for other in sealed(box):
        box.store._files.close(box.segment(other))
    box.flip(number, 4)
    real, refused = box.disk.open, 0

    def opened(name: str) -> SimFile:
        nonlocal refused
        if name.endswith(".seg") and name != segment_name(number):
            refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return real(name)

    box.disk.open = opened  # type: ignore[method-assign]
    box.store._maintenance.scrubber.suspect(number)
    box.later()
    assert refused
    assert box.events == [(number, False)]
    assert lacks(box.store) == {}
    box.disk.open = real  # type: ignore[method-assign]
    box.later()
    assert lacks(box.store) == {}
    assert box.events == [(number, False), (number, True)]
    assert box.failures == []


@pytest.mark.parametrize("suffix", [".damaged.new", "SCRUB.new", ".spare", ".seg"])
def test_files_are_created_later_after_a_lack_of_file_descriptors(suffix: str) -> None:
    box = filled(replace(EAGER, compact_minor_ratio=0.5, compact_major_ratio=0.9))
    [number, *_] = sealed(box)
    real = box.disk.create
    refused: list[str] = []

    def create(name: str) -> SimFile:
        if name.endswith(suffix) and len(refused) < 3:
            refused.append(name)
            raise OSError(errno.EMFILE, "Too many open files")
        return real(name)

    box.disk.create = create  # type: ignore[method-assign]
    box.flip(number, 4)
    box.drop([1, 2, 3])
    for _ in range(4):
        box.later()
        seal_current(box)
    assert len(refused) == 3
    assert box.failures == []
    assert box.errors == []
    assert box.store.writable
    assert box.events == [(number, False)]
    assert len(box.records()) == 1


@pytest.mark.parametrize("rotten", ["record", "round"])
def test_an_unreadable_scrub_note_or_record_does_not_affect_serving(rotten: str) -> None:
    box = filled()
    [number, *_] = sealed(box)
    box.flip(number, 4)
    box.later()
    lacking = lacks(box.store)
    box.close()
    box.disk.fail_reads(record_name(number) if rotten == "record" else SCRUB_NAME)
    box.open()
    box.later()
    assert lacks(box.store) == lacking != {}


def test_an_undecodable_quarantine_record_of_an_intact_segment_is_removed() -> None:
    box = filled(ON_SUSPICION)
    [number, *_] = sealed(box)
    box.close()
    file = box.disk.create(record_name(number))
    file.write([b"rotten"], 0)
    file.sync()
    box.disk.sync_directory(LOG_DIRECTORY)
    box.open()
    box.later()
    assert box.records() == []
    assert box.events == []


def test_a_compaction_that_met_a_transient_error_is_done_later() -> None:
    box = filled(replace(ON_SUSPICION, compact_minor_ratio=0.5, compact_major_ratio=0.9))
    numbers = sealed(box)
    box.drop([1, 2, 3])
    box.idle()
    for number in numbers:
        box.disk.fail_reads(segment_name(number))
    box.store.check_space()
    box.pump()
    assert any(box.segment(number).damage for number in numbers)
    for number in numbers:
        box.disk.mend_reads(segment_name(number))
    for _ in range(4):
        box.clock.ms += 3_600_000
        box.later(1)
    assert box.store.stats().compactions > 0
    assert not any(box.segment(number).damage for number in sealed(box))
    assert box.unreadable() == {}


def test_damage_found_right_after_a_scrub_is_scrubbed_later() -> None:
    box = filled(ON_SUSPICION)
    [number, *_] = sealed(box)
    box.store._maintenance.scrubber.suspect(number)
    box.store.check_space()
    box.idle()
    assert box.store.stats().scrubbed_segments == 1
    box.flip(number, 4)
    assert box.unreadable() != {}
    box.store.check_space()
    box.idle()
    assert box.store.stats().scrubbed_segments == 1
    box.later(2)  # Nobody reads it again.
    assert box.events == [(number, False)]


class Watched(SimFile):
    """Counts what is asked of it."""

    reads = 0

    def read(self, offset: int, size: int, *, wait: bool = True) -> bytes | None:
        self.reads += 1
        return super().read(offset, size, wait=wait)

    def uncache(self, offset: int, size: int) -> None:
        uncached.append((offset, offset + size - 1))


uncached: list[Range] = []


def watched(box: Box, number: int) -> tuple[SegmentScrub, Watched]:
    name = segment_name(number)
    file = Watched(box.disk, name, box.disk._file(name))
    uncached.clear()
    return SegmentScrub(file, box.store._directory_id, target_of(box.segment(number))), file


def test_a_scrub_reads_all_of_a_sealed_segment_from_the_device() -> None:
    box = filled()
    [number, *_] = sealed(box)
    scrub, _ = watched(box, number)
    while scrub.step():
        pass
    assert merged(uncached) == [(0, box.segment(number).file_bytes - 1)]


def test_a_scrub_step_reads_little_from_an_unreadable_segment() -> None:
    """Each failing read may take seconds, and the log waits for the thread."""
    box = filled()
    [number, *_] = sealed(box)
    box.disk.fail_reads(segment_name(number))
    scrub, file = watched(box, number)
    asked = []
    while scrub.step():
        asked.append(file.reads)
        file.reads = 0
    trailer = box.segment(number).trailer
    assert trailer is not None
    blocks = (trailer.footer_at - trailer.groups_at) // BLOCK_BYTES
    assert len(asked) > blocks > 8
    assert max(asked[2:-1]) <= 2
    assert asked[-1] <= blocks + 2  # Then everything, to find out what is good.


def test_overlapping_finds_the_ranges_that_intersect_an_interval() -> None:
    ranges = [(1, 2), (5, 9), (12, 12)]
    for first in range(14):
        for last in range(first, 14):
            expected = [one for one in ranges if one[0] <= last and first <= one[1]]
            assert list(overlapping(ranges, first, last)) == expected
