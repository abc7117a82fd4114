"""The promises of the real disk's interface, and what the operating system may do."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from quire.storage.disk import LOCK_NAME, RealDisk, RealFile

WAIT_S = 0.2
"""Seconds that a preallocation gives a write that may run beside it."""


@pytest.fixture
def disk() -> Iterator[RealDisk]:
    """A directory on a disk. The tests' other files may be in memory, where no read must wait."""
    with TemporaryDirectory(prefix="quire-tests-", dir="/var/tmp") as place:
        disk = RealDisk(Path(place) / "data" / "bookie")
        yield disk
        disk.close()


@pytest.fixture
def file(disk: RealDisk) -> Iterator[Any]:
    file = disk.create("file")
    yield file
    file.close()


def test_a_disk_creates_its_directory(disk: RealDisk) -> None:
    assert Path(disk.path).is_dir()
    assert disk.list() == []
    assert disk.total_bytes() >= disk.free_bytes() > 0


def test_a_read_returns_what_was_written(file: Any) -> None:
    file.write([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]], 3)
    file.sync()
    assert bytes(file.read(3, 6)) == b"abcdef"
    assert bytes(file.read(0, 100)) == b"\0\0\0abcdef"
    assert bytes(file.read(9, 5)) == b""
    assert file.size() == 9


def test_a_write_of_more_buffers_than_the_system_accepts_at_once_is_complete(file: Any) -> None:
    buffers = [b"%05d" % n for n in range(5_000)]
    file.write(buffers, 7)
    assert bytes(file.read(7, 25_000)) == b"".join(buffers)


