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
from collections.abc import Sequence

from quire._runtime.units import counted

VERSION = 0
_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")

_SIZE_MAX = 2**31 - 1
RANGES_MAX = 1_000_000
"""The largest number of sequences in a list. A few bytes can describe billions of them, which would
take gigabytes of memory as ranges."""


class BadAvailabilityError(ValueError):
    """The error for bytes that are not a list of entries."""


def encode_availability(ranges: Sequence[tuple[int, int]], max_bytes: int | None = None) -> bytes:
    """Return the list for ascending, disjoint ranges (first, last) of entries.

    Adjacent ranges are not joined. If the list exceeds `max_bytes`, it is written with groups of
    several sequences, which suit a striped ledger. It may still exceed the limit.
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


def _periodic(runs: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Return groups in which runs of one size at equal distances are combined."""
    groups: list[tuple[int, int, int, int]] = []
    for start, _, size, _ in runs:
        if groups:
            first, last, group_size, period = groups[-1]
            if size == group_size and period in (0, start - last) and start - last <= _SIZE_MAX:
                groups[-1] = (first, start, size, start - last)
                continue
        groups.append((start, start, size, 0))
    return groups


def decode_availability(data: bytes) -> list[tuple[int, int]]:
    """Return ascending ranges (first, last) of entries. Adjacent ranges are joined.

    Raises:
        BadAvailabilityError: The bytes are not a list of entries, or the list has more than
            `RANGES_MAX` sequences of entries.
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
    found: list[tuple[int, int]] = []
    for first, last, size, period in _GROUP.iter_unpack(
        data[_HEADER.size : _HEADER.size + count * _GROUP.size]
    ):
        if size <= 0 or period < 0 or last < first or (period == 0 and first != last):
            raise BadAvailabilityError(
                f"the bookie's list of entries has an invalid group: sequences of "
                f"{counted(size, 'entry')} that begin at {first} to {last}, {period} apart"
            )
        starts = range(first, last + 1, period) if period else range(first, first + 1)
        if size >= period:  # each sequence touches the next one
            found.append((first, starts[-1] + size - 1))
            continue
        # `last - first` may be too large for the length of a range.
        if (last - first) // period + len(found) >= RANGES_MAX:
            raise BadAvailabilityError(
                f"the bookie's list of entries has more than {RANGES_MAX:,} sequences of entries, "
                "too many to be read"
            )
        found.extend((start, start + size - 1) for start in starts)
    return _joined(sorted(found))


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined
