"""The real disk: the only module of storage that uses the files of the operating system."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from quire._runtime.secret_files import PRIVATE_DIRECTORY_MODE, PRIVATE_FILE_MODE
from quire.storage.interfaces import Buffer

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this platform
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = "LOCK"
_IOV_MAX = min(os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 16, 1024)
_MAC = sys.platform == "darwin"
_NO_NOWAIT = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS}
_ZEROS = bytes(1024 * 1024)


def _fdatasync(fd: int) -> None:
    if _MAC:  # pragma: no cover - fsync there leaves data in the drive's cache
        full = getattr(fcntl, "F_FULLFSYNC", None)
        if full is not None:
            try:
                fcntl.fcntl(fd, full)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                    raise
        os.fsync(fd)
    else:
        os.fdatasync(fd)


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock_file(fd: int) -> None:
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


class RealFile:
    """An `interfaces.File` that uses a file descriptor of the operating system."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self._nowait = getattr(os, "RWF_NOWAIT", 0)
        self._growing = threading.Lock()
        """Held while data is written or space is preallocated. If the file system cannot
        preallocate, zeros are written after the end of the file, and must not overwrite data."""

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        with self._growing:
            for at in range(0, len(buffers), _IOV_MAX):
                offset = self._write_some(buffers[at : at + _IOV_MAX], offset)

    def _write_some(self, buffers: Sequence[Buffer], offset: int) -> int:
        size = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, offset)
        offset += written
        if written == size:
            return offset
        # A short write, because of a signal or a limit of the system. Write the rest buffer by
        # buffer.
        for buffer in buffers:
            view = memoryview(buffer)
            if written >= len(view):
                written -= len(view)
                continue
            view = view[written:]
            written = 0
            while len(view):
                more = os.pwrite(self._fd, view, offset)
                if more == 0:
                    raise OSError(
                        errno.EIO,
                        "the device accepted no more bytes: a write returned 0",
                        self._path,
                    )
                offset += more
                view = view[more:]
        return offset

    def sync(self) -> None:
        _fdatasync(self._fd)

    def read(self, offset: int, size: int, *, wait: bool = True) -> Buffer | None:
        if not wait and self._nowait:
            return self._read_cached(offset, size)
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            data = os.pread(self._fd, size - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def _read_cached(self, offset: int, size: int) -> Buffer | None:
        data = bytearray(size)
        got = self._fill(offset, data)
        if not self._nowait:
            return self.read(offset, size)
        if got == size:
            return data
        if got is None or offset + got < self.size():
            return None
        del data[got:]
        return data

    def read_into(self, offset: int, into: memoryview) -> bool:
        return self._nowait != 0 and self._fill(offset, into) == len(into)

    def _fill(self, offset: int, into: bytearray | memoryview) -> int | None:
        """Read cached bytes from `offset` on into `into`, and return how many were read.

        Return None if not even the first byte is cached, or if this file system cannot tell.
        """
        try:
            return os.preadv(self._fd, [into], offset, self._nowait)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NO_NOWAIT:
                raise
            # This file system cannot tell what is cached. From now on, `read` reads normally, which
            # may wait.
            self._nowait = 0
            return None

    def prefetch(self, offset: int, size: int) -> None:
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_WILLNEED)
        else:  # pragma: no cover - not on this platform
            for at in range(offset, offset + size, len(_ZEROS)):
                os.pread(self._fd, min(len(_ZEROS), offset + size - at), at)

    def uncache(self, offset: int, size: int) -> None:
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)

    def preallocate(self, size: int) -> None:
        with self._growing:
            self._preallocate(size)

    def _preallocate(self, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._fd, 0, size)
                return
            except OSError as error:
                if error.errno not in _NO_NOWAIT:
                    raise
        at = self.size()  # pragma: no cover - file systems without fallocate
        while at < size:  # pragma: no cover
            piece = memoryview(_ZEROS)[: size - at]
            at = self._write_some([piece], at)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealDisk:
    """An `interfaces.Disk` that uses a directory of the file system."""

    def __init__(
        self, path: str | os.PathLike[str], *, read_only: bool = False, make: bool = True
    ) -> None:
        """Open a directory.

        Args:
            path: The directory.
            read_only: Create nothing, and open files only for reading.
            make: Create the directory now if it does not exist. If False, `make_directory("")`
                creates it later.
        """
        self.path = os.path.abspath(path)
        self._open_flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
        self._lock_fds: list[int] = []
        if make and not read_only:
            os.makedirs(self.path, PRIVATE_DIRECTORY_MODE, exist_ok=True)

    def _full(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"{name!r} is not a name inside of a data directory")
        return f"{self.path}/{name}" if name else self.path

    def create(self, name: str) -> RealFile:
        full = self._full(name)
        return RealFile(
            os.open(full, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE_MODE),
            full,
        )

    def open(self, name: str) -> RealFile:
        full = self._full(name)
        return RealFile(os.open(full, self._open_flags), full)

    def exists(self, name: str) -> bool:
        return Path(self._full(name)).exists()

    def list(self, directory: str = "") -> list[str]:
        try:
            return sorted(os.listdir(self._full(directory)))
        except FileNotFoundError:
            return []

    def make_directory(self, name: str) -> None:
        """Create a directory and its parents, unless they exist.

        Each new directory is synced into its parent. Otherwise files that are synced in it could
        disappear together with it. The data directory itself, "", is created without a sync.
        """
        if not name:
            os.makedirs(self.path, PRIVATE_DIRECTORY_MODE, exist_ok=True)
            return
        done: list[str] = []
        for part in name.split("/"):
            parent = "/".join(done)
            done.append(part)
            full = Path(self._full("/".join(done)))
            if not full.is_dir():
                full.mkdir(PRIVATE_DIRECTORY_MODE, exist_ok=True)
                self.sync_directory(parent)

    def remove(self, name: str) -> None:
        Path(self._full(name)).unlink()

    def rename(self, old: str, new: str) -> None:
        Path(self._full(old)).replace(self._full(new))

    def sync_directory(self, directory: str = "") -> None:
        _sync_directory(self._full(directory))

    def free_bytes(self) -> int:
        """Return the free bytes of the file system that an ordinary user can still use."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_blocks * found.f_frsize

    def file_system(self) -> int:
        return os.stat(self.path).st_dev

    def lock(self) -> None:
        if self._lock_fds:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fds = [os.open(self._full(LOCK_NAME), flags, PRIVATE_FILE_MODE)]
        try:
            _lock_file(fds[0])
            # Somebody may delete the file and so let another process lock a new one. Lock the
            # directory too, on file systems that can.
            fds.append(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
            try:
                _lock_file(fds[1])
            except BlockingIOError:
                raise
            except OSError:
                pass
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        self._lock_fds = fds

    def close(self) -> None:
        """Release the lock of the directory. Open files stay open."""
        fds, self._lock_fds = self._lock_fds, []
        for fd in fds:
            os.close(fd)
