"""Starts after a start, or a process, that did not finish: cases found by the sweep."""

from __future__ import annotations

import random
from collections.abc import Callable

from quire.storage.segment.segment import LogSegment, SegmentState, segment_name
from quire_simulator.machine.disk import SimDisk
from quire_simulator.machine.power_loss import PowerLoss
from tests.support.crash.crash_scripts import TINY, Writer
from tests.support.crash.crash_sweep import go_on
from tests.support.storage.promises import PromisingStore
from tests.support.storage.storage import sim_disk


class Killed(BaseException):
    """Thrown through the code that was at work."""


def killed_at(disk: SimDisk, operation: int, work: Callable[[], object]) -> bool:
    """Kill the process in place of the n-th operation of `work`, if there is one."""
    left = operation

    def count() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Killed

    disk.before_operation = count
    try:
        work()
    except Killed:
        disk.kill()
        return True
    finally:
        disk.before_operation = None
    return False


def test_prepared_files_that_are_removed_are_not_missed() -> None:
    """A start that dies while it removes what was prepared: a file tells of the one before it."""
    for operation in range(1, 100):
        disk = sim_disk()
        store = PromisingStore(disk, TINY)
        store.open()
        Writer(1).add(3, 900, 1)(store)
        store.idle()
        disk.kill()
        newest = max(one.number for one in store.store.usage())
        for number in range(newest + 1, newest + 5):
            if not disk.exists(segment_name(number)):
                file = disk.create(segment_name(number))
                file.preallocate(TINY.reserve_bytes)
                file.sync()
        disk.sync_directory("log")
        struck = killed_at(disk, operation, store.open)
        for _, found in PowerLoss(disk, random.Random(operation), 64):
            again = PromisingStore(found, TINY, store.promises.copy())
            again.open()
            again.check()
            go_on(again)
        if not struck:
            return
    raise AssertionError("the start does not finish")


def deletions(store: PromisingStore) -> None:
    """Delete a segment. The fence in it is logged again, together with the deletion."""
    writer = Writer(3)
    writer.add(4, 1200, 3, 4)(store)
    store.fence(2)
    writer.add(9, 1500, 3)(store)
    store.pump()
    writer.add(9, 1500, 4)(store)
    writer.add(9, 1500, 5)(store)
    store.idle()
    store.drop([3, 4])
    store.idle()


def test_the_fence_of_a_dropped_segment_is_not_lost_with_the_last_group() -> None:
    """The last group drops a segment and was not synced.

    The start copies it, and its header becomes durable before the copy. The header must not say
    that the segment is gone.
    """
    tried = 0
    for operation in range(1, 200):
        disk = sim_disk()
        store = PromisingStore(disk, TINY)
        store.open()
        if not killed_at(disk, operation, lambda: deletions(store)):  # noqa: B023 - of this turn
            break
        if not any(one.state is SegmentState.RETIRED for one in segments_of(store)):
            continue
        tried += 1
        for second in range(1, 100):
            left = disk.copy()
            starting = PromisingStore(left, TINY, store.promises.copy())
            struck = killed_at(left, second, starting.open)
            for _, found in PowerLoss(left, random.Random(1), 4):
                again = PromisingStore(found, TINY, store.promises.copy())
                again.open()
                again.check()
            if not struck:
                break
    assert tried > 1
    assert store.fenced == {2}


def segments_of(store: PromisingStore) -> list[LogSegment]:
    return list(store.store._catalogue.segments.values())
