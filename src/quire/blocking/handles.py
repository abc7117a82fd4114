"""The common parts of the generated classes of the blocking API.

A blocking handle holds the asyncio handle that does the work, and calls it on the background loop.
After a fork a handle either opens its counterpart again in the child, or belongs to the process
that made it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
)
from types import TracebackType
from typing import ClassVar, Generic, Protocol, Self, TypeVar, runtime_checkable

from quire._runtime.opening import AsyncHandle
from quire.blocking.background import call, end, reopening
from quire.codec.entry.entry import Entry, EntryRun
from quire.codec.wire.v2 import Buffer
from quire.errors import ArgumentTypeError, UsageError

T = TypeVar("T")
A = TypeVar("A")
H = TypeVar("H", bound=AsyncHandle)

FILE_READ_BYTES = 1024 * 1024
"""The number of bytes that are read from a file at a time."""


class Handle(Generic[A]):
    """A blocking handle, which calls the asyncio handle that it holds."""

    _what: ClassVar[str] = "the handle"
    """The name of the handle for messages. It is formatted with the asyncio handle."""

    def __init__(self, opened: A, again: Callable[[], A] | None = None) -> None:
        """Wrap an asyncio handle.

        Args:
            opened: The asyncio handle.
            again: A function that opens the asyncio handle again in a child process. If it is None,
                the handle belongs to this process.
        """
        self._opened = opened
        self._again = again
        self._pid = os.getpid()
        self._left = False

    @property
    def aio(self) -> A:
        """The asyncio handle of this process.

        Raises:
            UsageError: The handle belongs to another process.
        """
        if self._pid != os.getpid():
            if self._again is None:
                raise UsageError(
                    f"{self._what.format(self._opened)} belongs to process {self._pid}",
                    remedy="Open it again in this process",
                )
            with reopening():
                if self._pid != os.getpid() and not self._left:
                    self._opened = self._again()
                    self._pid = os.getpid()
        return self._opened

    def _leave(self) -> bool:
        """Record that the handle is closed. Return whether there is something to close here."""
        self._left = True
        return self._pid == os.getpid()

    def __repr__(self) -> str:
        return f"<blocking {repr(self._opened).removeprefix('<')}"


class ContextHandle(Handle[H]):
    """A blocking handle that is also a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._leave():
            call(self._opened.__aexit__(kind, error, trace))


# -- iterating --------------------------------------------------------------------------------


class _End:
    pass


_END = _End()


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """Iterate over an asynchronous iterator, one item per call.

    The asynchronous iterator is closed when this iteration ends.
    """
    steps = _Steps(items)
    try:
        while not isinstance(item := call(steps.next()), _End):
            yield item
    finally:
        end(steps.close())


class _Steps(Generic[T]):
    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items
        self._step: asyncio.Task[object] | None = None
        self._pid = os.getpid()

    async def next(self) -> T | _End:
        """Return the next item, or `_END` after the last one."""
        if self._pid != os.getpid():
            raise UsageError(
                f"this iteration belongs to process {self._pid}",
                remedy="Begin a new one in this process",
            )
        self._step = asyncio.current_task()
        return await anext(self._items, _END)

    async def close(self) -> None:
        """Close the iterator.

        The caller of a step may have been interrupted. The step is then cancelled, but may not have
        ended yet. In a child process there is nothing to close, because the event loop is the
        parent's.
        """
        if self._pid != os.getpid():
            return
        if self._step is not None and not self._step.done():
            await asyncio.wait([self._step])
        if isinstance(self._items, AsyncGenerator):
            await self._items.aclose()


async def collected(items: AsyncIterator[T]) -> list[T]:
    """Return all items as a list."""
    return [item async for item in items]


def entries_of(ledger_id: int, runs: Iterator[EntryRun]) -> Iterator[Entry]:
    """Yield the entries of runs one by one, without a call for each of them."""
    for run in runs:
        entry_id = run.first
        for payload, length in zip(run.payloads(), run.ledger_lengths):
            yield Entry(ledger_id, entry_id, length, payload)
            entry_id += 1


# -- sources of objects -----------------------------------------------------------------------


@runtime_checkable
class ReadableFile(Protocol):
    """A file that is open for reading bytes."""

    def read(self, size: int, /) -> bytes | None:
        """Read at most `size` bytes.

        Returns:
            The bytes, which are empty at the end of the file. None means that a file in
            non-blocking mode has no bytes now.
        """
        ...


Source = Buffer | ReadableFile | Iterable[Buffer]
"""The bytes of an object: a buffer, an open file (the rest of it), or an iterable of buffers."""


def pieces_of(source: Source) -> Buffer | AsyncGenerator[Buffer, None]:
    """Return the source in the form that the asyncio API takes.

    A thread reads files and iterables, so that the event loop continues meanwhile.
    """
    given: object = source
    if isinstance(given, str) or not isinstance(given, Iterable | ReadableFile | memoryview):
        raise ArgumentTypeError(
            "the source of an object is a buffer, an open file or an iterable of buffers, not "
            f"{type(given).__name__}"
        )
    if isinstance(source, bytes | bytearray | memoryview):
        return source
    if isinstance(source, ReadableFile):
        return _pieces_of_file(source)
    return _pieces_of_iterable(source)


async def _pieces_of_file(file: ReadableFile) -> AsyncGenerator[bytes, None]:
    while piece := await asyncio.to_thread(file.read, FILE_READ_BYTES):
        yield piece
    if piece is None:  # not the end, which is an empty piece
        raise UsageError(
            "the file for an object is in non-blocking mode and has no bytes now, so its end is "
            "not known. The object was not stored",
            remedy="Call os.set_blocking(file.fileno(), True), and put the object again from the "
            "beginning of the file",
        )


async def _pieces_of_iterable(source: Iterable[Buffer]) -> AsyncGenerator[Buffer, None]:
    upcoming = iter(source)
    # None does not mark the end: the iterable may yield it, and `put` then refuses it.
    while not isinstance(piece := await asyncio.to_thread(next, upcoming, _END), _End):
        yield piece
