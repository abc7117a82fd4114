"""A separate file system of a given size, for a bookie that fills it.

    with SmallDisk(tmp_path / "disk", 64) as disk:
        subprocess.Popen([*disk.prefix, "quire", "bookie", "--dir", str(disk.path), ...])
        disk.leave(0)          # a file takes what is free

It is mounted in a mount namespace that one process holds, which ends with this process. Nothing
therefore stays mounted, whatever happens to a test. If the kernel gives namespaces to everybody,
root is not needed, except for an ext4 image (`SmallDisk(..., image=True)`).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

MIB = 1 << 20
_HOLD = "mount {what} && echo mounted && exec cat"
"""The shell command that mounts the file system and keeps the mount namespace alive.

`cat` ends with its input, which ends with the process that started it.
"""


class MountRefused(Exception):
    """The error of a machine whose kernel or software does not permit the mount."""


class SmallDisk:
    """A file system mounted at `path`, for processes that are started with `prefix`."""

    def __init__(self, path: Path, size_mb: int, *, image: bool = False) -> None:
        self.path = path
        self._size_mb = size_mb
        self._image = path.with_suffix(".img") if image else None
        self._holder: subprocess.Popen[str] | None = None
        self.prefix: list[str] = []

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True)
        what = f"-t tmpfs -o size={self._size_mb}m tmpfs {self.path}"
        if self._image is not None:
            with open(self._image, "wb") as file:
                file.truncate(self._size_mb * MIB)
            made = ["mkfs.ext4", "-q", "-F", "-m", "0", str(self._image)]
            subprocess.run(made, check=True, capture_output=True)
            what = f"-o loop {self._image} {self.path}"
        root = os.geteuid() == 0
        own = ["unshare", "--mount"] if root else ["unshare", "--mount", "--map-root-user"]
        try:
            self._holder = subprocess.Popen(
                [*own, "sh", "-c", _HOLD.format(what=what)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        except OSError as error:
            raise MountRefused(str(error)) from error
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "mounted\n":
            assert self._holder.stderr is not None
            why = self._holder.stderr.read().strip()
            self._end()
            raise MountRefused(f"a file system cannot be mounted: {why}")
        target = ["nsenter", "--target", str(self._holder.pid), "--mount"]
        self.prefix = target if root else [*target, "--user", "--preserve-credentials"]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self._holder is not None
        self._holder.communicate()
        if self._image is not None:
            self._image.unlink()

    @property
    def seen(self) -> Path:
        """The path of the directory for processes outside the namespace, such as this one."""
        assert self._holder is not None
        return Path(f"/proc/{self._holder.pid}/root{self.path}")

    def free_bytes(self) -> int:
        found = os.statvfs(self.seen)
        return found.f_bavail * found.f_frsize

    def used_bytes(self) -> int:
        found = os.statvfs(self.seen)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def leave(self, size_bytes: int) -> None:
        """Fill the disk with a separate file until `size_bytes` are free."""
        with open(self.seen / "ballast", "ab") as file:
            while (more := self.free_bytes() - size_bytes) > 0:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, more)


def refused(directory: Path) -> str:
    """Return the reason why small disks cannot be created here, or '' if they can."""
    try:
        with SmallDisk(directory, 1):
            return ""
    except MountRefused as error:
        return str(error)
