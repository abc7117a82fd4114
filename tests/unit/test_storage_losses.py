"""What is lost of a log is missed until it has been repaired, whatever goes meanwhile."""

from __future__ import annotations

import pytest

from quire.codec.log_group import GROUP_MAGIC
from quire.storage.catalogue import VOUCHES
from quire.storage.segment import segment_name
from quire.storage.space_report import look
from tests.support.storage import (
    EAGER,
    StoreOnDisk,
    compact,
    disk_of,
    entries,
    fill_segments,
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
        # Found like this, it is only the segment behind it that tells.
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
def test_the_segment_that_tells_of_a_loss_is_not_removed(*, wholly: bool) -> None:
    """Seed 2323457955 of amnesia: nothing in it was alive, and with it went what it said."""
    box = with_a_loss(wholly=wholly)
    fill_segments(box, 2, 2)
    box.drop([2])
    box.pump()
    compact(box)
    assert_it_is_missed_until_repaired(box)


@pytest.mark.parametrize("wholly", [False, True])
def test_the_segment_that_tells_of_a_loss_is_not_compacted(*, wholly: bool) -> None:
    box = with_a_loss(wholly=wholly)
    fill_in_turn(box, 3)
    box.drop(list(range(2, 9)))
    box.pump()
    assert compact(box)
    assert_it_is_missed_until_repaired(box)


def test_groups_that_do_not_check_are_lost_whatever_the_segments_behind_tell() -> None:
    box = with_a_loss(wholly=False)
    fill_segments(box, 2, 2)
    box.close()
    disk_of(box).remove(segment_name(VOUCHER))
    problems = box.open().problems
    assert any("1 group of" in problem for problem in problems)
