"""Input from a file descriptor, read by a thread so that the event loop is not blocked."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Protocol

from quire._runtime.shortages import reason_of
from quire.errors import EntryTooLargeError

CHUNK_BYTES = 1024 * 1024
CHUNKS_WAITING_MAX = 4
"""The number of chunks of input at which the thread stops reading until the event loop has taken
one."""
CLOSE_TIMEOUT_S = 1.0
"""Seconds to wait for the end of the thread, which blocks the event loop."""


class Splitter(Protocol):
    """The interface of an object that cuts input, which arrives in chunks, into pieces."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the pieces that `chunk` completes."""
        ...

    def finish(self) -> list[bytes]:
        """Return the pieces that are left at the end of the input."""
        ...


class WholeChunks:
    """A splitter that passes chunks on as they are."""

    def feed(self, chunk: bytes) -> list[bytes]:
        return [chunk]

    def finish(self) -> list[bytes]:
        return []


class LineSplitter:
    """A splitter that returns complete lines without their newline.

    A carriage return belongs to its line. Chunks must not be larger than `max_line_bytes`, so that
    only the first line of a chunk can be too long: only that one is checked.
    """

    def __init__(
        self, max_line_bytes: int, delimiter: bytes = b"\n", becomes: str = "entry"
    ) -> None:
        """Create a splitter.

        `delimiter` is the byte that ends a line. `becomes` says in error messages what a line is
        stored as.
        """
        self._max_line_bytes = max_line_bytes
        self._delimiter = delimiter
        self._becomes = becomes
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._lines = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes.

        Raises EntryTooLargeError as soon as a line is too long, without waiting for its end.
        """
        pieces = chunk.split(self._delimiter)
        self._rest_bytes += len(pieces[0])
        if self._rest_bytes > self._max_line_bytes:
            raise EntryTooLargeError(
                f"line {self._lines + 1} is longer than {self._max_line_bytes} bytes, the largest "
                f"size of one {self._becomes}; this line was not appended",
                remedy="Split it into several lines",
            )
        self._rest.append(pieces[0])
        if len(pieces) == 1:
            return []
        pieces[0] = b"".join(self._rest)
        last = pieces.pop()
        self._rest, self._rest_bytes = [last], len(last)
        self._lines += len(pieces)
        return pieces

    def finish(self) -> list[bytes]:
        """Return the last line if no newline ends it, else []."""
        rest = b"".join(self._rest)
        self._rest, self._rest_bytes = [], 0
        return [rest] if rest else []


class InputSource:
    """An asynchronous iterator over the input: `async for pieces in source`.

    Each item is a list of pieces that arrived together. `stop` ends the iteration at once, and
    drops input that was read and not yet taken. The iteration raises the errors of the splitter,
    and OSError if the input cannot be read.
    """

    def __init__(self, descriptor: int, splitter: Splitter) -> None:
        self._descriptor = descriptor
        self._splitter = splitter
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[list[bytes] | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(CHUNKS_WAITING_MAX)
        self._stopped = False
        self._wake_read, self._wake_write = os.pipe()
        # `select.select` takes no descriptor above 1023.
        self._either = select.poll()
        self._either.register(descriptor, select.POLLIN)
        self._either.register(self._wake_read, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="quire-input", daemon=True)
        self._thread.start()

    async def __aiter__(self) -> AsyncIterator[list[bytes]]:
        while (item := await self._pieces.get()) is not None and not self._stopped:
            if isinstance(item, Exception):
                raise item
            yield item
            self._room.release()

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._room.release()
            os.write(self._wake_write, b"x")
            self._pieces.put_nowait(None)

    def close(self) -> None:
        """Stop, and wait until the thread has ended.

        A thread that is blocked in a read is left behind after `CLOSE_TIMEOUT_S`. This happens if
        another program has taken what `poll` saw, or if the file system of the input hangs.
        """
        self.stop()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            return  # it still looks at the pipe after its read
        os.close(self._wake_read)
        os.close(self._wake_write)

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (chunk := self._read()) is not None:
                pieces = self._splitter.feed(chunk)
                if pieces and not self._put(pieces):
                    return
            last = self._splitter.finish()
            if last and not self._put(last):
                return
            self._post(None)
        except Exception as error:  # noqa: BLE001 - raised in the iteration
            self._post(error)

    def _read(self) -> bytes | None:
        """Return the next chunk, or None at the end of the input or after `stop`."""
        if any(descriptor == self._wake_read for descriptor, _ in self._either.poll()):
            return None
        return os.read(self._descriptor, CHUNK_BYTES) or None

    def _put(self, pieces: list[bytes]) -> bool:
        self._room.acquire()
        if not self._stopped:
            self._post(pieces)
        return not self._stopped

    def _post(self, item: list[bytes] | Exception | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, item)
        except RuntimeError:
            pass  # the loop is closed


class LineSource(InputSource):
    """An input source that yields lists of lines without their newline."""

    def __init__(self, descriptor: int, max_line_bytes: int) -> None:
        super().__init__(descriptor, LineSplitter(max_line_bytes))


@contextmanager
def signals_to(source: InputSource) -> Iterator[list[int]]:
    """Let SIGINT and SIGTERM end the input, and yield the list of signals that were caught.

    A second signal also cancels the task.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    caught: list[int] = []

    def on_signal(number: int) -> None:
        if caught:
            task.cancel()
            return
        caught.append(number)
        source.stop()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield caught
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def unreadable(error: OSError) -> str:
    """Return the sentence that says why the input ended before its end."""
    return f"the input cannot be read any further: {reason_of(error)}"


def input_bytes(descriptor: int) -> int | None:
    """Return the number of bytes left in a regular file, or None for anything else."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        return None
    return max(found.st_size - os.lseek(descriptor, 0, os.SEEK_CUR), 0)
