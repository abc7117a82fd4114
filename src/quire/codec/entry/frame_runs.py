"""Runs of entries, as they are in the log and in the response to a BATCH_READ.

A bookie stores the frames of ADD requests unchanged and back to back. The response to a batch read
has the same entries, each after its length. Converting a run is one pass over its bytes, without an
object for each entry. Compaction writes bare frames, which are the bytes of the response already.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import overload

from quire.codec.wire.v2 import FRAME_HEADER_BYTES, LENGTH, Buffer, pack_entries

FRAMES_AT_ONCE = 64
"""The number of frames that one call unpacks. It limits how many objects for entries exist at the
same time."""


class FrameRun:
    """The entries of frames that are back to back and were checked."""

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
        """Describe a run.

        Args:
            frames: The bytes of the frames, and nothing else.
            count: The number of frames.
            frame_size: The size of each frame in bytes, or 0 if they have different sizes.
            sizes: The size of each frame, if they differ.
            head_bytes: The number of bytes of each frame before the entry.
        """
        self.count = count
        self.frame_size = frame_size
        self.frame_bytes = len(frames)
        self._sizes = sizes
        self._frames = frames
        self.head_bytes = head_bytes
        self._packed: Sequence[Buffer] | None = (frames,) if self.bare else None

    @property
    def bare(self) -> bool:
        """Whether each frame is only a length and the entry, as in the response to a batch read."""
        return self.head_bytes == LENGTH.size

    @property
    def size_bytes(self) -> int:
        """The number of bytes of the entries, without anything before them."""
        return self.frame_bytes - self.head_bytes * self.count

    def lies_in(self, memory: Buffer) -> bool:
        """Return whether the frames are a part of `memory`, and are not packed yet."""
        return self._packed is None and self._frames.obj is memory

    def pack(self, bodies: Sequence[Buffer] = ()) -> Sequence[Buffer]:
        """Return buffers to be joined, in which each entry follows its length.

        The length has 4 bytes and is big-endian. The packing is done once, and the frames are then
        released unless they are bare. `bodies` are the entries, if the caller has them and they
        have one size.
        """
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
        """Yield each entry without copying it."""
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
        """Return the first entry."""
        return next(self.entries())


@lru_cache(maxsize=256)
def _bodies_of(size: int, frames: int) -> struct.Struct:
    """Return the format that extracts the entries of this number of frames."""
    return struct.Struct(f"{FRAME_HEADER_BYTES}x{size - FRAME_HEADER_BYTES}s" * frames)


class Entries(Sequence[Buffer]):
    """Consecutive entries, in the runs in which they were read.

    Used as a sequence, it makes an object for each entry that is requested.
    """

    __slots__ = ("_count", "runs")

    def __init__(self) -> None:
        self.runs: list[FrameRun] = []
        self._count = 0

    def add(self, run: FrameRun) -> None:
        """Append a run."""
        self.runs.append(run)
        self._count += run.count

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all entries."""
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
    """Return the number of bytes of all entries."""
    return entries.size_bytes if isinstance(entries, Entries) else sum(map(len, entries))


def packed(entries: Sequence[Buffer]) -> list[Buffer]:
    """Return buffers to be joined, in which each entry follows its length (4 bytes, big-endian)."""
    if isinstance(entries, Entries):
        return [part for run in entries.runs for part in run.pack()]
    return [pack_entries(entries)]
