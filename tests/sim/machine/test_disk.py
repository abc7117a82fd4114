"""The simulated disk behaves like the real one until a fault, and only defined faults happen."""

from __future__ import annotations

import errno
import itertools
import random
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.storage.disk import RealDisk
from quire_simulator.machine import PowerLossError, SimDisk
from quire_simulator.machine.inode import SECTOR_BYTES

SEEDS = range(60)


def make(seed: int = 1, **options: Any) -> SimDisk:
    return SimDisk(random.Random(seed), "disk", **options)


def durable_file(disk: SimDisk, name: str, data: bytes) -> Any:
    file = disk.create(name)
    file.write([data], 0)
    file.sync()
    disk.sync_directory()
    return file


def content(disk: SimDisk, name: str) -> bytes | None:
    if not disk.exists(name):
        return None
    file = disk.open(name)
    return file.read(0, file.size())


# -- as the real disk -------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "d/a", "d/e/a", "d", "d/e", "x/a"])
SIZES = st.integers(0, 1500)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES),
        st.tuples(st.just("make_directory"), NAMES),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("exists"), NAMES),
        st.tuples(st.just("list"), st.one_of(st.just(""), NAMES)),
        st.tuples(st.just("sync_directory"), st.one_of(st.just(""), NAMES)),
        st.tuples(st.just("write"), NAMES, st.lists(st.binary(max_size=600), max_size=3), SIZES),
        st.tuples(st.just("read"), NAMES, SIZES, SIZES),
        st.tuples(st.just("truncate"), NAMES, SIZES),
        st.tuples(st.just("preallocate"), NAMES, SIZES.filter(bool)),
        st.tuples(st.just("size"), NAMES),
        st.tuples(st.just("sync"), NAMES),
    ),
    max_size=40,
)
FILE_CALLS = {"write", "read", "truncate", "preallocate", "size", "sync"}


def outcome(disk: Any, call: tuple[Any, ...]) -> Any:
    name, *arguments = call
    file = None
    try:
        if name in FILE_CALLS:
            file = disk.open(arguments.pop(0))
            result = getattr(file, name)(*arguments)
            return bytes(result) if name == "read" else result
        result = getattr(disk, name)(*arguments)
        if name == "create":
            file = result
            return "made"
        return result
    except OSError:
        return "refused"
    finally:
        if file is not None:
            file.close()


def sensible(disk: SimDisk, call: tuple[Any, ...]) -> bool:
    """The simulated disk does not rename directories, nor syncs a file as if it were one."""
    directory = call[1] == "" or isinstance(outcome(disk, ("open", call[1])), str)
    return directory if call[0] == "sync_directory" else not (directory and call[0] == "rename")


@settings(max_examples=150, deadline=None)
@given(calls=CALLS)
def test_the_simulated_disk_behaves_like_a_real_one(calls: list[tuple[Any, ...]]) -> None:
    simulated = make()
    with tempfile.TemporaryDirectory() as path:
        real = RealDisk(path)
        for call in calls:
            if simulated.exists(call[1]) and not sensible(simulated, call):
                continue
            assert outcome(simulated, call) == outcome(real, call), call
        real.close()


def test_refused_calls_raise_the_errors_of_a_real_disk() -> None:
    disk = make()
    disk.make_directory("d")
    file = disk.create("d/a")
    with pytest.raises(FileExistsError):
        disk.create("d/a")
    with pytest.raises(FileNotFoundError):
        disk.open("d/b")
    with pytest.raises(FileNotFoundError):
        disk.create("nowhere/a")
    with pytest.raises(IsADirectoryError):
        disk.open("d")
    with pytest.raises(ValueError, match="relative"):
        disk.open("../a")
    file.close()
    file.close()
    with pytest.raises(OSError, match="closed") as caught:
        file.size()
    assert caught.value.errno == errno.EBADF
    disk.lock()
    with pytest.raises(BlockingIOError):
        disk.lock()
    disk.close()
    disk.lock()


def test_a_removed_file_stays_usable_while_it_is_open() -> None:
    disk = make(capacity_bytes=1000)
    file = disk.create("a")
    file.write([b"x" * 900], 0)
    disk.remove("a")
    assert disk.free_bytes() == 1000
    file.write([b"y"], 0)
    assert file.read(0, 2) == b"yx"
    assert disk.free_bytes() == 1000


# -- power loss: contents ---------------------------------------------------------------------

WRITES = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 2000), st.booleans()), min_size=1, max_size=8
)


