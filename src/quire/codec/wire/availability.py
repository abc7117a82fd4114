"""The entries of a ledger that a bookie has: the response to GET_LIST_OF_ENTRIES_OF_LEDGER.

All integers are signed and big-endian.

| offset | size | field                                                                       |
|--------|------|-----------------------------------------------------------------------------|
| 0      | 4    | version, 0                                                                  |
| 4      | 4    | number of groups G                                                          |
| 8      | 56   | zeros                                                                       |
| 64     | 24 G | groups                                                                      |

Each group has sequences of consecutive entries, of one length and at equal distances:

| offset | size | field                                                                       |
|--------|------|-----------------------------------------------------------------------------|
| 0      | 8    | first entry of the first sequence                                           |
| 8      | 8    | first entry of the last sequence                                            |
| 16     | 4    | number of entries in each sequence                                          |
| 20     | 4    | distance between the starts of two sequences, or 0 if there is only one     |

Apache's bookie writes one group for each run of consecutive entries. Its client also reads groups
of several sequences. Quire writes what Apache's bookie writes, unless the list would be too long.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import overload

from quire._runtime.units import counted

VERSION = 0
_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")

_SIZE_MAX = 2**31 - 1
RANGES_MAX = 1_000_000
"""The largest number of sequences in a list whose groups overlap. Such a list is expanded, and a
few bytes can describe billions of sequences, which would take gigabytes of memory as ranges."""
ENTRY_MAX = 2**63 - 1

Run = tuple[int, int, int, int]
"""Sequences of one size at equal distances, as in the tables above: the first entry of the first
and of the last sequence, the size of each, and the distance (0 for a single sequence)."""


class BadAvailabilityError(ValueError):
    """The error for bytes that are not a list of entries."""


def encode_availability(ranges: Sequence[tuple[int, int]], max_bytes: int | None = None) -> bytes:
    """Return the list for ascending, disjoint ranges (first, last) of entries.

    Adjacent ranges are not joined. If the list exceeds `max_bytes`, it is written with groups of
    several sequences, which suit a striped ledger. It may still exceed the limit. With None there
    is no limit.
    """
    runs = [
        (start, start, min(last - start + 1, _SIZE_MAX), 0)
        for first, last in ranges
        for start in range(first, last + 1, _SIZE_MAX)
    ]
    if max_bytes is not None and _HEADER.size + len(runs) * _GROUP.size > max_bytes:
        runs = _periodic(runs)
    groups = [_GROUP.pack(*run) for run in runs]
    return b"".join((_HEADER.pack(VERSION, len(groups)), *groups))


def _periodic(runs: list[Run]) -> list[Run]:
    """Return groups in which runs of one size at equal distances are combined."""
    groups: list[Run] = []
    for start, _, size, _ in runs:
        if groups:
            first, last, group_size, period = groups[-1]
            if size == group_size and period in (0, start - last) and start - last <= _SIZE_MAX:
                groups[-1] = (first, start, size, start - last)
                continue
        groups.append((start, start, size, 0))
    return groups


class EntryRanges(Sequence[tuple[int, int]]):
    """Ascending ranges (first, last) of entries that are made from the encoded list when needed.

    The ranges neither touch nor overlap. A few bytes can describe billions of ranges, so the list
    stays encoded in memory. A slice is a list of this kind too.
    """

    __slots__ = ("_ends", "runs")

    def __init__(self, runs: Sequence[Run]) -> None:
        """Create the list from its runs, which ascend and neither touch nor overlap."""
        self.runs = runs
        self._ends = list(accumulate(_sequences(run) for run in runs))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for first, last, size, period in self.runs:
            for start in range(first, last + 1, period or 1):
                yield start, start + size - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self[:5]))
        return f"EntryRanges([{shown}{', ...' if len(self) > 5 else ''}])"

    @overload
    def __getitem__(self, at: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, at: slice) -> EntryRanges: ...
    def __getitem__(self, at: int | slice) -> tuple[int, int] | EntryRanges:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                raise ValueError(f"a slice of a list of entries must have the step 1, not {step}")
            return EntryRanges(list(self._between(start, stop)))
        index = at + len(self) if at < 0 else at
        if not 0 <= index < len(self):
            raise IndexError(f"the list has {counted(len(self), 'range')}, and no range {at}")
        number = bisect_right(self._ends, index)
        first, _, size, period = self.runs[number]
        start = first + (index - self._before(number)) * period
        return start, start + size - 1

    def _between(self, start: int, stop: int) -> Iterator[Run]:
        number = bisect_right(self._ends, start)
        while start < stop:
            first, _, size, period = self.runs[number]
            before, end = self._before(number), min(stop, self._ends[number])
            low, high = first + (start - before) * period, first + (end - 1 - before) * period
            yield low, high, size, period if low < high else 0
            start, number = end, number + 1

    def _before(self, number: int) -> int:
        return self._ends[number - 1] if number else 0


def decode_availability(data: bytes) -> EntryRanges:
    """Return ascending ranges (first, last) of entries. Adjacent ranges are joined.

    Raises:
        BadAvailabilityError: The bytes are not a list of entries, or the groups of the list overlap
            and have more than `RANGES_MAX` sequences of entries.
    """
    if len(data) < _HEADER.size:
        raise BadAvailabilityError(
            f"the bookie's list of entries has {counted(len(data), 'byte')}, fewer than its header"
        )
    version, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise BadAvailabilityError(
            f"the bookie's list of entries has version {version}, which this version of Quire "
            "does not know"
        )
    if count < 0 or _HEADER.size + count * _GROUP.size > len(data):
        raise BadAvailabilityError(
            f"the bookie's list of entries has {counted(len(data), 'byte')}, too few for its "
            f"{counted(count, 'group')}"
        )
    runs: list[Run] = []
    for first, last, size, period in _GROUP.iter_unpack(
        data[_HEADER.size : _HEADER.size + count * _GROUP.size]
    ):
        if (
            size <= 0
            or period < 0
            or not 0 <= first <= last <= ENTRY_MAX - size + 1
            or (period == 0 and first != last)
        ):
            raise BadAvailabilityError(
                f"the bookie's list of entries has an invalid group: sequences of "
                f"{counted(size, 'entry')} that begin at {first} to {last}, {period} apart"
            )
        if period:
            last -= (last - first) % period
        if size >= period:  # each sequence touches the next one
            runs.append((first, first, last + size - first, 0))
        else:
            runs.append((first, last, size, period if first < last else 0))
    runs.sort()
    if any(_end(run) > behind[0] for run, behind in pairwise(runs)):
        runs = _expanded(runs)
    return EntryRanges(_joined(runs))


def _sequences(run: Run) -> int:
    first, last, _, period = run
    return (last - first) // period + 1 if period else 1


def _end(run: Run) -> int:
    """Return the entry after the last one of a run."""
    return run[1] + run[2]


def _expanded(runs: Sequence[Run]) -> list[Run]:
    """Return one run for each sequence of runs that overlap, sorted."""
    if sum(map(_sequences, runs)) > RANGES_MAX:
        raise BadAvailabilityError(
            f"the bookie's list of entries has groups that overlap, and more than {RANGES_MAX:,} "
            "sequences of entries, too many to be read"
        )
    return sorted(
        (start, start, size, 0)
        for first, last, size, period in runs
        for start in range(first, last + 1, period or 1)
    )


def _joined(runs: Iterable[Run]) -> list[Run]:
    """Return sorted runs, of which only single sequences may overlap, with adjacent ones joined."""
    joined: list[Run] = []
    for run in runs:
        if not joined or _end(joined[-1]) < run[0]:
            joined.append(run)
            continue
        # The last sequence of the run before and the first of this one become one.
        start, end = joined[-1][1], max(_end(joined[-1]), run[0] + run[2])
        before = _cut(joined.pop(), 0, 1)
        after = _cut(run, 1, 0)
        joined += [*before, (start, start, end - start, 0), *after]
    return joined


def _cut(run: Run, head: int, tail: int) -> list[Run]:
    """Return a run without its first `head` and its last `tail` sequences, which may be empty."""
    first, last, size, period = run
    first, last = first + head * period, last - tail * period
    if not period or first > last:
        return []
    return [(first, last, size, period if first < last else 0)]
