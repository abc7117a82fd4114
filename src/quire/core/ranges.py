"""Sets of integers, as ascending ranges (first, last) that neither touch nor overlap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

Range = tuple[int, int]
"""The first and the last number, both included."""


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges, which may overlap and come in any order, merged into ascending disjoint ones.

    Ranges that touch are merged too.
    """
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def without(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return the numbers that are in `ranges` but not in `others`, as ascending ranges.

    `ranges` and `others` are each ascending and disjoint.
    """
    left: list[Range] = []
    at = 0
    for first, last in ranges:
        while at < len(others) and others[at][1] < first:
            at += 1
        # One of the others may extend into the next range, so the next range starts from here.
        behind = at
        while behind < len(others) and others[behind][0] <= last:
            low, high = others[behind]
            if first < low:
                left.append((first, low - 1))
            first = max(first, high + 1)
            behind += 1
        if first <= last:
            left.append((first, last))
    return left


def include(ranges: list[Range], more: Sequence[Range]) -> None:
    """Add the numbers of `more` to `ranges` in place. Both are ascending and disjoint."""
    if not more:
        return
    low = bisect_left(ranges, more[0][0] - 1, key=_last)
    high = bisect_right(ranges, more[-1][1] + 1, lo=low, key=_first)
    ranges[low:high] = merged([*ranges[low:high], *more])


def touches(ranges: Sequence[Range], first: int, last: int) -> bool:
    """Return whether any number from `first` to `last`, both included, is in `ranges`.

    `ranges` are ascending and disjoint.
    """
    at = bisect_left(ranges, first, key=_last)
    return at < len(ranges) and ranges[at][0] <= last


def overlapping(ranges: Sequence[Range], first: int, last: int) -> Sequence[Range]:
    """Return those of `ranges` that contain any number from `first` to `last`, both included.

    `ranges` are ascending and disjoint.
    """
    low = bisect_left(ranges, first, key=_last)
    return ranges[low : bisect_right(ranges, last, lo=low, key=_first)]


def widened(ranges: Sequence[Range], most: int) -> list[Range]:
    """Return at most `most` ranges, 1 or more, that contain all numbers of `ranges`.

    If `ranges` has more ranges, the narrowest gaps between them are filled. The result then
    contains other numbers too.
    """
    if len(ranges) <= most:
        return list(ranges)
    gaps = sorted(range(1, len(ranges)), key=lambda at: ranges[at][0] - ranges[at - 1][1])
    closed = set(gaps[: len(ranges) - most])
    found = [ranges[0]]
    for at in range(1, len(ranges)):
        if at in closed:
            found[-1] = (found[-1][0], ranges[at][1])
        else:
            found.append(ranges[at])
    return found


def count(ranges: Iterable[Range]) -> int:
    """Return the number of integers that the ranges contain."""
    return sum(last - first + 1 for first, last in ranges)


def _first(one: Range) -> int:
    return one[0]


def _last(one: Range) -> int:
    return one[1]
