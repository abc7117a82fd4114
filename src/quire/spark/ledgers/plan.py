"""The division of ledgers into tasks: ranges of entries, cut and grouped, without any I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.errors import UsageError

ENTRY_OVERHEAD_BYTES = 64
"""The cost of an entry in addition to its payload: header, digest and columns."""
RANGES_MAX = 1_000
"""The largest number of ranges in one task, so that its description stays small."""
TASKS_MAX = 100_000
UNCUT_FRACTION = 8
"""A ledger that is smaller than a share divided by this number is not cut."""


class Range(NamedTuple):
    """The entries from `first` to `last` of a ledger."""

    ledger_id: int
    first: int
    last: int

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self.last - self.first + 1


Task = tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class WeightedRange:
    """A range, and the known or estimated number of payload bytes in it."""

    range: Range
    bytes: int

    @property
    def weight(self) -> int:
        """The cost of reading the range, in bytes."""
        return self.bytes + ENTRY_OVERHEAD_BYTES * self.range.entries

    def clip(self, first: int, last: int) -> WeightedRange | None:
        """Return the part of the range in these entries, or None if there is none."""
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
    """Return tasks that cover all extents in order, each entry once, with about equal shares.

    A task has at most about `partition_bytes`, and never more than `partition_entries`. The entries
    of a ledger count as equally large, and an entry is not cut. There are at least `min_partitions`
    tasks if there are as many entries. Raises UsageError if there would be more than `TASKS_MAX`.
    """
    whole = list(extents)
    count = max(min_partitions, _ceil(sum(extent.weight for extent in whole), partition_bytes))
    entries = sum(extent.range.entries for extent in whole)
    if partition_entries is not None:
        count = max(count, _ceil(entries, partition_entries))
    count = min(count, entries)
    if count > TASKS_MAX:
        raise UsageError(
            f"the query would need {count} Spark tasks, but at most {TASKS_MAX} are allowed",
            remedy="Set larger values of the options partitionBytes and partitionEntries",
        )
    tasks: list[Task] = []
    for task in _shares(whole, count):
        tasks += _within(task, partition_entries)
    return _at_least(min_partitions, tasks)


def _shares(whole: Sequence[WeightedRange], count: int) -> Iterator[Task]:
    """Cut all extents, laid end to end, into `count` shares of equal weight.

    Shares without an entry are left out. Small extents are not cut, because each of them would be
    opened twice.
    """
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
    """Cut a task into equal parts if it has too many entries or ranges."""
    count = 1 if entries_max is None else _ceil(_entries(task), entries_max)
    for part in _parts(task, count):
        for at in range(0, len(part), RANGES_MAX):
            yield part[at : at + RANGES_MAX]


def _at_least(count: int, tasks: list[Task]) -> list[Task]:
    """Halve the tasks with the most entries until there are `count` tasks.

    This is needed if single entries outweigh shares.
    """
    while len(tasks) < count:
        largest = max(range(len(tasks)), key=lambda at: _entries(tasks[at]), default=None)
        if largest is None or _entries(tasks[largest]) == 1:
            break
        tasks[largest : largest + 1] = _parts(tasks[largest], 2)
    return tasks


def _parts(task: Task, count: int) -> list[Task]:
    """Cut a task into `count` parts with equal numbers of entries.

    The task must have at least that many entries.
    """
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
