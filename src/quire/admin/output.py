"""What commands print."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.codec.ledger_metadata import LedgerMetadata


def print_json(value: Mapping[str, Any]) -> None:
    """One object on one line of standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def ledger_as_json(ledger_id: int, metadata: LedgerMetadata) -> dict[str, Any]:
    """What `show` and `list` print of a ledger with --json."""
    custom, not_text = _texts(metadata.custom)
    last_of: list[int | None] = [segment.first_entry_id - 1 for segment in metadata.segments[1:]]
    last_of.append(metadata.last_entry_id if metadata.closed else None)
    described: dict[str, Any] = {
        "ledger_id": ledger_id,
        "state": metadata.state.name,
        "last_entry_id": metadata.last_entry_id if metadata.closed else None,
        "length": metadata.length if metadata.closed else None,
        "ensemble": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "digest": metadata.digest.name if metadata.digest is not None else None,
        "ctime_ms": metadata.ctime_ms if metadata.ctime_ms >= 0 else None,
        "ctime": time_text(metadata.ctime_ms),
        "format_version": metadata.format_version,
        "custom": custom,
        "segments": [
            {
                "first_entry_id": segment.first_entry_id,
                "last_entry_id": last,
                "bookies": list(segment.ensemble),
            }
            for segment, last in zip(metadata.segments, last_of, strict=True)
        ],
    }
    if not_text:
        described["custom_base64"] = not_text
    return described


def time_text(milliseconds: int) -> str | None:
    if milliseconds < 0:
        return None
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _texts(values: Mapping[str, bytes]) -> tuple[dict[str, str], dict[str, str]]:
    """What is text, and the rest in base64."""
    from base64 import b64encode

    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    for key, value in values.items():
        try:
            texts[key] = value.decode()
        except UnicodeDecodeError:
            others[key] = b64encode(value).decode()
    return texts, others


class OutputThread:
    """Writes bytes to a descriptor without holding up the event loop: a reader that stops for a
    while (a pager) must not make the bookies look late.

    The thread is a daemon and writes past Python's buffers, so that a process whose reader has
    stopped for good can still end.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None]
        self._work = queue.SimpleQueue()
        threading.Thread(target=self._run, name="quire-output", daemon=True).start()

    async def write(self, data: bytes) -> None:
        """Until all of it is written. OSError (BrokenPipeError)."""
        written: asyncio.Future[None] = self._loop.create_future()
        self._work.put((data, written))
        await written

    def close(self) -> None:
        self._work.put(None)

    def _run(self) -> None:
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
                return  # the loop is closed: nobody waits


def _finish(written: asyncio.Future[None], failure: OSError | None) -> None:
    if written.done():
        return  # whoever waited was cancelled
    if failure is not None:
        written.set_exception(failure)
    else:
        written.set_result(None)


@contextmanager
def diverted(log: Path, descriptors: Sequence[int] = (1, 2)) -> Iterator[None]:
    """What a child that starts now says goes to a file, for as long as it lives."""
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
