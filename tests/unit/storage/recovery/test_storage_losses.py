"""A loss in the log is reported until it has been repaired, whatever is removed meanwhile."""

from __future__ import annotations

import errno
import struct

import pytest

from quire.codec.log.group import GROUP_MAGIC
from quire.codec.wire.v2 import add_request
from quire.errors import DamagedError
from quire.storage.background import sealer
from quire.storage.inspect.space_report import look
from quire.storage.read.read_exceptions import NoEntry
from quire.storage.recovery.scan import scan_groups
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.segment.catalogue import VOUCHES
from quire.storage.segment.footer import Sealed, SealInput
from quire.storage.segment.segment import segment_name
from tests.support.storage.storage import (
    EAGER,
    StoreOnDisk,
    compact,
    disk_of,
    entries,
    fill_segments,
    key_of,
    opened,
)

LOSSY, VOUCHER = 1, 2


def with_a_loss(*, wholly: bool) -> StoreOnDisk:
    """The last group of the first segment lost its header, or all that it begins with."""
    box = opened(EAGER)
    box.append(entries(1, 0, 3))
    box.pump()
    disk, name = disk_of(box), segment_name(LOSSY)
    disk.kill()
    data = bytes(disk.open(name).read(0, 1 << 20) or b"")
    last = data.rindex(GROUP_MAGIC)
    disk.flip_bit(name, last + 20)
    assert box.open().negatives_unknown
    if wholly:
        # In this case, only the next segment shows it.
        for at in range(last, last + 16):
            disk.flip_bit(name, at)
    return box


def fill_in_turn(box: StoreOnDisk, count: int) -> None:
    """Segments that the ledgers 2 to 9 share."""
    entry = 0
    while box.store.stats().sealed_segments < count:
        box.append([(ledger, entry, bytes(250)) for ledger in range(2, 10)])
        box.pump()
        entry += 1
    box.idle()


def why(box: StoreOnDisk) -> dict[int, tuple[str, bool]]:
    return {one.number: (one.why, one.reclaimable) for one in box.store.usage()}


def assert_it_is_missed_until_repaired(box: StoreOnDisk) -> None:
    assert why(box)[VOUCHER] == (VOUCHES, False)
    for _ in range(2):
        box.close()
        report = box.open()
        assert report.negatives_unknown
        assert any("1 group of" in problem for problem in report.problems)
        said = {one.number: one.why for one in look(disk_of(box), EAGER).segments}
        assert said[VOUCHER] == VOUCHES
        compact(box)
        box.idle()
    box.store.mark_repaired(lambda error: None)
    box.idle()
    compact(box)
    assert VOUCHER not in why(box)
    box.close()
    assert not box.open().negatives_unknown


@pytest.mark.parametrize("wholly", [False, True])
def test_a_segment_that_reports_a_loss_is_not_removed(*, wholly: bool) -> None:
    """Nothing in the segment was live, so its report went with it (amnesia, seed 2323457955)."""
    box = with_a_loss(wholly=wholly)
    fill_segments(box, 2, 2)
    box.drop([2])
    box.pump()
    compact(box)
    assert_it_is_missed_until_repaired(box)


@pytest.mark.parametrize("wholly", [False, True])
def test_a_segment_that_reports_a_loss_is_not_compacted(*, wholly: bool) -> None:
    box = with_a_loss(wholly=wholly)
    fill_in_turn(box, 3)
    box.drop(list(range(2, 9)))
    box.pump()
    assert compact(box)
    assert_it_is_missed_until_repaired(box)


