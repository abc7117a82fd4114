"""A start with a log that has lost something.

Absence is unknown, lost data is found elsewhere, or the start is refused.
"""

from __future__ import annotations

import pytest

from quire.codec.log.group import GROUP_HEADER_BYTES, GROUP_MAGIC
from quire.codec.log.segment_header import CleanMark
from quire.errors import DamagedError, DiskFullError, StorageError
from quire.storage.directory import read_small_file, write_small_file
from quire.storage.inspect.contents import segment_numbers
from quire.storage.inspect.space_report import look
from quire.storage.read.read_exceptions import NoEntry
from quire.storage.recovery.incarnation import ExpectedLog, LogPosition
from quire.storage.recovery.log_recovery import RecoveryReport
from quire.storage.segment.segment import number_of, segment_name
from quire_simulator.machine.disk import PowerLossError, SimDisk
from tests.support.storage.storage import (
    SMALL,
    StoreOnDisk,
    check,
    disk_of,
    entries,
    fill_segments,
    key_of,
    opened,
    sim_disk,
)


def test_a_missing_segment_makes_absence_unknown_until_it_is_repaired() -> None:
    box = opened()
    fill_segments(box, 1, 2)
    missing = box.store.usage()[0].number
    box.close()
    disk_of(box).remove(segment_name(missing))
    changes: list[bool] = []
    for _ in range(3):
        report = box.open()
        assert report.negatives_unknown
        assert any("missing" in problem for problem in report.problems)
        assert not box.store.writable
        with pytest.raises(NoEntry):
            box.read(1, 0)
        # The remaining entries are still served, and recovery adds are accepted.
        assert box.read(1, box.store.last_entry_id(1))
        box.idle()
        box.close()
    box.open()
    box.store.on_writable_changed = changes.append
    done: list[object] = []
    box.store.mark_repaired(done.append)
    assert not box.store.negatives_unknown
    assert changes == [True]
    box.idle()
    assert done == [None]
    for _ in range(2):
        box.close()
        box.open()
        assert not box.store.negatives_unknown
        assert box.store.writable


@pytest.mark.parametrize("stops", [("clean", "clean"), ("clean", "kill"), ("kill", "clean")])
@pytest.mark.parametrize("first_loss", ["a segment", "a group"])
def test_a_loss_after_a_repair_counts_at_every_start_until_it_is_repaired(
    first_loss: str, stops: tuple[str, str]
) -> None:
    """The second start read an index cache, and took the loss for the one that was repaired.

    Found by seeds 334614077, 3593657268 and 4019989245 of log files.
    """
    box = opened()
    fill_segments(box, 1, 3)
    kept, lost = (one.number for one in box.store.usage()[1:3])
    if first_loss == "a segment":
        box.close()
        disk_of(box).remove(segment_name(box.store.usage()[0].number))
    else:
        lose_a_group(box)
    assert box.open().negatives_unknown
    box.store.mark_repaired(lambda error: None)
    box.idle()
    fill_segments(box, 2, 1)
    box.close()
    disk_of(box).remove(segment_name(lost))
    for stop in (*stops, "clean", "clean"):
        report = box.open()
        assert report.negatives_unknown
        assert f"{segment_name(lost)} is missing" in report.problems
        box.idle()
        if stop == "clean":
            box.close()
        else:
            disk_of(box).kill()
    is_known_once_repaired(box)
    assert kept in [one.number for one in box.store.usage()]


def with_a_missing_segment() -> StoreOnDisk:
    box = opened()
    fill_segments(box, 1, 2)
    box.close()
    disk_of(box).remove(segment_name(box.store.usage()[0].number))
    assert box.open().negatives_unknown
    return box


def test_a_repair_is_durable_when_it_is_reported() -> None:
    """Its only record is the header of the next segment."""
    box = with_a_missing_segment()
    box.idle()
    done: list[object] = []
    box.store.mark_repaired(done.append)
    assert not done
    while not done:
        assert box.log.run()
    assert done == [None]
    disk_of(box).crash()
    assert not box.open().negatives_unknown


def test_a_repair_that_could_not_be_recorded_is_not_reported_as_recorded() -> None:
    """Its caller would end its reports, and the next start would find the loss again."""
    box = with_a_missing_segment()
    box.idle()
    done: list[object] = []
    box.store.mark_repaired(done.append)
    disk_of(box).fail_sync_once()
    box.pump()
    [error] = done
    assert isinstance(error, StorageError)
    disk_of(box).crash()
    assert box.open().negatives_unknown


