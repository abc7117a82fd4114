"""What of a damaged segment is copied when it is written anew, and what may be left out.

Left out are the entries in damaged blocks, and only those that a newer segment has. Where the
footer is damaged, the groups say what there is.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from quire.codec.log.footer import Trailer
from quire.codec.log.group import RunRow
from quire.codec.log.state_records import Deleted, FormatError, RecordKind, StateRecord
from quire.core.ranges import Range
from quire.storage.background.copies import Footers, Newer, lacking
from quire.storage.interfaces import File
from quire.storage.recovery.scan import scan_groups
from quire.storage.segment import extents
from quire.storage.segment.extents import Extent


@dataclass(frozen=True, slots=True)
class Salvage:
    """What the event loop hands over."""

    blocks: Sequence[Range]
    """Damaged: numbers of blocks of the file."""
    from_groups: bool
    """The footer is damaged, the run tables of all groups are not."""
    newer: Mapping[int, Newer]
    """Of every ledger that lives in the segment."""


@dataclass(frozen=True, slots=True)
class FromGroups:
    """What a footer would say, from the groups."""

    extents: dict[int, list[Extent]]
    records: list[StateRecord]
    checksums: array[int]


def read_groups(file: File, trailer: Trailer) -> FromGroups:
    """`FormatError` where a run table is damaged; `OSError`. Reads all of the segment."""
    scan = scan_groups(file, trailer.directory_id, trailer.segment, trailer.groups_at)
    found = FromGroups({}, [], array("I"))
    end = trailer.groups_at
    for group in scan.groups:
        if group.header.offset != end:
            break
        end = group.header.end
        found.checksums.extend(group.checksums)
        _add_runs(found, group.header.payload_offset, group.table.runs, group.table.records)
    if end != trailer.footer_at:
        raise FormatError("its index is damaged, and so is a run table")
    return found


def _add_runs(
    found: FromGroups, payload: int, runs: Sequence[RunRow], records: Sequence[StateRecord]
) -> None:
    """In the order in which they were logged: what stands before the deletion of its ledger is
    void."""
    done = 0
    for record in (*records, None):
        stop = len(runs) if record is None else record.run_index
        for row in runs[done:stop]:
            extent = Extent(
                row.ledger_id, row.first, payload + row.offset, row.count, row.frame_size,
                row.sizes, row.ids,
            )  # fmt: skip
            found.extents.setdefault(row.ledger_id, []).append(extent)
        done = max(done, stop)
        if record is not None:
            # As in a footer: where it stood among these runs means nothing elsewhere.
            found.records.append(replace(record, run_index=0))
            if is_original_deletion(record):
                found.extents.pop(record.ledger_id, None)


def is_original_deletion(record: StateRecord) -> bool:
    """Of a ledger, and not a copy, which voids nothing in its own segment."""
    if record.kind is not RecordKind.DELETED:
        return False
    return Deleted.decode(record.value).before_segment == 0


def healthy_extents(
    footers: Footers, ledger_id: int, runs: Sequence[Extent], salvage: Salvage
) -> list[Extent]:
    """What is to be copied of the runs of one ledger. `FormatError` where something would be left
    out that nothing newer has."""
    damaged = extents.damaged_entries(runs, salvage.blocks)
    newer = salvage.newer.get(ledger_id)
    left = damaged if newer is None else lacking(footers, ledger_id, damaged, newer)
    if left:
        raise FormatError(
            f"entry {left[0][0]} of ledger {ledger_id} is damaged, and nothing newer has it"
        )
    return [part for run in runs for part in extents.healthy(run, salvage.blocks)]
