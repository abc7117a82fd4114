"""The pieces of work of an audit, and their execution.

Pieces and answers are JSON values, so that any machine can execute any piece. They contain no
passwords.

    look      Read which ledgers exist, and what each bookie should have of them.
    read      Read one bookie's parts of some ledgers. Return problems, and sums over good entries.
    compare   Compare blocks of one ledger whose sums differ, entry by entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quire._runtime.batches import batches
from quire._runtime.tasks import TaskGroup, each
from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.core.fragments import Fragment, entry_bytes, stored_count
from quire.core.replicas import BLOCK_ENTRIES, Bad, Kind, Sums
from quire.errors import NoSuchLedgerError
from quire.metadata.ledgers.unreadable import UNREADABLE, reason_of
from quire.replication.budget import Budget
from quire.replication.repair.opened_ledger import OpenedLedger, open_for_repair
from quire.replication.repair.replica_scan import ReplicaScan, compare, scan

Piece = Mapping[str, Any]

LEDGERS_PER_PIECE = 2_000
"""The largest number of ledgers whose metadata one piece reads."""
PIECE_BYTES = 64 * 1024 * 1024
"""The largest number of payload bytes, approximately, that one piece reads from its bookie."""
PIECE_PARTS_MAX = 2_000
"""The largest number of parts in one piece, which matters if ledgers are small."""
ENTRY_BYTES_GUESS = 1_024
"""The assumed size, in bytes, of the entries of an open ledger, whose length is not known."""
PARTS_AT_ONCE = 4
"""The number of parts that one piece of work reads at the same time if its rate is not limited.
Reading several saves time if ledgers are small, because most of it is spent waiting for answers."""
SILENT = "the bookie did not answer an earlier request"


@dataclass(frozen=True, slots=True)
class PlannedLedger:
    """A ledger as it was when the audit began, which is what the audit reads of it."""

    ledger: int
    metadata: LedgerMetadata
    """The ledger's metadata. After `from_json`, it has only the quorums, the segments and the
    length, and `last` as its last entry: no password and no digest type."""
    last: int
    """The id of the last entry that is known to be acknowledged."""
    fragments: tuple[Fragment, ...]

    def as_json(self) -> dict[str, Any]:
        value = self.metadata
        return {
            "ledger": self.ledger,
            "quorums": [value.ensemble_size, value.write_quorum, value.ack_quorum],
            "length": value.length,
            "last": self.last,
            "fragments": [
                [one.segment_first, one.last, list(one.ensemble), one.closed]
                for one in self.fragments
            ],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> PlannedLedger:
        ensemble_size, write_quorum, ack_quorum = found["quorums"]
        fragments = tuple(
            Fragment(first, last, tuple(ensemble), closed)
            for first, last, ensemble, closed in found["fragments"]
        )
        metadata = LedgerMetadata(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            segments=tuple(Segment(one.segment_first, one.ensemble) for one in fragments),
            last_entry_id=found["last"],
            length=found["length"],
        )
        return cls(found["ledger"], metadata, found["last"], fragments)


# -- metadata ---------------------------------------------------------------------------------


async def look(client: Client, piece: Piece, password: bytes = b"") -> Piece:
    """Read the metadata of the ledgers of a piece of work, and return the answer.

    `ledgers` of the answer has each `PlannedLedger` as JSON, without ledgers that were deleted.
    `unreadable` has a pair of the id and the reason for each ledger whose metadata cannot be read.
    `password` is used for ledgers whose metadata does not contain one. Raises MetadataError if the
    metadata store does not answer.
    """
    unread: list[list[Any]] = []

    async def one(ledger_id: int) -> dict[str, Any] | None:
        try:
            ledger = await open_for_repair(client, ledger_id, password=password)
        except NoSuchLedgerError:
            return None
        except UNREADABLE as error:
            unread.append([ledger_id, reason_of(error)])
            return None
        planned = PlannedLedger(
            ledger_id, ledger.metadata, ledger.last_add_confirmed, tuple(ledger.fragments())
        )
        return planned.as_json()

    found = await each(piece["ledgers"], one)
    return {"ledgers": [one for one in found if one is not None], "unreadable": unread}


# -- reading ----------------------------------------------------------------------------------

Part = tuple[int, int, int, int, int]
"""A part of a replica: the ledger id, the first entry id of the segment, the index of the bookie in
its ensemble, and the first and the last entry id to read."""


def parts(
    ledgers: Iterable[PlannedLedger], part_bytes: int = PIECE_BYTES
) -> dict[str, list[tuple[Part, int]]]:
    """Return the parts to read from each bookie, by bookie id, each with its size.

    The size is an estimate of the payload in bytes.

    Segments are divided at multiples of `BLOCK_ENTRIES`, so that no block of a segment is in two
    parts. A part covers about `part_bytes` of its segment, or one block if that is larger.
    """
    found: dict[str, list[tuple[Part, int]]] = {}
    for planned in ledgers:
        metadata = planned.metadata
        mean = entry_bytes(metadata) or ENTRY_BYTES_GUESS
        blocks = max(int(part_bytes / mean / BLOCK_ENTRIES), 1)
        for fragment in planned.fragments:
            first = fragment.first
            while first <= fragment.last:
                end = (first // BLOCK_ENTRIES + blocks) * BLOCK_ENTRIES - 1
                last = min(end, fragment.last)
                for index, bookie in enumerate(fragment.ensemble):
                    count = stored_count(metadata, index, first, last)
                    if count:
                        part = (planned.ledger, fragment.segment_first, index, first, last)
                        found.setdefault(bookie, []).append((part, int(count * mean)))
                first = last + 1
    return found


def pieces(
    by_bookie: Mapping[str, Sequence[tuple[Part, int]]], piece_bytes: int, rate: float | None
) -> list[list[Piece]]:
    """Combine parts into pieces of work, and return the pieces in turns.

    A turn is a list of pieces that may be read at the same time. With a `rate` in bytes per second,
    it has at most one piece for each bookie. Each piece observes the rate, and turns follow each
    other, so no bookie is read faster. Without a rate, there is one turn, in which pieces of
    different bookies alternate.

    Args:
        by_bookie: The parts of each bookie with their sizes, as `parts` returns them.
        piece_bytes: The largest size of a piece of several parts.
        rate: The largest rate at which one bookie is read, or None for no limit.
    """
    queues: list[list[Piece]] = []
    for bookie, todo in sorted(by_bookie.items()):
        some = batches(todo, lambda sized: sized[1], piece_bytes, PIECE_PARTS_MAX)
        queues.append(
            [
                {"bookie": bookie, "rate": rate, "parts": [part for part, _ in chosen]}
                for chosen in some
            ]
        )
    turns = [
        [queue[number] for queue in queues if number < len(queue)]
        for number in range(max(map(len, queues), default=0))
    ]
    return turns if rate is not None else [[piece for turn in turns for piece in turn]]


async def read(client: Client, piece: Piece, password: bytes = b"") -> Piece:
    """Read the parts of a piece of work from its bookie, and return the answer.

    `answers` of the answer has an item for each part: its bad ranges, the checksums of its good
    entries, and the number and payload bytes of these. A part has no item if its ledger was deleted
    or cannot be read, or if another bookie has replaced this one. `unreadable` has a pair of the id
    and the reason for each ledger whose metadata cannot be read. `password` is used for ledgers
    whose metadata does not contain one. Raises MetadataError if the metadata store does not answer.
    """
    bookie: str = piece["bookie"]
    budget = Budget(piece["rate"])
    answers: list[dict[str, Any]] = []
    opened: dict[int, OpenedLedger | None] = {}
    unread: list[list[Any]] = []
    silent = False
    upcoming = iter([tuple(part) for part in piece["parts"]])

    async def some() -> None:
        nonlocal silent
        for part in upcoming:
            ledger_id, segment_first, index, first, last = part
            if ledger_id not in opened:
                opened[ledger_id] = await _opened(client, ledger_id, password, unread)
            found = _place(opened[ledger_id], segment_first, index, bookie)
            if found is None:
                continue
            ledger, fragment = found
            if silent:  # the earlier read has repeated its requests already
                result = ReplicaScan(bad=[Bad(first, last, Kind.UNREACHABLE, SILENT)])
            else:
                result = await scan(client, ledger, fragment, index, first, last, budget=budget)
                silent = silent or result.silent
            answers.append({"part": list(part), **_scan_as_json(result)})

    async with TaskGroup() as group:
        for _ in range(1 if budget.bounded else PARTS_AT_ONCE):
            group.create_task(some())
    return {"answers": answers, "unreadable": unread}


async def _opened(
    client: Client, ledger_id: int, password: bytes, unread: list[list[Any]]
) -> OpenedLedger | None:
    try:
        return await open_for_repair(client, ledger_id, password=password, ask=False)
    except NoSuchLedgerError:
        return None
    except UNREADABLE as error:
        unread.append([ledger_id, reason_of(error)])
        return None


def _place(
    ledger: OpenedLedger | None, segment_first: int, index: int, bookie: str
) -> tuple[OpenedLedger, Fragment] | None:
    if ledger is None:
        return None
    for fragment in ledger.fragments():
        if fragment.segment_first == segment_first and fragment.ensemble[index] == bookie:
            return ledger, fragment
    return None


def _scan_as_json(found: ReplicaScan) -> dict[str, Any]:
    return {
        "bad": bad_as_json(found.bad),
        "sums": [[*key, *value] for key, value in found.sums.items()],
        "entries": found.entries,
        "bytes": found.size_bytes,
    }


def bad_as_json(found: Iterable[Bad]) -> list[list[Any]]:
    return [[bad.first, bad.last, bad.kind.value, bad.detail] for bad in found]


def bad_from_json(found: Iterable[Sequence[Any]]) -> list[Bad]:
    return [Bad(first, last, Kind(kind), detail) for first, last, kind, detail in found]


def sums_from_json(found: Iterable[Sequence[int]]) -> Sums:
    return {(block, residue): (count, total) for block, residue, count, total in found}


# -- comparing --------------------------------------------------------------------------------


async def compare_blocks(client: Client, piece: Piece, password: bytes = b"") -> Piece:
    """Compare the replicas of some blocks of one ledger entry by entry, and return the answer.

    `answers` of the answer has, for each member whose entries differ from the others, the first
    entry id of the segment, the index of the member, and the ranges that differ. `unreadable` has
    the ledger with the reason if its metadata cannot be read. `password` is used if the metadata
    does not contain one. Raises MetadataError if the metadata store does not answer.
    """
    answers: list[list[Any]] = []
    unread: list[list[Any]] = []
    ledger = await _opened(client, piece["ledger"], password, unread)
    if ledger is not None:
        budget = Budget(piece["rate"])
        for fragment, block, residue in _blocks(ledger, piece):
            found = await compare(
                client, ledger, fragment, block, residue, without=piece["silent"], budget=budget
            )
            for index, bad in found.items():
                answers.append([fragment.segment_first, index, bad_as_json(bad)])
    return {"ledger": piece["ledger"], "answers": answers, "unreadable": unread}


def _blocks(ledger: OpenedLedger, piece: Piece) -> Iterator[tuple[Fragment, int, int]]:
    ends = dict(piece["ends"])  # the last entries that the audit covers
    for fragment in ledger.fragments():
        first = fragment.segment_first
        for segment_first, block, residue in piece["blocks"]:
            if segment_first == first:
                yield replace(fragment, last=ends[first]), block, residue