def test_groups_that_are_lost_are_not_overwritten_by_a_repair_that_is_not_recorded() -> None:
    """The footer would take their place, and they may become readable again."""
    box = opened()
    lose_a_group(box)
    box.open()
    lossy = [one.number for one in box.store.usage() if "lost" in one.why]
    done: list[object] = []
    with pytest.MonkeyPatch.context() as patch:

        def full(*_: object, **how: object) -> None:
            raise DiskFullError("the log of the bookie is full")

        patch.setattr(box.store._appender, "admit", full)
        box.store.create_ledger(9, key_of(9))
        box.store.mark_repaired(done.append)
        box.idle()
    assert [type(one) for one in done] == [DiskFullError]
    assert [one.state for one in box.store.usage() if one.number in lossy] == ["closed"]


def test_a_repair_before_a_segment_is_prepared_is_recorded_later() -> None:
    for prepared in (False, True):
        box = with_a_missing_segment()
        done: list[object] = []
        box.store.mark_repaired(done.append)
        while box.log.run():
            pass
        assert done == [None]
        assert not box.store.negatives_unknown
        if prepared:
            box.pump()
        disk_of(box).crash()
        assert box.open().negatives_unknown is not prepared
        is_known_once_repaired_now(box)


def lose_a_group(box: StoreOnDisk) -> None:
    """Damage the table of a group in the current segment that is not the last, and die."""
    for number in range(6):
        box.append(entries(1, number * 3, 3))
        box.pump()
    disk = disk_of(box)
    segment = box.store.usage()[-1]
    groups_at = 4096 + 2 * 4096
    disk.kill()
    disk.flip_bit(segment_name(segment.number), groups_at + 100)


def is_known_once_repaired(box: StoreOnDisk) -> None:
    box.open()
    is_known_once_repaired_now(box)


def is_known_once_repaired_now(box: StoreOnDisk) -> None:
    box.store.mark_repaired(lambda error: None)
    box.idle()
    box.close()
    assert not box.open().negatives_unknown


@pytest.mark.parametrize("how", ["kill", "crash"])
@pytest.mark.parametrize("segments", [0, 1, 2])
def test_groups_that_an_earlier_start_could_not_read_are_noticed_when_they_return(
    segments: int, how: str
) -> None:
    """Two segments were exchanged, and a start between began another one without knowing them.

    Found by seed 2844050096 of log files.
    """
    box = opened()
    fill_segments(box, 1, segments)
    last = -1
    while len(box.store.usage()) < 2 or last < 4:
        last += 1
        box.append(entries(2, last, 1, 200))
        box.log.run()
    disk, numbers = disk_of(box), [one.number for one in box.store.usage()][-2:]
    getattr(disk, how)()

    def exchange() -> None:
        one, other = map(segment_name, numbers)
        for old, new in ((one, "log/aside"), (other, one), ("log/aside", other)):
            disk.rename(old, new)
        disk.sync_directory("log")

    exchange()
    assert box.open().negatives_unknown
    box.append(entries(3, 0, 1))
    box.close()
    exchange()
    report = box.open()
    there = all(box.store.entry_size(2, entry) for entry in range(last + 1))
    assert report.negatives_unknown or there


@pytest.mark.parametrize("stop", ["clean", "kill"])
@pytest.mark.parametrize("removed", [0, 1, 2])
def test_an_older_copy_of_a_segment_is_noticed_even_if_the_next_ones_are_removed(
    removed: int, stop: str
) -> None:
    """Only the next segment shows which group the older one ended with, and it may be removed."""
    box = opened()
    fill_segments(box, 1, 1)
    number = box.store.usage()[-1].number
    box.append(entries(2, 0, 1))
    box.pump()
    disk = disk_of(box)
    backup = disk.copy()
    backup.crash()
    box.append(entries(2, 1, 3))
    box.pump()
    fill_segments(box, 3, removed + 1)
    fill_segments(box, 1, 1)
    if removed:
        box.drop([3])
        box.idle()
    numbers = [one.number for one in box.store.usage()]
    assert numbers[numbers.index(number) + 1] == number + 1 + removed
    if stop == "clean":
        box.close()
    disk.kill()
    assert disk.restore(segment_name(number), backup)
    report = box.open()
    assert report.negatives_unknown
    assert f"of {segment_name(number)}" in " ".join(report.problems)
    is_known_once_repaired_now(box)


