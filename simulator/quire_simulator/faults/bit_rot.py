"""Bits that flip on a simulated disk, and a record of which they were."""

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
    """Offset -> the byte that was there before, and the one that is there since."""


def rot(disk: SimDisk, name: str, spacing_bytes: int) -> BitRot:
    return _recorded(disk, name, lambda: disk.rot(name, spacing_bytes))


def rot_entries(disk: SimDisk, number: int, share: float, chance: random.Random) -> BitRot:
    """One bit in so large a share of the groups of this segment, and only in their entries: what
    the groups hold is still known."""

    def damage() -> None:
        try:
            with open_segment(disk, number) as segment:
                headers = [group.header for group in segment.groups()]
        except StorageError:
            return  # too much of it is wrong already
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
    """File -> offset -> the byte that is there behind all of these, the oldest first. One whose
    bits turned back is not damaged."""
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
