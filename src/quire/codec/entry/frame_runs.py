"""Entries as they lie in the log, and as a BATCH_READ answer has them: without an object for each.

A bookie stores the frames of an ADD as they came, back to back, and a batch read's answer is their
entries with a length before each. What lies between is one pass over the bytes of a run. What a
compaction has written has bare frames: these are the answer already.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import overload

from quire.codec.wire.v2 import FRAME_HEADER_BYTES, LENGTH, Buffer, pack_entries

FRAMES_AT_ONCE = 64
"""Unpacked by one call: an object for each entry is what packing costs, and these are not there
for longer than their part of the answer takes to be made."""


class FrameRun:
    """The entries of frames that lie back to back and have been checked."""

    __slots__ = (
        "_frames", "_packed", "_sizes", "count", "frame_bytes", "frame_size", "head_bytes",
    )  # fmt: skip

    def __init__(
        self,
        frames: memoryview,
        count: int,
        frame_size: int,
        sizes: Sequence[int] = (),
        head_bytes: int = FRAME_HEADER_BYTES,
    ) -> None:
        """`frames`: just these; `frame_size`: of each, or 0 where they have the `sizes` listed;
        `head_bytes`: of each, before the entry."""
        self.count = count
        self.frame_size = frame_size
        self.frame_bytes = len(frames)
        self._sizes = sizes
        self._frames = frames
        self.head_bytes = head_bytes
        self._packed: Sequence[Buffer] | None = (frames,) if self.bare else None

    @property
    def bare(self) -> bool:
        """They are the answer already: see above."""
        return self.head_bytes == LENGTH.size

    @property
    def size_bytes(self) -> int:
        """Of the entries, without anything before them."""
        return self.frame_bytes - self.head_bytes * self.count

    def lies_in(self, memory: Buffer) -> bool:
        """Whether its frames are a part of just this object, and are not packed yet."""
        return self._packed is None and self._frames.obj is memory

    def pack(self, bodies: Sequence[Buffer] = ()) -> Sequence[Buffer]:
        """Parts which joined have a length (4 bytes) before each entry. Done once; the frames are
        then let go, unless they are just that. `bodies`: the entries, of one size, where somebody
        has them."""
        if self._packed is None:
            self._packed = self._joined(bodies) if bodies else self._pack()
            self._frames = memoryview(b"")
        return self._packed

    def _joined(self, bodies: Sequence[Buffer]) -> list[bytes]:
        return [LENGTH.pack(self.frame_size - self.head_bytes).join((b"", *bodies))]

    def _pack(self) -> list[bytes]:
        if self.count == 1:
            body = self._frames[FRAME_HEADER_BYTES:]
            return [LENGTH.pack(len(body)) + body]
        if not self.frame_size:
            return [pack_entries(list(self.entries()))]
        size, frames = self.frame_size, self._frames
        length = LENGTH.pack(size - FRAME_HEADER_BYTES)
        end = self.count // FRAMES_AT_ONCE * FRAMES_AT_ONCE * size
        parts = [
            length.join((b"", *bodies))  # see pack_entries
            for bodies in _bodies_of(size, FRAMES_AT_ONCE).iter_unpack(frames[:end])
        ]
        if end < len(frames):
            rest = [body for (body,) in _bodies_of(size, 1).iter_unpack(frames[end:])]
            parts.append(length.join((b"", *rest)))
        return parts

    def entries(self) -> Iterator[memoryview]:
        """Each, not copied."""
        skip, parts = FRAME_HEADER_BYTES, [self._frames]
        if self._packed is not None:
            skip, parts = LENGTH.size, [memoryview(part) for part in self._packed]
        index = 0
        for part in parts:
            at = 0
            while at < len(part):
                size = (self.frame_size or self._sizes[index]) - self.head_bytes
                at += skip
                yield part[at : at + size]
                at += size
                index += 1

    def first(self) -> memoryview:
        return next(self.entries())


@lru_cache(maxsize=256)
def _bodies_of(size: int, frames: int) -> struct.Struct:
    """The entry bytes of so many frames."""
    return struct.Struct(f"{FRAME_HEADER_BYTES}x{size - FRAME_HEADER_BYTES}s" * frames)


class Entries(Sequence[Buffer]):
    """Consecutive entries, in the runs in which they were read. As a sequence it makes an object of
    each entry that is asked for."""

    __slots__ = ("_count", "runs")

    def __init__(self) -> None:
        self.runs: list[FrameRun] = []
        self._count = 0

    def add(self, run: FrameRun) -> None:
        self.runs.append(run)
        self._count += run.count

    @property
    def size_bytes(self) -> int:
        return sum(run.size_bytes for run in self.runs)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Buffer]:
        for run in self.runs:
            yield from run.entries()

    @overload
    def __getitem__(self, index: int) -> Buffer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Buffer]: ...
    def __getitem__(self, index: int | slice) -> Buffer | Sequence[Buffer]:
        if index == 0 and self._count:
            return self.runs[0].first()
        return list(self)[index]


def entry_bytes(entries: Sequence[Buffer]) -> int:
    """How many bytes they have together."""
    return entries.size_bytes if isinstance(entries, Entries) else sum(map(len, entries))


def packed(entries: Sequence[Buffer]) -> list[Buffer]:
    """Parts which joined have a length (4 bytes) before each entry."""
    if isinstance(entries, Entries):
        return [part for run in entries.runs for part in run.pack()]
    return [pack_entries(entries)]
