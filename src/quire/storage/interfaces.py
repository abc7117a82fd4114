"""The interfaces that storage is handed: a disk, workers, and threads for reads that wait.

Production: `quire.storage.disk.RealDisk`, `quire.storage.worker.ThreadWorker`.
Simulation: `quire_simulator.machine.disk.SimDisk`, `quire_simulator.machine.worker.SimWorker`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


class Readable(Protocol):
    """As much of a `File` as reading it takes."""

    def read(self, offset: int, size: int, *, wait: bool = True) -> Buffer | None: ...

    def size(self) -> int: ...


class File(Protocol):
    """One open file. All calls block; only `sync` makes anything durable. I/O errors are `OSError`
    as the operating system raises them (ENOSPC, EIO, ...): storage translates them."""

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        """All of the buffers, one behind the other, from `offset` on."""
        ...

    def sync(self) -> None:
        """fdatasync: contents and what is needed to read them back. A failure is final: the file
        must not be trusted to hold anything that was not synced before."""
        ...

    def read(self, offset: int, size: int, *, wait: bool = True) -> Buffer | None:
        """Up to `size` bytes (fewer at the end of the file). With wait=False: None where the
        device would have to be waited for."""
        ...

    def read_into(self, offset: int, into: memoryview) -> bool:
        """Fills all of it, from `offset` on, without waiting for the device. False: that cannot be,
        and what it holds is anything."""
        ...

    def prefetch(self, offset: int, size: int) -> None:
        """This is read soon: the system may begin to bring it into its cache. A hint: it may do
        nothing, or wait for a while."""
        ...

    def uncache(self, offset: int, size: int) -> None:
        """The next read of this is to come from the device, where the system has it cached and the
        device, too. A hint: it may do nothing."""
        ...

    def preallocate(self, size: int) -> None:
        """Reserve blocks so that writes up to `size` cannot fail for space; the file's size
        becomes `size`, unwritten parts read as zeros. OSError(ENOSPC) where there is no room."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One data directory. Names are relative paths with '/'."""

    path: str
    """For messages."""

    def create(self, name: str) -> File:
        """A new file, for reading and writing; `FileExistsError` if there. Its directory entry is
        durable only after `sync_directory`."""
        ...

    def open(self, name: str) -> File:
        """For reading and writing; `FileNotFoundError`."""
        ...

    def exists(self, name: str) -> bool: ...

    def list(self, directory: str = "") -> list[str]:
        """Names of the files and directories in it, sorted; empty where it does not exist."""
        ...

    def make_directory(self, name: str) -> None:
        """With parents; success if there. "" is the data directory itself."""
        ...

    def remove(self, name: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Atomically, over an existing `new`; durable after `sync_directory`."""
        ...

    def sync_directory(self, directory: str = "") -> None: ...

    def free_bytes(self) -> int: ...

    def total_bytes(self) -> int: ...

    def lock(self) -> None:
        """Hold the directory for this process until `close`; `BlockingIOError` if another has
        it."""
        ...

    def close(self) -> None: ...


class Worker(Protocol):
    """Runs one blocking `step` off the event loop, again and again, once after each wake (several
    wakes during one step become one more step)."""

    def start(self, step: Callable[[], None]) -> None: ...

    def wake(self) -> None:
        """From the event loop or from the step itself."""
        ...

    def post(self, callback: Callable[[], None]) -> None:
        """From the step: run `callback` on the event loop soon, in order."""
        ...

    async def stop(self) -> None:
        """After the running step, and one more where a wake is pending. Posted callbacks have run
        when this returns."""
        ...


class BlockingReader(Protocol):
    """Where reads that wait for the device run: `worker.ThreadReader`. What goes ahead of a reader
    has threads of its own: nobody waits behind it."""

    def run(self, call: Callable[[], T]) -> Awaitable[T]: ...

    def read(self, call: Callable[[], T], done: Callable[[T | None], None]) -> None:
        """Run it soon; then `done` on the event loop with what it returned, or None where it was
        not run: this is being closed."""
        ...

    def ahead(self, call: Callable[[], None], done: Callable[[], None]) -> None:
        """Run it soon, for what it leaves in the system's cache; then `done`, on the event loop. It
        may also not be run. An `OSError` is nobody's."""
        ...