def test_a_lost_group_makes_absence_unknown_at_every_start() -> None:
    box = opened()
    lose_a_group(box)
    for _ in range(3):
        report = box.open()
        assert report.negatives_unknown
        assert any("1 group of" in problem for problem in report.problems)
        assert "damaged: 1 group is lost" in [one.why for one in box.store.usage()]
        assert ("damaged", "1 group is lost") in [
            (one.state, one.why) for one in look(disk_of(box), SMALL).segments
        ]
        found = 0
        for key, entry in box.acknowledged.items():
            try:
                assert box.read(*key) == [entry]
                found += 1
            except NoEntry:
                pass
        assert found == 15
        # Its key may be lost with the group, but every frame has it.
        assert box.store.ledgers[1].master_key == key_of(1)
        box.idle()
        box.close()
    is_known_once_repaired(box)


@pytest.mark.parametrize("lost", [1, 2, 4, 5])
def test_groups_lost_at_the_end_are_noticed(lost: int) -> None:
    """The last group was written completely, and the one before a begun group was synced.

    Found by seed 580161115 of amnesia.
    """
    box = opened()
    for number in range(4):
        box.append(entries(1, number * 3, 3))
        box.pump()
    disk, name = disk_of(box), segment_name(box.store.usage()[-1].number)
    disk.kill()
    # A block for the header, and for each of five groups: the first is of the start.
    for block in range(6 - lost, 6):
        disk.flip_bit(name, block * 4096 + 20)
    for _ in range(3):
        report = box.open()
        assert report.negatives_unknown
        for entry in range(3 * (4 - lost)):
            assert box.read(1, entry) == [box.written[1, entry]]
        if 2 not in box.store.ledgers:
            box.append(entries(2, 0, 1))
        box.idle()
        box.close()
    is_known_once_repaired(box)


def test_groups_lost_with_the_header_of_the_first_segment_are_noticed() -> None:
    """Nothing else showed that there had been groups before the first remaining one."""
    box = opened()
    lose_a_group(box)
    disk, name = disk_of(box), segment_name(1)
    disk.flip_bit(name, 20)  # the header
    for block in (1, 2):  # all groups before the one that is lost anyway
        disk.flip_bit(name, block * 4096 + 20)
    report = box.open()
    assert any("header" in problem for problem in report.problems)
    assert report.negatives_unknown


def test_groups_of_dropped_segments_do_not_count_as_lost_if_a_header_is_lost() -> None:
    box = opened()
    fill_segments(box, 1, 3)
    box.append(entries(2, 0, 5))
    box.idle()
    box.drop([1])
    box.idle()
    assert box.store.stats().segments_removed >= 3
    disk = disk_of(box)
    disk.kill()
    newest = max(one.number for one in box.store.usage())
    disk.flip_bit(segment_name(newest), 20)
    report = box.open()
    assert any("header" in problem for problem in report.problems)
    assert not report.negatives_unknown
    assert box.read(2, 0, 5) == [box.written[2, i] for i in range(5)]


def killed_behind(box: StoreOnDisk, entry: bytes, ledgers: int = 1) -> tuple[SimDisk, str, int]:
    """Write three entries, and then this one of each of several ledgers in the last group.

    Return the file, and the offset of the first of them.
    """
    box.append(entries(1, 0, 3))
    box.pump()
    box.append([(ledger, 3, entry) for ledger in range(1, ledgers + 1)])
    box.pump()
    disk = disk_of(box)
    disk.kill()
    name = segment_name(box.store.usage()[-1].number)
    data = bytes(disk.open(name).read(0, 1 << 20) or b"")
    return disk, name, data.index(entry)


def assert_only_the_last_entry_is_damaged(box: StoreOnDisk, report: RecoveryReport) -> None:
    assert report.torn_group is None
    assert report.damaged_blocks == 1
    assert not report.negatives_unknown
    assert box.read(1, 0, 3) == [box.written[1, i] for i in range(3)]
    with pytest.raises(DamagedError):
        box.read(1, 3)


