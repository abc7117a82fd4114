"""The limits of a store, with their units and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from quire.codec.log.state_records import BLOCK_BYTES

KIB = 1024
MIB = 1024 * 1024

SEGMENT_BYTES_LEAST = 64 * MIB
SEGMENT_BYTES_MOST = 256 * MIB
SEGMENTS_OF_DISK = 1024
"""The number of segments that would fill a disk, if their size is between `SEGMENT_BYTES_LEAST` and
`SEGMENT_BYTES_MOST`."""


def segment_bytes_of(disk_bytes: int) -> int:
    """Return the default size of a segment in bytes, for a disk of `disk_bytes` in all.

    A ledger costs something in each segment that has entries of it: memory, space in the index, and
    work for each seal. So segments should be large. But three of them are preallocated, so they
    must be small compared with the disk. The result does not depend on the free space, so it does
    not change over time.
    """
    share = disk_bytes // SEGMENTS_OF_DISK // MIB * MIB
    return min(max(share, SEGMENT_BYTES_LEAST), SEGMENT_BYTES_MOST)


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The limits of one store. Raises `ValueError` if one is out of range or two contradict."""

    segment_bytes: int = SEGMENT_BYTES_LEAST
    """The size of a segment in bytes. When a segment is full, the log continues in another one. The
    file is preallocated, so that a sync need not write its metadata."""
    reserve_bytes: int = 8 * MIB
    """The bytes after the next segment that are kept preallocated for fences and the adds of
    recoveries on a full disk. The reserve is at most `segment_bytes`, and at least one entry of the
    largest size should fit."""
    max_runs_per_segment: int = 262_144
    """The most runs (adjacent entries of one ledger) in a segment before it is sealed. This bounds
    the memory for its index: 170 B for a run, or 8 B for an entry that was interleaved with those
    of other ledgers. The default is the number of entries of 1 KB in the largest segment."""
    max_group_bytes: int = 4 * MIB
    """The most bytes that are written and synced at once. A single batch may be larger."""
    max_queued_bytes: int = 64 * MIB
    """The bytes of adds that may wait for their sync. From this number on, `LedgerStore.queue_full`
    is True."""
    min_free_bytes: int = 256 * MIB
    """The low-water mark in bytes. With less free space than this, the store takes no more adds."""
    writable_free_bytes: int = 0
    """The high-water mark in bytes. After a lack of space, the store takes adds again when this
    much is free. 0 means `min_free_bytes` and a quarter more."""
    read_only_dwell_s: float = 30.0
    """The fewest seconds for which a store takes no adds after a lack of space."""
    seal_idle_s: float = 0.2
    """Seconds without adds after which the log gets an empty group. A group is written only after
    the previous one is synced, so this proves that the end of the log is synced."""
    log_cache_bytes: int = 128 * MIB
    """The bytes of the newest part of the log that stay in the system's page cache. Older parts are
    released. 0 means no limit."""
    catch_up_bytes_per_s: int = 64 * MIB
    """The rate in bytes per second that all large reads share while entries are being added. If
    twice the rate of the adds is more, they get that. 0 means no limit."""
    footer_cache_bytes: int = 64 * MIB
    """The bytes of memory for the parts of footers that reads need."""
    index_cache_interval_s: float = 300.0
    """The fewest seconds between two writes of the index cache, which makes a start after a crash
    faster."""
    index_cache_segments: int = 16
    """The number of newer sealed segments from which the index cache is written again. It is also
    written if a segment that it covers has changed."""
    max_open_files: int = 256
    """The most files of sealed segments that are kept open at the same time."""
    compact_minor_ratio: float = 0.2
    """The share of live data below which a segment is compacted at each minor interval. 0 switches
    minor compaction off."""
    compact_minor_interval_s: float = 3_600.0
    compact_major_ratio: float = 0.8
    """The share of live data below which a segment is compacted at each major interval, and when
    the disk is full. 0 switches major compaction off. The minor ratio then applies when the disk is
    full."""
    compact_major_interval_s: float = 86_400.0
    compact_bytes_per_s: int = 16 * MIB
    """The rate in bytes per second at which compaction writes. There is no limit on a full disk, or
    if this is 0."""
    compact_reserve_bytes: int = SEGMENT_BYTES_MOST
    """The bytes that are kept preallocated for the output of a compaction, so that one can run on a
    full disk. The reserve is at most `segment_bytes`. 0 reserves none."""
    scrub_interval_s: float = 604_800.0
    """The seconds in which the scrub checks every segment once. With 0, it checks only segments in
    which a read, a compaction or a start has found damage."""
    scrub_bytes_per_s: int = 4 * MIB
    """The rate in bytes per second at which the scrub reads. The default allows 2.5 TB in its
    interval, and costs a few percent of one disk. With more data, a round takes longer. 0 means no
    limit."""

    @property
    def compact_ratio(self) -> float:
        """The share of live data below which any compaction takes a segment, or 0 for none."""
        return self.compact_major_ratio or self.compact_minor_ratio

    @property
    def free_bytes_to_resume(self) -> int:
        """The free bytes at which a store takes adds again after a lack of space."""
        return self.writable_free_bytes or self.min_free_bytes + self.min_free_bytes // 4

    def __post_init__(self) -> None:
        smallest = 4 * BLOCK_BYTES
        if self.segment_bytes < smallest or self.reserve_bytes < smallest:
            raise ValueError(
                f"segment_bytes and reserve_bytes must be {smallest} or more, not "
                f"{self.segment_bytes} and {self.reserve_bytes}"
            )
        if min(self.max_runs_per_segment, self.max_group_bytes, self.max_queued_bytes) < 1:
            raise ValueError(
                "max_runs_per_segment, max_group_bytes and max_queued_bytes must be positive"
            )
        if self.free_bytes_to_resume < self.min_free_bytes:
            raise ValueError("writable_free_bytes must not be less than min_free_bytes")
        if self.max_open_files < 1 or self.seal_idle_s <= 0 or self.footer_cache_bytes < 0:
            raise ValueError(
                "max_open_files and seal_idle_s must be positive, and footer_cache_bytes must not "
                "be negative"
            )