@pytest.mark.parametrize("wholly", [False, True])
def test_a_loss_is_remembered_while_the_segment_that_showed_it_is_unreadable(
    *, wholly: bool
) -> None:
    """The start that could not read the next segment sealed the one that had lost groups."""
    box = with_a_loss(wholly=wholly)
    fill_segments(box, 2, 3)
    box.close()
    disk, (one, other) = disk_of(box), map(segment_name, (VOUCHER, VOUCHER + 2))
    for _ in range(2):
        for old, new in ((one, "log/aside"), (other, one), ("log/aside", other)):
            disk.rename(old, new)
        disk.sync_directory("log")
        assert box.open().negatives_unknown
        box.idle()
        box.close()
    report = box.open()
    assert report.negatives_unknown
    assert "an earlier start has found a loss, which is not repaired yet" in report.problems
    box.store.mark_repaired(lambda error: None)
    box.idle()
    box.close()
    assert not box.open().negatives_unknown


def test_groups_with_wrong_checksums_are_lost_even_if_the_next_segment_is_missing() -> None:
    box = with_a_loss(wholly=False)
    fill_segments(box, 2, 2)
    box.close()
    disk_of(box).remove(segment_name(VOUCHER))
    problems = box.open().problems
    assert any("1 group of" in problem for problem in problems)


def lose_group(box: StoreOnDisk, number: int, at: int) -> None:
    disk = disk_of(box)
    found = scan_groups(disk.open(segment_name(number)), box.store._directory_id, number, 4096)
    assert len(found.groups) > at + 1
    disk.flip_bit(segment_name(number), found.groups[at].header.offset + 100)


