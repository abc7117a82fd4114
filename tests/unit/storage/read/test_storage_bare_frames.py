"""A compaction writes frames that are answers already, beside the earlier kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest

from quire.codec.entry.frame_runs import Entries, packed
from quire.codec.log.group import BARE_HEAD_BYTES
from quire.codec.log.segment_header import SegmentHeader, encode_segment_header
from quire.codec.log.state_records import RecordKind
from quire.codec.wire.v2 import BATCH_RESPONSE_BYTES, FRAME_HEADER_BYTES, batch_read_response
from quire.errors import DamagedError
from quire.storage.background import rewrite
from quire.storage.background.scrub import ScrubTarget
from quire.storage.inspect.check import runs_of_groups
from quire.storage.inspect.contents import open_segment
from quire.storage.recovery.index_cache import CACHE_NAME
from quire.storage.recovery.startup import find_master_key
from quire.storage.segment.segment import LogSegment, segment_name
from tests.support.storage.compaction import opened
from tests.support.storage.storage import (
    StoreOnDisk,
    check,
    compact,
    disk_of,
    key_of,
    make_entry,
    mixed,
    run,
    sealed,
)


@contextmanager
def whole_frames() -> Iterator[None]:
    """Compactions write what they once wrote: segments of format version 2."""

    def header_before(header: SegmentHeader) -> bytes:
        return encode_segment_header(replace(header, bare=False))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite, "BARE_HEAD_BYTES", FRAME_HEADER_BYTES)
        patch.setattr(rewrite, "GROUP_BARE", 0)
        patch.setattr(rewrite, "_bare", lambda frames, piece: (frames,))
        patch.setattr(rewrite, "encode_segment_header", header_before)
        yield


def compacted(box: StoreOnDisk) -> dict[int, int]:
    """Return the bytes before each entry, by number of the segments that a compaction wrote."""
    found = {}
    for number in sealed(box):
        with open_segment(box.disk, number) as dump:
            header, trailer = dump.description.header, dump.description.trailer
            assert header is not None
            assert trailer is not None
            groups = {group.header.head_bytes for group in dump.groups()}
            assert groups == {trailer.head_bytes}
            assert header.bare == (trailer.head_bytes == BARE_HEAD_BYTES)
            if header.compacted:
                found[number] = trailer.head_bytes
    return found


def segment_of(box: StoreOnDisk, number: int) -> LogSegment:
    return box.store._catalogue.segments[number]


def clean(box: StoreOnDisk) -> bool:
    """Whether the scrub finds nothing in the sealed segments."""
    for number in sealed(box):
        with open_segment(box.disk, number) as dump:
            trailer = dump.description.trailer
            assert trailer is not None
            target = ScrubTarget(number, trailer.groups_at, trailer.footer_at, trailer, ())
            scrub = dump.scrub(target)
            while scrub.step():
                pass
            if not scrub.found.clean:
                return False
    return True


def in_turn(box: StoreOnDisk, payload: Callable[[int], bytes]) -> None:
    """Two segments of three ledgers, of which the third is deleted and the rest compacted."""
    entry = 0
    while box.store.stats().sealed_segments < 2:
        box.append([(ledger_id, entry, payload(entry)) for ledger_id in (1, 2, 3)])
        box.pump()
        entry += 1
    box.idle()
    box.drop([3])
    box.pump()
    assert compact(box)


def read(box: StoreOnDisk, ledger_id: int, count: int) -> Entries:
    found: object = run(box.store.read_blocking(ledger_id, 0, count, 1 << 30))
    assert isinstance(found, Entries)
    return found


@pytest.mark.parametrize("sizes", [(100,), (100, 30, 64)])
def test_answers_are_sent_from_the_bytes_of_the_file(sizes: tuple[int, ...]) -> None:
    box = opened()
    in_turn(box, lambda entry: bytes([entry % 251]) * sizes[entry % len(sizes)])
    [number] = compacted(box)
    file = box.disk.open(segment_name(number))
    contents = bytes(file.read(0, file.size()) or b"")
    file.close()
    for ledger_id in (1, 2):
        wanted = [entry for key, entry in sorted(box.acknowledged.items()) if key[0] == ledger_id]
        found = read(box, ledger_id, len(wanted))
        assert [bytes(one) for one in found] == wanted
        parts = packed(found)
        answer = batch_read_response(0, ledger_id, 0, 1, wanted)[BATCH_RESPONSE_BYTES:]
        assert b"".join(parts) == answer
        in_file = [part for part in parts if isinstance(part, memoryview)]
        assert len(in_file) > 0
        assert all(bytes(part) in contents for part in in_file)
        assert key_of(ledger_id) not in b"".join(in_file)


@pytest.mark.parametrize("from_groups", [False, True])
def test_segments_of_an_earlier_version_are_read_and_compacted_again(from_groups: bool) -> None:
    box = opened()
    with whole_frames():
        mixed(box, segments=3)
        box.drop([1, 2])
        box.pump()
        assert compact(box)
    before = compacted(box)
    assert set(before.values()) == {FRAME_HEADER_BYTES}
    check(box)
    box.close()
    if from_groups:
        disk_of(box).remove(CACHE_NAME)
        for number in before:
            with open_segment(box.disk, number) as dump:
                assert dump.description.trailer is not None
                at = dump.description.trailer.summary_at
            disk_of(box).flip_bit(segment_name(number), at)
    assert box.open().problems == ()
    check(box)
    box.idle()
    assert compacted(box) == before  # also where the index was made again
    assert clean(box)
    mixed(box, segments=2)
    assert compact(box) == []
    for ledger_id in (3, 4, 5):
        box.drop([ledger_id])
        box.pump()
        compact(box)  # of both kinds
        check(box)
    assert set(compacted(box).values()) == {BARE_HEAD_BYTES}
    check(box)
    assert clean(box)
    box.close()
    assert box.open().clean
    check(box)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("from_groups", [False, True])
def test_a_start_restores_a_compacted_segment_from_cache_footer_or_groups(
    cached: bool, from_groups: bool
) -> None:
    """The kind of frames is recorded in the trailer, in the index cache and in each group."""
    box = opened()
    in_turn(box, lambda entry: bytes(100))
    [number] = compacted(box)
    assert segment_of(box, number).head_bytes == BARE_HEAD_BYTES
    with open_segment(box.disk, number) as dump:
        assert dump.summary is not None
        last = dict(zip(dump.summary.ledger_ids, dump.summary.lasts, strict=True))
    box.close()
    if not cached:
        disk_of(box).remove(CACHE_NAME)
    if from_groups:
        with open_segment(box.disk, number) as dump:
            assert dump.description.trailer is not None
            at = dump.description.trailer.trailer_at
        disk_of(box).flip_bit(segment_name(number), at + 20)
        disk_of(box).flip_bit(segment_name(number), 20)  # its header as well
    box.open()
    assert segment_of(box, number).head_bytes == BARE_HEAD_BYTES
    check(box)
    for ledger_id, entry_id in last.items():
        info = box.store.ledgers[ledger_id]
        if from_groups:
            assert info.last_add_confirmed >= entry_id - 1  # by the last entry there
        assert info.master_key == key_of(ledger_id)


def test_a_byte_budget_counts_the_bytes_that_are_sent() -> None:
    box = opened()
    in_turn(box, lambda entry: bytes(100))
    bare = segment_of(box, next(iter(compacted(box))))
    assert bare.head_bytes == BARE_HEAD_BYTES
    each = len(make_entry(1, 0, bytes(100))) + 4
    for more, count in ((0, 5), (-1, 4), (each - 1, 5)):
        found: object = run(box.store.read_blocking(1, 0, 9, 5 * each + more))
        assert isinstance(found, Entries)
        assert len(found) == count
        assert found.size_bytes == count * (each - 4)


def test_no_lost_key_is_taken_from_a_bare_frame() -> None:
    """A lost key is taken from a frame that contains it."""
    for version, wanted in ((2, key_of(1)), (3, None)):
        box = opened()
        with whole_frames() if version == 2 else nullcontext():
            in_turn(box, lambda entry: bytes(100))
        box.drop([2])
        [number] = compacted(box)
        info = box.store.ledgers[1]
        info.open_parts = ()  # Entries in no compacted segment.
        for other in info.sealed_numbers:
            if other != number:
                info.remove_sealed(other)
        info.last_entry_id = 5
        assert find_master_key(box.store._reader, box.store._files, info) == wanted


def test_a_segment_dump_returns_the_entries_of_bare_frames() -> None:
    box = opened()
    in_turn(box, lambda entry: bytes(entry % 50))
    [number] = compacted(box)
    seen = {}
    with open_segment(box.disk, number) as dump:
        for group in dump.groups():
            for ledger_id, runs in runs_of_groups(iter([group])).items():
                for run_ in runs:
                    for entry_id, _, size, entry in dump.frames(run_, group.header.head_bytes):
                        assert size == len(entry) + BARE_HEAD_BYTES
                        seen[ledger_id, entry_id] = entry
    assert seen.items() <= box.acknowledged.items()
    assert len(seen) > 40


def test_the_output_of_a_compaction_has_the_keys_of_all_copied_ledgers() -> None:
    """Bare frames do not contain the keys."""
    box = opened()
    mixed(box, segments=4)  # The keys were logged in the first.
    for gone in ((1, 2), (3,)):  # The output is compacted again.
        box.drop(gone)
        box.pump()
        assert compact(box)
        for number in compacted(box):
            with open_segment(box.disk, number) as dump:
                assert dump.summary is not None
                keys = [
                    (one.ledger_id, one.value)
                    for one in dump.records
                    if one.kind is RecordKind.MASTER_KEY
                ]
                assert sorted(keys) == [(one, key_of(one)) for one in dump.summary.ledger_ids]
                [first, *_] = dump.groups()
                logged = {(one.ledger_id, one.value) for one in first.table.records}
                assert logged >= set(keys)


@pytest.mark.parametrize("place", [1, 4 + 7, 4 + 15, 60])
def test_damage_in_any_part_of_a_bare_frame_is_detected(place: int) -> None:
    """Damage in the length, the ids and the payload is detected."""
    box = opened()
    in_turn(box, lambda entry: bytes(100))
    [number] = compacted(box)
    file = box.disk.open(segment_name(number))
    contents = bytes(file.read(0, file.size()) or b"")
    at = contents.index(make_entry(1, 5, bytes(100))) - BARE_HEAD_BYTES
    file.close()
    box.close()
    disk_of(box).flip_bit(segment_name(number), at + place)
    box.open()
    with pytest.raises(DamagedError, match="entry 5 of ledger 1 is damaged"):
        box.read(1, 5)
    assert box.read(2, 5) == [box.acknowledged[2, 5]]
