"""How ledgers become tasks: ranges of entries, cut and grouped. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.errors import UsageError

ENTRY_OVERHEAD_BYTES = 64
"""What an entry costs beside its payload: header, digest, columns."""
RANGES_MAX = 1_000
"""Of one task, so that its description stays small."""
TASKS_MAX = 100_000
UNCUT_FRACTION = 8
"""A ledger that is smaller than this part of a share goes to one task as a whole."""


class Range(NamedTuple):
    """Entries first..last of a ledger."""

    ledger_id: int
    first: int
    last: int

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


Task = tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class WeightedRange:
    """A range, and the payload bytes in it (known or estimated)."""

    range: Range
    bytes: int

    @property
    def weight(self) -> int:
        return self.bytes + ENTRY_OVERHEAD_BYTES * self.range.entries

    def clip(self, first: int, last: int) -> WeightedRange | None:
        """What of it lies in entries first..last."""
        whole = self.range
        first, last = max(first, whole.first), min(last, whole.last)
        if first > last:
            return None
        part = Range(whole.ledger_id, first, last)
        return WeightedRange(part, self.bytes * part.entries // whole.entries)


def plan(
    extents: Iterable[WeightedRange],
    *,
    partition_bytes: int,
    partition_entries: int | None = None,
    min_partitions: int = 1,
) -> list[tuple[Range, ...]]:
    """Tasks that cover all extents, each entry once, in order, with about equal shares.

    A task has about `partition_bytes` at most (the entries of a ledger count as equally large, and
    one entry is not cut) and never more than `partition_entries`. There are at least
    `min_partitions` tasks if there are as many entries.
    """
    whole = list(extents)
    count = max(min_partitions, _ceil(sum(extent.weight for extent in whole), partition_bytes))
    entries = sum(extent.range.entries for extent in whole)
    if partition_entries is not None:
        count = max(count, _ceil(entries, partition_entries))
    count = min(count, entries)
    if count > TASKS_MAX:
        raise UsageError(
            f"this would make {count} tasks, at most {TASKS_MAX} can be",
            remedy="Choose larger partitionBytes and partitionEntries",
        )
    tasks: list[Task] = []
    for task in _shares(whole, count):
        tasks += _within(task, partition_entries)
    return _at_least(min_partitions, tasks)


def _shares(whole: Sequence[WeightedRange], count: int) -> Iterator[Task]:
    """All extents, laid end to end, cut into `count` shares of equal weight; those without an entry
    are left out. Small extents are not cut: each would be opened twice."""
    total = sum(extent.weight for extent in whole)
    shares: dict[int, list[Range]] = {}
    before = 0
    for extent in whole:
        weight, (ledger_id, first, last) = extent.weight, extent.range
        entries = extent.range.entries
        if weight * count * UNCUT_FRACTION < total:
            middle = before + weight // 2
            shares.setdefault(middle * count // total, []).append(extent.range)
        else:
            at = first
            for share in range(before * count // total, _ceil((before + weight) * count, total)):
                # The first entry that begins in a later share.
                ahead = _ceil(((share + 1) * total - before * count) * entries, weight * count)
                end = min(first + ahead, last + 1)
                if end > at:
                    shares.setdefault(share, []).append(Range(ledger_id, at, end - 1))
                    at = end
        before += weight
    for share in sorted(shares):
        yield tuple(shares[share])


def _within(task: Task, entries_max: int | None) -> Iterator[Task]:
    """The task, in equal parts if it has too many entries, or ranges."""
    count = 1 if entries_max is None else _ceil(_entries(task), entries_max)
    for part in _parts(task, count):
        for at in range(0, len(part), RANGES_MAX):
            yield part[at : at + RANGES_MAX]


def _at_least(count: int, tasks: list[Task]) -> list[Task]:
    """Where single entries outweigh shares: halve the tasks with the most entries."""
    while len(tasks) < count:
        largest = max(range(len(tasks)), key=lambda at: _entries(tasks[at]), default=None)
        if largest is None or _entries(tasks[largest]) == 1:
            break
        tasks[largest : largest + 1] = _parts(tasks[largest], 2)
    return tasks


def _parts(task: Task, count: int) -> list[Task]:
    """The task cut into `count` parts of equal numbers of entries; it has as many."""
    if count == 1:
        return [task]
    total = _entries(task)
    parts: list[list[Range]] = [[] for _ in range(count)]
    before = 0
    for ledger_id, first, last in task:
        at = first
        while at <= last:
            part = (before * count) // total
            ahead = _ceil((part + 1) * total, count) - before
            end = min(at + ahead, last + 1)
            parts[part].append(Range(ledger_id, at, end - 1))
            before += end - at
            at = end
    return [tuple(part) for part in parts]


def _entries(task: Task) -> int:
    return sum(part.entries for part in task)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
