"""A common interface of Apache's DistributedLog and our streams.

All calls block. `ApacheStreams` (in `apache_streams`) and `QuireStreams` (in `quire_streams`)
implement it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment

Sent = tuple[int, bytes]
"""A txid and a payload."""


class Got(NamedTuple):
    """A record as a reader delivers it."""

    position: DLSN
    txid: int
    payload: bytes
    sequence: int


class StreamError(Exception):
    """A call of either side failed. `kind` is the name of the exception's class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class StreamWriter(Protocol):
    def write(self, txid: int, payload: bytes) -> DLSN:
        """Write one record, and wait for the acknowledgement."""
        ...

    def write_all(self, records: Sequence[Sent]) -> list[DLSN]:
        """Write all records, outstanding at once."""
        ...

    def end_stream(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Never write again, and leave the segment in progress."""
        ...


class StreamReader(Protocol):
    """A reader that follows the stream."""

    @property
    def ended(self) -> bool:
        """Whether the end of the stream was reached."""
        ...

    def take(self, count: int) -> list[Got]:
        """Wait for this number of records, or fewer if the stream ends."""
        ...

    def close(self) -> None: ...


class Streams(Protocol):
    """One namespace."""

    name: str

    def create(self, stream: str) -> None: ...

    def delete(self, stream: str) -> None: ...

    def rename(self, stream: str, new: str) -> None: ...

    def names(self) -> list[str]: ...

    def writer(self, stream: str) -> StreamWriter: ...

    def reader(self, stream: str, start: DLSN | int | None = None) -> StreamReader:
        """Return a reader from a position, from a txid, or from the beginning."""
        ...

    def read(self, stream: str, count: int, start: DLSN | int | None = None) -> list[Got]:
        """Read this number of records, and check that no more are acknowledged."""
        ...

    def segments(self, stream: str) -> list[StreamSegment]: ...

    def find_txid(self, stream: str, txid: int) -> DLSN: ...

    def truncate(self, stream: str, before: DLSN) -> None: ...

    def committed(self, stream: str, subscriber: str) -> DLSN | None: ...

    def commit(self, stream: str, subscriber: str, position: DLSN) -> None: ...

    def close(self) -> None: ...


def records(count: int, first_txid: int = 1, size: int = 100) -> list[Sent]:
    """Return different records. Every tenth is empty, every seventh repeats the previous txid."""
    made = []
    txid = first_txid
    for number in range(count):
        txid += number % 7 != 0
        payload = b"%d:" % number + b"abcdefghij" * (number % (2 * size) // 10)
        made.append((txid, b"" if number % 10 == 3 else payload))
    return made


def pairs(got: Sequence[Got]) -> list[Sent]:
    return [(record.txid, record.payload) for record in got]
