"""Check that bookies find the bits that flipped on their disks once faults have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from quire.codec.log.footer import Trailer
from quire.codec.log.state_records import BLOCK_BYTES
from quire.errors import StorageError
from quire.storage.background.quarantine_record import SegmentDamage, stored_records
from quire.storage.inspect.contents import open_segment
from quire.storage.segment.segment import number_of
from quire_simulator.faults.bit_rot import contents_of, turned
from quire_simulator.world.stage import Stage

ROUNDS_MAX = 60
ROUND_S = 1.0


async def judge(stage: Stage) -> None:
    """Check that every bookie has recorded exactly the damaged blocks of its sealed segments."""
    for name in [name for name in stage.world.bookies if name not in stage.world.destroyed]:
        for number, _ in stored_records(stage.world.disks[name]):
            what = f"{name} reports damage in segment {number}, but its disk is not damaged"
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
        # If a footer is damaged, the number of lost groups is unknown, so absence is unknown for
        # all ledgers.
        sealed = {one.number for one in bookie.store.usage() if one.state == "sealed"}
        for file, places in turned(stage.world.bit_rot.get(name, ())).items():
            number = number_of(file)
            if number is None or (number not in sealed and bookie.store.negatives_unknown):
                continue
            try:
                with open_segment(disk, number) as segment:
                    trailer = segment.description.trailer
            except (FileNotFoundError, StorageError):
                continue
            if trailer is not None:
                for block in _unknown_blocks(
                    contents_of(disk, file), places, trailer, known.get(number)
                ):
                    yield f"{name} has not recorded that block {block} of {file} is damaged"


def _unknown_blocks(
    data: bytes, places: Mapping[int, int], trailer: Trailer, known: SegmentDamage | None
) -> Iterator[int]:
    for at, value in places.items():
        block = at // BLOCK_BYTES
        if not trailer.groups_at <= at < trailer.footer_at or data[at : at + 1] != bytes([value]):
            continue  # Outside the groups, or repaired since.
        if known is None or not any(first <= block <= last for first, last in known.blocks):
            yield block
