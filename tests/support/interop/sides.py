"""A common interface of Apache's client and Quire's client, for tests that run on both.

All calls block. `ApacheClient` (in `apache_java`) and `QuireClient` (in `quire_side`) implement it.
The `features` of a client are the optional ones that it supports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

CALL_LIMIT_S = 60
"""Seconds after which a single call fails the test."""

PASSWORD = b"one secret"
DIGESTS = ("CRC32", "CRC32C", "MAC", "DUMMY")
"""The digests by the names that Apache's API gives them."""
DIGEST_BYTES = {"CRC32": 8, "CRC32C": 4, "MAC": 20, "DUMMY": 0}
FRAME_BYTES = 5 << 20
"""The largest size in bytes of a frame, including its length, for both clients."""
V2_ADD_OVERHEAD_BYTES = 60
"""The number of bytes besides digest and payload of a v2 add, and of the answer to a v2 read."""
NO_ENTRY = -1


class Code:
    """The result codes of Apache's client, which Quire's errors have as well."""

    READ = -1
    DIGEST_MATCH = -5
    NOT_ENOUGH_BOOKIES = -6
    NO_LEDGER_ON_BOOKIE = -7
    LEDGER_CLOSED = -11
    NO_SUCH_ENTRY = -13
    INCORRECT_PARAMETER = -14
    LEDGER_EXISTS = -20
    DUPLICATE_ENTRY = -22
    NO_SUCH_LEDGER = -25
    ILLEGAL = -100
    LEDGER_FENCED = -101
    UNAUTHORIZED = -102


class ClientError(Exception):
    """The failure of a call of either client, with Apache's result code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (code {code})")
        self.code = code
        self.done = 0


class Feature(Enum):
    DEFERRED_SYNC = auto()
    LONG_POLL = auto()
    EXPLICIT_LAC = auto()
    BATCH_READ = auto()
    UNCONFIRMED_READ = auto()


@dataclass(frozen=True, slots=True)
class Shape:
    """The quorums, the digest and the password of a ledger."""

    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest: str = "CRC32C"
    password: bytes = PASSWORD

    def __str__(self) -> str:
        return f"{self.digest}-{self.ensemble}-{self.write_quorum}-{self.ack_quorum}"


PLAIN = Shape()
STRIPED = Shape(3, 2, 2)


@dataclass(frozen=True, slots=True)
class Described:
    """The metadata of a ledger as a client reports it."""

    state: str
    last_entry_id: int
    length: int
    shape: Shape
    segments: Mapping[int, tuple[str, ...]]
    custom: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def closed(self) -> bool:
        return self.state == "CLOSED"

    @property
    def last_ensemble(self) -> tuple[str, ...]:
        return self.segments[max(self.segments)]


class Writer(Protocol):
    ledger_id: int

    def append(self, payload: bytes) -> int: ...

    def append_all(self, payloads: Sequence[bytes]) -> list[int]:
        """Append all payloads without waiting in between, and return their entry ids.

        An error has, as `done`, the number of leading entries that were acknowledged.
        """
        ...

    def force(self) -> None: ...

    @property
    def last_add_confirmed(self) -> int: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Stop writing for good, and leave the ledger open."""
        ...


class AdvWriter(Protocol):
    """A writer of a ledger whose caller chooses the entry ids."""

    ledger_id: int

    def write(self, entry_id: int, payload: bytes) -> int: ...

    def write_all(self, entries: Sequence[tuple[int, bytes]]) -> list[int]:
        """Write the (entry id, payload) pairs in this order, without waiting in between.

        Returns the entry ids in the same order once all writes are acknowledged.
        """
        ...

    def begin(self, entry_id: int, payload: bytes) -> Callable[[], int]:
        """Begin a write, and return a function that waits for it and returns the entry id."""
        ...

    @property
    def last_add_confirmed(self) -> int: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class Reader(Protocol):
    ledger_id: int

    def read(self, first: int, last: int) -> list[bytes]: ...

    def read_unconfirmed(self, first: int, last: int) -> list[bytes]: ...

    @property
    def last_add_confirmed(self) -> int:
        """The LAC as far as the reader knows it, without a request."""
        ...

    def refresh(self) -> int:
        """Request the LAC from the bookies, and return it."""
        ...

    def tail(self, entry_id: int, timeout_ms: int) -> bytes | None:
        """Wait until this entry is confirmed, and return its payload, or None at the timeout.

        The wait is a long poll if the protocol has one.
        """
        ...

    @property
    def closed(self) -> bool:
        """Whether the reader knows that the ledger is closed."""
        ...

    def close(self) -> None: ...


class Client(Protocol):
    name: str
    features: frozenset[Feature]
    close_cuts: bool
    """Whether closing a ledger with deferred sync cuts off unforced entries.

    Otherwise closing forces them.
    """

    def create(
        self,
        shape: Shape = PLAIN,
        *,
        custom: Mapping[str, bytes] | None = None,
        deferred_sync: bool = False,
    ) -> Writer: ...

    def create_adv(self, shape: Shape = PLAIN, ledger_id: int | None = None) -> AdvWriter: ...

    def open(
        self,
        ledger_id: int,
        *,
        recover: bool = False,
        password: bytes = PASSWORD,
        digest: str = "CRC32C",
    ) -> Reader: ...

    def delete(self, ledger_id: int) -> None: ...

    def largest_payload(self, ledger_id: int, shape: Shape) -> int:
        """Return the size in bytes of the largest payload of entry 0 that fits in one frame."""
        ...

    def describe(self, ledger_id: int) -> Described: ...

    def close(self) -> None: ...


def payloads(count: int, size: int = 100) -> list[bytes]:
    """Return `count` different payloads, with sizes of up to about twice `size`."""
    return [
        (b"%d:" % number + bytes((number * 7 + at) % 251 for at in range(number % (2 * size))))
        for number in range(count)
    ]
