"""The under-replication tree: the ledgers that lack copies, and who repairs them.

The layout is that of Apache's `ZkLedgerUnderreplicationManager`, so auditors and workers of both
kinds work together.

| path below `underreplication`         | node        | value                                     |
|---------------------------------------|-------------|-------------------------------------------|
| `LAYOUT`                              | persistent  | `type: "BASIC"`, `version: 1`             |
| `ledgers/<h1>/<h2>/<h3>/<h4>/urL<id>` | persistent  | `replica: "<bookie>"` lines, `ctime: <ms>`|
| `locks/urL<id>`                       | ephemeral   | `bookieId: "<worker>"`, a comment         |
| `auditorelection`                     | persistent  | `bookieId: "<auditor>"`, may be outdated  |
| `auditorelection/V_<number>`          | ephemeral,  | `bookieId: "<candidate>"`, a comment      |
|                                       | sequential  |                                           |
| `disable`                             | persistent  | JSON of `SwitchedOff`, or empty           |
| `lostBookieRecoveryDelay`             | persistent  | seconds, as decimal text                  |
| `checkallledgersctime`, and others    | persistent  | binary protobuf: field 1, ms since 1970   |

`h1` to `h4` are the ledger id in four groups of 16 bits, each as four lower-case hexadecimal
digits. `<id>` is decimal and has at least ten digits. Values are in protobuf's text format unless
the table says otherwise.

Nothing is repaired while `disable` exists. Java's processes create it empty, and never read it.

Locks and votes of Quire end with a comment, which the text format allows and Java's readers skip.
The comment contains the time at which the lock was acquired, and a tag by which its owner
recognises it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from quire.codec.metadata.formats_pb2 import (
    CheckTimeFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
)
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.codec.metadata.protobuf_text import parse_text, write_text
from quire.codec.metadata.stored_json import stored_json
from quire.errors import LaterMetadataError, written_later

LEDGERS = "ledgers"
LOCKS = "locks"
LAYOUT = "LAYOUT"
ELECTION = "auditorelection"
VOTE_PREFIX = "V_"
DISABLE = "disable"
DELAY = "lostBookieRecoveryDelay"
CHECKED_LEDGERS = "checkallledgersctime"
CHECKED_PLACEMENT = "placementpolicycheckctime"
CHECKED_REPLICAS = "replicascheckctime"

LAYOUT_VALUE = b'type: "BASIC"\nversion: 1\n'
_LAYOUT_TYPE, _LAYOUT_VERSION = "BASIC", 1

_PREFIX = "urL"
_COMMENT = re.compile(rb"^# since_ms=(\d{1,18}) tag=([\w./-]*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Underreplicated:
    """The value of a mark, the node that marks a ledger as under-replicated.

    The list of bookies is only a hint: a worker checks the replicas.
    """

    replicas: tuple[str, ...] = ()
    """The bookies that are believed to lack entries of the ledger."""
    ctime_ms: int | None = None
    """The time of the last change of the mark, in milliseconds since 1970, or None if it is not
    stored."""

    def encode(self) -> bytes:
        return write_text(UnderreplicatedLedgerFormat(replica=self.replicas, ctime=self.ctime_ms))

    @classmethod
    def decode(cls, data: bytes) -> Underreplicated:
        """Decode the value of a mark.

        Raises:
            ValueError: The value is not a mark.
        """
        message = parse_text(data, UnderreplicatedLedgerFormat())
        ctime_ms = message.ctime if message.HasField("ctime") else None
        return cls(tuple(message.replica), ctime_ms)

    def adding(self, replicas: Sequence[str], now_ms: int) -> Underreplicated | None:
        """Return the mark with these bookies added, or None if it contains all of them."""
        more = [bookie for bookie in replicas if bookie not in self.replicas]
        return Underreplicated((*self.replicas, *more), now_ms) if more else None


@dataclass(frozen=True, slots=True)
class SwitchedOff:
    """The value of the node that switches autorecovery off. It is only for people to read."""

    by: str = ""
    """The process that switched autorecovery off, or "" if it is not known."""
    since_ms: int | None = None
    """The Unix time in milliseconds at which it did so, or None if it is not known."""

    def encode(self) -> bytes:
        return json.dumps({"by": self.by, "since_ms": self.since_ms}).encode()

    @classmethod
    def decode(cls, data: bytes) -> SwitchedOff:
        """Decode the value of the node.

        A value that cannot be decoded, such as the empty one of Java, gives an empty `SwitchedOff`,
        because the node switches autorecovery off whatever it contains.
        """
        try:
            value = stored_json(data)
            return cls(str(value["by"]), int(value["since_ms"]))
        except (ValueError, KeyError, TypeError):
            return cls()


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The owner of a lock, or a candidate of an election."""

    owner: str
    since_ms: int | None = None
    """The time since when the lock is held, in milliseconds since 1970, or None. Java's locks do
    not contain it."""
    tag: str = ""
    """The text by which the owner recognises its own lock. It is empty in Java's locks."""

    def encode(self) -> bytes:
        since = "" if self.since_ms is None else f"# since_ms={self.since_ms} tag={self.tag}\n"
        return write_text(LockDataFormat(bookieId=self.owner)) + since.encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> LockHolder:
        """Decode the value of a lock or vote.

        Raises:
            ValueError: The value is not that of a lock, or names no owner.
        """
        message = parse_text(data, LockDataFormat(), allow_unknown=True)
        if not message.HasField("bookieId"):
            raise ValueError("the lock names no owner")
        found = _COMMENT.search(data)
        if found is None:
            return cls(message.bookieId)
        return cls(message.bookieId, int(found[1]), found[2].decode())


