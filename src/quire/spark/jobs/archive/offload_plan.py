"""The plan of an offload: what is copied in which pieces, and the check of the results.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from quire._runtime.batches import batches
from quire._runtime.units import counted
from quire.errors import StreamDamagedError, UsageError
from quire.spark.jobs.archive.manifest import Manifest
from quire.spark.jobs.archive.parquet_files import SegmentPart
from quire.spark.jobs.tasks import Piece
from quire.spark.streams.plan import SegmentRange
from quire.streams import DLSN, Gap, StreamSegment


@dataclass(frozen=True, slots=True)
class OffloadStep:
    """Whole segments that one manifest adds."""

    parts: tuple[SegmentPart, ...]
    behind: DLSN
    """The position after the last segment that this step copies."""
    sequence: int | None
    """The number of records in the stream before `behind`, or None if it is unknown."""
    ledger_id: int
    """The ledger of the last segment that this step copies."""


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """The segments that a job copies, in steps. A manifest is written after each step."""

    start: DLSN
    """The position at which the history begins, if no history exists before this job."""
    gaps: tuple[Gap, ...]
    """The records from `start` on that no longer exist."""
    turns: tuple[OffloadStep, ...] = ()
    """The steps in the order of the stream."""
    ledger_bytes: int = field(default=0)
    """The payload bytes of all segments that are copied, counted for one replica."""

    @property
    def behind(self) -> DLSN:
        """The position before which the history ends after the job."""
        return self.turns[-1].behind if self.turns else self.start


def eligible(
    segments: Sequence[StreamSegment],
    sizes: Sequence[int],
    *,
    closed_before_ms: int | None,
    larger_than: int | None,
) -> int:
    """Return the number of segments to offload, beginning with the oldest.

    A segment is offloaded if it was completed by `closed_before_ms`, or if it and all later
    segments have more than `larger_than` bytes together. None disables a condition.
    """
    left = sum(sizes)
    for at, (segment, size) in enumerate(zip(segments, sizes)):
        old = closed_before_ms is not None and segment.completion_time_ms <= closed_before_ms
        large = larger_than is not None and left > larger_than
        if not old and not large:
            return at
        left -= size
    return len(segments)


def turns_of(
    ranges: Sequence[SegmentRange], sizes: Sequence[int], *, file_bytes: int, turn_bytes: int
) -> Iterator[OffloadStep]:
    """Yield the steps that copy these segments, each as parts of about `file_bytes`.

    `sizes` are the bytes that are copied of each segment. A step has whole segments, and ends once
    it has `turn_bytes` or more.
    """
    parts: list[SegmentPart] = []
    size_bytes = 0
    for at, (one, size) in enumerate(zip(ranges, sizes)):
        segment = one.segment
        parts += parts_of(segment, one.start, size, file_bytes)
        size_bytes += size
        if size_bytes >= turn_bytes or at == len(ranges) - 1:
            known = segment.following_sequence_id if segment.first_sequence_id >= 0 else None
            behind = segment.first_dlsn.next_segment()
            yield OffloadStep(tuple(parts), behind, known, segment.ledger_id)
            parts, size_bytes = [], 0


def parts_of(
    segment: StreamSegment, start: DLSN, size_bytes: int, file_bytes: int
) -> list[SegmentPart]:
    """Return the segment from `start` on as parts of about `file_bytes` each.

    A small segment is one part. The entries of a segment count as equally large.
    """
    first, last = start.entry_id, segment.last_entry_id
    entries = last - first + 1
    count = max(1, min(entries, -(-size_bytes // file_bytes)))
    cuts = [first + entries * at // count for at in range(count + 1)]
    return [SegmentPart(segment, a, b - 1, size_bytes // count) for a, b in pairwise(cuts)]


def together(parts: Sequence[SegmentPart], file_bytes: int) -> Iterator[list[SegmentPart]]:
    """Yield the parts of each file. Small segments share a file of about `file_bytes`."""
    return batches(parts, lambda part: part.size_bytes, file_bytes)


def check_same_stream(
    stream: str, manifest: Manifest | None, completed: Sequence[StreamSegment], where: str
) -> None:
    """Raise UsageError if a ledger shows that this is another stream of the same name.

    `where` is the directory of the manifest, for the error.

    The life does not always show it: Java leaves the node of the life when it deletes a stream.
    """
    for segment in completed:
        if (
            manifest is not None
            and manifest.commit
            and segment.first_dlsn.next_segment() == manifest.behind
            and segment.ledger_id != manifest.ledger_id
        ):
            raise UsageError(
                f"the directory {where} holds the offloaded history of a former stream that was "
                f"also named {stream}: its segment {segment.lssn} was in ledger "
                f"{manifest.ledger_id}, and that of the present stream is in ledger "
                f"{segment.ledger_id}. Nothing was changed",
                remedy="Use another directory for the present stream",
            )


def check_answers(stream: str, parts: Sequence[SegmentPart], answers: Sequence[Piece]) -> None:
    """Check that each segment has the records of its metadata, and that they are consecutive.

    Raises StreamDamagedError if they are not.
    """
    found: dict[int, list[list[int]]] = {}
    for answer in answers:
        for number, tally in answer["segments"].items():
            found.setdefault(int(number), []).append(tally)
    for segment in {part.segment.lssn: part.segment for part in parts}.values():
        tallies = found.pop(segment.lssn, [])
        rows = sum(tally[0] for tally in tallies)
        expected = segment.record_count
        last = segment.first_sequence_id + segment.record_count - 1
        follow = all(a[2] + 1 == b[1] for a, b in pairwise(tallies))
        if segment.min_active_dlsn > segment.first_dlsn and tallies:
            expected = last - tallies[0][1] + 1  # its beginning was truncated
        if rows != expected or not follow or (tallies and tallies[-1][2] != last):
            if rows != expected:
                what = (
                    f"the job read {counted(rows, 'record')} from it, but its metadata says "
                    f"{expected:,}"
                )
            else:
                what = (
                    f"the sequences of the {counted(rows, 'record')} that the job read from it "
                    f"have gaps, or do not end at {last:,} as its metadata says"
                )
            raise StreamDamagedError(
                f"segment {segment.lssn} of stream {stream} (ledger {segment.ledger_id}) was not "
                f"offloaded: {what}",
                remedy="Run the job again. If the error returns, check the entries with `quire "
                f"explain ledger {segment.ledger_id} --deep`, and report it",
            )
    assert not found
