"""Only the newest part of the log stays in the system's cache, and everything not yet synced."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.storage.log import page_cache as system_cache
from quire.storage.log.page_cache import LogPageCache
from quire.storage.segment.segment import segment_name
from quire_simulator.machine.disk import SimDisk, SimFile
from tests.support.storage.storage import SMALL, compact, entries, fill_segments, opened, sealed

PIECE = 1024
FEW = 8
"""A size at which every byte is checked."""
Given = tuple[str, int, int]


@pytest.fixture(autouse=True)
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[Given]:
    """Return the name, offset and size of the ranges to be uncached, in order."""
    told: list[Given] = []

    def uncache(file: SimFile, offset: int, size: int) -> None:
        assert not file._check().pending, "pages that are not synced cannot be released"
        told.append((file._name, offset, size))

    monkeypatch.setattr(system_cache, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(SimFile, "uncache", uncache)
    return told


def disk_with(*names: str) -> SimDisk:
    disk = SimDisk(random.Random(1), "bookie")
    for name in names:
        disk.create(name).close()
    return disk


@given(
    limit=st.integers(1, 10 * FEW),
    files=st.lists(
        st.lists(st.integers(1, 3 * FEW), min_size=1, max_size=12), min_size=1, max_size=5
    ),
)
def test_the_oldest_pages_are_released_once_and_the_newest_stay_cached(
    limit: int, files: list[list[int]]
) -> None:
    told: list[Given] = []
    names = [f"file {number}" for number in range(len(files))]
    cache = LogPageCache(disk_with(*names), limit)
    written: list[tuple[str, int]] = []
    """Every written byte, in order."""
    largest = max(size for sizes in files for size in sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system_cache, "PIECE_BYTES", FEW)
        patch.setattr(
            SimFile, "uncache", lambda file, at, size: told.append((file._name, at, size))
        )
        for name, sizes in zip(names, files):
            end = 0
            for size in sizes:
                written += [(name, at) for at in range(end, end + size)]
                end += size
                cache.wrote(name, end)
                gone = cache.given_back_bytes
                assert len(written) - gone <= max(limit, FEW - 1)
                assert len(written) - gone >= min(len(written), limit - FEW - largest)
    assert [(name, at) for name, low, size in told for at in range(low, low + size)] == written[
        : cache.given_back_bytes
    ]


def test_released_ranges_begin_and_end_at_page_boundaries(given_back: list[Given]) -> None:
    """A page is dropped as a whole, so a page that pieces share would stay forever."""
    cache = LogPageCache(disk_with("file"), 2 * PIECE)
    for end in range(300, 20 * PIECE, 300):
        cache.wrote("file", end)
    assert len(given_back) > 10
    assert all(at % PIECE == 0 and size % PIECE == 0 for _, at, size in given_back)


def test_no_pages_are_released_without_a_limit(given_back: list[Given]) -> None:
    cache = LogPageCache(disk_with("file"), 0)
    cache.wrote("file", 100 * PIECE)
    assert given_back == []
    assert cache.given_back_bytes == 0


def test_releasing_pages_of_a_removed_file_is_not_an_error(given_back: list[Given]) -> None:
    cache = LogPageCache(disk_with("next"), PIECE)
    cache.wrote("removed", 10 * PIECE)
    cache.wrote("next", 10 * PIECE)
    assert [name for name, _, _ in given_back] == ["next"]
    assert cache.given_back_bytes == 20 * PIECE


def test_the_newest_bytes_of_a_log_stay_cached(given_back: list[Given]) -> None:
    box = opened(replace(SMALL, log_cache_bytes=8 * PIECE))
    fill_segments(box, 7, 3)
    box.append(entries(7, box.store.last_entry_id(7) + 1, 10, 200))
    box.pump()
    stats = box.store.stats()
    assert {name for name, _, _ in given_back} >= {segment_name(n) for n in sealed(box)}
    assert stats.log_given_back_bytes == sum(size for _, _, size in given_back)
    kept = sum(one.end_bytes for one in box.store.usage()) - stats.log_given_back_bytes
    assert kept < 8 * PIECE + 4 * 10 * 1024  # And the ends of segments, after their last groups.
    assert box.read(7, 0, 10) == [box.acknowledged[7, n] for n in range(10)]


def test_pages_written_by_a_compaction_are_released_at_once(given_back: list[Given]) -> None:
    box = opened(replace(SMALL, log_cache_bytes=0))
    fill_segments(box, 7, 1)
    for ledger_id in (8, 9):
        fill_segments(box, ledger_id, 1)
    box.drop([8])
    box.idle()
    assert given_back == []
    before = box.store.stats().compaction_written_bytes
    compact(box)
    written = box.store.stats().compaction_written_bytes - before
    assert written > 0
    assert 0 < sum(size for _, _, size in given_back) <= written