@pytest.mark.parametrize("most", [1, 3, 4, 7, 1000])
def test_short_writes_are_continued_until_complete(
    file: Any, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The system may take fewer bytes than it was given, anywhere."""
    pwrite = os.pwrite

    def short(fd: int, buffers: list[bytes], offset: int) -> int:
        return pwrite(fd, b"".join(buffers)[:most], offset)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:most], offset))
    file.write([b"abcd", b"", b"efg", b"h" * 50], 2)
    assert bytes(file.read(2, 100)) == b"abcdefg" + b"h" * 50


def test_a_device_that_accepts_no_bytes_is_an_error(
    file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: 0)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: 0)
    with pytest.raises(OSError, match="accepted no more bytes"):
        file.write([b"abcd"], 0)


def test_short_reads_are_joined(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write([b"abcdefgh"], 0)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 3), offset))
    assert bytes(file.read(1, 100)) == b"bcdefgh"


def test_a_read_without_waiting_returns_cached_data(file: Any) -> None:
    """Data that was just written is in the page cache, if the file system can tell."""
    file.write([b"abcdefgh"], 0)
    assert bytes(file.read(2, 3, wait=False)) == b"cde"
    assert bytes(file.read(6, 30, wait=False)) == b"gh"
    assert bytes(file.read(60, 3, wait=False)) == b""


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system has no such reads")
def test_a_read_without_waiting_returns_none_for_uncached_data(
    file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write([b"abcdefgh"], 0)
    preadv = os.preadv

    def nothing_cached(fd: int, buffers: list[Any], offset: int, flags: int = 0) -> int:
        raise BlockingIOError(errno.EAGAIN, "not cached")

    into = memoryview(bytearray(b"........"))
    monkeypatch.setattr(os, "preadv", nothing_cached)
    assert file.read(0, 4, wait=False) is None
    assert not file.read_into(0, into)

    def half_cached(fd: int, buffers: list[Any], offset: int, flags: int = 0) -> int:
        return preadv(fd, [memoryview(buffers[0])[:2]], offset)

    monkeypatch.setattr(os, "preadv", half_cached)
    assert file.read(0, 4, wait=False) is None
    assert not file.read_into(0, into[:4])
    monkeypatch.setattr(os, "preadv", preadv)
    assert file.read_into(2, into[1:5])
    assert bytes(into[1:5]) == b"cdef"
    assert not file.read_into(6, into)  # The file ends.
    assert bytes(file.read(0, 4)) == b"abcd"


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system has no such reads")
def test_a_file_system_without_nowait_reads_normally(
    file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write([b"abcdefgh"], 0)
    asked = []

    def unknown(fd: int, buffers: list[Any], offset: int, flags: int = 0) -> int:
        asked.append(offset)
        raise OSError(errno.EOPNOTSUPP, "no such flag")

    monkeypatch.setattr(os, "preadv", unknown)
    assert bytes(file.read(0, 4, wait=False)) == b"abcd"
    assert bytes(file.read(4, 4, wait=False)) == b"efgh"
    assert asked == [0]
    assert not file.read_into(0, memoryview(bytearray(4)))
    assert asked == [0]


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system has no such reads")
def test_read_into_raises_real_errors_and_refuses_if_unsupported(
    file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write([b"abcdefgh"], 0)

    def fails(number: int) -> Callable[..., int]:
        def failing(fd: int, buffers: list[Any], offset: int, flags: int = 0) -> int:
            raise OSError(number, "no")

        return failing

    monkeypatch.setattr(os, "preadv", fails(errno.EIO))
    with pytest.raises(OSError, match="no"):
        file.read_into(0, memoryview(bytearray(4)))
    monkeypatch.setattr(os, "preadv", fails(errno.EOPNOTSUPP))
    assert not file.read_into(0, memoryview(bytearray(4)))


def test_preallocated_ranges_read_as_zeros(file: Any) -> None:
    file.write([b"abc"], 0)
    file.preallocate(100_000)
    assert file.size() == 100_000
    assert bytes(file.read(0, 200_000)) == b"abc" + bytes(99_997)
    file.preallocate(10)
    assert file.size() == 100_000
    file.truncate(2)
    assert bytes(file.read(0, 10)) == b"ab"


@pytest.mark.parametrize("emulated", [True, False])
def test_a_preallocation_does_not_overwrite_concurrent_writes(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, emulated: bool
) -> None:
    """The log may write to the segment whose file is being extended on another thread.

    If the file system cannot preallocate, zeros are written after the end of the file, by the C
    library (`emulated`) or by `preallocate` itself. They hit what was written there meanwhile.
    """
    looked, written = threading.Event(), threading.Event()
    block, data = 4096, b"x" * 4096

    def wait() -> None:
        looked.set()
        written.wait(WAIT_S)  # The write waits for the preallocation, or does not have to.

    def posix_fallocate(fd: int, offset: int, size: int) -> None:
        if not emulated:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        end = os.fstat(fd).st_size
        wait()
        for at in range(end, offset + size, block):
            os.pwrite(fd, b"\0", at + block - 1)

    class Watched(RealFile):
        def size(self) -> int:
            found = super().size()
            if threading.current_thread() is not threading.main_thread():
                wait()
            return found

    monkeypatch.setattr(os, "posix_fallocate", posix_fallocate)
    path = f"{disk.path}/segment"
    file = Watched(os.open(path, os.O_RDWR | os.O_CREAT), path)
    file.write([data], 0)
    extending = threading.Thread(target=file.preallocate, args=(4 * block,))
    extending.start()
    assert looked.wait(20)
    file.write([data], block)
    written.set()
    extending.join()
    assert file.size() == 4 * block
    assert bytes(file.read(0, 4 * block) or b"") == 2 * data + bytes(2 * block)
    file.close()


def test_preallocation_reports_a_full_disk(file: Any) -> None:
    with pytest.raises(OSError, match=r".*") as caught:
        file.preallocate(1 << 60)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)


def test_files_are_listed_renamed_and_removed_by_name(disk: RealDisk) -> None:
    disk.make_directory("a/b")
    disk.make_directory("a/b")
    disk.create("a/b/x").close()
    disk.create("a/b/w").close()
    assert disk.list("a/b") == ["w", "x"]
    assert disk.list("nowhere") == []
    with pytest.raises(FileExistsError):
        disk.create("a/b/x")
    with pytest.raises(FileNotFoundError):
        disk.open("a/b/y")
    disk.rename("a/b/w", "a/b/x")
    disk.sync_directory("a/b")
    assert disk.list("a/b") == ["x"]
    assert disk.exists("a/b/x")
    disk.remove("a/b/x")
    assert not disk.exists("a/b/x")
    with pytest.raises(FileNotFoundError):
        disk.remove("a/b/x")


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x"])
def test_file_names_outside_the_directory_are_refused(disk: RealDisk, name: str) -> None:
    with pytest.raises(ValueError, match="inside"):
        disk.open(name)


def test_a_directory_stays_locked_if_its_lock_file_is_deleted(disk: RealDisk) -> None:
    """A second bookie then once began to write the log of the first."""
    other = RealDisk(disk.path)
    disk.lock()
    os.remove(f"{disk.path}/{LOCK_NAME}")
    with pytest.raises(BlockingIOError):
        other.lock()
    disk.close()
    other.lock()
    other.close()


def test_a_file_system_that_cannot_lock_directories_is_used_with_the_lock_file(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, "NFS locks only files that are open for writing")
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    other = RealDisk(disk.path)
    disk.lock()
    with pytest.raises(BlockingIOError):
        other.lock()
    disk.close()
    other.lock()
    other.close()


def test_only_one_disk_object_holds_the_lock(disk: RealDisk) -> None:
    other = RealDisk(disk.path)
    disk.lock()
    disk.lock()
    with pytest.raises(BlockingIOError):
        other.lock()
    disk.close()
    other.lock()
    other.close()
