"""The scan of a segment without a footer: what it finds, and what it takes for lost."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from quire.codec.log.state_records import BLOCK_BYTES
from quire.errors import DamagedError
from quire.storage.read.read_exceptions import NoEntry
from quire.storage.recovery import scan
from quire.storage.recovery.scan import (
    SCAN_BYTES,
    UNREADABLE_BLOCKS_MAX,
    TolerantReader,
    has_groups,
    read_group_header,
    read_segment_header,
    scan_groups,
    used_end,
)
from quire.storage.segment.segment import segment_name
from quire_simulator.machine.disk import SimFile
from tests.support.storage.storage import StoreOnDisk, disk_of, entries, opened

START = BLOCK_BYTES


class Bytes:
    """A file of these bytes, of which some blocks cannot be read."""

    def __init__(self, data: bytes, *unreadable: int, error: int = errno.EIO) -> None:
        self.data = data
        self.unreadable = set(unreadable)
        self.error = error

    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, size: int, *, wait: bool = True) -> bytes | None:
        end = min(offset + size, len(self.data))
        if any(
            at * BLOCK_BYTES < end and (at + 1) * BLOCK_BYTES > offset for at in self.unreadable
        ):
            raise OSError(self.error, "cannot be read")
        return self.data[offset:end]


def numbered(blocks: int) -> bytes:
    return b"".join(bytes([n]) * BLOCK_BYTES for n in range(1, blocks + 1))


# -- blocks that cannot be read ---------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EIO, errno.EBADMSG])
@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, 5 * BLOCK_BYTES), (100, 3 * BLOCK_BYTES), (BLOCK_BYTES + 5, 20), (3 * BLOCK_BYTES, 9_999)],
)
def test_an_unreadable_block_does_not_affect_other_blocks(
    offset: int, size: int, error: int
) -> None:
    """An unreadable block is filled with bytes that differ from those on disk and from zeros."""
    data = numbered(5) + b"end"
    reader = TolerantReader(Bytes(data, 1, 3, error=error))
    found = bytes(reader.read(offset, size) or b"")
    expected = data[offset : offset + size]
    assert len(found) == len(expected)
    for at, (one, wanted) in enumerate(zip(found, expected), offset):
        if at // BLOCK_BYTES in (1, 3):
            assert one not in (wanted, 0)
        else:
            assert one == wanted
    touched = {at // BLOCK_BYTES for at in range(offset, offset + len(expected))} & {1, 3}
    assert reader.unreadable == {block * BLOCK_BYTES for block in touched}
    assert reader.size() == len(data)


def test_errors_of_the_whole_disk_are_not_tolerated() -> None:
    """Too many unreadable blocks, or an error of another kind, fail the read."""
    data = numbered(UNREADABLE_BLOCKS_MAX + 1)
    reader = TolerantReader(Bytes(data, *range(UNREADABLE_BLOCKS_MAX)))
    reader.read(0, len(data))
    assert len(reader.unreadable) == UNREADABLE_BLOCKS_MAX
    reader = TolerantReader(Bytes(data, *range(UNREADABLE_BLOCKS_MAX + 1)))
    with pytest.raises(OSError, match="cannot be read"):
        reader.read(0, len(data))
    reader = TolerantReader(Bytes(data, 2, error=errno.ENXIO))
    with pytest.raises(OSError, match="cannot be read"):
        reader.read(0, len(data))


def test_an_error_other_than_bad_data_in_a_single_block_is_raised() -> None:
    class Changing(Bytes):
        def read(self, offset: int, size: int, *, wait: bool = True) -> bytes | None:
            if size <= BLOCK_BYTES:
                self.error = errno.ENXIO
            return super().read(offset, size, wait=wait)

    with pytest.raises(OSError, match="cannot be read") as raised:
        TolerantReader(Changing(numbered(4), 2)).read(0, 4 * BLOCK_BYTES)
    assert raised.value.errno == errno.ENXIO


def test_a_block_that_is_readable_at_the_second_attempt_is_intact() -> None:
    class Recovers(Bytes):
        def read(self, offset: int, size: int, *, wait: bool = True) -> bytes | None:
            try:
                return super().read(offset, size, wait=wait)
            finally:
                self.unreadable.clear()

    data = numbered(4)
    reader = TolerantReader(Recovers(data, 2))
    assert bytes(reader.read(0, len(data)) or b"") == data
    assert reader.unreadable == set()


# -- groups -----------------------------------------------------------------------------------


def log(groups: int = 6) -> tuple[StoreOnDisk, SimFile, list[scan.ScannedGroup]]:
    """A store that was killed, its newest segment, and the groups there, each of three entries."""
    box = opened()
    for number in range(groups):
        box.append(entries(1, number * 3, 3, 1_500))
        box.pump()
    number = box.store.usage()[-1].number
    assert number == 1
    disk_of(box).kill()
    file = disk_of(box).open(segment_name(number))
    found = scan_groups(file, box.store._directory_id, number, START).groups
    assert len(found) >= groups
    return box, file, found


def damage(data: bytearray, at: int) -> None:
    data[at] ^= 0xFF


def changed(file: SimFile, *places: int) -> Bytes:
    data = bytearray(file.read(0, file.size()) or b"")
    for at in places:
        damage(data, at)
    return Bytes(bytes(data))


def lost(box: StoreOnDisk, file: object) -> tuple[list[int], int]:
    """Return the numbers of the groups that a scan finds, and the number that it takes for lost
    after the last of them."""
    found = scan_groups(file, box.store._directory_id, 1, START)  # type: ignore[arg-type]
    return [one.header.number for one in found.groups], found.lost_behind


def test_a_damaged_group_does_not_affect_other_groups() -> None:
    box, file, groups = log()
    numbers = [one.header.number for one in groups]
    assert lost(box, file) == (numbers, 0)
    for bad in range(len(groups) - 1):
        there = changed(file, groups[bad].header.offset + 20)
        assert lost(box, there) == (numbers[:bad] + numbers[bad + 1 :], 0)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_completely_written_damaged_groups_at_the_end_are_counted_as_lost(count: int) -> None:
    """All but the last group were synced. The last one counts if its front is complete."""
    box, file, groups = log()
    numbers = [one.header.number for one in groups]
    there = changed(file, *(one.header.offset + 100 for one in groups[-count:]))
    found, behind = lost(box, there)
    assert found == numbers[:-count]
    assert behind == max(count - 1, 1)


def test_a_last_group_with_an_incomplete_front_is_torn_and_not_lost() -> None:
    """A sector of the front is zeros, so the group was never acknowledged."""
    box, file, groups = log()
    last = groups[-1].header
    data = bytearray(file.read(0, file.size()) or b"")
    data[last.offset : last.end] = bytes(last.end - last.offset)
    assert lost(box, Bytes(bytes(data))) == ([one.header.number for one in groups[:-1]], 0)
    data[last.offset + 512 : last.offset + 1_024] = b"\x01" * 512
    assert lost(box, Bytes(bytes(data))) == ([one.header.number for one in groups[:-1]], 0)


def test_an_unreadable_group_may_be_lost_at_any_position() -> None:
    box, file, groups = log()
    data = bytes(file.read(0, file.size()) or b"")
    numbers = [one.header.number for one in groups]
    for bad in range(len(groups)):
        block = groups[bad].header.offset // BLOCK_BYTES
        there = TolerantReader(Bytes(data, block))
        found, behind = lost(box, there)
        assert found == numbers[:bad] + numbers[bad + 1 :]
        assert behind == (1 if bad == len(groups) - 1 else 0)
        assert there.unreadable == {block * BLOCK_BYTES}
    payload = groups[2].header.offset // BLOCK_BYTES + 1
    found_there = scan_groups(
        TolerantReader(Bytes(data, payload)), box.store._directory_id, 1, START
    ).groups
    assert [one.header.number for one in found_there] == numbers
    assert [one.damaged_blocks for one in found_there] == [
        int(at == 2) for at in range(len(groups))
    ]
    assert not found_there[2].may_be_torn, "an unreadable block was written"


def test_groups_of_another_directory_or_segment_are_ignored() -> None:
    box, file, groups = log()
    ours = box.store._directory_id
    other = bytes(len(ours))
    for directory_id, number in ((other, 1), (ours, 2)):
        assert scan_groups(file, directory_id, number, START).groups == []
        at = groups[0].header.offset
        assert read_group_header(file, directory_id, number, at, file.size()) is None
        assert read_segment_header(file, directory_id, number) is None
    assert read_group_header(file, ours, 1, groups[0].header.offset, file.size()) == (
        groups[0].header
    )
    assert read_group_header(file, ours, 1, groups[0].header.offset + 512, file.size()) is None
    header = read_segment_header(file, ours, 1)
    assert header is not None
    assert header.first_group == groups[0].header.number


@pytest.mark.parametrize("place", [0, 1, 300])
def test_a_segment_with_any_remains_of_a_group_is_not_empty(place: int) -> None:
    """An empty segment would be removed.

    A header of zeros was never synced, and groups follow it closely.
    """
    box, file, groups = log()
    at = groups[0].header.offset
    group = bytes(file.read(at, groups[0].header.end - at) or b"")
    blank = bytes(BLOCK_BYTES)
    data = b"x" * BLOCK_BYTES + blank * place + group[:BLOCK_BYTES] + blank * 3
    assert has_groups(Bytes(data))
    assert not has_groups(Bytes(data[: BLOCK_BYTES * (1 + place)] + blank * 3))
    assert has_groups(Bytes(blank + data[BLOCK_BYTES:])) is ((1 + place) * BLOCK_BYTES < SCAN_BYTES)
    unreadable = TolerantReader(Bytes(b"x" * BLOCK_BYTES + blank * 5, 3))
    assert has_groups(unreadable), "the block may be the start of a group"
    assert box.report is not None


@pytest.mark.parametrize(
    ("content", "start", "expected"),
    [
        (lambda: bytes(3 * BLOCK_BYTES), 100, 100),
        (lambda: b"abc" + bytes(9_000), 0, 3),
        (lambda: b"abc" + bytes(9_000), 3, 3),
        (lambda: bytes(5) + b"x", 0, 6),
        (lambda: b"x" + bytes(2 * SCAN_BYTES), 0, 1),
        (lambda: b"x" * (SCAN_BYTES + 1) + bytes(SCAN_BYTES), 0, SCAN_BYTES + 1),
        (lambda: bytes(SCAN_BYTES) + b"y" + bytes(SCAN_BYTES), 7, SCAN_BYTES + 1),
    ],
)
def test_the_used_end_follows_the_last_written_block(
    content: Callable[[], bytes], start: int, expected: int
) -> None:
    assert used_end(Bytes(content()), start) == expected


# -- torn or damaged --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "torn"), [(1, False), (2, True), (40, True)], ids=["one bit", "two bits", "many bits"]
)
@pytest.mark.parametrize("zeros", [True, False])
def test_a_last_group_with_one_wrong_bit_is_damaged_unless_it_looks_torn(
    bits: int, *, torn: bool, zeros: bool
) -> None:
    """Entries may have a sector of zeros, which looks like one that was never written.

    A torn group does not count. A damaged one may have been acknowledged, so it is reported.
    """
    box = opened()
    box.append([(1, 0, b"before")])
    box.pump()
    filler = bytes(6_000) if zeros else b"z" * 6_000
    box.append([(1, 1, b"y" * 5_000 + filler + b"x" * 4_000)])
    box.pump()
    disk, name = disk_of(box), segment_name(1)
    disk.kill()
    data = bytes(disk.open(name).read(0, 1 << 20) or b"")
    at = data.index(b"y" * 5_000 + filler) + 8_000
    for number in range(bits):
        disk.flip_bit(name, at + number, number % 8)
    report = box.open()
    dropped = torn and zeros
    assert (report.torn_group is not None) is dropped
    assert bool(report.damaged_blocks) is not dropped
    assert _readable(box) == [(1, 0)]
    assert box.store.last_entry_id(1) == (0 if dropped else 1)


def _readable(box: StoreOnDisk) -> list[tuple[int, int]]:
    found = []
    for key in box.written:
        try:
            box.read(*key)
        except (DamagedError, NoEntry):
            continue
        found.append(key)
    return found


# -- starts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["header", "first group", "payload", "last group"])
def test_a_bad_sector_does_not_fail_a_start_and_is_not_reported_as_absence(what: str) -> None:
    box, _, groups = log()
    disk, name = disk_of(box), segment_name(1)
    at = {
        "header": 0,
        "first group": groups[1].header.offset,
        "payload": groups[1].header.offset + BLOCK_BYTES,
        "last group": groups[-1].header.offset,
    }[what]
    disk.fail_reads(name, at, BLOCK_BYTES)
    report = box.open()
    lost_group = what in ("first group", "last group")
    assert report.negatives_unknown is lost_group
    assert bool(report.damaged_blocks) is (what == "payload")
    assert report.problems
    served = 0
    for key, data in box.acknowledged.items():
        try:
            assert box.read(*key) == [data]
            served += 1
        except Exception:  # noqa: BLE001 - some are lost or damaged, as the report says
            continue
    lacking = len(box.acknowledged) - served
    assert (lacking == 0) is (what == "header")
    assert lacking <= 3