def test_the_last_group_is_not_torn_if_something_was_written_after_it() -> None:
    """A later write shows that the group was synced, so it is damaged."""
    box = opened()
    disk, name, at = killed_behind(box, b"z" * 5000)
    data = bytes(disk.open(name).read(0, 1 << 20) or b"")
    end = -(-len(data.rstrip(b"\0")) // 4096) * 4096
    disk.flip_bit(name, at + 4000)
    behind = disk.open(name)
    behind.write([b"the next group, torn"], end + 512)
    behind.sync()
    assert_only_the_last_entry_is_damaged(box, box.open())
    box.idle()
    box.close()
    assert box.open().clean
    with pytest.raises(DamagedError):
        box.read(1, 3)


def test_the_last_group_is_torn_if_one_of_its_sectors_was_not_written() -> None:
    box = opened()
    disk, name, at = killed_behind(box, b"z" * 5000)
    file = disk.open(name)
    file.write([bytes(512)], (at + 4000) // 512 * 512)
    file.sync()
    report = box.open()
    assert report.torn_group is not None
    assert box.read(1, 0, 9) == [box.written[1, i] for i in range(3)]


def test_a_wrong_bit_in_the_last_group_is_damage() -> None:
    """Seed 77127 of spoiled: a bit turned in an entry that had just been acknowledged, and the
    bookie died. "No such entry" ended the recovery of its ledger before it."""
    box = opened()
    disk, name, at = killed_behind(box, b"z" * 5000)
    disk.flip_bit(name, at + 4000)
    for _ in range(2):
        assert_only_the_last_entry_is_damaged(box, box.open())
        disk.kill()


@pytest.mark.parametrize("bits", [1, 2])
def test_one_wrong_bit_beside_zeros_in_an_entry_is_damage_and_two_look_torn(bits: int) -> None:
    """One bit explains the checksum. What else the zeros replaced is unknown."""
    box = opened()
    disk, name, at = killed_behind(box, b"z" + bytes(5000))
    for bit in range(bits):
        disk.flip_bit(name, at + 4000, bit)
    report = box.open()
    if bits == 1:
        assert_only_the_last_entry_is_damaged(box, report)
    else:
        assert report.torn_group is not None


@pytest.mark.parametrize("ledgers", [1, 60])
def test_a_wrong_bit_in_the_front_of_the_last_group_is_damage(ledgers: int) -> None:
    """The entries of the group are unknown, so none may be reported absent.

    With runs of one entry, the table is longer than a sector.
    """
    box = opened()
    disk, name, _ = killed_behind(box, b"z" * 100, ledgers)
    data = bytes(disk.open(name).read(0, 1 << 20) or b"")
    start = data.rindex(GROUP_MAGIC)
    table_bytes = int.from_bytes(data[start + 56 : start + 60], "little")
    assert (table_bytes > 1024) == (ledgers > 1)
    table = start + GROUP_HEADER_BYTES
    # A table has many rows of the same kind, so a few bytes of each are enough. What comes before
    # the table is the same for each table, except its length.
    lengths = range(start + 56, start + 60)
    front, step = (range(start, table), 7) if ledgers == 1 else (lengths, 67)
    for place in (*front, *range(table, table + table_bytes, step)):
        length = place in lengths
        for bit in range(8) if length else (place % 8,):
            rotten = StoreOnDisk(disk.copy(), SMALL)
            disk_of(rotten).flip_bit(name, place, bit)
            report = rotten.open()
            assert report.negatives_unknown, f"bit {bit} of byte {place - start}"
            assert report.torn_group is None
            assert rotten.read(1, 0, 3) == [box.written[1, entry] for entry in range(3)]


def test_a_lost_ledger_key_is_recovered_from_the_frames() -> None:
    box = opened()
    box.idle()
    box.append(entries(1, 0, 3))
    box.pump()
    box.append(entries(1, 3, 3))
    box.idle()
    disk = disk_of(box)
    name = segment_name(box.store.usage()[-1].number)
    data = disk.open(name).read(0, 1 << 20)
    assert data is not None
    at = data.index(key_of(1))
    disk.kill()
    disk.flip_bit(name, at)
    report = box.open()
    assert report.negatives_unknown
    assert box.store.ledgers[1].master_key == key_of(1)
    assert box.read(1, 3, 3) == [box.written[1, i] for i in (3, 4, 5)]


def test_a_directory_whose_log_is_missing_is_not_a_new_directory() -> None:
    box = opened()
    box.append(entries(1, 0, 3))
    box.close()
    disk = disk_of(box)
    for name in disk.list("log"):
        disk.remove(f"log/{name}")
    for _ in range(2):
        report = box.open()
        assert report.negatives_unknown
        assert "the log is gone" in report.problems[0] or "a loss" in report.problems[0]
        box.idle()
        box.close()


def test_the_newest_segment_cannot_vanish_unnoticed() -> None:
    box = opened()
    fill_segments(box, 1, 2)
    newest = box.store.usage()[-1].number
    box.idle()
    disk_of(box).kill()
    disk_of(box).remove(segment_name(newest))
    assert box.open().negatives_unknown
    box.idle()
    box.close()
    assert box.open().negatives_unknown


def test_the_segment_of_a_clean_stop_cannot_vanish_unnoticed() -> None:
    """This holds even if all preallocated files, which prove that it was begun, are gone too."""
    box = opened()
    fill_segments(box, 1, 2)
    box.idle()
    newest = box.store.usage()[-1].number
    box.close()
    disk = disk_of(box)
    for name in disk.list("log"):
        if (number := number_of(f"log/{name}")) is not None and number >= newest:
            disk.remove(f"log/{name}")
    for _ in range(3):
        assert box.open().negatives_unknown
        assert not box.store.writable
        # The file may come back, so its number is not that of another one.
        assert box.store.usage()[-1].number > newest
        assert newest not in [one.number for one in box.store.usage()]
        box.idle()
        box.close()


@pytest.mark.parametrize("segments", range(3))
def test_the_mark_of_an_earlier_clean_stop_is_ignored(segments: int) -> None:
    """It may come back with a copy of some files, and proves nothing about later groups."""
    box = opened()
    box.append(entries(1, 0, 2))
    box.close()
    disk = disk_of(box)
    mark = read_small_file(disk, "log/CLEAN")
    assert mark is not None
    box.open()
    box.append(entries(1, 2, 2))
    box.idle()
    if segments:
        fill_segments(box, 2, segments)
    box.append(entries(1, 4, 2))
    box.pump()
    disk.kill()
    write_small_file(disk, "log/CLEAN", mark)
    report = box.open()
    assert not report.clean
    assert not report.negatives_unknown
    check(box)


def test_the_clean_mark_of_another_directory_is_ignored() -> None:
    """The last group of a log that was not stopped cleanly may not be synced."""
    box = opened()
    box.append(entries(1, 0, 2))
    box.pump()
    appender = box.store._appender
    assert appender.current is not None
    number, end_group = appender.current.number, appender.end_group
    disk_of(box).kill()
    for directory_id, clean in ((bytes(16), False), (box.store._directory_id, True)):
        copy = disk_of(box).copy()
        mark = CleanMark(directory_id, number, end_group).encode()
        write_small_file(copy, "log/CLEAN", mark)
        report = StoreOnDisk(copy).open()
        assert report.clean is clean
        assert (report.rewritten_group is None) is clean


def test_a_damaged_footer_is_rebuilt_from_the_groups() -> None:
    box = opened()
    fill_segments(box, 1, 2)
    box.idle()
    box.close()
    disk = disk_of(box)
    first = box.store.usage()[0]
    disk.flip_bit(segment_name(first.number), first.file_bytes - 60)
    report = box.open()
    assert not report.negatives_unknown
    assert report.groups_scanned > 0
    count = box.store.last_entry_id(1) + 1
    assert box.read(1, 0, count) == [box.written[1, i] for i in range(count)]
    box.idle()
    assert box.store.usage()[0].state == "sealed"
    box.close()
    assert box.open().groups_scanned == 0
    assert box.read(1, 0, count) == [box.written[1, i] for i in range(count)]


def test_a_log_of_a_later_version_is_refused_untouched() -> None:
    from quire.codec.entry.digest import crc32c

    box = opened()
    box.append(entries(1, 0, 3))
    box.idle()
    disk = disk_of(box)
    disk.kill()
    name = segment_name(box.store.usage()[-1].number)
    file = disk.open(name)
    head = bytearray(file.read(0, 64) or b"")
    ranges = int.from_bytes(head[56:60], "little")
    head += file.read(64, 16 * ranges) or b""
    head[8] = 9
    head[60:64] = crc32c(head[64:], crc32c(head[:60])).to_bytes(4, "little")
    file.write([bytes(head)], 0)
    before = file.read(0, 1 << 20)
    with pytest.raises(StorageError, match="log format 9"):
        box.open()
    assert disk.open(name).read(0, 1 << 20) == before


@pytest.mark.parametrize(
    "name",
    [
        "current/SCRUB", "log/0000000000000001.damaged", "log/INDEX", "log/CLEAN", "log/SUSPENDED",
        "log/compaction.spare",
    ],
)  # fmt: skip
def test_unreadable_small_files_do_not_prevent_a_start(name: str) -> None:
    """The files contain only hints, or data that can be determined again."""
    box = opened()
    fill_segments(box, 1, 2)
    box.store.suspend_compaction(minor=True, major=True, by="me")
    box.idle()
    box.close()
    disk = disk_of(box)
    if not disk.exists(name):
        file = disk.create(name)
        file.write([b"x" * 100], 0)
        file.sync()
    disk.fail_reads(name)
    box.open()
    for _ in range(3):
        box.store.check_space()
        box.idle()
    check(box)
    assert box.store.failed is None


@pytest.mark.parametrize("how", ["kill", "crash"])
@pytest.mark.parametrize("spoilt", [False, True])
def test_interrupted_starts_lose_nothing_of_the_last_group(how: str, *, spoilt: bool) -> None:
    """A start writes the last group again, in a segment of its own, because it may not be synced.

    If the start is interrupted, the next one finds the group in the older segment, or in both, or
    in the newer one in part. `spoilt` leaves the newer one with bytes that are no group.
    """
    finished = False
    for operation in range(1, 60):
        box = opened()
        for number in range(3):
            box.append(entries(1, number * 2, 2))
            box.pump()
        box.fence(2)
        box.append(entries(3, 0, 1))
        box.pump()
        acknowledged = dict(box.acknowledged)
        assert len(acknowledged) == 7
        disk = disk_of(box)
        disk.kill()
        for _ in range(3):
            disk.crash_after(operation, lambda: None)
            try:
                box.open()
                finished = True
            except PowerLossError:
                pass
            disk.calm()
            disk.kill() if how == "kill" else disk.crash()
            newest = max(name for name in disk.list("log") if name.endswith(".seg"))
            if spoilt and not finished and int(newest[:-4]) > 1:
                file = disk.open(f"log/{newest}")
                if not any(bytes(file.read(4096, 4096) or b"")):
                    file.write([b"never synced"], 8192)
                    file.sync()
                file.close()
        report = box.open()
        assert report.problems == ()
        assert not report.negatives_unknown
        for key, data in acknowledged.items():
            assert box.read(*key) == [data], operation
        assert box.store.ledgers[2].fenced
        box.append(entries(4, 0, 1))
        box.idle()
        disk.kill()
        box.open()
        assert box.read(4, 0) == [box.written[4, 0]]
        if finished:
            break
    assert finished
    assert operation > 3


def test_a_log_without_its_reported_position_has_gone_back() -> None:
    expected = ExpectedLog(LogPosition(newest_file=3, end_group=10))
    for newest_file, end_group in ((3, 10), (3, 11), (4, 10)):
        assert expected.held_against(LogPosition(newest_file, end_group)) == ""
    for newest_file, end_group in ((2, 10), (3, 9), (4, 9), (0, 0)):
        assert "went back in time" in expected.held_against(LogPosition(newest_file, end_group))
    assert ExpectedLog().held_against(LogPosition()) == ""
    assert ExpectedLog(LogPosition(), "is lost").held_against(LogPosition(9, 9)) == "is lost"


def die_after(disk: SimDisk, operations: int) -> None:
    """Let the process die in place of this one of its next operations. The machine goes on."""
    left = iter(range(operations - 1))

    def before() -> None:
        if next(left, None) is None:
            raise PowerLossError("the process died")

    disk.before_operation = before


def power_lost(disk: SimDisk, *, names: bool) -> StoreOnDisk:
    """Return a store on what is left if no unsynced write is kept.

    With `names`, files that were created, renamed or removed stay so, synced or not.
    """
    entries = disk._entries if names else disk.durable_entries
    return StoreOnDisk(
        disk.holding({name: getattr(one, "durable", None) for name, one in entries.items()})
    )


def test_entries_served_after_a_start_survive_a_power_loss() -> None:
    """The last group was never synced, and the start before this one was interrupted."""
    finished = False
    for operation in range(1, 60):
        box = opened()
        box.append(entries(1, 0, 2))
        box.pump()
        box.append(entries(1, 2, 2))
        box.fence(2)
        disk = disk_of(box)
        die_after(disk, 2)  # after the write of the group, before its sync
        with pytest.raises(PowerLossError):
            box.pump()
        disk.kill()
        die_after(disk, operation)
        try:
            box.open()
            finished = True
        except PowerLossError:
            pass
        disk.before_operation = None
        disk.kill()
        assert box.open().problems == ()
        assert box.store.last_entry_id(1) == 3, operation
        later = power_lost(disk, names=False)
        assert later.open().problems == ()
        for key, data in box.written.items():
            assert later.read(*key) == [data], operation
        assert later.store.ledgers[2].fenced, operation
        if finished:
            break
    assert operation > 3


@pytest.mark.parametrize("names", [False, True])
def test_an_interrupted_start_loses_nothing_of_a_removal(names: bool) -> None:
    """The last group says that a segment is dropped, and has the fence that was in it."""
    finished = False
    for operation in range(1, 60):
        box = opened()
        box.fence(4)
        fill_segments(box, 1, 1)
        box.append(entries(2, 0, 1))
        box.idle()
        first = box.store.usage()[0].number
        box.drop([1])
        box.log.run()
        box.maintenance.run()  # it reads the records of the segment
        disk = disk_of(box)
        die_after(disk, 2)  # after the write of the group, before its sync
        with pytest.raises(PowerLossError):
            box.log.run()
        assert disk.exists(segment_name(first))
        disk.kill()
        die_after(disk, operation)
        try:
            box.open()
            finished = True
        except PowerLossError:
            pass
        disk.before_operation = None
        later = power_lost(disk, names=names)
        assert later.open().problems == ()
        assert later.store.ledgers[4].fenced, operation
        assert 1 not in later.store.ledgers
        assert later.read(2, 0) == [box.written[2, 0]]
        if finished:
            break
    assert operation > 3


class Restored(StoreOnDisk):
    """A store of whose log a position was reported."""

    expected = ExpectedLog()

    def before_recovery(self) -> None:
        self.store.expect(self.disk.path, self.expected)


@pytest.mark.parametrize("durable", [False, True])
def test_a_reported_log_position_exists_after_any_number_of_starts(durable: bool) -> None:
    """The second start after a crash between two segments once found a log that had gone back.

    The first start had removed a file whose number was reported, and did not come to its report.
    """
    box = Restored(sim_disk())
    box.open()
    box.idle()
    first = box.store.positions()[box.disk.path].newest_file
    entry = 0
    while box.store.positions()[box.disk.path].newest_file == first:
        for _ in range(2):
            box.append(entries(1, entry, 5))
            entry += 5
        if durable:
            box.pump()
        elif sum(map(len, box.written.values())) > 2 * box.config.segment_bytes:
            break
    box.expected = ExpectedLog(box.store.positions()[box.disk.path])
    assert (box.expected.position.newest_file > first) == durable
    for _ in range(3):
        disk_of(box).crash()
        assert not box.open().went_back


@pytest.mark.parametrize("used", [False, True])
def test_a_start_removes_preallocated_files_before_its_new_segment(used: bool) -> None:
    """A log that went back continues far behind them. They took the space of a segment for good."""
    box = Restored(sim_disk())
    box.open()
    fill_segments(box, 1, 1)
    box.close()
    newest = max(segment_numbers(box.disk))
    if used:  # Nobody knows what this file was, so it is kept.
        file = box.disk.open(segment_name(newest))
        file.write([b"x"], 9_000)
        file.sync()
        file.close()
    box.expected = ExpectedLog(LogPosition(newest_file=newest + 10))
    assert box.open().went_back
    box.expected = ExpectedLog()
    box.idle()
    known = {one.number for one in box.store.usage()}
    others = sorted(set(segment_numbers(box.disk)) - known)
    assert others == [newest] * used + [newest + 12, newest + 13]
    assert box.store.negatives_unknown
    disk_of(box).crash()
    assert box.open().negatives_unknown
    box.idle()
    check(box)
