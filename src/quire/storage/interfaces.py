"""The interfaces that storage needs from outside: a disk, workers, and threads for reads.

In production they are `quire.storage.disk.RealDisk`, `quire.storage.worker.ThreadWorker` and
`ThreadReader`. In the simulator they are `quire_simulator.machine.disk.SimDisk` and
`quire_simulator.machine.worker.SimWorker`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Protocol, TypeVar

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


class Readable(Protocol):
    """The part of `File` that is needed for reading."""

    def read(self, offset: int, size: int, *, wait: bool = True) -> Buffer | None: ...

    def size(self) -> int: ...


class File(Protocol):
    """An open file.

    All calls block, except `read` with `wait=False`, and `read_into`. Only `sync` makes anything
    durable. I/O errors are raised as the `OSError` of the operating system (ENOSPC, EIO, ...).
    """

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all of the buffers, one after the other, at `offset`."""
        ...

    def sync(self) -> None:
        """Make the contents durable, and the metadata to read them back, as `fdatasync` does.

        A failure is final. What was not synced before may be lost, even if a later sync succeeds.
        """
        ...

    def read(self, offset: int, size: int, *, wait: bool = True) -> Buffer | None:
        """Read `size` bytes from `offset` on, or fewer at the end of the file.

        With `wait=False`, return None if this would have to wait for the device. If the file system
        cannot tell, this reads anyway, and may wait.
        """
        ...

    def read_into(self, offset: int, into: memoryview) -> bool:
        """Fill `into` with the bytes from `offset` on, without waiting for the device.

        Return False if that is not possible. The content of `into` is then undefined.
        """
        ...

    def prefetch(self, offset: int, size: int) -> None:
        """Tell the operating system that `size` bytes from `offset` on will be read soon.

        The system may begin to read it into its cache. It may also do nothing, and the call may
        take a while.
        """
        ...

    def uncache(self, offset: int, size: int) -> None:
        """Remove `size` bytes from `offset` on from the page cache.

        The next read then comes from the device. This is a hint, which may do nothing.
        """
        ...

    def preallocate(self, size: int) -> None:
        """Reserve space, so that writes up to the offset `size` cannot fail for lack of it.

        The size of the file becomes at least `size`. Parts that were never written read as zeros.
        This raises `OSError` with ENOSPC if there is not enough space.
        """
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A data directory. Names are relative paths with '/'."""

    path: str
    """The path of the data directory, for messages."""

    def create(self, name: str) -> File:
        """Create a file for reading and writing, and open it.

        Its directory entry is durable only after `sync_directory`. Raises `FileExistsError` if the
        file exists.
        """
        ...

    def open(self, name: str) -> File:
        """Open a file for reading and writing.

        Raises `FileNotFoundError` if the file does not exist.
        """
        ...

    def exists(self, name: str) -> bool: ...

    def list(self, directory: str = "") -> list[str]:
        """Return the names in a directory, sorted, or [] if the directory does not exist."""
        ...

    def make_directory(self, name: str) -> None:
        """Create a directory and its parents, unless they exist.

        "" is the data directory itself. The directory entries of all others are durable on return.
        """
        ...

    def remove(self, name: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file atomically, and replace `new` if it exists.

        This is durable after `sync_directory`.
        """
        ...

    def sync_directory(self, directory: str = "") -> None: ...

    def free_bytes(self) -> int: ...

    def total_bytes(self) -> int: ...

    def file_system(self) -> Hashable:
        """Return the identity of the file system, which directories on one disk have in common."""
        ...

    def lock(self) -> None:
        """Lock the directory for this process until `close`.

        This raises `BlockingIOError` if another process has locked it.
        """
        ...

    def close(self) -> None: ...


class Worker(Protocol):
    """A worker that runs a blocking function, `step`, off the event loop.

    At least one step begins after each `wake`. Several wakes during a step share the next step.
    """

    def start(self, step: Callable[[], None]) -> None: ...

    def wake(self) -> None:
        """Have `step` run once more. The event loop may call this, and so may `step` itself."""
        ...

    def post(self, callback: Callable[[], None]) -> None:
        """Have `callback` run on the event loop soon.

        `step` calls this. Callbacks run in the order of the calls.
        """
        ...

    async def stop(self) -> None:
        """Stop the worker after the current step, and after one more if a wake is pending.

        When this returns, all posted callbacks have run.
        """
        ...


class BlockingReader(Protocol):
    """A reader that runs reads that wait for the device off the event loop.

    `worker.ThreadReader` is one. Reading ahead uses another thread, so that no read waits for it.
    """

    def run(self, call: Callable[[], T]) -> Awaitable[T]: ...

    def read(self, call: Callable[[], T], done: Callable[[T | None], None]) -> None:
        """Run `call` soon. Then call `done` on the event loop with its result.

        The result is None if the call was not run, because the reader is being closed. It is also
        None if the call raised an exception, which is then reported to the event loop.
        """
        ...

    def ahead(self, call: Callable[[], None], done: Callable[[], None]) -> None:
        """Run `call`, which fills the page cache, and then `done` on the event loop.

        The call may be skipped, and its errors are ignored. `done` is called in any case.
        """
        ...