def check_layout(data: bytes) -> None:
    """Check that the tree has the known layout.

    Raises:
        LaterMetadataError: A later version of Quire or of BookKeeper wrote the layout.
        ValueError: The layout is another one.
    """
    found = parse_text(data, LedgerRereplicationLayoutFormat(), allow_unknown=True)
    if found.type == _LAYOUT_TYPE and found.version > _LAYOUT_VERSION:
        raise LaterMetadataError(
            written_later(
                "the layout of the under-replication tree", f"version {found.version}",
                f"version {_LAYOUT_VERSION}", by="Quire or BookKeeper",
            )
        )  # fmt: skip
    if (found.type, found.version) != (_LAYOUT_TYPE, _LAYOUT_VERSION):
        raise ValueError(
            f"the layout has type {found.type} and version {found.version}, but only type "
            f"{_LAYOUT_TYPE} with version {_LAYOUT_VERSION} can be used"
        )


def checked_value(at_ms: int) -> bytes:
    """Return the value of a node that records when a periodic check was last done."""
    return CheckTimeFormat(time=at_ms).SerializeToString()


def checked_at(data: bytes) -> int | None:
    """Return when a periodic check was last done, in milliseconds since 1970.

    Return None if the value has no time.

    Raises:
        ValueError: The value is not a time.
    """
    try:
        message = CheckTimeFormat.FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    return message.time if message.HasField("time") else None


def delay_value(seconds: int) -> bytes:
    return b"%d" % seconds


def delay_of(data: bytes) -> int:
    """Return the number of seconds in the value of `lostBookieRecoveryDelay`.

    Raises:
        ValueError: The value is not a number of seconds.
    """
    seconds = int(data.decode("ascii"))
    if not 0 <= seconds < 2**63:
        raise ValueError(f"{seconds} s is not a delay: use 0 or more seconds, and less than 2^63")
    return seconds


def is_group(name: str) -> bool:
    """Return whether a name is four hexadecimal digits, like the nodes above a mark."""
    return re.fullmatch("[0-9a-f]{4}", name) is not None


def ledger_of(groups: Sequence[str]) -> int | None:
    """Return the ledger id in four groups of digits, or None if they are not those of a ledger."""
    if len(groups) != 4 or not all(map(is_group, groups)):
        return None
    ledger_id = int("".join(groups), 16)
    return ledger_id if ledger_id <= LEDGER_ID_MAX else None


def vote_number(name: str) -> int | None:
    """Return the number of a vote, which orders the votes, or None for another name."""
    found = re.fullmatch(rf"{VOTE_PREFIX}(-?\d{{1,10}})", name)
    return None if found is None else int(found[1])


def mark_path(root: str, ledger_id: int) -> str:
    """Return the path of a ledger's mark. `root` is the node `underreplication`."""
    digits = f"{ledger_id:016x}"
    groups = "/".join(digits[at : at + 4] for at in range(0, 16, 4))
    return f"{root}/{LEDGERS}/{groups}/{_name(ledger_id)}"


def lock_path(root: str, ledger_id: int) -> str:
    return f"{root}/{LOCKS}/{_name(ledger_id)}"


def _name(ledger_id: int) -> str:
    return f"{_PREFIX}{ledger_id:010d}"


def locked_ledger(name: str) -> int | None:
    """Return the id of the ledger of a node below `locks`, or None for another name."""
    digits = name.removeprefix(_PREFIX)
    return (
        int(digits) if name.startswith(_PREFIX) and digits.isascii() and digits.isdigit() else None
    )


def lock_owner(data: bytes) -> str:
    """Return the owner of a lock.

    Raises:
        ValueError: The value is not that of a lock.
    """
    return LockHolder.decode(data).owner
