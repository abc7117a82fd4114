"""Input from a descriptor, read by a thread so that the event loop is not blocked."""

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

from quire.errors import EntryTooLargeError

CHUNK_BYTES = 1024 * 1024
CHUNKS_WAITING_MAX = 4
"""Read and not yet taken; behind it the thread stops reading."""


class Splitter(Protocol):
    def feed(self, chunk: bytes) -> list[bytes]: ...

    def finish(self) -> list[bytes]: ...


class WholeChunks:
    """Bytes in, the same out."""

    def feed(self, chunk: bytes) -> list[bytes]:
        return [chunk]

    def finish(self) -> list[bytes]:
        return []


class LineSplitter:
    """Bytes in, whole lines out, without their newline; a carriage return belongs to its line.

    Chunks are smaller than `max_line_bytes`, so that only the first line of one can be too long.
    """

    def __init__(
        self, max_line_bytes: int, delimiter: bytes = b"\n", becomes: str = "entry"
    ) -> None:
        """`delimiter`: a byte that takes the place of the newline. `becomes`: what is made of a
        line, for messages."""
        self._max_line_bytes = max_line_bytes
        self._delimiter = delimiter
        self._becomes = becomes
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._lines = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes. EntryTooLargeError as soon as a line can be no entry:
        its end is not waited for."""
        pieces = chunk.split(self._delimiter)
        self._rest_bytes += len(pieces[0])
        if self._rest_bytes > self._max_line_bytes:
            raise EntryTooLargeError(
                f"line {self._lines + 1} is longer than {self._max_line_bytes} bytes, the most "
                f"that fits into one {self._becomes}; nothing of it was appended",
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
        """A last line without a newline."""
        rest = b"".join(self._rest)
        self._rest, self._rest_bytes = [], 0
        return [rest] if rest else []


class InputSource:
    """`async for pieces in source`: what came in since the last time, as it comes.

    `stop` ends the iteration at once; what was read and not yet taken is dropped.
    """

    def __init__(self, descriptor: int, splitter: Splitter) -> None:
        self._descriptor = descriptor
        self._splitter = splitter
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[list[bytes] | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(CHUNKS_WAITING_MAX)
        self._stopped = False
        self._wake_read, self._wake_write = os.pipe()
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
        """The thread has ended when this returns."""
        self.stop()
        self._thread.join()
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
        except Exception as error:  # noqa: BLE001 - raised where the pieces are taken
            self._post(error)

    def _read(self) -> bytes | None:
        """None at the end, and once stopped."""
        ready, _, _ = select.select([self._descriptor, self._wake_read], [], [])
        if self._wake_read in ready:
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
            pass  # the loop is closed: nobody takes anything any more


class LineSource(InputSource):
    """`async for lines in source`: lines without their newline."""

    def __init__(self, descriptor: int, max_line_bytes: int) -> None:
        super().__init__(descriptor, LineSplitter(max_line_bytes))


@contextmanager
def signals_to(source: InputSource) -> Iterator[list[int]]:
    """SIGINT and SIGTERM end the input, and are noted; a second one ends the waiting too."""
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


def input_bytes(descriptor: int) -> int | None:
    """Return the number of bytes left in a file; None for anything else."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        return None
    return max(found.st_size - os.lseek(descriptor, 0, os.SEEK_CUR), 0)
