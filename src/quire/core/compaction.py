"""Which segments of a log to compact, and why the others stay as they are. Pure.

A segment is worth it when too little of its file is alive and its share of the output is clearly
smaller than the file. Several go into one output, the emptiest first; or one alone, where those
together give back too little, or it is larger than segments are made today. The estimate of the
output is an upper bound: what is chosen fits into the room that was reserved for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quire.codec.log.state_records import BLOCK_BYTES

FIXED_BYTES = 8 * BLOCK_BYTES
"""Of an output, whatever is in it: header, partly filled blocks, trailer."""
FRAME_SHARE = 128
"""One byte in so many for the groups around the frames: their headers, checksums and padding."""
GAIN_SHARE = 16
"""A compaction must give back one byte of so many that it takes in."""


@dataclass(frozen=True, slots=True)
class CompactionCandidate:
    """A sealed segment, with what the choice depends on."""

    number: int
    file_bytes: int
    index_bytes: int
    """Of its footer: bounds what the tables of the output take."""
    live_bytes: int

    @property
    def live_ratio(self) -> float:
        """Of its file; 1 where there is no file to speak of."""
        return min(1.0, self.live_bytes / self.file_bytes) if self.file_bytes else 1.0

    @property
    def share_bytes(self) -> int:
        """The most that what lives in it takes in an output."""
        return self.live_bytes + self.live_bytes // FRAME_SHARE + 2 * self.index_bytes


@dataclass(frozen=True, slots=True)
class Choice:
    """Segments to rewrite as one, ascending: the output takes the place of the last."""

    numbers: tuple[int, ...]
    file_bytes: int
    output_bytes: int
    """At most."""

    @property
    def position(self) -> int:
        return self.numbers[-1]


def choose(
    segments: Iterable[CompactionCandidate],
    *,
    below_ratio: float,
    available_bytes: int,
    together_bytes: int,
) -> Choice | None:
    """Return the next compaction, or None if nothing below this live ratio is worth it, or fits.

    `available_bytes` is what the output may take, `together_bytes` what the output of several may
    take: as a rule the size of a segment.
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
        if best is None or taken - output > best.file_bytes - best.output_bytes:
            best = Choice(tuple(sorted(x.number for x in chosen)), taken, output)
    if best is not None and is_worth_it(best.file_bytes, best.output_bytes):
        return best
    # Emptier ones may have left no room for one that is worth it by itself.
    singles = (alone(one) for one in order)
    worth = [
        single
        for single in singles
        if single.output_bytes <= available_bytes
        and is_worth_it(single.file_bytes, single.output_bytes)
    ]
    return max(worth, key=lambda one: one.file_bytes - one.output_bytes, default=None)


def alone(one: CompactionCandidate) -> Choice:
    """This segment, whatever that gives back."""
    return Choice((one.number,), one.file_bytes, FIXED_BYTES + one.share_bytes)


def is_worth_it(file_bytes: int, output_bytes: int) -> bool:
    return file_bytes - output_bytes >= max(BLOCK_BYTES, file_bytes // GAIN_SHARE)


def why_not(one: CompactionCandidate, *, below_ratio: float, available_bytes: int) -> str:
    """Why `choose` does not take this segment alone; "" where it would."""
    if one.live_ratio >= below_ratio:
        return f"{one.live_ratio:.0%} of it is alive, it is compacted below {below_ratio:.0%}"
    output = FIXED_BYTES + one.share_bytes
    if not is_worth_it(one.file_bytes, output):
        return (
            f"rewriting it alone would give back next to nothing of {one.file_bytes} bytes; it "
            "waits for others"
        )
    if output > available_bytes:
        return f"rewriting it may take {output} bytes, there is room for {available_bytes}"
    return ""
