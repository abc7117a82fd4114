"""Data directories with segments that tests inspect and damage while their bookie is stopped."""

from __future__ import annotations

from quire.codec.log.footer import TRAILER_BYTES
from quire.storage.inspect.check import CheckedSegment, check_segments, survey
from quire.storage.inspect.contents import list_files, open_segment, segment_numbers
from quire.storage.inspect.rebuild import Rebuilt, plan, rebuild
from quire.storage.interfaces import Disk
from quire.storage.segment.footer import Sealed, SealInput, write_footer
from quire.storage.segment.segment import segment_name
from tests.support.storage.storage import StoreOnDisk

LEDGERS = (1, 2, 3, 4)


def filled(disk: Disk, sealed: int = 3) -> StoreOnDisk:
    """Write ledgers 1 to 4 in turn until `sealed` segments are sealed. Ledger 2 is fenced."""
    box = StoreOnDisk(disk)
    box.open()
    turn = 0
    while box.store.stats().sealed_segments < sealed:
        box.append([(ledger_id, turn, bytes(300)) for ledger_id in LEDGERS])
        box.pump()
        turn += 1
    box.fence(2)
    box.idle()
    return box


def checked(disk: Disk) -> tuple[list[CheckedSegment], tuple[str, ...]]:
    found = survey(disk)
    return list(check_segments(disk, found, lambda _: None)), found.problems


def problems_of(disk: Disk) -> list[str]:
    segments, problems = checked(disk)
    return [*problems, *(what for one in segments for what in one.problems)]


def rebuilt(disk: Disk, *, dry_run: bool = False) -> dict[int, Rebuilt]:
    found = rebuild(disk, plan(disk), lambda _: None, dry_run=dry_run)
    return {one.number: one for one in found}


def flip(disk: Disk, number: int, at: int) -> None:
    """Flip one bit of the byte at offset `at` in a segment's file."""
    file = disk.open(segment_name(number))
    (old,) = bytes(file.read(at, 1) or b"")
    file.write([bytes([old ^ 4])], at)
    file.sync()
    file.close()


def forgetful(seal: SealInput) -> Sealed:
    """Return an index that does not name ledger 3, in place of the right one."""
    kept = [one for one in seal.ledgers if one[0] != 3]
    return write_footer(SealInput(seal.directory_id, seal.segment, kept, seal.records))


def sealed_numbers(disk: Disk) -> list[int]:
    found = []
    for number in segment_numbers(disk):
        with open_segment(disk, number) as one:
            if one.description.state == "sealed":
                found.append(number)
    return found


def contents(disk: Disk) -> dict[str, bytes]:
    found = {}
    for one in list_files(disk):
        file = disk.open(one.name)
        found[one.name] = bytes(file.read(0, file.size()) or b"")
        file.close()
    return found


def spoilt(disk: Disk, number: int, part: str) -> None:
    """Flip one bit in a part of a segment's index, such as "rows" or "trailer"."""
    with open_segment(disk, number) as one:
        trailer = one.description.trailer
    assert trailer is not None
    places = {
        "rows": trailer.footer_at + 3, "records": trailer.records_at + 3,
        "checksums": trailer.checksums_at + 3, "summary": trailer.summary_at + 3,
        "trailer": trailer.file_bytes - TRAILER_BYTES + 30,
    }  # fmt: skip
    flip(disk, number, places[part])
