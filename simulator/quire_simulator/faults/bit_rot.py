"""Flip bits on a simulated disk, and record which bytes changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from quire.errors import StorageError
from quire.storage.inspect.contents import open_segment
from quire.storage.segment.segment import segment_name
from quire_simulator.machine.disk import SimDisk


@dataclass(frozen=True, slots=True)
class BitRot:
    """The bytes of one file that a fault changed."""

    name: str
    places: dict[int, tuple[int, int]]
    """A map from offset to the byte before and after the fault."""


def rot(disk: SimDisk, name: str, spacing_bytes: int) -> BitRot:
    return _recorded(disk, name, lambda: disk.rot(name, spacing_bytes))


def rot_entries(disk: SimDisk, number: int, share: float, chance: random.Random) -> BitRot:
    """Flip one bit in this share of the segment's groups.

    Only entries are changed, so the contents of the groups remain known.
    """

    def damage() -> None:
        try:
            with open_segment(disk, number) as segment:
                headers = [group.header for group in segment.groups()]
        except StorageError:
            return  # Earlier damage makes the segment unreadable.
        for header in headers:
            if header.payload_bytes and chance.random() < share:
                at = header.payload_offset + chance.randrange(header.payload_bytes)
                disk.flip_bit(segment_name(number), at)

    return _recorded(disk, segment_name(number), damage)


def _recorded(disk: SimDisk, name: str, damage: Callable[[], object]) -> BitRot:
    before = contents_of(disk, name)
    damage()
    after = contents_of(disk, name)
    return BitRot(
        name, {at: (b, a) for at, (b, a) in enumerate(zip(before, after, strict=True)) if a != b}
    )


def turned(events: Iterable[BitRot]) -> dict[str, dict[int, int]]:
    """Return, for each file, the offset and current value of every byte that these faults changed.

    Events are ordered from oldest to newest. A byte that was changed back is not damaged.
    """
    first: dict[tuple[str, int], int] = {}
    files: dict[str, dict[int, int]] = {}
    for one in events:
        places = files.setdefault(one.name, {})
        for at, (before, after) in one.places.items():
            if first.setdefault((one.name, at), before) == after:
                places.pop(at, None)
            else:
                places[at] = after
    return files


def contents_of(disk: SimDisk, name: str) -> bytes:
    file = disk.open(name)
    try:
        return file.read(0, file.size()) or b""
    finally:
        file.close()
