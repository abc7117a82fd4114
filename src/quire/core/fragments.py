"""The entries that a bookie of a ledger should hold, and the replacement of a member of a segment.

See rules 18, 24, 25 and 28 of docs/internals/replication-rules.md.

A *fragment* is the known part of a segment of a ledger. A *closed* fragment gets no more entries.
Only a closed one may be copied to another bookie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.wire.availability import EntryRanges, Run
from quire.core.append.quorum import in_write_set, stripe
from quire.core.ranges import Range, overlapping


@dataclass(frozen=True, slots=True)
class Fragment:
    """The known entries of one segment of a ledger, and the bookies that store them."""

    segment_first: int
    """The first entry of the segment, which identifies the segment."""
    last: int
    """The last known entry. It is less than `segment_first` if there is none."""
    ensemble: tuple[str, ...]
    """The bookie ids of the segment's members."""
    closed: bool
    """Whether the segment gets no more entries."""

    @property
    def first(self) -> int:
        """The first entry of the segment."""
        return self.segment_first

    @property
    def empty(self) -> bool:
        """Whether no entry of the segment is known."""
        return self.last < self.segment_first


def fragments(metadata: LedgerMetadata, last_add_confirmed: int) -> list[Fragment]:
    """Return the fragments of a ledger, one for each segment.

    Segments before the last one are complete, because the next segment begins after what was
    confirmed when it was made.

    Args:
        metadata: The metadata of the ledger.
        last_add_confirmed: The last entry that is known. It matters only while the ledger is open.
    """
    known = metadata.last_entry_id if metadata.closed else last_add_confirmed
    newest = metadata.last_segment
    if not metadata.closed:
        known = max(known, newest.first_entry_id - 1)
    return [
        Fragment(
            segment.first_entry_id,
            metadata.segment_end(segment, known),
            segment.ensemble,
            metadata.closed or segment is not newest,
        )
        for segment in metadata.segments
    ]


def stored_by(metadata: LedgerMetadata, index: int, first: int, last: int) -> Sequence[int]:
    """Return the entry ids in first..last, both included, that member `index` should hold.

    All of these entries are in one segment, and `index` is the ensemble index of the member.
    """
    return stripe(index, first, last, metadata.ensemble_size, metadata.write_quorum)


def next_stored(metadata: LedgerMetadata, index: int, entry: int) -> int:
    """Return the first entry id from `entry` on that the member at ensemble `index` should hold."""
    while not in_write_set(index, entry, metadata.ensemble_size, metadata.write_quorum):
        entry += 1
    return entry


def last_stored(metadata: LedgerMetadata, index: int, entry: int) -> int:
    """Return the last entry id up to `entry` that the member at ensemble `index` should hold.

    It may be below 0, and then the member should hold none.
    """
    while not in_write_set(index, entry, metadata.ensemble_size, metadata.write_quorum):
        entry -= 1
    return entry


def stored_count(metadata: LedgerMetadata, index: int, first: int, last: int) -> int:
    """Return the number of entries in first..last that the member at `index` should hold."""
    if last < first:
        return 0
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    whole, rest = divmod(last - first + 1, size)
    return whole * quorum + len(stripe(index, last - rest + 1, last, size, quorum))


def unlisted(
    metadata: LedgerMetadata, index: int, first: int, last: int, listed: Sequence[Range]
) -> Iterator[Range]:
    """Yield the ranges in first..last that the member at `index` should hold and does not list.

    `listed` is the bookie's list of entries, as ascending ranges. The ends of each result are
    entries that the member should hold. Between two results, the work is bounded by the number of
    encoded runs in the list, not by the number of ranges, which may be billions.
    """
    size, at = metadata.ensemble_size, first
    for start, end, length, period in _runs(overlapping(listed, first, last)):
        gaps: Iterable[range] = [range(at, start)]
        if period:
            # The pattern of what is stored repeats, in the gaps too. So if nothing is missing in as
            # many gaps as it takes to repeat, nothing is missing in the others.
            inner = range(start + length, end, period)
            cycle = inner[: size // gcd(period, size)]
            width = period - length
            if any(stored_count(metadata, index, low, low + width - 1) for low in cycle):
                yield from _held(metadata, index, gaps)
                gaps = (range(low, low + width) for low in inner)
        yield from _held(metadata, index, gaps)
        at = end + length
    yield from _held(metadata, index, [range(at, last + 1)])


def _runs(ranges: Sequence[Range]) -> Iterable[Run]:
    if isinstance(ranges, EntryRanges):
        return ranges.runs
    return ((first, first, last - first + 1, 0) for first, last in ranges)


def _held(metadata: LedgerMetadata, index: int, gaps: Iterable[range]) -> Iterator[Range]:
    """Yield of each gap the range between the first and the last entry that the member holds."""
    for gap in gaps:
        if gap:
            low = next_stored(metadata, index, gap[0])
            high = last_stored(metadata, index, gap[-1])
            if low <= high:
                yield low, high


def entry_bytes(metadata: LedgerMetadata) -> float:
    """Return the mean payload size of an entry, in bytes, from the length in the metadata.

    The length is advisory. The result is 0 if the ledger is not closed or has no entries.
    """
    return metadata.length / (metadata.last_entry_id + 1) if metadata.last_entry_id >= 0 else 0.0


def members(fragment: Fragment, bookies: Iterable[str]) -> list[int]:
    """Return the indexes of the given bookies in the fragment's ensemble, ascending."""
    wanted = set(bookies)
    return [index for index, bookie in enumerate(fragment.ensemble) if bookie in wanted]


def replaced_in(
    metadata: LedgerMetadata, segment_first: int, changes: Mapping[int, tuple[str, str]]
) -> Segment | None:
    """Return the segment that begins at `segment_first`, with some of its members replaced.

    `changes` has the old and the new bookie of each ensemble index to change. If the old bookie is
    no longer at an index, that index does not change, because another client has replaced it.

    Returns None if there is nothing to write: no index is left, the segment is gone, or it is the
    last segment of a ledger that is not closed. It also returns None if a new bookie has become a
    member of the segment in the meantime, because one bookie cannot be two members.
    """
    there = metadata.segment_of(segment_first)
    if there.first_entry_id != segment_first:
        return None
    if there is metadata.last_segment and not metadata.closed:
        return None
    ensemble = list(there.ensemble)
    for index, (old, new) in changes.items():
        if ensemble[index] == old:
            if new in ensemble:
                return None
            ensemble[index] = new
    if tuple(ensemble) == there.ensemble:
        return None
    return Segment(segment_first, tuple(ensemble))


def with_segments(metadata: LedgerMetadata, changed: Iterable[Segment]) -> LedgerMetadata:
    """Return the metadata with `changed` in place of the segments with the same first entries."""
    new = {one.first_entry_id: one for one in changed}
    segments = tuple(new.get(one.first_entry_id, one) for one in metadata.segments)
    return replace(metadata, segments=segments)
