"""A disk after a power loss may have exactly the possible states."""

from __future__ import annotations

import random

from quire_simulator.machine.disk import SimDisk
from quire_simulator.machine.inode import SECTOR_BYTES
from quire_simulator.machine.power_loss import PowerLoss

OLD, NEW, NEWER = (bytes([letter]) * SECTOR_BYTES for letter in b"onN")


def make() -> SimDisk:
    return SimDisk(random.Random(1), "disk", cold_read_probability=0.0)


def durable(disk: SimDisk, name: str, data: bytes) -> None:
    file = disk.create(name)
    file.write([data], 0)
    file.sync()
    disk.sync_directory()


def content(disk: SimDisk, name: str) -> bytes | None:
    if not disk.exists(name):
        return None
    file = disk.open(name)
    return file.read(0, file.size())


def states(disk: SimDisk, name: str, states_max: int = 1000) -> set[bytes | None]:
    loss = PowerLoss(disk, random.Random(1), states_max)
    found = [content(one, name) for _, one in loss]
    assert loss.exhaustive
    assert len(set(found)) == len(found)
    return set(found)


def test_each_sector_is_old_or_new() -> None:
    disk = make()
    durable(disk, "a", OLD * 2)
    assert states(disk, "a") == {OLD * 2}
    disk.open("a").write([NEW * 2], 0)
    assert states(disk, "a") == {OLD * 2, OLD + NEW, NEW + OLD, NEW * 2}
    disk.open("a").write([NEWER], 0)
    first = {OLD, NEW, NEWER}
    assert states(disk, "a") == {one + other for one in first for other in (OLD, NEW)}
    disk.open("a").sync()
    assert states(disk, "a") == {NEWER + NEW}


def test_a_write_that_is_not_aligned_changes_parts_of_sectors() -> None:
    disk = make()
    durable(disk, "a", OLD * 2)
    disk.open("a").write([b"xy"], SECTOR_BYTES - 1)
    one, other = OLD[:-1] + b"x", b"y" + OLD[1:]
    assert states(disk, "a") == {OLD + OLD, one + OLD, OLD + other, one + other}


def test_a_file_that_grows_may_be_short_or_hold_zeros() -> None:
    disk = make()
    durable(disk, "a", b"")
    disk.open("a").write([NEW], 0)
    assert states(disk, "a") == {b"", bytes(SECTOR_BYTES), NEW}
    disk.open("a").preallocate(2 * SECTOR_BYTES)
    zeros = bytes(SECTOR_BYTES)
    assert states(disk, "a") == {b"", zeros, NEW, zeros * 2, NEW + zeros}


def test_truncated_bytes_do_not_reappear() -> None:
    disk = make()
    durable(disk, "a", OLD * 2)
    file = disk.open("a")
    file.truncate(SECTOR_BYTES)
    file.preallocate(2 * SECTOR_BYTES)
    assert states(disk, "a") == {OLD * 2, OLD, OLD + bytes(SECTOR_BYTES)}
    file.write([NEW], SECTOR_BYTES)
    assert states(disk, "a") == {OLD * 2, OLD, OLD + bytes(SECTOR_BYTES), OLD + NEW}


def test_any_consistent_subset_of_names_may_survive() -> None:
    disk = make()
    durable(disk, "a", b"old")
    file = disk.create("b")
    file.write([b"new"], 0)
    file.sync()
    disk.rename("b", "a")
    disk.create("c").sync()
    loss = PowerLoss(disk, random.Random(1), 1000)
    found = {tuple(content(one, name) for name in "abc") for _, one in loss}
    assert loss.exhaustive
    names = {(b"old", None), (b"old", b"new"), (b"new", None)}
    assert found == {(a, b, c) for a, b in names for c in (None, b"")}
    disk.sync_directory()
    assert {content(one, "a") for _, one in PowerLoss(disk, random.Random(1), 9)} == {b"new"}


def test_a_name_may_survive_without_its_contents() -> None:
    disk = make()
    disk.create("a").write([b"x"], 0)
    disk.sync_directory()
    assert states(disk, "a") == {b"", b"\0", b"x"}


def test_a_lost_directory_has_no_files() -> None:
    disk = make()
    disk._change_names({"d": True})
    disk.create("d/a").sync()
    disk.sync_directory("d")
    assert states(disk, "d/a") == {None, b""}


def test_the_extreme_states_come_first_if_there_are_too_many() -> None:
    disk = make()
    durable(disk, "a", OLD * 40)
    disk.open("a").write([NEW * 40], 0)
    loss = PowerLoss(disk, random.Random(1), 12)
    assert not loss.exhaustive
    assert loss.combinations == 2**40
    found = [content(one, "a") for _, one in loss]
    assert found[:2] == [OLD * 40, NEW * 40]
    assert len(set(found)) == len(found) == 12
    again = PowerLoss(disk, random.Random(1), 12)
    assert [content(one, "a") for _, one in again] == found


def test_the_disk_and_its_copies_are_independent() -> None:
    disk = make()
    durable(disk, "a", OLD)
    disk.open("a").write([NEW], 0)
    other = disk.copy()
    other.open("a").sync()
    other.remove("a")
    for _, one in PowerLoss(disk, random.Random(1), 9):
        one.open("a").write([NEWER], 0)
        assert one.free_bytes() == disk.free_bytes()
    assert states(disk, "a") == {OLD, NEW}
    assert states(other, "a") == {NEW, None}
