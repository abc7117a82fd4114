"""A compact sorted set of ledger ids. Every sealed segment has one as long as it exists."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import add, sub

_NARROW_MAX = 0xFFFFFFFF


class LedgerIdSet:
    """An immutable set of ledger ids, which takes 4 bytes for each id.

    It takes 8 bytes for each if the ids span 2**32 or more.
    """

    __slots__ = ("_base", "_offsets")

    def __init__(self, ledger_ids: Iterable[int] = ()) -> None:
        ordered = sorted(set(ledger_ids))
        self._base = ordered[0] if ordered else 0
        narrow = bool(ordered) and ordered[-1] - self._base <= _NARROW_MAX
        if not narrow:
            self._base = 0
        self._offsets = array("I" if narrow else "q", map(sub, ordered, repeat(self._base)))

    @classmethod
    def of_offsets(cls, base: int, offsets: array[int]) -> LedgerIdSet:
        """Create a set from the `base` and `offsets` of another one."""
        made = cls()
        made._base, made._offsets = base, offsets
        return made

    @property
    def base(self) -> int:
        """The number to add to each offset: the smallest id, or 0 if the offsets have 8 bytes."""
        return self._base

    @property
    def offsets(self) -> array[int]:
        """The distance of each id from `base`, ascending. Do not change the array."""
        return self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[int]:
        return map(add, self._offsets, repeat(self._base))

    def __contains__(self, ledger_id: int) -> bool:
        offset = ledger_id - self._base
        at = bisect_left(self._offsets, offset)
        return at < len(self._offsets) and self._offsets[at] == offset

    @property
    def size_bytes(self) -> int:
        return len(self._offsets) * self._offsets.itemsize
