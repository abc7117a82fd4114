"""A common interface of Apache's DistributedLog and Quire's streams.

All calls block. `ApacheStreams` (in `apache_streams`) and `QuireStreams` (in `quire_streams`)
implement it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment

Sent = tuple[int, bytes]
"""A record to write: its txid and its payload."""


class Got(NamedTuple):
    """A record as a reader delivers it."""

    position: DLSN
    txid: int
    payload: bytes
    sequence: int


class StreamError(Exception):
    """The failure of a call of either project. `kind` is the name of the exception's class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class StreamWriter(Protocol):
    def write(self, txid: int, payload: bytes) -> DLSN:
        """Write one record, wait until it is acknowledged, and return its position."""
        ...

    def write_all(self, records: Sequence[Sent]) -> list[DLSN]:
        """Write all records without waiting in between, and return their positions."""
        ...

    def end_stream(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Stop writing for good, and leave the segment in progress."""
        ...


class StreamReader(Protocol):
    """A reader that follows a stream until the stream is ended."""

    @property
    def ended(self) -> bool:
        """Whether the end of the stream was reached."""
        ...

    def take(self, count: int) -> list[Got]:
        """Wait for `count` further records and return them, or fewer if the stream ends."""
        ...

    def close(self) -> None: ...


class Streams(Protocol):
    """One namespace of streams, as a client of either project sees it."""

    name: str

    def create(self, stream: str) -> None: ...

    def delete(self, stream: str) -> None: ...

    def rename(self, stream: str, new: str) -> None: ...

    def names(self) -> list[str]: ...

    def writer(self, stream: str) -> StreamWriter: ...

    def reader(self, stream: str, start: DLSN | int | None = None) -> StreamReader:
        """Return a reader that begins at a position, a txid, or by default the oldest record."""
        ...

    def read(self, stream: str, count: int, start: DLSN | int | None = None) -> list[Got]:
        """Read `count` records, and check that no more are acknowledged."""
        ...

    def segments(self, stream: str) -> list[StreamSegment]: ...

    def find_txid(self, stream: str, txid: int) -> DLSN: ...

    def truncate(self, stream: str, before: DLSN) -> None: ...

    def committed(self, stream: str, subscriber: str) -> DLSN | None: ...

    def commit(self, stream: str, subscriber: str, position: DLSN) -> None: ...

    def close(self) -> None: ...


def records(count: int, first_txid: int = 1, size: int = 100) -> list[Sent]:
    """Return different records: every tenth is empty, every seventh repeats a txid."""
    made = []
    txid = first_txid
    for number in range(count):
        txid += number % 7 != 0
        payload = b"%d:" % number + b"abcdefghij" * (number % (2 * size) // 10)
        made.append((txid, b"" if number % 10 == 3 else payload))
    return made


def pairs(got: Sequence[Got]) -> list[Sent]:
    return [(record.txid, record.payload) for record in got]
