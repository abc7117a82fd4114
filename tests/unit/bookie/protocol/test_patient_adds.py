"""Adds of replication, and explicit LACs, wait a moment to share a sync with others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quire.codec.log.state_records import BLOCK_BYTES
from quire.codec.wire import v2 as frames
from quire.codec.wire.v2 import Flag
from quire.storage.config import StorageConfig
from quire.storage.directories import LedgerDirectories
from quire.storage.disk import RealDisk
from quire.storage.log.appender import PATIENT_BYTES_MAX
from quire.storage.segment.batch import LogBatch
from tests.support.bookies.bookie import peer_of, running_bookie
from tests.support.bookies.v3 import KEY, entry
from tests.support.storage.storage import SMALL, StoreOnDisk, disk_of, entries, opened

LAC = (8).to_bytes(8, "big") + (0).to_bytes(8, "big") + b"digest"


def with_a_writer(config: StorageConfig = SMALL) -> StoreOnDisk:
    """A store to which a writer has just added."""
    box = opened(config)
    box.append(entries(8, 0, 1))
    box.pump()
    assert box.acknowledged_order == [0]
    return box


def copies(box: StoreOnDisk, first: int, count: int = 1, size: int = 100) -> None:
    box.append(entries(9, first, count, size), patient=True)


def test_a_copy_waits_for_an_add_and_both_are_synced_in_one_group() -> None:
    box = with_a_writer()
    groups = box.store.stats().groups
    copies(box, 0)
    copies(box, 1)
    box.pump()
    assert box.acknowledged_order == [0]
    assert box.store.stats().groups == groups
    assert len(box.read(9, 0, 2)) == 2  # readable, as all that is queued
    assert box.store.queued_bytes > 0
    box.append(entries(8, 1, 1))
    box.pump()
    assert box.acknowledged_order == [0, 1, 2, 3]
    assert box.store.stats().groups == groups + 1


def test_a_copy_without_an_add_is_written_after_its_delay_and_the_next_at_once() -> None:
    box = with_a_writer()
    copies(box, 0)
    box.pump()
    assert box.acknowledged_order == [0]
    box.timers.fire()
    box.pump()
    assert box.acknowledged_order == [0, 1]
    copies(box, 1)  # Nobody writes, so waiting would be useless.
    box.pump()
    assert box.acknowledged_order == [0, 1, 2]
    box.fence(9)  # that is no writer either
    copies(box, 2)
    box.idle()
    copies(box, 3)
    box.pump()
    assert len(box.acknowledged_order) == 5
    box.append(entries(8, 1, 1))
    copies(box, 4)
    box.log.run()
    assert box.acknowledged_order == [0, 1, 2, 3, 4, 5]
    box.timers.fire()
    box.pump()
    assert box.acknowledged == box.written


def test_an_explicit_lac_is_durable_with_the_next_add_or_by_itself() -> None:
    """Each explicit LAC once had its own sync, and the next add waited for it."""
    box = with_a_writer()
    groups, told = box.store.stats().groups, []
    box.store.write_explicit_lac(8, LAC, told.append)
    assert box.store.ledgers[8].explicit_lac == LAC  # for readers at once
    box.pump()
    assert (told, box.store.stats().groups) == ([], groups)
    box.append(entries(8, 1, 1))
    box.pump()
    assert (told, box.store.stats().groups) == ([None], groups + 1)
    box.store.write_explicit_lac(8, LAC, told.append)
    box.timers.fire()
    box.pump()
    assert told == [None, None]
    box.store.write_explicit_lac(8, LAC, told.append)  # the writer pauses
    box.pump()
    assert told == [None, None, None]


def test_without_a_writer_a_copy_does_not_wait() -> None:
    box = opened()
    copies(box, 0)
    box.pump()
    assert box.acknowledged == box.written


def test_many_bytes_of_copies_do_not_wait() -> None:
    box = with_a_writer(StorageConfig(min_free_bytes=0))
    size = 16 * 1024
    waiting = 0
    while box.acknowledged_order == [0]:
        copies(box, waiting, size=size)
        box.pump()
        waiting += 1
    assert PATIENT_BYTES_MAX // size // 2 < waiting <= PATIENT_BYTES_MAX // size
    assert box.acknowledged == box.written


def test_many_explicit_lacs_do_not_wait() -> None:
    """They contain no entry bytes, so they would accumulate without a limit."""
    box, told = with_a_writer(), []
    while not told:
        box.store.write_explicit_lac(8, LAC, told.append)
        box.pump()
    assert 1 < len(told) <= PATIENT_BYTES_MAX // BLOCK_BYTES


def test_a_fence_or_barrier_after_a_copy_writes_the_copy_too() -> None:
    box = with_a_writer()
    copies(box, 0)
    box.fence(9)
    box.pump()
    assert box.acknowledged == box.written
    assert box.fenced == {9}
    copies(box, 1)
    passed: list[object] = []
    box.store.barrier(passed.append)
    assert passed == []
    box.pump()
    assert passed == [None]
    assert box.acknowledged == box.written


def test_a_stop_writes_the_waiting_copies() -> None:
    box = with_a_writer()
    copies(box, 0, 3)
    box.close()
    assert box.acknowledged == box.written
    box.open()
    assert len(box.read(9, 0, 3)) == 3


def test_waiting_copies_are_notified_of_a_failure() -> None:
    box = opened()
    box.append(entries(8, 0, 1))
    copies(box, 0)
    disk_of(box).fail_sync_once()
    box.pump()
    assert len(box.errors) == 2
    assert box.acknowledged == {}
    assert box.store.queued_bytes == 0


def test_waiting_copies_keep_their_order_when_the_segment_is_rolled() -> None:
    box = with_a_writer()
    for turn in range(200):
        copies(box, turn, size=150)
        if turn % 7 == 0:
            box.append(entries(8, turn // 7 + 1, 1, 400))
            box.pump()
    box.idle()
    assert box.acknowledged == box.written
    assert box.acknowledged_order == sorted(box.acknowledged_order)
    assert box.store.stats().sealed_segments >= 1


# -- which adds are patient -------------------------------------------------------------------

COPY = Flag.RECOVERY_ADD
"""As Apache's workers and ours flag what they bring; openers add HIGH_PRIORITY."""
OPENER = Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY


