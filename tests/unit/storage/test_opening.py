"""The stores of a bookie as its configuration defines them."""

from __future__ import annotations

import errno
import random
from dataclasses import replace

import pytest

from quire.bookie.directories.opening import storage_config
from quire.config import BookieConfig
from quire.storage.config import (
    MIB,
    SEGMENT_BYTES_LEAST,
    SEGMENT_BYTES_MOST,
    StorageConfig,
    segment_bytes_of,
)
from quire_simulator.machine.disk import SimDisk

GIB = 1 << 30


def disk(capacity_bytes: int) -> SimDisk:
    return SimDisk(random.Random(1), "disk", capacity_bytes=capacity_bytes)


@pytest.mark.parametrize(
    ("disk_bytes", "segment_bytes"),
    [
        (0, 64 * MIB),
        (64 * GIB - 1, 64 * MIB),
        (100 * GIB + 12_345, 100 * MIB),
        (256 * GIB, 256 * MIB),
        (20_000 * GIB, 256 * MIB),
    ],
)
def test_segment_size_grows_with_disk_size(disk_bytes: int, segment_bytes: int) -> None:
    assert segment_bytes_of(disk_bytes) == segment_bytes


def test_each_directory_has_a_segment_size_that_fits_its_disk() -> None:
    small, large = disk(10 * GIB), disk(1000 * GIB)
    config = BookieConfig()
    assert storage_config(config, small).segment_bytes == SEGMENT_BYTES_LEAST
    assert storage_config(config, large).segment_bytes == SEGMENT_BYTES_MOST
    said = storage_config(replace(config, segment_bytes=MIB), large)
    assert said.segment_bytes == MIB


def test_a_disk_of_unknown_size_gets_the_smallest_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: SimDisk) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(SimDisk, "total_bytes", broken)
    assert storage_config(BookieConfig(), disk(GIB)).segment_bytes == SEGMENT_BYTES_LEAST


def test_the_largest_segment_holds_the_runs_of_entries_of_1_kb() -> None:
    """With a lower limit, a segment would be rolled before it is full."""
    frame_bytes = 1024 + 64
    assert SEGMENT_BYTES_MOST // frame_bytes <= StorageConfig().max_runs_per_segment
