"""How ledgers become tasks: ranges of entries, cut and grouped. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ENTRY_OVERHEAD_BYTES = 64
"""What an entry costs beside its payload: header, digest, columns."""
RANGES_MAX = 1_000
"""Of one task, so that its description stays small."""


class Range(NamedTuple):
    """Entries first..last of a ledger."""

    ledger_id: int
    first: int
    last: int

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Extent:
    """A range, and the payload bytes in it (known or estimated)."""

    range: Range
    bytes: int

    @property
    def weight(self) -> int:
        return self.bytes + ENTRY_OVERHEAD_BYTES * self.range.entries

    def clip(self, first: int, last: int) -> Extent | None:
        """What of it lies in entries first..last."""
        whole = self.range
        first, last = max(first, whole.first), min(last, whole.last)
        if first > last:
            return None
        part = Range(whole.ledger_id, first, last)
        return Extent(part, self.bytes * part.entries // whole.entries)


def plan(
    extents: Iterable[Extent],
    *,
    partition_bytes: int,
    partition_entries: int | None = None,
    min_partitions: int = 1,
) -> list[tuple[Range, ...]]:
    """Tasks that cover all extents, each entry once, in order.

    A task has about `partition_bytes` at most (the entries of a ledger count as equally large, and
    one entry is not cut) and never more than `partition_entries`. There are at least
    `min_partitions` tasks if there are as many entries.
    """
    whole = list(extents)
    total = sum(extent.weight for extent in whole)
    bytes_max = max(1, min(partition_bytes, total // min_partitions))
    pieces = [piece for extent in whole for piece in _cut(extent, bytes_max, partition_entries)]
    return _at_least(min_partitions, _group(pieces, bytes_max, partition_entries))


def _cut(extent: Extent, bytes_max: int, entries_max: int | None) -> list[Extent]:
    """Equal pieces within the limits; an entry is not cut."""
    whole = extent.range
    count = -(-extent.weight // bytes_max)
    if entries_max is not None:
        count = max(count, -(-whole.entries // entries_max))
    count = min(count, whole.entries)
    pieces = []
    for at in range(count):
        first = whole.first + whole.entries * at // count
        last = whole.first + whole.entries * (at + 1) // count - 1
        piece = extent.clip(first, last)
        assert piece is not None
        pieces.append(piece)
    return pieces


def _group(
    pieces: Sequence[Extent], bytes_max: int, entries_max: int | None
) -> list[tuple[Range, ...]]:
    """Neighbours together, as long as they stay within the limits."""
    groups: list[tuple[Range, ...]] = []
    group: list[Range] = []
    weight = entries = 0
    for piece in pieces:
        fits = (
            weight + piece.weight <= bytes_max
            and (entries_max is None or entries + piece.range.entries <= entries_max)
            and len(group) < RANGES_MAX
        )
        if group and not fits:
            groups.append(tuple(group))
            group, weight, entries = [], 0, 0
        group.append(piece.range)
        weight += piece.weight
        entries += piece.range.entries
    if group:
        groups.append(tuple(group))
    return groups


def _at_least(count: int, groups: list[tuple[Range, ...]]) -> list[tuple[Range, ...]]:
    """Split the groups with the most entries in halves until there are enough."""
    if len(groups) >= count:
        return groups
    heap = [(-_entries(group), group) for group in groups]
    heapq.heapify(heap)
    while heap and len(heap) < count and heap[0][0] < -1:
        _, group = heapq.heappop(heap)
        for half in _halves(group):
            heapq.heappush(heap, (-_entries(half), half))
    # Neighbours stay neighbours: in the order in which the extents were given.
    order = {r.ledger_id: at for at, r in reversed(list(enumerate(r for g in groups for r in g)))}
    return sorted((g for _, g in heap), key=lambda g: (order[g[0].ledger_id], g[0].first))


def _entries(group: Sequence[Range]) -> int:
    return sum(part.entries for part in group)


def _halves(group: tuple[Range, ...]) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    left = _entries(group) // 2
    head: list[Range] = []
    for at, part in enumerate(group):
        if left < part.entries:
            if not left:
                return tuple(head), group[at:]
            cut = part.first + left
            head.append(part._replace(last=cut - 1))
            return tuple(head), (part._replace(first=cut), *group[at + 1 :])
        head.append(part)
        left -= part.entries
    raise AssertionError("a group of one entry has no halves")