@pytest.mark.parametrize("used", [False, True])
def test_a_last_group_with_bytes_written_after_it_is_damaged_and_not_torn(*, used: bool) -> None:
    """The log syncs a group before it writes after it, so the group may be acknowledged."""
    box = opened(EAGER)
    for number in range(3):
        box.append(entries(1, 20 * number, 20, 200))
        box.pump()
    disk, name = disk_of(box), segment_name(1)
    disk.kill()
    last = scan_groups(disk.open(name), box.store._directory_id, 1, 4096).groups[-1].header
    file = disk.open(name)
    file.write([bytes(512)], last.payload_offset // 512 * 512 + 4096)
    if used:
        file.write([b"?"], last.end + 8000)
    report = box.open()
    assert (report.torn_group is None) == used
    wrong: list[type[Exception]] = []
    for entry in range(40, 60):
        try:
            assert box.read(1, entry) == [box.written[1, entry]]
        except (DamagedError, NoEntry) as error:
            wrong.append(type(error))
    assert wrong
    assert set(wrong) == {DamagedError if used else NoEntry}
    assert box.read(1, 39) == [box.written[1, 39]]


def append_alone(box: StoreOnDisk, ledger_id: int, first: int, count: int) -> None:
    """Append each entry in its own group."""
    for entry_id in range(first, first + count):
        box.append([(ledger_id, entry_id, bytes(300))])
        box.pump()


def lose_header(box: StoreOnDisk, number: int) -> None:
    disk_of(box).flip_bit(segment_name(number), 20)


@pytest.mark.parametrize(
    ("header", "lost"), [(False, 0), (False, 1), (False, 3), (True, 0), (True, 1), (True, 3)]
)
def test_lost_groups_at_the_start_of_a_later_segment_are_counted(header: bool, lost: int) -> None:
    """Without the header, the previous segment shows the number of the first group."""
    box = opened()
    fill_segments(box, 1, 1)
    append_alone(box, 2, 0, 8)
    number = box.store.usage()[-1].number
    disk_of(box).kill()
    groups = scan_groups(
        disk_of(box).open(segment_name(number)), box.store._directory_id, number, 4096
    ).groups
    assert len(groups) > 6
    for group in groups[:lost]:
        disk_of(box).flip_bit(segment_name(number), group.header.offset + 100)
    if header:
        lose_header(box, number)
    report = box.open()
    counted = {1: "1 group of", 3: "3 groups of"}
    assert report.negatives_unknown is bool(lost)
    assert [what for what in report.problems if " lost" in what] == (
        [f"{counted[lost]} {segment_name(number)} {'is' if lost == 1 else 'are'} lost"]
        if lost else []
    )  # fmt: skip


def test_groups_lost_at_both_ends_of_a_segment_without_neighbours_are_counted() -> None:
    """The segment before it was removed, so that nobody knows the number of its first group."""
    box = opened()
    fill_segments(box, 1, 1)
    fill_segments(box, 3, 2)
    append_alone(box, 2, 0, 4)
    box.drop([3])
    box.idle()
    number = box.store.usage()[-1].number
    assert number - 1 not in [one.number for one in box.store.usage()]
    disk_of(box).kill()
    groups = scan_groups(
        disk_of(box).open(segment_name(number)), box.store._directory_id, number, 4096
    ).groups
    assert len(groups) > 4
    for group in (groups[0], groups[2]):
        disk_of(box).flip_bit(segment_name(number), group.header.offset + 100)
    lose_header(box, number)
    report = box.open()
    assert report.negatives_unknown
    assert f"2 groups of {segment_name(number)} are lost" in report.problems


def test_a_segment_that_waited_for_space_for_its_index_is_sealed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loss is found and repaired again meanwhile, which seals all segments with a loss."""
    box = opened()
    append_alone(box, 1, 0, 8)
    disk_of(box).kill()
    lose_group(box, 1, 4)
    box.open()
    write_footer, full = sealer.write_footer, True

    def writing(job: SealInput) -> Sealed:
        if full:
            raise OSError(errno.ENOSPC, "no room")
        return write_footer(job)

    monkeypatch.setattr(sealer, "write_footer", writing)
    repaired: list[object] = []
    box.store.mark_repaired(repaired.append)
    box.idle()
    append_alone(box, 2, 20, 10)
    number = box.store.usage()[-1].number
    disk_of(box).kill()
    lose_group(box, number, 2)
    assert box.open().negatives_unknown
    box.idle()
    whole = {entry_id: box.read(1, entry_id) for entry_id in range(3)}
    box.store.mark_repaired(repaired.append)
    box.idle()
    box.store.check_space()
    box.idle()
    box.store.mark_repaired(repaired.append)
    full = False
    box.idle()
    assert repaired == [None, None, None]
    box.store.check_space()
    box.idle()
    assert {entry_id: box.read(1, entry_id) for entry_id in range(3)} == whole
    disk_of(box).kill()
    assert not box.open().negatives_unknown
    assert {entry_id: box.read(1, entry_id) for entry_id in range(3)} == whole


def test_no_lac_is_taken_from_a_block_with_a_wrong_checksum() -> None:
    box = opened()
    head = struct.pack(">qqqq", 7, 100, 0, 50)
    frame = add_request(key_of(7), head + bytes(50))
    box.store.create_ledger(7, key_of(7))
    box.store.append(LogBatch([frame], [Run(7, 100, 1, 0, len(frame))]), lambda batch, error: None)
    box.pump()
    append_alone(box, 8, 0, 2)
    disk, name = disk_of(box), segment_name(1)
    disk.kill()
    data = bytes(disk.open(name).read(0, 1 << 20) or b"")
    disk.flip_bit(name, data.index(head) + 23, 6)  # 0 becomes 64
    assert box.open().damaged_blocks == 1
    assert box.store.ledgers[7].last_add_confirmed <= 0


@pytest.mark.parametrize("sizes", [[50], [50, 50, 50], [50, 60, 7], [9, 300, 300, 4_500]])
@pytest.mark.parametrize("others", [0, 20])
def test_the_lac_of_each_ledger_is_known_after_a_crash(sizes: list[int], others: int) -> None:
    """The LAC is in the last entry of the ledger, whatever the sizes of its entries."""
    box = opened()
    box.append([
        *((7, number, bytes(size)) for number, size in enumerate(sizes)),
        *((100 + number, 5, bytes(50)) for number in range(others)),
    ])  # fmt: skip
    box.pump()
    append_alone(box, 8, 0, 2)
    disk_of(box).kill()
    assert box.open().problems == ()
    found = {one: info.last_add_confirmed for one, info in box.store.ledgers.items()}
    assert found == {
        7: len(sizes) - 2, 8: 0, **{100 + number: 4 for number in range(others)}
    }  # fmt: skip
