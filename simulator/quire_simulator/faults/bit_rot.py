"""Bits that turned on a disk, and whether the bookie has found them when all is quiet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.codec.log.footer import Trailer
from quire.codec.log.state_records import BLOCK_BYTES
from quire.errors import StorageError
from quire.storage.background.quarantine_record import SegmentDamage, stored_records
from quire.storage.inspect.contents import number_of, open_segment
from quire.storage.segment.segment import segment_name
from quire_simulator.machine.disk import SimDisk

if TYPE_CHECKING:
    from quire_simulator.world.stage import Stage

ROUNDS_MAX = 60
ROUND_S = 1.0


@dataclass(frozen=True, slots=True)
class Rotten:
    """What befell one file."""

    name: str
    places: dict[int, tuple[int, int]]
    """Offset -> the byte that was there before, and the one that is there since."""


def rot(disk: SimDisk, name: str, spacing_bytes: int) -> Rotten:
    return _rotten(disk, name, lambda: disk.rot(name, spacing_bytes))


def rot_entries(disk: SimDisk, number: int, share: float, chance: random.Random) -> Rotten:
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

    return _rotten(disk, segment_name(number), damage)


def _rotten(disk: SimDisk, name: str, damage: Callable[[], object]) -> Rotten:
    before = _contents(disk, name)
    damage()
    after = _contents(disk, name)
    return Rotten(
        name, {at: (b, a) for at, (b, a) in enumerate(zip(before, after, strict=True)) if a != b}
    )


def turned(befell: Iterable[Rotten]) -> dict[str, dict[int, int]]:
    """File -> offset -> the byte that is there behind all of these, the oldest first. One whose
    bits turned back is not damaged."""
    first: dict[tuple[str, int], int] = {}
    files: dict[str, dict[int, int]] = {}
    for one in befell:
        places = files.setdefault(one.name, {})
        for at, (before, after) in one.places.items():
            if first.setdefault((one.name, at), before) == after:
                places.pop(at, None)
            else:
                places[at] = after
    return files


def _contents(disk: SimDisk, name: str) -> bytes:
    file = disk.open(name)
    try:
        return file.read(0, file.size()) or b""
    finally:
        file.close()


async def judge(stage: Stage) -> None:
    """Every bookie has written down which blocks of its sealed segments are damaged, and none that
    are not."""
    for name in [name for name in stage.world.bookies if name not in stage.world.destroyed]:
        for number, _ in stored_records(stage.world.disks[name]):
            what = f"{name} believes that its segment {number} is damaged"
            stage.checker.fail("a_good_disk_is_not_called_damaged", what)
    for _ in range(ROUNDS_MAX):
        unknown = list(_unknown(stage))
        if not unknown:
            return
        await asyncio.sleep(ROUND_S)
    stage.checker.fail("damage_is_found", unknown[0])


def _unknown(stage: Stage) -> Iterator[str]:
    for name, bookie in stage.world.bookies.items():
        disk = stage.world.disks[name]
        known = dict(stored_records(disk))
        # Where a footer is not believed, groups are lost of which nobody knows: all is doubted.
        sealed = {one.number for one in bookie.store.usage() if one.state == "sealed"}
        for file, places in turned(stage.world.rotten.get(name, ())).items():
            number = number_of(file)
            if number is None or (number not in sealed and bookie.store.negatives_unknown):
                continue
            try:
                with open_segment(disk, number) as segment:
                    trailer = segment.facts.trailer
            except (FileNotFoundError, StorageError):
                continue
            if trailer is not None:
                for block in _unknown_blocks(
                    _contents(disk, file), places, trailer, known.get(number)
                ):
                    yield f"{name} does not know that block {block} of {file} is damaged"


def _unknown_blocks(
    data: bytes, places: Mapping[int, int], trailer: Trailer, known: SegmentDamage | None
) -> Iterator[int]:
    for at, value in places.items():
        block = at // BLOCK_BYTES
        if not trailer.groups_at <= at < trailer.footer_at or data[at : at + 1] != bytes([value]):
            continue  # not of the groups, or mended since
        if known is None or not any(first <= block <= last for first, last in known.blocks):
            yield block
