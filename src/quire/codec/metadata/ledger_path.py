"""The paths of ledgers, and the names of sequence nodes (docs/reference/metadata.md).

The ledger manager determines the path of a ledger below the ledgers root. All numbers are decimal.

| manager            | ids         | digits               | path of ledger 12345, or 2**31 - 1   |
|--------------------|-------------|----------------------|--------------------------------------|
| hierarchical       | < 2**31 - 1 | 10, split 2-4-4      | `00/0001/L2345`                      |
|                    | others      | 19, split 3-4-4-4-4  | `000/0000/0021/4748/L3647`           |
| longhierarchical   | all         | 19, split 3-4-4-4-4  | `000/0000/0000/0001/L2345`           |
| legacyhierarchical | < 10**10    | 10, split 2-4-4      | `00/0001/L2345`                      |
| flat               | all         | 10 or more, unsplit  | `L0000012345`                        |

Sequence nodes generate the ids. The number in `ID-<10 digits>` is a short id. Below a node `HOB-<10
digits>` (high order bits), it is the low half of a long id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.errors import MetadataError, UsageError

LEDGER_ID_MAX = 2**63 - 1
SHORT_ID_END = 2**31 - 1
"""The first id that the generator of short ids does not produce."""
LEAF_CAPACITY = 10_000
"""The number of ids below one parent of ledgers, whose names have four digits."""

SEQUENCE_PREFIX = "ID-"
HIGH_ORDER_PREFIX = "HOB-"
HIGH_ORDER_MAX = 2**31 - 1
_SEQUENCE_DIGITS = 10

_PART_DIGITS = 4
_LEAF_PREFIX = "L"
_LEAF = re.compile(r"L(\d{4})", re.ASCII)
_FLAT_DIGITS_MIN = 10
_ID_DIGITS_MAX = 19
"""The largest number of digits that is read. Python refuses to read numbers of more than 4,300."""
_FLAT = re.compile(r"L(\d{10,19})", re.ASCII)


@dataclass(frozen=True, slots=True)
class LedgerTree:
    """The paths of the ids from `first` to `last`.

    An id has `digits` digits, which are split into groups of four from the end.
    """

    digits: int
    first: int
    last: int

    @property
    def top_digits(self) -> int:
        """The number of digits of the nodes directly below the root: those before the groups of
        four."""
        return self.digits % _PART_DIGITS

    def path_of(self, ledger_id: int) -> str:
        """Return the path of a ledger below the root."""
        digits = f"{ledger_id:0{self.digits}d}"
        cuts = range(self.top_digits, self.digits - _PART_DIGITS, _PART_DIGITS)
        parts = [digits[: self.top_digits], *(digits[at : at + _PART_DIGITS] for at in cuts)]
        return "/".join((*parts, _LEAF_PREFIX + digits[-_PART_DIGITS:]))


_SHORT_DIGITS = 10
_LONG_DIGITS = 19
TOP_DIGITS = tuple(digits % _PART_DIGITS for digits in (_SHORT_DIGITS, _LONG_DIGITS))
"""The numbers of digits directly below the root, in all trees of any manager."""


@dataclass(frozen=True, slots=True)
class LedgerManager:
    """The way in which a cluster arranges its ledgers as nodes.

    Use one of the four constants here.
    """

    name: str
    """The name of the ledger manager in metadata URIs."""
    trees: tuple[LedgerTree, ...]
    """The trees in the order of their ids. Without any, all ledgers are directly below the root."""
    long_ids: bool
    """Whether `idgen-long` generates ids after the short ones are used up."""
    sequence_parent: str
    """The parent of the nodes that generate short ids, below the root. '' is the root itself."""

    @property
    def id_max(self) -> int:
        return self.trees[-1].last if self.trees else LEDGER_ID_MAX

    def path_of(self, ledger_id: int) -> str:
        """Return the path of a ledger below the root, without a leading '/'.

        Raises:
            UsageError: The manager has no path for this id.
        """
        if not 0 <= ledger_id <= self.id_max:
            raise UsageError(
                f"the {self.name} ledger manager cannot store ledger {ledger_id}: its ids are 0 "
                f"to {self.id_max}",
                remedy=None
                if self.id_max == LEDGER_ID_MAX
                else "Use a smaller id, or a cluster with the ledger manager hierarchical",
            )
        if not self.trees:
            return f"{_LEAF_PREFIX}{ledger_id:0{_FLAT_DIGITS_MIN}d}"
        return next(tree for tree in self.trees if ledger_id <= tree.last).path_of(ledger_id)

    def ledger_id_of(self, path: str) -> int:
        """Return the id of the ledger at a path below the root.

        Raises:
            MetadataError: No ledger has this path.
        """
        if self.trees:
            *parents, leaf = path.split("/")
            digits = "".join(parents) + leaf.removeprefix(_LEAF_PREFIX)
        else:
            digits = path.removeprefix(_LEAF_PREFIX)
        short = len(digits) <= _ID_DIGITS_MAX and digits.isascii() and digits.isdigit()
        found = int(digits) if short else -1
        if not 0 <= found <= self.id_max or self.path_of(found) != path:
            raise MetadataError(
                f"the node {path!r} below the ledgers root is not a ledger of the {self.name} "
                "ledger manager"
            )
        return found


HIERARCHICAL = LedgerManager(
    "hierarchical",
    (
        LedgerTree(_SHORT_DIGITS, 0, SHORT_ID_END - 1),
        LedgerTree(_LONG_DIGITS, SHORT_ID_END, LEDGER_ID_MAX),
    ),
    long_ids=True,
    sequence_parent="idgen",
)
"""The ledger manager of a new cluster if no other is named."""

LONG_HIERARCHICAL = LedgerManager(
    "longhierarchical",
    (LedgerTree(_LONG_DIGITS, 0, LEDGER_ID_MAX),),
    long_ids=True,
    sequence_parent="idgen",
)

LEGACY_HIERARCHICAL = LedgerManager(
    "legacyhierarchical",
    (LedgerTree(_SHORT_DIGITS, 0, 10**_SHORT_DIGITS - 1),),
    long_ids=False,
    sequence_parent="idgen",
)

FLAT = LedgerManager("flat", (), long_ids=False, sequence_parent="")


def leaf_digits(name: str) -> int | None:
    """Return the number in the last four digits of a ledger, from the name of its node.

    Return None if the name is not that of a ledger.
    """
    match = _LEAF.fullmatch(name)
    return int(match[1]) if match else None


def is_flat_name(name: str) -> bool:
    """Return whether a node directly below the root looks like a ledger of the flat manager."""
    return _FLAT.fullmatch(name) is not None


def parents_of(path: str) -> list[str]:
    """Return the parents of a path below the root, the nearest first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]


