"""A helper that cuts items into batches of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batches(
    items: Iterable[T], size_of: Callable[[T], int], size_max: int, count_max: int | None = None
) -> Iterator[list[T]]:
    """Yield the items in order, in lists that are as large as the bounds allow.

    The sizes in a list, which `size_of` returns, add up to `size_max` at most. Only a list with a
    single item may exceed it. A list has at most `count_max` items, and is never empty.
    """
    batch: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and (total + size > size_max or len(batch) == count_max):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch
