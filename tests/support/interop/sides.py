"""What both clients can do, in one set of words: Apache's and ours have to pass the same list.

All calls block. `ApacheClient` (in `apache_java`) and `QuireClient` (in `quire_side`) implement
them; what a client cannot do is missing from its `features`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

CALL_LIMIT_S = 60
"""Of a single call of either client; reached only by a failing test."""

PASSWORD = b"one secret"
DIGESTS = ("CRC32", "CRC32C", "MAC", "DUMMY")
"""In the words of Apache's API."""
DIGEST_BYTES = {"CRC32": 8, "CRC32C": 4, "MAC": 20, "DUMMY": 0}
FRAME_BYTES = 5 << 20
"""Largest frame of both sides, with its length."""
V2_ADD_OVERHEAD_BYTES = 60
"""Of an add, and of the answer that reads it, besides digest and payload."""
NO_ENTRY = -1


class Code:
    """Result codes of Apache's client, which ours uses too."""

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
    """A call of either client failed."""

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
    """Of a ledger."""

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
    """The metadata of a ledger, as a client tells it."""

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
        """All outstanding at once; their entry ids. An error tells how many of the first of them
        were acknowledged (`done`)."""
        ...

    def force(self) -> None: ...

    @property
    def last_add_confirmed(self) -> int: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Never write again, and leave the ledger open."""
        ...


class AdvWriter(Protocol):
    """The ids are the caller's."""

    ledger_id: int

    def write(self, entry_id: int, payload: bytes) -> int: ...

    def write_all(self, entries: Sequence[tuple[int, bytes]]) -> list[int]:
        """All outstanding at once, begun in this order."""
        ...

    def begin(self, entry_id: int, payload: bytes) -> Callable[[], int]:
        """Without waiting; what it returns waits."""
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
        """As far as it is known here, without asking anybody."""
        ...

    def refresh(self) -> int:
        """Ask for it."""
        ...

    def tail(self, entry_id: int, timeout_ms: int) -> bytes | None:
        """Wait for this entry to be confirmed, by long poll where the protocol has it; None when
        it is not by then."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the ledger is known to be closed."""
        ...

    def close(self) -> None: ...


class Client(Protocol):
    name: str
    features: frozenset[Feature]
    close_cuts: bool
    """Whether closing a ledger of deferred sync leaves out what was not forced; else it forces."""

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
        """Of entry 0: what one frame has room for, sent as this client sends it."""
        ...

    def describe(self, ledger_id: int) -> Described: ...

    def close(self) -> None: ...


def payloads(count: int, size: int = 100) -> list[bytes]:
    """All different, of sizes around `size`."""
    return [
        (b"%d:" % number + bytes((number * 7 + at) % 251 for at in range(number % (2 * size))))
        for number in range(count)
    ]
