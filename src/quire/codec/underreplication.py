"""The under-replication tree: which ledgers lack copies, and who works on them (metadata spec,
1.9). The layout is that of Apache's auditor and workers, so that either feeds the other.

| path below `underreplication`          | kind       | value                                     |
|----------------------------------------|------------|-------------------------------------------|
| `ledgers/<h1>/<h2>/<h3>/<h4>/urL<id>`  | persistent | `replica: "<bookie>"` lines, `ctime: <ms>`|
| `locks/urL<id>`                        | ephemeral  | `bookieId: "<who works on it>"`           |

`h1` to `h4` are the id in four groups of 16 bits, each four lower-case hexadecimal digits; `<id>`
is decimal, of ten digits at least. Values are protobuf's text format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.codec._protobuf_text import parse_text, quote

LEDGERS = "ledgers"
LOCKS = "locks"
_PREFIX = "urL"


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


def lock_value(owner: str) -> bytes:
    return f"bookieId: {quote(owner.encode())}\n".encode("ascii")


def lock_owner(data: bytes) -> str:
    """Who holds the lock; `ValueError` if the value is not that of a lock."""
    owner = parse_text(data).text("bookieId")
    if owner is None:
        raise ValueError("a lock names no owner")
    return owner


def mark_path(root: str, ledger_id: int) -> str:
    """`root` is the node `underreplication`."""
    digits = f"{ledger_id:016x}"
    groups = "/".join(digits[at : at + 4] for at in range(0, 16, 4))
    return f"{root}/{LEDGERS}/{groups}/{_name(ledger_id)}"


def lock_path(root: str, ledger_id: int) -> str:
    return f"{root}/{LOCKS}/{_name(ledger_id)}"


def _name(ledger_id: int) -> str:
    return f"{_PREFIX}{ledger_id:010d}"
