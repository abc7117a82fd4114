"""Which sealed segments hold entries of a ledger: rows (number, first, last, bytes), packed.

A bookie has a row for each pair of a ledger and a segment: a hundred million where as many entries
were added to a million ledgers in turn. So the rows of a ledger are one `bytes`, ascending by
number, b"" where there is none:

| offset | size   | field                                                                       |
|--------|--------|-----------------------------------------------------------------------------|
| 0      | 1      | 1: narrow rows, 2: wide rows                                                |
| 1      | 8      | base of the numbers; 0 before wide rows                                     |
| 9      | 8      | base of the first entry ids; 0 before wide rows                             |
| 17     | 8 each | narrow: number - base, first - base, last - first, bytes of frames: u16     |
| 17     | 32 each| wide: number u64, first i64, last i64, bytes of frames u64                  |

They are written to a disk in the index cache alone, as they are.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import pairwise

Row = tuple[int, int, int, int]
"""(number of the segment, first and last entry id there, bytes of all frames there)."""

_HEAD = struct.Struct("<BQq")
_NARROW = struct.Struct("<HHHH")
_FIRST = struct.Struct("<BQqHHHH")
_WIDE = struct.Struct("<QqqQ")
_IS_NARROW, _IS_WIDE = 1, 2
_NARROW_MAX = 0xFFFF


def count(packed: bytes) -> int:
    if not packed:
        return 0
    width = _NARROW.size if packed[0] == _IS_NARROW else _WIDE.size
    return (len(packed) - _HEAD.size) // width


def row_at(packed: bytes, index: int) -> Row:
    kind, base_number, base_first = _HEAD.unpack_from(packed)
    if kind == _IS_WIDE:
        return _WIDE.unpack_from(packed, _HEAD.size + index * _WIDE.size)
    number, first, extent, size = _NARROW.unpack_from(packed, _HEAD.size + index * _NARROW.size)
    first += base_first
    return number + base_number, first, first + extent, size


def unpack(packed: bytes) -> list[Row]:
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
    """Of rows that ascend by number."""
    if not rows:
        return b""
    base_number = rows[0][0]
    base_first = min(row[1] for row in rows)
    # The greatest of each column tells; a lone row in a long ledger is as narrow as any.
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
    """(with one more row, of a segment that has none yet; whether its entries lie between those of
    the rows beside it)."""
    extent = last - first
    if extent <= _NARROW_MAX and size_bytes <= _NARROW_MAX:
        # What there are millions of: a newer segment with a few newer entries.
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
    """Without the rows of newer segments."""
    rows = count(packed)
    if not rows or row_at(packed, rows - 1)[0] <= number:
        return packed
    return pack([row for row in unpack(packed) if row[0] <= number])


def index_of(packed: bytes, number: int) -> int | None:
    """Where the row of the segment stands."""
    rows = count(packed)
    at = bisect_left(range(rows), number, key=lambda index: row_at(packed, index)[0])
    return at if at < rows and row_at(packed, at)[0] == number else None


def without(packed: bytes, index: int) -> bytes:
    rows = unpack(packed)
    del rows[index]
    return pack(rows)


def is_ordered(packed: bytes) -> bool:
    """Whether the entries ascend with the segments, without overlap."""
    return _ascend(unpack(packed))


def _ascend(rows: list[Row]) -> bool:
    return all(older[2] < newer[1] for older, newer in pairwise(rows))
