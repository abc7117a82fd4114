"""The contents of a simulated disk: files with durable and pending data, and changes of names."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

SECTOR_BYTES = 512


@dataclass(slots=True)
class InodeContent:
    """Bytes, followed by zeros up to `size`.

    Space that was preallocated and never written takes no memory.
    """

    written: bytearray = field(default_factory=bytearray)
    size: int = 0

    def apply(self, offset: int, data: bytes | None) -> None:
        """Write `data`, or set the size to `offset` if it is None."""
        written = self.written
        if data is None:
            del written[offset:]
            self.size = offset
        elif data:
            if offset > len(written):
                written.extend(bytes(offset - len(written)))
            written[offset : offset + len(data)] = data
            self.size = max(self.size, offset + len(data))

    def read(self, offset: int, end: int) -> bytes:
        end = min(end, self.size)
        return bytes(memoryview(self.written)[offset:end]).ljust(max(0, end - offset), b"\0")

    def copy(self) -> InodeContent:
        return InodeContent(bytearray(self.written), self.size)


@dataclass(slots=True, eq=False)
class Inode:
    """One file, under any name. A change is (offset, bytes), or (size, None) for a new size."""

    data: InodeContent = field(default_factory=InodeContent)
    durable: InodeContent = field(default_factory=InodeContent)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    bad: list[range] = field(default_factory=list)
    linked: bool = True
    """Whether the file has a name. Only then do its bytes count against the capacity."""


@dataclass(slots=True)
class EntryChange:
    """An atomic change of names: each gets an inode, True for a directory, or None if removed."""

    names: dict[str, Inode | bool | None]


def set_entries(entries: dict[str, Inode | bool], change: EntryChange) -> None:
    for name, entry in change.names.items():
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry


def sectors_of(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    """Split a write into the parts that the device writes completely or not at all."""
    first = SECTOR_BYTES - offset % SECTOR_BYTES
    cuts = [0, *range(first, len(data), SECTOR_BYTES), len(data)]
    return [(offset + a, data[a:b]) for a, b in pairwise(cuts)]
