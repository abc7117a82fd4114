"""Ledger ids <-> paths below the ledgers root, and ids <-> names of sequence nodes
(metadata spec, 1.7 and 1.8). The default, hierarchical arrangement:

| id          | digits             | path                     |
|-------------|--------------------|--------------------------|
| < 2**31 - 1 | 10, cut 2-4-4      | `00/0001/L2345`          |
| others      | 19, cut 3-4-4-4-4  | `000/0000/0021/4748/L3647` |

Ids are handed out by sequence nodes: `ID-<10 digits>` is a short id; below a node
`HOB-<10 digits>` (high order bits) it is the low half of a long one.
"""

from __future__ import annotations

import re

from quire.errors import MetadataError

LEDGER_ID_MAX = 2**63 - 1
SHORT_ID_END = 2**31 - 1
"""Ids from here on have the long path and are not made by the short generator."""
LEAF_CAPACITY = 10_000
"""Ids below one lowest parent: its leaves have four digits."""

SEQUENCE_PREFIX = "ID-"
HIGH_ORDER_PREFIX = "HOB-"
HIGH_ORDER_MAX = 2**31 - 1
_SEQUENCE_DIGITS = 10

_SHORT_PATH = re.compile(r"(\d{2})/(\d{4})/L(\d{4})", re.ASCII)
_LONG_PATH = re.compile(r"(\d{3})/(\d{4})/(\d{4})/(\d{4})/L(\d{4})", re.ASCII)
_LEAF = re.compile(r"L(\d{4})", re.ASCII)


def path_of(ledger_id: int) -> str:
    """The path below the root, without a leading '/'."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise ValueError(f"{ledger_id} is not a ledger id: use 0 to 2**63-1")
    if ledger_id < SHORT_ID_END:
        digits = f"{ledger_id:010d}"
        return f"{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    return f"{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def ledger_id_of(path: str) -> int:
    """The id of a path below the root; `MetadataError` if it is not the path of a ledger."""
    match = _SHORT_PATH.fullmatch(path) or _LONG_PATH.fullmatch(path)
    if match is None or (ledger_id := int("".join(match.groups()))) > LEDGER_ID_MAX:
        raise MetadataError(f"{path!r} is not the path of a ledger")
    return ledger_id


def leaf_digits(name: str) -> int | None:
    """The last four digits of the id whose node has this name; None if it is no ledger's."""
    match = _LEAF.fullmatch(name)
    return int(match[1]) if match else None


def parents_of(path: str) -> list[str]:
    """The parents of a path below the root, the nearest first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]


def sequence_of(name: str) -> int:
    """The number at the end of a sequence node's name: negative once 32 bits have overflowed."""
    _, found, digits = name.rpartition(SEQUENCE_PREFIX)
    try:
        return int(digits) if found else _no_sequence(name)
    except ValueError:
        return _no_sequence(name)


def high_order_name(high: int) -> str:
    return f"{HIGH_ORDER_PREFIX}{high:0{_SEQUENCE_DIGITS}d}"


def high_order_of(name: str) -> int | None:
    """The high half that a node `HOB-...` stands for; None if it is no such node."""
    digits = name.removeprefix(HIGH_ORDER_PREFIX)
    if not name.startswith(HIGH_ORDER_PREFIX) or not digits.isdecimal():
        return None
    return int(digits)


def long_id(high: int, sequence: int) -> int:
    return high << 32 | sequence


def _no_sequence(name: str) -> int:
    raise MetadataError(f"{name!r} is not the name of a sequence node")