@settings(max_examples=200, deadline=None)
@given(writes=WRITES, preallocated=st.integers(0, 2000), seed=st.integers(0, 1 << 30))
def test_after_a_crash_each_sector_holds_a_possible_state(
    writes: list[tuple[int, int, bool]], preallocated: int, seed: int
) -> None:
    """Synced data exists. Of each later write a sector has all or nothing, in write order."""
    disk = make(seed)
    file = durable_file(disk, "f", b"base" * 100)
    certain = b"base" * 100
    pending: list[tuple[int, bytes]] = []
    if preallocated:
        file.preallocate(preallocated)
    highest = max(preallocated, len(certain))
    for number, (offset, size, sync) in enumerate(writes, 1):
        data = bytes([number]) * size
        file.write([data[: size // 2], data[size // 2 :]], offset)
        pending.append((offset, data))
        highest = max(highest, offset + size)
        if sync:
            file.sync()
            certain, pending = file.read(0, 10_000), []
    disk.crash()
    after = content(disk, "f")
    assert after is not None
    assert len(certain) <= len(after) <= highest
    padded, base = after.ljust(highest, b"\0"), certain.ljust(highest, b"\0")
    for start in range(0, highest, SECTOR_BYTES):
        sector = slice(start, min(start + SECTOR_BYTES, highest))
        touching = [
            (o, d) for o, d in pending if o < sector.stop and o + len(d) > start
        ]  # 2 ** 8 at most
        possible = set()
        for kept in itertools.product([False, True], repeat=len(touching)):
            state = bytearray(base)
            for (offset, data), keep in zip(touching, kept, strict=True):
                if keep:
                    state[offset : offset + len(data)] = data
            possible.add(bytes(state[sector]))
        assert padded[sector] in possible


def test_an_unsynced_write_may_be_kept_dropped_or_torn() -> None:
    fates: set[str] = set()
    for seed in SEEDS:
        disk = make(seed)
        file = durable_file(disk, "f", b"o" * 4096)
        file.write([b"n" * 4000], 50)
        disk.crash()
        data = content(disk, "f")
        assert data is not None
        new = data.count(b"n")
        fates.add("kept" if new == 4000 else "dropped" if new == 0 else "torn")
        if 0 < new < 4000:
            edges = [i for i in range(1, 4096) if data[i] != data[i - 1] and i not in (50, 4050)]
            assert edges
            assert all(edge % SECTOR_BYTES == 0 for edge in edges)
    assert fates == {"kept", "dropped", "torn"}


def test_growth_may_survive_as_zeros() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make(seed)
        file = durable_file(disk, "f", b"")
        file.write([b"n" * 100], 0)
        disk.crash()
        seen.add(content(disk, "f"))
    assert seen == {b"", b"n" * 100, bytes(100)}


def test_an_unsynced_truncation_may_be_undone() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make(seed)
        durable_file(disk, "f", b"12345678").truncate(3)
        disk.crash()
        seen.add(content(disk, "f"))
    assert seen == {b"12345678", b"123"}


def test_synced_data_survives_every_crash() -> None:
    for seed in SEEDS:
        disk = make(seed)
        file = disk.create("f")
        file.preallocate(5000)
        file.write([b"abc", b"def"], 100)
        file.sync()
        disk.sync_directory()
        for _ in range(3):
            disk.crash()
        assert content(disk, "f") == bytes(100) + b"abcdef" + bytes(4894)


def test_the_same_seed_loses_the_same() -> None:
    def after(seed: int) -> list[Any]:
        disk = make(seed)
        for number in range(10):
            file = disk.create(f"f{number}")
            file.write([bytes([number]) * 3000], 0)
        disk.crash()
        return [content(disk, f"f{number}") for number in range(10)]

    assert [after(seed) for seed in SEEDS] == [after(seed) for seed in SEEDS]
    assert len({str(after(seed)) for seed in SEEDS}) > 20


def test_a_killed_process_loses_only_its_open_files_and_its_lock() -> None:
    disk = make()
    disk.lock()
    file = disk.create("f")
    file.write([b"unsynced"], 0)
    disk.kill()
    with pytest.raises(OSError, match="crash"):
        file.read(0, 1)
    file.close()
    disk.lock()
    assert content(disk, "f") == b"unsynced"
    disk.crash()
    disk.lock()


# -- power loss: names ------------------------------------------------------------------------


def possible_names(change: Callable[[SimDisk], None], *names: str) -> set[tuple[bool, ...]]:
    found = set()
    for seed in SEEDS:
        disk = make(seed)
        durable_file(disk, "old", b"old")
        change(disk)
        disk.crash()
        found.add(tuple(disk.exists(name) for name in names))
    return found


def test_an_unsynced_create_may_be_lost_even_if_its_bytes_were_synced() -> None:
    def change(disk: SimDisk) -> None:
        disk.create("new").sync()

    assert possible_names(change, "old", "new") == {(True, False), (True, True)}


def test_an_unsynced_remove_may_be_undone() -> None:
    assert possible_names(lambda disk: disk.remove("old"), "old") == {(True,), (False,)}


def test_a_file_that_reappears_uses_capacity() -> None:
    came_back = 0
    for seed in SEEDS:
        disk = make(seed, capacity_bytes=1000)
        durable_file(disk, "f", b"x" * 100)
        disk.remove("f")
        disk.crash()
        if disk.exists("f"):
            came_back += 1
            disk.open("f").write([b"y" * 100], 100)
            assert disk.free_bytes() == 800
    assert came_back


def test_a_rename_is_atomic() -> None:
    def change(disk: SimDisk) -> None:
        disk.rename("old", "new")

    assert possible_names(change, "old", "new") == {(True, False), (False, True)}


def test_a_chain_of_renames_leaves_one_file() -> None:
    def change(disk: SimDisk) -> None:
        disk.rename("old", "newer")
        disk.rename("newer", "newest")

    found = possible_names(change, "old", "newer", "newest")
    assert found == {(True, False, False), (False, True, False), (False, False, True)}


def test_a_rename_over_a_file_shows_one_or_the_other() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make(seed)
        durable_file(disk, "current", b"first")
        durable_file(disk, "temporary", b"second")
        disk.rename("temporary", "current")
        disk.crash()
        seen.add((content(disk, "current"), content(disk, "temporary")))
    assert seen == {(b"first", b"second"), (b"second", None)}


def test_synced_names_survive() -> None:
    def change(disk: SimDisk) -> None:
        disk.create("new")
        disk.rename("old", "kept")
        disk.sync_directory()

    assert possible_names(change, "old", "kept", "new") == {(False, True, True)}


def test_a_directory_is_durable_at_once_and_its_files_after_its_own_sync() -> None:
    seen = set()
    for seed in SEEDS:
        disk = make(seed)
        disk.make_directory("d/e")
        disk.create("d/e/synced")
        disk.sync_directory("d/e")
        disk.create("d/e/unsynced")
        disk.sync_directory("d")
        disk.sync_directory()
        disk.crash()
        seen.add(tuple(disk.list("d/e")))
    assert seen == {("synced",), ("synced", "unsynced")}


def test_a_rename_between_directories_keeps_the_history_of_the_file() -> None:
    for seed in SEEDS:
        disk = make(seed)
        disk.make_directory("x")
        disk.create("a")
        disk.rename("a", "x/b")
        disk.sync_directory("x")
        disk.crash()
        assert not disk.exists("a")
        assert disk.exists("x/b")


ENTRY_CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from("abc")),
        st.tuples(st.just("remove"), st.sampled_from("abc")),
        st.tuples(st.just("rename"), st.sampled_from("abc"), st.sampled_from("abc")),
        st.tuples(st.just("sync_directory")),
    ),
    max_size=14,
)


