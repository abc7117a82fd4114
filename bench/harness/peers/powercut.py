"""A power cut of all servers at once: what the disks did not have is gone.

Each server gets a file system of its own, ext4 in a file. The servers are stopped in the middle of
a load (SIGSTOP), each file system is shut down without writing anything back, as after a loss of
power (the ioctl `FS_IOC_SHUTDOWN` with `NOLOGFLUSH`, which the tests of Linux's file systems use),
and the servers are killed. When the file systems are mounted again, they replay their journals, and
hold what had been synced or written back before. A disk that lies about its cache is not simulated.

It needs root, `mount` and loop devices.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.model import BenchmarkError
from harness.peers.running import Result, read_line, started
from harness.peers.systems import System, end

FS_IOC_SHUTDOWN = 0x8004587D
NOLOGFLUSH = 2
IMAGE_BYTES = 2 << 30
"""The size of each file system. Its file is sparse."""
RETRY_S = 0.5
UNMOUNT_LIMIT_S = 20.0
CHECK_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Loss:
    acknowledged: int
    lost: int


def why_not() -> str:
    """Return why this machine cannot do it, or an empty text."""
    if os.geteuid() != 0:
        return "it needs root, to mount file systems"
    if missing := [tool for tool in ("mkfs.ext4", "mount", "umount") if not shutil.which(tool)]:
        return f"it needs {', '.join(missing)}"
    if not Path("/dev/loop-control").exists():
        return "this machine has no loop devices"
    return ""


def lose_power(system: System, log: Path, load_s: float) -> Loss:
    """Load the system for a while, cut the power, start it again, and count what is missing."""
    with _disks(system) as disks:
        try:
            system.start()
            acknowledged = _loaded_until_the_cut(system, log, load_s, disks)
            system.kill()
            for disk in disks:
                disk.unmount()
            for disk in reversed(disks):
                disk.mount()
            system.start(again=True)
            return Loss(acknowledged, _lost(system, log, acknowledged))
        finally:
            system.kill()


def _loaded_until_the_cut(system: System, log: Path, load_s: float, disks: list[_Disk]) -> int:
    with started(system, log, {"mode": "loss", "name": "loss", "size": 1024}) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        _await(client.stdout, "created", log)
        os.sync()  # The servers and the stream are older than a few seconds when the power fails.
        client.stdin.write("\n")
        client.stdin.flush()
        _await(client.stdout, "first", log)
        time.sleep(load_s)
        end(system.pids(), signal.SIGSTOP)
        for disk in disks:
            disk.shut_down()
        client.stdin.close()  # From here on, no server can acknowledge anything.
        return int(_await(client.stdout, "loss", log).values["acknowledged"])


def _await(lines: Iterable[str], kind: str, log: Path) -> Result:
    """Return the next result of this kind."""
    for line in lines:
        if (said := read_line(line)) and said.kind == kind:
            return said
    raise BenchmarkError(f"the client ended before it said '{kind}' (see {log})")


def _lost(system: System, log: Path, acknowledged: int) -> int:
    deadline = time.monotonic() + CHECK_LIMIT_S
    given = {"mode": "check", "name": "loss", "n": acknowledged}
    while True:
        try:
            with started(system, log, given, limit_s=CHECK_LIMIT_S) as client:
                assert client.stdout is not None
                found = [said for line in client.stdout if (said := read_line(line))]
            return int(found[-1].values["lost"])
        except (BenchmarkError, IndexError) as error:
            # Servers that have just begun may have no leader yet.
            if time.monotonic() > deadline:
                raise BenchmarkError(
                    f"{system.title} cannot be read afterwards: {error}"
                ) from error
            time.sleep(RETRY_S)


class _Disk:
    """A file system in a file."""

    def __init__(self, image: Path, at: Path) -> None:
        self._image, self._at = image, at
        self._mounted = False

    def make(self) -> None:
        with self._image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0",
             str(self._image))  # fmt: skip
        self.mount()
        (self._at / "lost+found").rmdir()  # Kafka and Quire want an empty directory.

    def mount(self) -> None:
        self._at.mkdir(parents=True, exist_ok=True)
        _run("mount", "-o", "loop", str(self._image), str(self._at))
        self._mounted = True

    def shut_down(self) -> None:
        directory = os.open(self._at, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, FS_IOC_SHUTDOWN, struct.pack("I", NOLOGFLUSH))
        finally:
            os.close(directory)

    def unmount(self) -> None:
        deadline = time.monotonic() + UNMOUNT_LIMIT_S
        while self._mounted:
            try:
                _run("umount", str(self._at))
                self._mounted = False
            except BenchmarkError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)


@contextmanager
def _disks(system: System) -> Iterator[list[_Disk]]:
    """Mount a disk for each server, and one for what they share (Quire's SQLite metadata).

    They are listed from the inner to the outer.
    """
    images = system.root.with_name(f"{system.root.name}-disks")
    images.mkdir(parents=True)
    places = [system.root, *system.directories]
    disks: list[_Disk] = []
    try:
        for number, place in enumerate(places):
            disk = _Disk(images / f"{number}.img", place)
            disks.insert(0, disk)
            disk.make()
        yield disks
    finally:
        for disk in disks:
            disk.unmount()
        shutil.rmtree(images, ignore_errors=True)
        shutil.rmtree(system.root, ignore_errors=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
