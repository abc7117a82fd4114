"""Which entries of a ledger a bookie has: the answer to GET_LIST_OF_ENTRIES_OF_LEDGER.

0    4  version, 0
4    4  number of groups
8   56  zeros
then for each group:
0    8  start of its first sequence
8    8  start of its last sequence
16   4  entries in each sequence
20   4  distance between the starts of two sequences; 0: there is one sequence

Apache's bookie writes one group for each run of consecutive entries; its client also reads groups
of several sequences (wire-protocol spec, 3.5). We write what it writes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

VERSION = 0
_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")

_SIZE_MAX = 2**31 - 1


class BadAvailabilityError(ValueError):
    """The bytes are no list of entries."""


def encode_availability(ranges: Sequence[tuple[int, int]], max_bytes: int | None = None) -> bytes:
    """Ascending, disjoint ranges (first, last) of entries; neighbours are not joined.

    A list longer than `max_bytes` gets groups of several sequences, as a striped ledger has them:
    it may still be longer."""
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
    """Runs of one size at equal distances become one group."""
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
    """Ascending ranges (first, last), neighbours joined. BadAvailabilityError."""
    if len(data) < _HEADER.size:
        raise BadAvailabilityError(f"{len(data)} bytes are too few for a list of entries")
    version, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise BadAvailabilityError(f"a list of entries of version {version}")
    if count < 0 or _HEADER.size + count * _GROUP.size > len(data):
        raise BadAvailabilityError(f"{len(data)} bytes do not hold {count} groups")
    found: list[tuple[int, int]] = []
    for first, last, size, period in _GROUP.iter_unpack(
        data[_HEADER.size : _HEADER.size + count * _GROUP.size]
    ):
        if size <= 0 or period < 0 or last < first or (period == 0 and first != last):
            raise BadAvailabilityError(f"a group {first}..{last} by {period} of {size} entries")
        starts = range(first, last + 1, period) if period else (first,)
        if len(starts) > _SIZE_MAX:
            raise BadAvailabilityError(f"a group of {len(starts)} sequences")
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