@settings(max_examples=300, deadline=None)
@given(calls=ENTRY_CALLS, seed=st.integers(0, 1 << 30))
def test_names_after_a_crash_are_a_possible_state(calls: list[tuple[str, ...]], seed: int) -> None:
    disk = make(seed)
    now: dict[str, bytes] = {}
    past: list[dict[str, bytes]] = [{}]
    gone: set[bytes] = set()
    for number, (name, *names) in enumerate(calls):
        try:
            result = getattr(disk, name)(*names)
        except OSError:
            continue
        before = set(now.values())
        if name == "create":
            now[names[0]] = b"%d" % number
            result.write([now[names[0]]], 0)
            result.sync()
        elif name == "remove":
            del now[names[0]]
        elif name == "rename":
            now[names[1]] = now.pop(names[0])
        else:
            past, gone = [], set()
        gone |= before - set(now.values())
        past.append(dict(now))
    disk.crash()
    found = {name: content(disk, name) for name in disk.list()}
    assert len(set(found.values())) == len(found), "one file under two names"
    for name in "abc":
        assert found.get(name) in [state.get(name) for state in past]
    certain = set(past[0].values()) - gone
    assert certain <= set(found.values()), "a file that nobody removed is lost"
    disk.crash()
    assert {name: content(disk, name) for name in disk.list()} == found


# -- crash at each operation ------------------------------------------------------------------


