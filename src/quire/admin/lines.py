"""The lines of a descriptor, read by a thread, so that the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import AsyncIterator

from quire.errors import EntryTooLargeError

CHUNK_BYTES = 1024 * 1024
CHUNKS_WAITING_MAX = 4
"""Read and not yet taken; behind it the thread stops reading."""


class LineSplitter:
    """Bytes in, whole lines out, without their newline; a carriage return belongs to its line.

    Chunks are smaller than `max_line_bytes`, so that only the first line of one can be too long.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._lines = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes. EntryTooLargeError as soon as a line can be no entry:
        its end is not waited for."""
        pieces = chunk.split(b"\n")
        self._rest_bytes += len(pieces[0])
        if self._rest_bytes > self._max_line_bytes:
            raise EntryTooLargeError(
                f"line {self._lines + 1} is longer than {self._max_line_bytes} bytes, the most "
                "that fits into one entry; nothing of it was appended",
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


class LineSource:
    """`async for lines in source`: the lines that came in since the last time, as they come.

    `stop` ends the iteration at once; what was read and not yet taken is dropped.
    """

    def __init__(self, descriptor: int, max_line_bytes: int) -> None:
        self._descriptor = descriptor
        self._splitter = LineSplitter(max_line_bytes)
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[list[bytes] | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(CHUNKS_WAITING_MAX)
        self._stopped = False
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="quire-input", daemon=True)
        self._thread.start()

    async def __aiter__(self) -> AsyncIterator[list[bytes]]:
        while (item := await self._lines.get()) is not None and not self._stopped:
            if isinstance(item, Exception):
                raise item
            yield item
            self._room.release()

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._room.release()
            os.write(self._wake_write, b"x")
            self._lines.put_nowait(None)

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
                lines = self._splitter.feed(chunk)
                if lines and not self._put(lines):
                    return
            last = self._splitter.finish()
            if last and not self._put(last):
                return
            self._post(None)
        except Exception as error:  # noqa: BLE001 - raised where the lines are taken
            self._post(error)

    def _read(self) -> bytes | None:
        """None at the end, and once stopped."""
        ready, _, _ = select.select([self._descriptor, self._wake_read], [], [])
        if self._wake_read in ready:
            return None
        return os.read(self._descriptor, CHUNK_BYTES) or None

    def _put(self, lines: list[bytes]) -> bool:
        self._room.acquire()
        if not self._stopped:
            self._post(lines)
        return not self._stopped

    def _post(self, item: list[bytes] | Exception | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, item)
        except RuntimeError:
            pass  # the loop is closed: nobody takes lines any more
