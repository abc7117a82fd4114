"""Packed rows that tell which sealed segments have entries of a ledger.

A row is (number of the segment, first entry, last entry, bytes of frames). A bookie has one for
each pair of a ledger and a segment. That is a hundred million rows if a hundred million entries
were added to a million ledgers in turn. So all rows of a ledger are packed into one `bytes` object,
sorted by number. It is b"" if there are none:

| offset | size   | field                                                                       |
|--------|--------|-----------------------------------------------------------------------------|
| 0      | 1      | 1: narrow rows, 2: wide rows                                                |
| 1      | 8      | base of the numbers; 0 before wide rows                                     |
| 9      | 8      | base of the first entry ids; 0 before wide rows                             |
| 17     | 8 each | narrow: number - base, first - base, last - first, bytes of frames: u16     |
| 17     | 32 each| wide: number u64, first i64, last i64, bytes of frames u64                  |

On disk, these bytes appear unchanged in the index cache and nowhere else.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import pairwise

Row = tuple[int, int, int, int]
"""The number of a segment, the first and last entry id there, and the bytes of all frames there."""

_HEAD = struct.Struct("<BQq")
_NARROW = struct.Struct("<HHHH")
_FIRST = struct.Struct("<BQqHHHH")
_WIDE = struct.Struct("<QqqQ")
_IS_NARROW, _IS_WIDE = 1, 2
_NARROW_MAX = 0xFFFF


def count(packed: bytes) -> int:
    """Return the number of packed rows."""
    if not packed:
        return 0
    width = _NARROW.size if packed[0] == _IS_NARROW else _WIDE.size
    return (len(packed) - _HEAD.size) // width


def row_at(packed: bytes, index: int) -> Row:
    """Return the packed row with this index, counted from 0."""
    kind, base_number, base_first = _HEAD.unpack_from(packed)
    if kind == _IS_WIDE:
        return _WIDE.unpack_from(packed, _HEAD.size + index * _WIDE.size)
    number, first, extent, size = _NARROW.unpack_from(packed, _HEAD.size + index * _NARROW.size)
    first += base_first
    return number + base_number, first, first + extent, size


def unpack(packed: bytes) -> list[Row]:
    """Return all packed rows, ascending by segment number."""
    if not packed:
        return []
    kind, base_number, base_first = _HEAD.unpack_from(packed)
    body = memoryview(packed)[_HEAD.size :]
    if kind == _IS_WIDE:
        return list(_WIDE.iter_unpack(body))
    return [
        (number + base_number, first + base_first, first + base_first + extent, size)
        for number, first, extent, size in _NARROW.iter_unpack(body)
    ]


def pack(rows: list[Row]) -> bytes:
    """Pack rows that ascend by segment number."""
    if not rows:
        return b""
    base_number = rows[0][0]
    base_first = min(row[1] for row in rows)
    # The maximum of each column decides. A single row of a long ledger can still be narrow.
    if (
        rows[-1][0] - base_number <= _NARROW_MAX
        and max(row[1] for row in rows) - base_first <= _NARROW_MAX
        and max(row[2] - row[1] for row in rows) <= _NARROW_MAX
        and max(row[3] for row in rows) <= _NARROW_MAX
    ):
        parts = [_HEAD.pack(_IS_NARROW, base_number, base_first)]
        parts += [
            _NARROW.pack(number - base_number, first - base_first, last - first, size)
            for number, first, last, size in rows
        ]
    else:
        parts = [_HEAD.pack(_IS_WIDE, 0, 0), *(_WIDE.pack(*row) for row in rows)]
    return b"".join(parts)


def add(packed: bytes, number: int, first: int, last: int, size_bytes: int) -> tuple[bytes, bool]:
    """Add a row for a segment that has none yet, and return the new packed rows.

    The second result says whether the entry ids of the new row come after those of the row before
    it and before those of the row after it.
    """
    extent = last - first
    if extent <= _NARROW_MAX and size_bytes <= _NARROW_MAX:
        # This is by far the most common case: a newer segment with a few newer entries.
        if not packed:
            return _FIRST.pack(_IS_NARROW, number, first, 0, 0, extent, size_bytes), True
        kind, base_number, base_first = _HEAD.unpack_from(packed)
        if kind == _IS_NARROW:
            newest, start, reach, _ = _NARROW.unpack_from(packed, len(packed) - _NARROW.size)
            offset = first - base_first
            if newest < number - base_number <= _NARROW_MAX and 0 <= offset <= _NARROW_MAX:
                row = _NARROW.pack(number - base_number, offset, extent, size_bytes)
                return packed + row, start + reach < offset
    rows = unpack(packed)
    at = bisect_left(rows, (number, first, last, size_bytes))
    rows.insert(at, (number, first, last, size_bytes))
    neighbours = rows[max(0, at - 1) : at + 2]
    return pack(rows), _ascend(neighbours)


def up_to(packed: bytes, number: int) -> bytes:
    """Return the packed rows without those of segments with numbers above `number`."""
    rows = count(packed)
    if not rows or row_at(packed, rows - 1)[0] <= number:
        return packed
    return pack([row for row in unpack(packed) if row[0] <= number])


def index_of(packed: bytes, number: int) -> int | None:
    """Return the index of the row of the segment `number`, or None if it has none."""
    rows = count(packed)
    at = bisect_left(range(rows), number, key=lambda index: row_at(packed, index)[0])
    return at if at < rows and row_at(packed, at)[0] == number else None


def without(packed: bytes, index: int) -> bytes:
    """Return the packed rows without the one with this index."""
    rows = unpack(packed)
    del rows[index]
    return pack(rows)


def is_ordered(packed: bytes) -> bool:
    """Return whether entry ids ascend with the segment numbers, without overlaps."""
    return _ascend(unpack(packed))


def _ascend(rows: list[Row]) -> bool:
    return all(older[2] < newer[1] for older, newer in pairwise(rows))