CHUNKS = [
    (COPY, COPY, True),
    (COPY, Flag.NONE, False),
    (Flag.NONE, COPY, False),
    (COPY, OPENER, False),
    (OPENER, OPENER, False),
    (Flag.NONE, Flag.NONE, False),
]


@pytest.mark.parametrize("several", [False, True])
async def test_only_a_chunk_of_copies_is_patient(tmp_path: Path, several: bool) -> None:
    async with running_bookie(tmp_path / "bookie") as bookie, peer_of(bookie) as peer:
        ledgers = (5, 6) if several else (5, 5)
        for ledger in {*ledgers}:  # known already: rows of several ledgers go the short way
            await peer.ask(frames.add_request(KEY, entry(ledger, 0)))
        seen: list[bool] = []
        bookie.store.append = partial(_noting, seen, bookie.store.append)  # type: ignore[method-assign]
        copies, timed, number = 0, bookie.log_times.added.count, 1
        for first, second, patient in CHUNKS:
            chunk = list(zip(ledgers, (first, second), (number, number + 1)))
            peer.send(
                b"".join(frames.add_request(KEY, entry(one, n), flag) for one, flag, n in chunk)
            )
            for one, _, n in chunk:
                assert await peer.receive() == frames.add_response(0, one, n)
            assert seen[-1] is patient, (first, second)
            copies += sum(flag == COPY for _, flag, _ in chunk)
            timed += 0 if patient else 2
            assert bookie.service.counters.copies == copies
            assert bookie.log_times.added.count == timed
            number += 2
        assert len(seen) == len(CHUNKS)


@pytest.mark.parametrize("several", [False, True])
async def test_only_a_chunk_with_a_recovery_may_use_the_reserve_of_a_full_disk(
    tmp_path: Path, several: bool
) -> None:
    """The reserve is left for recoveries, so a later chunk of the connection may not use it."""
    async with running_bookie(tmp_path / "bookie") as bookie, peer_of(bookie) as peer:
        ledgers = (5, 6) if several else (5, 5)
        for ledger in {*ledgers}:
            await peer.ask(frames.add_request(KEY, entry(ledger, 0)))
        reserve: list[bool] = []
        real = bookie.store.append

        def append(batch: LogBatch, *arguments: Any, **options: Any) -> None:
            reserve.append(options.get("reserve", False))
            real(batch, *arguments, **options)

        bookie.store.append = append  # type: ignore[method-assign]
        number = 1
        for flags in (OPENER, Flag.NONE), (OPENER, OPENER), (Flag.NONE, OPENER), (COPY, COPY):
            for first, second in flags, (Flag.NONE, Flag.NONE):
                chunk = list(zip(ledgers, (first, second), (number, number + 1)))
                peer.send(
                    b"".join(frames.add_request(KEY, entry(one, n), flag) for one, flag, n in chunk)
                )
                for one, _, n in chunk:
                    assert await peer.receive() == frames.add_response(0, one, n)
                assert reserve.pop() == (OPENER in (first, second))
                number += 2


async def test_copies_divided_among_several_directories_still_wait(tmp_path: Path) -> None:
    more = [RealDisk(str(tmp_path / "two"))]
    async with (
        running_bookie(tmp_path / "one", more=more) as bookie,
        peer_of(bookie) as peer,
    ):
        store = bookie.store
        assert isinstance(store, LedgerDirectories)
        for ledger in (5, 6):
            await peer.ask(frames.add_request(KEY, entry(ledger, 0)))
        assert len({store._home(ledger) for ledger in (5, 6)}) == 2
        seen: list[bool] = []
        for place in store._places:
            place.store.append = partial(_noting, seen, place.store.append)  # type: ignore[method-assign]
        chunk = [frames.add_request(KEY, entry(ledger, 1), COPY) for ledger in (5, 6)]
        peer.send(b"".join(chunk))
        answers = {await peer.receive(), await peer.receive()}
        assert answers == {frames.add_response(0, ledger, 1) for ledger in (5, 6)}
        assert seen == [True, True]


def _noting(
    seen: list[bool],
    append: Callable[..., None],
    batch: LogBatch,
    *arguments: object,
    **more: object,
) -> None:
    seen.append(batch.patient)
    append(batch, *arguments, **more)
