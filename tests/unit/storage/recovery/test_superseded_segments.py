"""Segments that a compaction has copied and a crash has kept.

If their numbers are reused, the copy's records do not void the new segments.
"""

from __future__ import annotations

import errno
import random

import pytest

from quire.core.compaction import Choice
from quire.storage.recovery.index_cache import CACHE_NAME
from quire.storage.segment.catalogue import TOMBSTONE_TTL_MS
from quire.storage.segment.segment import SPARE_NAME, SegmentState, segment_name
from quire_simulator.machine.disk import SimDisk, SimFile
from tests.support.storage.storage import EAGER, StoreOnDisk, check, disk_of, opened, sealed

LEDGERS = range(1, 7)
SEGMENTS = 4
POWER_LOSSES = 12
"""The number of seeds. Each keeps other unsynced parts."""


class Killed(BaseException):
    pass


def append_to_all(box: StoreOnDisk, entry_id: int) -> None:
    box.append([(ledger, entry_id, bytes([ledger]) * 300) for ledger in LEDGERS])
    box.pump()


def shared(box: StoreOnDisk, entry_id: int = 0) -> None:
    """Sealed segments of all ledgers, of which two are not wanted any more."""
    while len(sealed(box)) < SEGMENTS:
        append_to_all(box, entry_id)
        entry_id += 1
    box.idle()
    box.drop([5, 6])
    box.idle()


def begin(box: StoreOnDisk, *numbers: int) -> None:
    """Begin a compaction, whatever the compactor would choose."""
    size = sum(box.store._catalogue.segments[number].file_bytes for number in numbers)
    box.store._maintenance.compactor._begin(Choice(numbers, size, EAGER.segment_bytes))


def finish(box: StoreOnDisk) -> None:
    while box.store._maintenance.compactor._work is not None:
        box.pump()
        box.timers.fire()
    box.idle()


def until_renamed(box: StoreOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until the output has durably replaced its source, but nobody was notified."""
    disk, renamed = disk_of(box), False
    rename = disk.rename

    def renaming(old: str, new: str) -> None:
        nonlocal renamed
        rename(old, new)
        renamed = renamed or old == SPARE_NAME

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", renaming)
        while not renamed:
            box.maintenance.step()
            if not renamed:
                box.maintenance.deliver()
                box.timers.fire()


def opened_without_cache(box: StoreOnDisk) -> None:
    box.close()
    if disk_of(box).exists(CACHE_NAME):
        disk_of(box).remove(CACHE_NAME)
    assert not box.open().negatives_unknown
    box.idle()


def test_a_kept_segment_with_a_damaged_index_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    box = opened(EAGER)
    shared(box)
    disk = disk_of(box)
    begin(box, 2, 3)
    until_renamed(box, monkeypatch)
    disk.kill()
    disk.flip_bit(segment_name(2), disk.open(segment_name(2)).size() - 40, 3)
    assert not box.open().negatives_unknown
    box.idle()
    check(box)
    assert 2 in sealed(box)
    begin(box, 1, 2)
    finish(box)
    check(box)
    opened_without_cache(box)
    check(box)


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("numbers", [(1, 3), (2, 3), (1, 2, 3)], ids=str)
def test_a_kept_segment_does_not_restore_a_ledger_deleted_in_the_newest_source(
    numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, *, fenced: bool, damaged: bool
) -> None:
    """The sources are removed after the output counts, so it still needs the deletion."""
    box = opened(EAGER)
    disk = disk_of(box)
    entry_id = 0
    while len(sealed(box)) < 2:
        append_to_all(box, entry_id)
        entry_id += 1
    if fenced:
        box.fence(5)
        box.pump()
    box.drop([5])
    kept = [ledger for ledger in LEDGERS if ledger != 5]
    while len(sealed(box)) < 3:
        box.append([(ledger, entry_id, bytes([ledger]) * 300) for ledger in kept])
        box.pump()
        entry_id += 1
    box.idle()
    assert sealed(box) == [1, 2, 3]
    box.clock.ms += TOMBSTONE_TTL_MS  # From now on, no refusal needs the record.
    begin(box, *numbers)
    until_renamed(box, monkeypatch)
    disk.kill()
    if damaged:
        name = segment_name(numbers[0])
        disk.flip_bit(name, disk.open(name).size() - 40, 3)
    if disk.exists(CACHE_NAME):
        disk.remove(CACHE_NAME)
    for _ in range(2):
        assert not box.open().negatives_unknown
        assert box.store.ledger_ids() == kept
        check(box)
        disk.kill()


def test_a_kept_segment_whose_index_was_never_synced_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process is killed between a trailer and its sync, and later the power is lost."""
    box = opened(EAGER)
    disk = disk_of(box)
    sync, syncs = SimFile.sync, 0

    def killed(file: SimFile) -> None:
        nonlocal syncs
        segment = box.store._catalogue.segments.get(2)
        if file._name == segment_name(2) and segment is not None:
            if segment.state is SegmentState.CLOSED and not segment.in_flight:
                syncs += 1
            if syncs == 2:
                raise Killed
        sync(file)

    entry_id = 0

    def append() -> None:
        nonlocal entry_id
        while True:
            append_to_all(box, entry_id)
            entry_id += 1

    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "sync", killed)
        with pytest.raises(Killed):
            append()
    disk.kill()
    box.open()
    assert 2 in sealed(box)  # As far as the system's cache is concerned.
    shared(box, entry_id + 1)
    lived_again = 0
    for seed in range(POWER_LOSSES):
        lived_again += it_loses_nothing(box, disk.copy(), seed, monkeypatch)
    assert lived_again


def it_loses_nothing(
    box: StoreOnDisk, disk: SimDisk, seed: int, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Whether segment 2 lived again."""
    one = StoreOnDisk(disk, EAGER)
    disk._rng = random.Random(seed)
    disk.kill()
    one.clock.ms = box.clock.ms
    one.open()
    one.idle()
    one.acknowledged = dict(box.acknowledged)
    begin(one, 2, next(number for number in sealed(one) if number > 2))
    until_renamed(one, monkeypatch)
    disk.crash()
    assert not one.open().negatives_unknown
    one.idle()
    check(one)
    if 2 not in sealed(one) or not one.store._catalogue.segments[2].live_ledgers:
        return False
    begin(one, 1, 2)
    finish(one)
    opened_without_cache(one)
    check(one)
    return True


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EIO])
def test_a_failed_directory_sync_after_the_rename_fails_the_store(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Before the rename, a failure is only retried. After it, the failure is final."""
    box = opened(EAGER)
    shared(box)
    disk = disk_of(box)
    begin(box, 2, 3)
    rename, sync_directory = disk.rename, disk.sync_directory
    renamed = False

    def renaming(old: str, new: str) -> None:
        nonlocal renamed
        rename(old, new)
        renamed = renamed or old == SPARE_NAME

    def syncing(directory: str = "") -> None:
        nonlocal renamed
        if renamed:
            renamed = False
            raise OSError(number, "no")
        sync_directory(directory)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", renaming)
        patch.setattr(disk, "sync_directory", syncing)
        finish(box)
    assert box.store.failed is not None
    assert segment_name(3) in str(box.store.failed)
    disk.kill()
    assert not box.open().negatives_unknown
    box.idle()
    check(box)
