"""A ledger that was dropped stays dropped, whatever becomes of the segment in which that was
logged: the record is needed for as long as an older segment speaks of the ledger."""

from __future__ import annotations

from quire.storage.scan import scan_groups
from quire.storage.segment import SegmentState, segment_name
from quire.testing.disk import SimDisk
from tests.support.storage import StoreOnDisk, sim_disk

DEAD = 7
"""The ledger that is dropped."""
KEPT = 1
FILLER = 5


def disk_of(box: StoreOnDisk) -> SimDisk:
    assert isinstance(box.disk, SimDisk)
    return box.disk


def current(box: StoreOnDisk) -> int:
    return max(one.number for one in box.store.usage() if one.state == "current")


def fill(box: StoreOnDisk, ledger_id: int) -> int:
    """The rest of the current segment, which is sealed then: its number."""
    number = current(box)
    while current(box) == number:
        first = box.store.last_entry_id(ledger_id) + 1 if ledger_id in box.store.ledgers else 0
        box.append([(ledger_id, first + n, bytes(300)) for n in range(10)])
        box.pump()
    return number


def speaks_in_runs_only(box: StoreOnDisk) -> int:
    """Begin a segment that has entries of the ledger, in several groups, and no record of it."""
    fill(box, DEAD)
    number = current(box)
    for entry in range(1_000, 1_006):
        box.append([(DEAD, entry, bytes(300)), (KEPT, entry, bytes(300))])
        box.pump()
    box.append([(KEPT, 1_006, bytes(300))])  # the group that a start writes once more
    box.pump()
    return number


def lose_a_group(disk: SimDisk, directory_id: bytes, number: int) -> None:
    """Not the last, and not the first."""
    file = disk.open(segment_name(number))
    groups = scan_groups(file, directory_id, number, 4096).groups
    file.close()
    assert len(groups) > 3
    disk.flip_bit(segment_name(number), groups[2].header.offset + 100)


def forget_why(box: StoreOnDisk) -> None:
    """All that lives in the segment in which the drop is logged goes, and so does that segment."""
    logged_in = fill(box, 8)
    fill(box, 9)
    box.drop([8, FILLER])
    box.idle()
    assert logged_in not in [one.number for one in box.store.usage()]


def test_what_a_segment_that_lost_groups_has_of_it_does_not_bring_it_back() -> None:
    box = StoreOnDisk(sim_disk())
    box.open()
    number = speaks_in_runs_only(box)
    directory_id = box.store._directory_id
    disk_of(box).kill()
    lose_a_group(disk_of(box), directory_id, number)
    assert box.open().negatives_unknown
    assert box.store._catalogue.segments[number].state is SegmentState.CLOSED
    assert DEAD in box.store.ledgers
    fill(box, FILLER)
    box.drop([DEAD])
    forget_why(box)
    box.close()
    box.open()
    assert DEAD not in box.store.ledgers
    box.close()


def test_what_a_lost_group_had_of_it_does_not_bring_it_back() -> None:
    """A group that cannot be read at one start, and can be at the next."""
    box = StoreOnDisk(sim_disk())
    box.open()
    number = speaks_in_runs_only(box)
    disk_of(box).kill()
    disk = disk_of(box)
    before = bytes(disk._file(segment_name(number)).data.read(0, 1 << 20))
    for group in range(6):
        disk.flip_bit(segment_name(number), group * 4096 + 4096 + 100)
    assert box.open().negatives_unknown
    fill(box, FILLER)
    box.drop([DEAD])
    forget_why(box)
    box.close()
    file = disk.open(segment_name(number))
    file.write([before], 0)
    file.sync()
    file.close()
    box.open()
    assert DEAD not in box.store.ledgers
    box.close()


def test_a_segment_whose_index_rots_does_not_bring_it_back() -> None:
    """Its groups have entries of the ledger, its index never had them."""
    box = StoreOnDisk(sim_disk())
    box.open()
    number = speaks_in_runs_only(box)
    entry = 2_000
    while current(box) == number:
        box.append([(FILLER, entry + n, bytes(300)) for n in range(10)])
        box.log.run()  # and nothing of the maintenance, which would seal it
        entry += 10
    box.drop([DEAD])
    logged_in = current(box)
    for entry in range(3):
        box.append([(8, entry, bytes(300))])
        box.log.run()
    disk_of(box).kill()  # before it was sealed
    box.open()
    box.idle()
    assert box.store._catalogue.segments[number].state is SegmentState.SEALED
    box.drop([8, FILLER])
    box.idle()
    assert logged_in not in [one.number for one in box.store.usage()]
    box.close()
    disk = disk_of(box)
    size = disk._file(segment_name(number)).data.size
    disk.flip_bit(segment_name(number), size - 20)
    box.open()
    assert DEAD not in box.store.ledgers
    box.close()
