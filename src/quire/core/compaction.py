"""The choice of the segments of a log to compact, and the reasons why others stay as they are.

A segment is worth compacting if too little of its file is live, and its share of the output is
clearly smaller than the file. Several segments are rewritten as one output, the emptiest first. A
segment is rewritten alone if several together free too little, or if it is larger than new segments
are. The estimate of the output is an upper bound, so the output fits into the space that was
reserved for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quire._runtime.units import percent_text
from quire.codec.log.state_records import BLOCK_BYTES

FIXED_BYTES = 8 * BLOCK_BYTES
"""The bytes that every output file takes: header, trailer and partly filled blocks."""
FRAME_SHARE = 128
"""The bytes of entry frames for which the estimate of the output adds one byte. It stands for the
headers, checksums and padding of groups of frames."""
GAIN_SHARE = 16
"""The number of bytes that a compaction may read for each byte that it frees."""


@dataclass(frozen=True, slots=True)
class CompactionCandidate:
    """A sealed segment, with the sizes on which the choice depends."""

    number: int
    """The number of the segment."""
    file_bytes: int
    """The size of the segment's file."""
    index_bytes: int
    """The size of the index in the segment's footer, which bounds the index in the output."""
    live_bytes: int
    """The bytes of the entries in the segment that are still needed."""

    @property
    def live_ratio(self) -> float:
        """The share of the segment's file that is live, from 0 to 1. It is 1 for an empty file."""
        return min(1.0, self.live_bytes / self.file_bytes) if self.file_bytes else 1.0

    @property
    def share_bytes(self) -> int:
        """The largest number of bytes that the segment's live entries take in an output."""
        return self.live_bytes + self.live_bytes // FRAME_SHARE + 2 * self.index_bytes


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of segments to rewrite as one segment, the output.

    The output takes the place of the segment with the highest number, and the others are removed.
    """

    numbers: tuple[int, ...]
    """The numbers of the segments to rewrite, ascending."""
    file_bytes: int
    """The size of all files to rewrite, in bytes."""
    output_bytes: int
    """The largest size of the output, in bytes."""

    @property
    def position(self) -> int:
        """The number of the segment whose place the output takes."""
        return self.numbers[-1]

    @property
    def freed_bytes(self) -> int:
        """The least number of bytes that the compaction frees."""
        return self.file_bytes - self.output_bytes


def choose(
    segments: Iterable[CompactionCandidate],
    *,
    below_ratio: float,
    available_bytes: int,
    together_bytes: int,
) -> Choice | None:
    """Return the segments to compact next, or None if no compaction frees enough or fits.

    Args:
        segments: The sealed segments.
        below_ratio: The live ratio below which a segment may be compacted.
        available_bytes: The bytes that the output may take.
        together_bytes: The bytes that the output of several segments may take, usually the size of
            a segment.
    """
    order = sorted(
        (one for one in segments if one.live_ratio < below_ratio),
        key=lambda one: (one.live_ratio, one.number),
    )
    best: Choice | None = None
    chosen: list[CompactionCandidate] = []
    taken, output = 0, FIXED_BYTES
    for one in order:
        if output + one.share_bytes > min(available_bytes, together_bytes):
            continue
        chosen.append(one)
        taken += one.file_bytes
        output += one.share_bytes
        if best is None or taken - output > best.freed_bytes:
            best = Choice(tuple(sorted(x.number for x in chosen)), taken, output)
    if best is not None and is_worth_it(best.file_bytes, best.output_bytes):
        return best
    # Emptier segments may have left no space for one that is worth it alone.
    singles = (alone(one) for one in order)
    worth = [
        single
        for single in singles
        if single.output_bytes <= available_bytes
        and is_worth_it(single.file_bytes, single.output_bytes)
    ]
    return max(worth, key=lambda one: one.freed_bytes, default=None)


def alone(one: CompactionCandidate) -> Choice:
    """Return a choice of one segment alone, however little its compaction frees."""
    return Choice((one.number,), one.file_bytes, FIXED_BYTES + one.share_bytes)


def is_worth_it(file_bytes: int, output_bytes: int) -> bool:
    """Return whether a compaction frees at least one block and 1/`GAIN_SHARE` of what it reads.

    `file_bytes` is the size of the files that it reads, and `output_bytes` that of its output.
    """
    return file_bytes - output_bytes >= max(BLOCK_BYTES, file_bytes // GAIN_SHARE)


def why_not(one: CompactionCandidate, *, below_ratio: float, available_bytes: int) -> str:
    """Return the reason why `choose` does not compact a segment alone, or "" if it would."""
    if one.live_ratio >= below_ratio:
        return (
            f"{percent_text(one.live_ratio)} of it is live; it is compacted below "
            f"{percent_text(below_ratio)}"
        )
    output = FIXED_BYTES + one.share_bytes
    if not is_worth_it(one.file_bytes, output):
        return (
            f"rewriting it alone would free next to nothing of {one.file_bytes} bytes; it "
            "waits for others to be rewritten with it"
        )
    if output > available_bytes:
        return f"rewriting it may take {output} bytes, but only {available_bytes} are available"
    return ""
