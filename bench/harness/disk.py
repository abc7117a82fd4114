"""Measure the limit of the disk: one process writes one file and syncs every 512 KB.

This is the best that a log with group commit can do. It is measured with a file that grows and with
a file whose blocks are preallocated, as in a log with preallocated segments. The better result
counts.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

GROUP_BYTES = 512 * 1024
"""The number of bytes written between two syncs."""

REPLICAS = 3
ENTRY_OVERHEAD_BYTES = 64
"""The size of a stored 1 KB entry besides its payload.

28 bytes are the v2 frame's length, header and master key, and 36 bytes are the entry's own header
with a CRC32C digest.
"""


def write_rate_mb_per_s(directory: Path, total_bytes: int, *, preallocated: bool) -> float:
    """Return MB (10**6 bytes) per second. The file is removed."""
    path = directory / "disk-limit"
    group = os.urandom(GROUP_BYTES)
    sync = getattr(os, "fdatasync", os.fsync)
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        if preallocated:
            os.posix_fallocate(descriptor, 0, total_bytes)
        os.fsync(descriptor)
        start = time.perf_counter()
        for offset in range(0, total_bytes, GROUP_BYTES):
            written = os.pwrite(descriptor, group, offset)
            assert written == GROUP_BYTES, "a short write: is the disk full?"
            sync(descriptor)
        seconds = time.perf_counter() - start
    finally:
        os.close(descriptor)
        path.unlink()
    return total_bytes / 1e6 / seconds


def entries_per_s(mb_per_s: float, payload_bytes: int) -> float:
    """Return how many entries the disk could take if it wrote only their replicas."""
    return mb_per_s * 1e6 / (REPLICAS * (payload_bytes + ENTRY_OVERHEAD_BYTES))
