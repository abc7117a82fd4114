"""How far a ledger continues in a segment."""

from __future__ import annotations

from typing import Any

import pytest

from quire.codec.log.footer import CONSECUTIVE, LedgerRows
from quire.storage.read import read_ahead as reach
from quire.storage.read.read_ahead import read_ahead_extent
from quire.storage.segment.segment import LogSegment

SEGMENT = LogSegment(7, None, 1 << 20)


def rows_of(*runs: tuple[int, int, Any, int]) -> LedgerRows:
    """Return rows of runs (first entry, count, size or sizes of frames, offset)."""
    sizes: list[int] = []
    sizes_at = []
    for _, _, size, _ in runs:
        sizes_at.append(len(sizes))
        sizes += [] if isinstance(size, int) else size
    return LedgerRows(
        firsts=[one[0] for one in runs],
        offsets=[one[3] for one in runs],
        counts=[one[1] for one in runs],
        frame_sizes=[one[2] if isinstance(one[2], int) else 0 for one in runs],
        sizes_at=sizes_at,
        ids_at=[CONSECUTIVE] * len(runs),
        sizes=sizes,
        ids=[],
    )


def bounds(found: reach.ReadAheadExtent | None) -> tuple[int, int, int] | None:
    if found is None:
        return None
    assert found.segment is SEGMENT
    assert found.until == found.start
    return found.start, found.stop, found.last


def test_the_extent_covers_all_runs_of_a_ledger() -> None:
    rows = rows_of((0, 10, 100, 4096), (10, 5, 200, 5096), (40, 1, 300, 6096))
    assert bounds(read_ahead_extent(SEGMENT, rows, 2300, None)) == (4096, 6396, 40)


def test_the_extent_begins_at_an_entry_and_ends_before_a_missing_one() -> None:
    rows = rows_of((0, 10, 100, 4096), (10, 5, 200, 5096), (40, 1, 300, 6096))
    for entry_id, expected in (
        (0, (4096, 6096, 14)),
        (9, (4096, 6096, 14)),
        (12, (5096, 6096, 14)),
        (15, None),
        (40, (6096, 6396, 40)),
        (41, None),
    ):
        assert bounds(read_ahead_extent(SEGMENT, rows, 2300, entry_id)) == expected


def test_the_extent_includes_all_frames_of_the_last_run() -> None:
    """The start of the last run was once taken for its end.

    A compaction makes one run of all entries.
    """
    rows = rows_of((3, 3, [100, 50, 70], 4096))
    assert bounds(read_ahead_extent(SEGMENT, rows, 220, None)) == (4096, 4316, 5)
    assert bounds(read_ahead_extent(SEGMENT, rows, 220, 4)) == (4096, 4316, 5)


@pytest.mark.parametrize("entry_id", [None, 0])
def test_there_is_no_extent_if_other_ledgers_fill_most_of_it(entry_id: int | None) -> None:
    near = rows_of((0, 1, 100, 4096), (1, 1, 100, 4396))
    assert read_ahead_extent(SEGMENT, near, 200, entry_id) is not None
    far = rows_of((0, 1, 100, 4096), (1, 1, 100, 4497))
    assert read_ahead_extent(SEGMENT, far, 200, entry_id) is None


def test_the_number_of_runs_in_an_extent_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "ROWS_MAX", 4)
    rows = rows_of(*((at, 1, 100, 4096 + 100 * at) for at in range(10)))
    assert bounds(read_ahead_extent(SEGMENT, rows, 1000, 2)) == (4296, 4696, 5)
    assert bounds(read_ahead_extent(SEGMENT, rows, 1000, 8)) == (4896, 5096, 9)
