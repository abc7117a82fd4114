"""What the metadata store keeps of a ledger, as a frozen value (metadata spec, section 2).

The bytes are made and read in `ledger_metadata_format`. Values change only by `dataclasses.replace`
or the methods here, and reach the store only by compare-and-swap.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType

from quire.codec.entry.digest import DigestType

NO_ENTRY = -1
CURRENT_FORMAT = 3


class LedgerState(enum.IntEnum):
    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """From `first_entry_id` on, the ledger lives on this ensemble (bookie ids, in order)."""

    first_entry_id: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    segments: tuple[Segment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = NO_ENTRY
    """The last entry once CLOSED, else -1."""
    length: int = 0
    """Payload bytes in total once CLOSED (advisory), else 0."""
    digest: DigestType | None = DigestType.CRC32C
    """None: the stored form has none (format 1, or a ledger without password)."""
    password: bytes | None = field(default=b"", repr=False)
    """None: the stored form has none, so that opening cannot check it."""
    custom: Mapping[str, bytes] = field(default_factory=dict)
    ctime_ms: int = -1
    """Creation time; -1: not known."""
    ctime_stored: bool = False
    """Whether the creation time is part of the bytes (else it is the node's)."""
    ctoken: int = 0
    """Random at creation, to know one's own create again after a lost answer. Java drops it."""
    format_version: int = CURRENT_FORMAT

    def __post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum > 0:
            raise ValueError(
                f"ensemble {self.ensemble_size} >= write quorum {self.write_quorum} >= "
                f"ack quorum {self.ack_quorum} > 0 does not hold"
            )
        # Nobody who holds the value can change it, nor whoever made it.
        object.__setattr__(self, "custom", MappingProxyType(dict(self.custom)))
        if not self.segments:
            raise ValueError("a ledger has at least one segment")
        previous = -1
        for segment in self.segments:
            if len(segment.ensemble) != self.ensemble_size:
                raise ValueError(
                    f"segment {segment.first_entry_id} has {len(segment.ensemble)} bookies, "
                    f"the ensemble size is {self.ensemble_size}"
                )
            if segment.first_entry_id <= previous:
                raise ValueError("segments do not ascend")
            previous = segment.first_entry_id

    def __reduce__(self) -> tuple[Callable[[], LedgerMetadata], tuple[()]]:
        """Copy and pickle `custom` as a dictionary, because a read-only view cannot be."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return partial(LedgerMetadata, **{**values, "custom": dict(self.custom)}), ()

    @property
    def closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def last_segment(self) -> Segment:
        return self.segments[-1]

    def segment_of(self, entry_id: int) -> Segment:
        """The segment that holds `entry_id`: the one with the greatest first entry <= it."""
        at = bisect_right(self.segments, entry_id, key=lambda s: s.first_entry_id) - 1
        return self.segments[max(at, 0)]

    def segment_end(self, segment: Segment, known_last: int) -> int:
        """The last entry that can be in `segment`, given the last entry known of the ledger."""
        first = segment.first_entry_id
        at = bisect_right(self.segments, first, key=lambda s: s.first_entry_id)
        if at == len(self.segments):
            return known_last
        return min(self.segments[at].first_entry_id - 1, known_last)

    def with_state(self, state: LedgerState) -> LedgerMetadata:
        return replace(self, state=state)

    def with_ensemble_from(self, first_entry_id: int, ensemble: tuple[str, ...]) -> LedgerMetadata:
        """From `first_entry_id` on use `ensemble`: the last segment is replaced where it starts
        at that entry, otherwise one is appended (replication spec, 4.2)."""
        last = self.segments[-1]
        if first_entry_id < last.first_entry_id:
            raise ValueError(f"segment {first_entry_id} lies before {last.first_entry_id}")
        kept = self.segments if first_entry_id > last.first_entry_id else self.segments[:-1]
        return replace(self, segments=(*kept, Segment(first_entry_id, ensemble)))

    def with_close(self, last_entry_id: int, length: int) -> LedgerMetadata:
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)
