"""Packing of many rows of one layout with one call of `struct` for `ROWS_MAX` rows.

If the entries of thousands of ledgers arrive in turn, a call for each row would be a large part of
their cost.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from quire.codec.entry.digest import Buffer

ROWS_MAX = 128
"""The number of rows in one call. A `struct.Struct` for this many rows of four fields takes 16 KB
of memory."""
LAYOUTS_MAX = 256
"""The number of `struct.Struct` objects that are kept. Each is for one row format and one number of
rows."""


@lru_cache(maxsize=LAYOUTS_MAX)
def _layout(order: str, row: str, count: int) -> struct.Struct:
    return struct.Struct(order + row * count)


def pack_rows(
    order: str, row: str, first: Sequence[Any], columns: Mapping[int, Sequence[int]], count: int
) -> bytes:
    """Return `count` packed rows that differ from `first` only in the fields that have a column.

    Args:
        order: The byte order, as `struct` writes it.
        row: The format of one row, as `struct` writes it.
        first: The fields of a row.
        columns: The values of a field in all rows, by the index of the field.
        count: The number of rows.
    """
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
    """Return the columns of packed rows. Bytes after the last whole row are ignored.

    Args:
        order: The byte order, as `struct` writes it.
        row: The format of one row, as `struct` writes it.
        width: The number of fields of a row.
        data: The packed rows.
        row_bytes: The size of a row in bytes.
    """
    count = len(data) // row_bytes
    fields: tuple[Any, ...] = ()
    for at in range(0, count, ROWS_MAX):
        layout = _layout(order, row, min(ROWS_MAX, count - at))
        fields += layout.unpack_from(data, at * row_bytes)
    return [fields[field::width] for field in range(width)]
