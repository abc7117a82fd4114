"""The under-replication tree: which ledgers lack copies, and who works on them (metadata spec,
1.9). The layout is that of Apache's auditor and workers, so that either feeds the other.

| path below `underreplication`          | kind       | value                                     |
|----------------------------------------|------------|-------------------------------------------|
| `LAYOUT`                               | persistent | `type: "BASIC"`, `version: 1`             |
| `ledgers/<h1>/<h2>/<h3>/<h4>/urL<id>`  | persistent | `replica: "<bookie>"` lines, `ctime: <ms>`|
| `locks/urL<id>`                        | ephemeral  | `bookieId: "<who works on it>"`, a comment|
| `auditorelection`                      | persistent | `bookieId: "<the auditor>"`, may be stale |
| `auditorelection/V_<number>`           | ephemeral, | `bookieId: "<who stands>"`, a comment     |
|                                        | sequential |                                           |
| `disable`                              | persistent | empty; while it is there nothing is done  |
| `lostBookieRecoveryDelay`              | persistent | seconds, as decimal text                  |
| `checkallledgersctime`, `...`          | persistent | binary protobuf: field 1, milliseconds    |

`h1` to `h4` are the id in four groups of 16 bits, each four lower-case hexadecimal digits; `<id>`
is decimal, of ten digits at least. Values are protobuf's text format where nothing else is said.

Our locks and votes end in a comment, which that format allows and Java's readers skip: since when
it is held, and a tag by which whoever made it knows it again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.codec.metadata.protobuf_text import parse_text, quote
from quire.codec.protobuf_wire import int64, int_field, read_fields

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
    """The value of a mark. The list of bookies is a hint: workers look for themselves."""

    replicas: tuple[str, ...] = ()
    """Bookies that are believed to lack the ledger's entries."""
    ctime_ms: int | None = None
    """When it was marked last."""

    def encode(self) -> bytes:
        lines = [f"replica: {quote(bookie.encode())}" for bookie in self.replicas]
        if self.ctime_ms is not None:
            lines.append(f"ctime: {self.ctime_ms}")
        return "".join(f"{line}\n" for line in lines).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> Underreplicated:
        """`ValueError` if it is none."""
        message = parse_text(data)
        message.only(("replica", "ctime"))
        return cls(tuple(message.text_list("replica")), message.integer("ctime"))

    def adding(self, replicas: Sequence[str], now_ms: int) -> Underreplicated | None:
        """The mark with these as well; None where they are all in it."""
        more = [bookie for bookie in replicas if bookie not in self.replicas]
        return Underreplicated((*self.replicas, *more), now_ms) if more else None


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who holds a lock, or stands for election."""

    owner: str
    since_ms: int | None = None
    """None: Java's do not say."""
    tag: str = ""

    def encode(self) -> bytes:
        since = "" if self.since_ms is None else f"# since_ms={self.since_ms} tag={self.tag}\n"
        return f"bookieId: {quote(self.owner.encode())}\n{since}".encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> LockHolder:
        """`ValueError` if it is none."""
        owner = parse_text(data).text("bookieId")
        if owner is None:
            raise ValueError("it names no owner")
        found = _COMMENT.search(data)
        if found is None:
            return cls(owner)
        return cls(owner, int(found[1]), found[2].decode())


def check_layout(data: bytes) -> None:
    """`ValueError` for a tree of another form."""
    message = parse_text(data)
    found = message.text("type"), message.integer("version")
    if found != (_LAYOUT_TYPE, _LAYOUT_VERSION):
        raise ValueError(f"the layout is {found[0]} {found[1]}")


def checked_value(at_ms: int) -> bytes:
    """When a periodic check was last done."""
    return int_field(1, at_ms)


def checked_at(data: bytes) -> int | None:
    """`ValueError` if it says no time; None: never."""
    found = None
    for number, value in read_fields(data):
        if number == 1 and isinstance(value, int):
            found = int64(value)
    return found


def delay_value(seconds: int) -> bytes:
    return b"%d" % seconds


def delay_of(data: bytes) -> int:
    """`ValueError` if it is no number of seconds."""
    seconds = int(data.decode("ascii"))
    if seconds < 0:
        raise ValueError(f"{seconds} s is no delay")
    return seconds


def is_group(name: str) -> bool:
    """Return whether a node's name is four digits of a ledger id, like the names of the nodes above
    a mark."""
    return re.fullmatch("[0-9a-f]{4}", name) is not None


def ledger_of(groups: Sequence[str]) -> int | None:
    """The id that four groups of digits stand for; None where they are no such."""
    if len(groups) != 4 or not all(map(is_group, groups)):
        return None
    ledger_id = int("".join(groups), 16)
    return ledger_id if ledger_id <= LEDGER_ID_MAX else None


def vote_number(name: str) -> int | None:
    """In which order votes count; None: it is none."""
    found = re.fullmatch(rf"{VOTE_PREFIX}(-?\d{{1,10}})", name)
    return None if found is None else int(found[1])


def mark_path(root: str, ledger_id: int) -> str:
    """`root` is the node `underreplication`."""
    digits = f"{ledger_id:016x}"
    groups = "/".join(digits[at : at + 4] for at in range(0, 16, 4))
    return f"{root}/{LEDGERS}/{groups}/{_name(ledger_id)}"


def lock_path(root: str, ledger_id: int) -> str:
    return f"{root}/{LOCKS}/{_name(ledger_id)}"


def _name(ledger_id: int) -> str:
    return f"{_PREFIX}{ledger_id:010d}"


def locked_ledger(name: str) -> int | None:
    """The ledger that a node below `locks` is of."""
    digits = name.removeprefix(_PREFIX)
    return (
        int(digits) if name.startswith(_PREFIX) and digits.isascii() and digits.isdigit() else None
    )


def lock_value(owner: str) -> bytes:
    """Of a lock whose holder does not say since when."""
    return LockHolder(owner).encode()


def lock_owner(data: bytes) -> str:
    """`ValueError` if the value is not that of a lock."""
    return LockHolder.decode(data).owner
