"""The metadata of a ledger, as a frozen value.

`ledger_metadata_format` encodes and decodes it. Values change only by `dataclasses.replace` or by
the methods here, and they reach the store only by compare-and-swap.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType

from quire._runtime.units import counted
from quire.codec.entry.digest import DigestType

NO_ENTRY = -1
CURRENT_FORMAT = 3


class LedgerState(enum.IntEnum):
    """The state of a ledger: open, being recovered, or closed."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """The ensemble of a ledger from one entry on.

    Attributes:
        first_entry_id: The id of the first entry that this ensemble stores.
        ensemble: The ids of its bookies, in order.
    """

    first_entry_id: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """The metadata of one ledger.

    Making one raises ValueError if the quorums are inconsistent, if there is no segment, if an
    ensemble does not have `ensemble_size` bookies, or if the first entries of the segments do not
    ascend.
    """

    ensemble_size: int
    """The number of bookies that store the ledger."""
    write_quorum: int
    """The number of bookies that store each entry."""
    ack_quorum: int
    """The number of bookies that must have an entry on disk before it is acknowledged."""
    segments: tuple[Segment, ...]
    """The ensembles of the ledger, in the order of their first entries."""
    state: LedgerState = LedgerState.OPEN
    """The state of the ledger: open, being recovered, or closed."""
    last_entry_id: int = NO_ENTRY
    """The id of the last entry once the ledger is closed. Before that, and for an empty ledger, it
    is -1."""
    length: int = 0
    """The number of payload bytes once the ledger is closed. Before that, it is 0. The number is
    advisory."""
    digest: DigestType | None = DigestType.CRC32C
    """The checksum of the entries, or None if the stored metadata has none (format 1, or a ledger
    without a password)."""
    password: bytes | None = field(default=b"", repr=False)
    """The password of the ledger, or None if the stored metadata has none, so that opening cannot
    check it."""
    custom: Mapping[str, bytes] = field(default_factory=dict)
    """The metadata that the application stored with the ledger."""
    ctime_ms: int = -1
    """The creation time in milliseconds since 1970, or -1 if it is not known."""
    ctime_stored: bool = False
    """Whether the creation time is part of the stored bytes. Otherwise `ctime_ms` is the creation
    time of the store's node, or -1 in format 1."""
    ctoken: int = 0
    """A random number by which a client recognises its own ledger if the response to the creation
    was lost. Java's clients drop it."""
    format_version: int = CURRENT_FORMAT
    """The format in which the metadata is stored."""
    unknown_fields: bytes = field(default=b"", repr=False)
    """The encoded fields that a later version has added to format 3. They are written back as they
    were."""

    def __post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum > 0:
            raise ValueError(
                "the quorums of the ledger metadata are inconsistent: ensemble "
                f"{self.ensemble_size} >= write quorum {self.write_quorum} >= ack quorum "
                f"{self.ack_quorum} > 0 does not hold"
            )
        # A copy behind a read-only view: neither its users nor its creator can change it.
        object.__setattr__(self, "custom", MappingProxyType(dict(self.custom)))
        if not self.segments:
            raise ValueError("the ledger metadata has no segment, but at least one is needed")
        previous = -1
        for segment in self.segments:
            if len(segment.ensemble) != self.ensemble_size:
                raise ValueError(
                    f"the ledger metadata has a segment (from entry {segment.first_entry_id} on) "
                    f"with {counted(len(segment.ensemble), 'bookie')}, but the ensemble size is "
                    f"{self.ensemble_size}"
                )
            if segment.first_entry_id <= previous:
                raise ValueError(
                    "the segments of the ledger metadata are not in ascending order of their "
                    "first entries"
                )
            previous = segment.first_entry_id

    def __reduce__(self) -> tuple[Callable[[], LedgerMetadata], tuple[()]]:
        """Copy and pickle `custom` as a dictionary, because a read-only view cannot be."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return partial(LedgerMetadata, **{**values, "custom": dict(self.custom)}), ()

    @property
    def closed(self) -> bool:
        """Whether the ledger is closed."""
        return self.state is LedgerState.CLOSED

    @property
    def last_segment(self) -> Segment:
        """The segment with the highest first entry, whose ensemble a writer of the ledger uses."""
        return self.segments[-1]

    def segment_of(self, entry_id: int) -> Segment:
        """Return the segment that holds an entry: the last one that begins at or before it.

        Args:
            entry_id: The id of the entry.

        Returns:
            The segment.
        """
        at = bisect_right(self.segments, entry_id, key=lambda s: s.first_entry_id) - 1
        return self.segments[max(at, 0)]

    def segment_end(self, segment: Segment, known_last: int) -> int:
        """Return the last entry that a segment can hold.

        Args:
            segment: A segment of this ledger.
            known_last: The id of the last entry of the ledger that is known.

        Returns:
            The id of the entry.
        """
        first = segment.first_entry_id
        at = bisect_right(self.segments, first, key=lambda s: s.first_entry_id)
        if at == len(self.segments):
            return known_last
        return min(self.segments[at].first_entry_id - 1, known_last)

    def with_state(self, state: LedgerState) -> LedgerMetadata:
        """Return the same metadata with another state.

        Args:
            state: The new state.

        Returns:
            The changed metadata.
        """
        return replace(self, state=state)

    def with_ensemble_from(self, first_entry_id: int, ensemble: tuple[str, ...]) -> LedgerMetadata:
        """Return the same metadata with another ensemble from one entry on.

        If the last segment begins at that entry, it is replaced. Otherwise a segment is appended.

        Args:
            first_entry_id: The id of the first entry that the ensemble stores.
            ensemble: The ids of its bookies, in order.

        Returns:
            The changed metadata.

        Raises:
            ValueError: The last segment begins after that entry, or the number of bookies is not
                the ensemble size.
        """
        last = self.segments[-1]
        if first_entry_id < last.first_entry_id:
            raise ValueError(
                f"a segment that begins at entry {first_entry_id} cannot follow the ledger's "
                f"last segment, which begins at entry {last.first_entry_id}"
            )
        kept = self.segments if first_entry_id > last.first_entry_id else self.segments[:-1]
        return replace(self, segments=(*kept, Segment(first_entry_id, ensemble)))

    def with_close(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """Return the same metadata in the state CLOSED.

        Args:
            last_entry_id: The id of the last entry, or -1 if there is none.
            length: The number of payload bytes of all entries.

        Returns:
            The changed metadata.
        """
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)
