"""Every limit of storage, with its unit."""

from __future__ import annotations

from dataclasses import dataclass

from quire.codec.log.state_records import BLOCK_BYTES

KIB = 1024
MIB = 1024 * 1024

SEGMENT_BYTES_LEAST = 64 * MIB
SEGMENT_BYTES_MOST = 256 * MIB
SEGMENTS_OF_DISK = 1024
"""As many as fill a disk, if that is between these two."""


def segment_bytes_of(disk_bytes: int) -> int:
    """The size of segments on a disk of this size, where nobody has said it. What a ledger costs,
    it costs in each segment that has entries of it: in memory, in the index, at each seal. Three
    are preallocated. By the size of the disk, not by what is free: it stays what it is."""
    share = disk_bytes // SEGMENTS_OF_DISK // MIB * MIB
    return min(max(share, SEGMENT_BYTES_LEAST), SEGMENT_BYTES_MOST)


@dataclass(frozen=True, slots=True)
class StorageConfig:
    segment_bytes: int = SEGMENT_BYTES_LEAST
    """A segment is rolled when it would grow beyond. Preallocated, so that a sync needs not write
    the file's metadata."""
    reserve_bytes: int = 8 * MIB
    """What is kept preallocated beyond the next segment, for fences and recovery adds on a full
    disk; at most `segment_bytes`. At least one frame of the greatest size should fit."""
    max_runs_per_segment: int = 262_144
    """Bounds the memory that a segment's index takes until it is sealed: 170 B a run, 8 where
    entries come in turn. As many entries of 1 KB fill the largest segment."""
    max_group_bytes: int = 4 * MIB
    """Written and synced at once; one batch may be larger."""
    max_queued_bytes: int = 64 * MIB
    """Appended and not yet synced; above it `queue_full` is set."""
    min_free_bytes: int = 256 * MIB
    """The low-water mark, in bytes: with less free space the store takes no more adds."""
    writable_free_bytes: int = 0
    """The high-water mark, in bytes: a store that was short of space takes adds again only once
    this much is free. 0: `min_free_bytes` and a quarter more."""
    read_only_dwell_s: float = 30.0
    """The shortest time, in seconds, for which a store that was short of space takes no adds."""
    seal_idle_s: float = 0.2
    """After so long without adds, an empty group marks the end as synced."""
    log_cache_bytes: int = 128 * MIB
    """Of the log's newest bytes: what is older is given back by the system's cache; 0: no bound."""
    catch_up_bytes_per_s: int = 64 * MIB
    """Read in large pieces while entries are taken; twice what is taken, where that is more. 0: no
    bound."""
    footer_cache_bytes: int = 64 * MIB
    """For the parts of footers that reads need."""
    index_cache_interval_s: float = 300.0
    """So often at most the index is written beside the log, for the start behind a crash."""
    index_cache_segments: int = 16
    """And not before so many segments are newer, unless one that it covers has changed."""
    max_open_files: int = 256
    """Sealed segments whose files are kept open."""
    compact_minor_ratio: float = 0.2
    """Segments of which less is alive are compacted at each minor interval; 0: never."""
    compact_minor_interval_s: float = 3_600.0
    compact_major_ratio: float = 0.8
    """The same at each major interval, and whenever the disk is short of space; 0: never."""
    compact_major_interval_s: float = 86_400.0
    compact_bytes_per_s: int = 16 * MIB
    """Written by compaction while adds are taken; 0: no bound. On a full disk there is none."""
    compact_reserve_bytes: int = SEGMENT_BYTES_MOST
    """Kept preallocated for the output of a compaction, so that one can run on a full disk; at most
    `segment_bytes`; 0: none."""
    scrub_interval_s: float = 604_800.0
    """Every segment is checked so often, in the background; 0: only where reads met damage."""
    scrub_bytes_per_s: int = 4 * MIB
    """Read by the scrub: 2.4 TB in its interval, at the price of a few percent of one disk. Where
    there is more a round takes longer. 0: no bound."""

    @property
    def free_bytes_to_resume(self) -> int:
        """Return the free space, in bytes, at which a store that was short of space takes adds
        again."""
        return self.writable_free_bytes or self.min_free_bytes + self.min_free_bytes // 4

    def __post_init__(self) -> None:
        smallest = 4 * BLOCK_BYTES
        if self.segment_bytes < smallest or self.reserve_bytes < smallest:
            raise ValueError(f"segment_bytes and reserve_bytes must be {smallest} or more")
        if min(self.max_runs_per_segment, self.max_group_bytes, self.max_queued_bytes) < 1:
            raise ValueError("limits must be positive")
        if self.free_bytes_to_resume < self.min_free_bytes:
            raise ValueError("writable_free_bytes must not be less than min_free_bytes")
        if self.max_open_files < 1 or self.seal_idle_s <= 0 or self.footer_cache_bytes < 0:
            raise ValueError("limits must be positive")