def replace_file(disk: SimDisk) -> Iterator[str]:
    """The usual way to replace a small file for good. Yields what is certain from here on."""
    file = disk.create("temporary")
    file.write([b"second"], 0)
    file.sync()
    disk.rename("temporary", "current")
    disk.sync_directory()
    yield "second"


def test_crash_after_can_interrupt_each_operation() -> None:
    outcomes = set()
    operations = 0
    for operations in itertools.count(1):
        finished = False
        for seed in range(20):
            disk = make(seed)
            old = durable_file(disk, "current", b"first")
            told: list[str] = []
            disk.crash_after(operations, lambda told=told: told.append("crash"))
            try:
                list(replace_file(disk))
                finished = True
            except PowerLossError:
                assert told == ["crash"]
                with pytest.raises(OSError, match="crash"):
                    old.size()
                assert content(disk, "current") in (b"first", b"second")
                outcomes.add((operations, content(disk, "current")))
        if finished:
            break
    assert operations == 6
    assert {done for done, data in outcomes if data == b"second"} == {5}


# -- faults -----------------------------------------------------------------------------------


def test_after_a_failed_sync_a_later_one_does_not_help() -> None:
    survived = set()
    for seed in SEEDS:
        disk = make(seed)
        file = durable_file(disk, "f", b"")
        file.write([b"lost?"], 0)
        disk.fail_sync_once("another file")
        disk.fail_sync_once("f")
        with pytest.raises(OSError, match="sync") as caught:
            file.sync()
        assert caught.value.errno == errno.EIO
        file.write([b"certain"], 100)
        file.sync()
        assert file.read(0, 5) == b"lost?"
        disk.crash()
        data = content(disk, "f")
        assert data is not None
        assert data[100:] == b"certain"
        survived.add(data[:5])
    assert survived == {b"lost?", bytes(5)}


def test_a_failed_write_writes_nothing() -> None:
    disk = make()
    file = disk.create("f")
    disk.fail_write_once()
    with pytest.raises(OSError, match="write"):
        file.write([b"abc"], 0)
    assert file.size() == 0
    file.write([b"abc"], 0)
    assert file.size() == 3


def test_a_full_disk_refuses_writes() -> None:
    disk = make(capacity_bytes=1000)
    assert (disk.total_bytes(), disk.free_bytes()) == (1000, 1000)
    file = disk.create("f")
    file.preallocate(600)
    other = disk.create("g")
    with pytest.raises(OSError, match="full") as caught:
        other.write([b"x" * 300, b"y" * 200], 0)
    assert caught.value.errno == errno.ENOSPC
    assert other.size() == 400
    assert disk.free_bytes() == 0
    file.write([b"z" * 600], 0)
    with pytest.raises(OSError, match="full"):
        file.write([b"z"], 600)
    with pytest.raises(OSError, match="full"):
        file.preallocate(601)
    disk.remove("g")
    assert disk.free_bytes() == 400
    file.preallocate(1000)
    file.truncate(10)
    assert disk.free_bytes() == 990
    disk.capacity_bytes = 5
    assert disk.free_bytes() == 0
    disk.capacity_bytes = 1000
    disk.sync_directory()
    file.sync()
    disk.crash()
    assert disk.free_bytes() == 990


def test_bit_rot_and_bad_sectors_affect_reads() -> None:
    disk = make()
    file = durable_file(disk, "f", bytes(1000))
    disk.flip_bit("f", 500)
    disk.flip_bit("f", 7, bit=0)
    data = file.read(0, 1000)
    assert [i for i, byte in enumerate(data) if byte] == [7, 500]
    assert data[7] == 1
    assert data[500].bit_count() == 1
    disk.crash()
    assert content(disk, "f") == data

    file = disk.open("f")
    disk.fail_reads("f", 100, 50)
    for offset, size, good in [(0, 100, True), (0, 101, False), (149, 1, False), (150, 10, True)]:
        if good:
            assert file.read(offset, size) == data[offset : offset + size]
        else:
            with pytest.raises(OSError, match="bad sector") as caught:
                file.read(offset, size)
            assert caught.value.errno == errno.EIO
    disk.mend_reads("f")
    assert file.read(0, 1000) == data


def test_non_blocking_reads_are_sometimes_refused() -> None:
    disk = make(cold_read_probability=0.5)
    file = durable_file(disk, "f", b"abc")
    answers = {file.read(0, 3, wait=False) for _ in range(50)}
    assert answers == {None, b"abc"}
    assert {file.read(0, 3) for _ in range(50)} == {b"abc"}
