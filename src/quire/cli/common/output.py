"""Standard output of commands."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quire.http.views.ledger_json import ledger_as_json, time_text

__all__ = ["OutputThread", "diverted", "ledger_as_json", "print_json", "time_text"]


ALIKE = {"ledger": "ledger_id", "last_entry": "last_entry_id", "size_bytes": "bytes"}
"""The keys of JSON output that all commands use for the same thing, by the former key. An object
that had the former key has both."""


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of standard output.

    If the encoding of standard output lacks a character of it, all characters that are not ASCII
    are escaped, as JSON allows.
    """
    shown = alike(value)
    text = json.dumps(shown, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(shown)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def alike(value: Any) -> Any:
    """Return the value with the keys of `ALIKE` added to its objects, at any depth."""
    if isinstance(value, Mapping):
        made = {key: alike(one) for key, one in value.items()}
        for former, key in ALIKE.items():
            if isinstance(made.get(former), int):
                made.setdefault(key, made[former])
        return made
    return [alike(one) for one in value] if isinstance(value, list | tuple) else value


class OutputThread:
    """A thread that writes bytes to a file descriptor, so that the event loop is not blocked.

    If the reader of the output pauses, for example a pager, requests to bookies must not time out.
    The thread is a daemon and bypasses Python's buffers, so that the process can still end if the
    reader of the output never continues.
    """

    def __init__(self, descriptor: int) -> None:
        # The caller may close its own while a write that was cancelled is still under way, and the
        # next file or connection gets its number.
        self._descriptor = os.dup(descriptor)
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None]
        self._work = queue.SimpleQueue()
        threading.Thread(target=self._run, name="quire-output", daemon=True).start()

    async def write(self, data: bytes) -> None:
        """Write all of `data`, and return when the file descriptor has taken it.

        Raises OSError if writing fails, and BrokenPipeError if the reader has closed the pipe. If
        the call is cancelled, the data is still written.
        """
        written: asyncio.Future[None] = self._loop.create_future()
        self._work.put((data, written))
        await written

    def close(self) -> None:
        self._work.put(None)

    def _run(self) -> None:
        try:
            self._write_all()
        finally:
            os.close(self._descriptor)

    def _write_all(self) -> None:
        while (item := self._work.get()) is not None:
            data, written = item
            failure: OSError | None = None
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._descriptor, view) :]
            except OSError as error:
                failure = error
            try:
                self._loop.call_soon_threadsafe(_finish, written, failure)
            except RuntimeError:
                return  # the loop is closed


def _finish(written: asyncio.Future[None], failure: OSError | None) -> None:
    if written.done():
        return  # the waiting task was cancelled
    if failure is not None:
        written.set_exception(failure)
    else:
        written.set_result(None)


@contextmanager
def diverted(log: Path, descriptors: Sequence[int] = (1, 2)) -> Iterator[None]:
    """Append what is written to these descriptors in this context to the file `log`.

    Child processes that start in the context inherit the redirected descriptors.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(descriptor, os.dup(descriptor)) for descriptor in descriptors]
    try:
        with log.open("ab") as file:
            for descriptor, _ in kept:
                os.dup2(file.fileno(), descriptor)
        yield
    finally:
        for descriptor, copy in kept:
            os.dup2(copy, descriptor)
            os.close(copy)