def sequence_of(name: str) -> int:
    """Return the number of a sequence node from its name.

    The number is negative after the 32-bit counter of ZooKeeper has overflowed.

    Raises:
        MetadataError: The name does not end with a number.
    """
    _, found, digits = name.rpartition(SEQUENCE_PREFIX)
    try:
        return int(digits) if found else _no_sequence(name)
    except ValueError:
        return _no_sequence(name)


def high_order_name(high: int) -> str:
    return f"{HIGH_ORDER_PREFIX}{high:0{_SEQUENCE_DIGITS}d}"


def high_order_of(name: str) -> int | None:
    """Return the high 32 bits of the ids below a node `HOB-<digits>`, or None for other names."""
    digits = name.removeprefix(HIGH_ORDER_PREFIX)
    if not name.startswith(HIGH_ORDER_PREFIX) or not digits.isdecimal():
        return None
    if len(digits) > _ID_DIGITS_MAX:
        return None
    return int(digits)


def long_id(high: int, sequence: int) -> int:
    return high << 32 | sequence


def _no_sequence(name: str) -> int:
    raise MetadataError(
        f"ZooKeeper created the node {name!r} for a new ledger id, but its name does not end "
        "with a number",
        remedy="This is a bug in Quire or ZooKeeper: please report it",
    )
