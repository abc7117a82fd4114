"""Many rows of one layout, packed or taken apart by one call for `ROWS_MAX` of them. Where entries
of thousands of ledgers come in turn, a call for each row would be a good part of what they cost."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from quire.codec.entry.digest import Buffer

ROWS_MAX = 128
"""In one call: what `struct` keeps of so many rows of four fields takes 16 KB."""
LAYOUTS_MAX = 256
"""Layouts that are kept, each of one number of rows."""


@lru_cache(maxsize=LAYOUTS_MAX)
def _layout(order: str, row: str, count: int) -> struct.Struct:
    return struct.Struct(order + row * count)


def pack_rows(
    order: str, row: str, first: Sequence[Any], columns: Mapping[int, Sequence[int]], count: int
) -> bytes:
    """`count` rows like `first`, but for the fields of which there are columns. `order` and `row`:
    as `struct` has them."""
    width = len(first)
    packed = []
    for at in range(0, count, ROWS_MAX):
        rows = min(ROWS_MAX, count - at)
        fields = [*first] * rows
        for field, column in columns.items():
            fields[field::width] = column[at : at + rows]
        packed.append(_layout(order, row, rows).pack(*fields))
    return packed[0] if len(packed) == 1 else b"".join(packed)


def unpack_rows(
    order: str, row: str, width: int, data: Buffer, row_bytes: int
) -> list[tuple[Any, ...]]:
    """The `width` columns of whole rows."""
    count = len(data) // row_bytes
    fields: tuple[Any, ...] = ()
    for at in range(0, count, ROWS_MAX):
        layout = _layout(order, row, min(ROWS_MAX, count - at))
        fields += layout.unpack_from(data, at * row_bytes)
    return [fields[field::width] for field in range(width)]
