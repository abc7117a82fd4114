"""An audit as a whole: its division into pieces of work, and the findings from their answers.

    audit = Audit()
    for piece in audit.looking(ledger_ids):    audit.saw(await look(client, piece))
    await audit.probe(client)
    for turn in audit.reading(rate):           audit.has_read(...) for each of its pieces
    for piece in audit.comparing(rate):        audit.has_compared(...)
    await audit.findings(client)

Each line is a step. A turn is a list of pieces that may be read at the same time; turns follow each
other. Within a step or a turn, any process may execute any piece, in any order. A piece may be
executed several times, but only one of its answers is added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire._runtime.tasks import each
from quire.client import Client
from quire.core.fragments import members
from quire.core.replicas import Bad, Finding, Kind, Sums, findings, suspicious
from quire.errors import JobError, NoSuchLedgerError
from quire.metadata.ledgers.unreadable import UNREADABLE, Unread, read_or_skip
from quire.replication.audit import pieces as audit_pieces
from quire.replication.audit.pieces import PIECE_BYTES, Piece, PlannedLedger
from quire.replication.repair.opened_ledger import open_for_repair
from quire.replication.repair.replica_reader import LAG_S, answers
from quire.replication.repair.replica_scan import scan

FINDINGS_MAX = 1_000_000
"""The largest number of findings of one audit. Findings are ranges, so a lost bookie causes only a
few for each ledger."""
RECHECKED_MAX = 1_000
"""The largest number of findings of missing entries whose entries are read again at the end of an
audit. A replica may have been written late."""
BLOCKS_PER_PIECE = 16
"""The largest number of blocks of one ledger that one piece compares entry by entry."""
TURN_S = 60.0
"""The longest time, in seconds, for which a piece of work should read if the rate is limited. Its
size in bytes is chosen accordingly, and is at most `PIECE_BYTES`."""

Where = tuple[int, int, int]
"""The replica of one segment on one bookie: the ledger id, the first entry id of the segment, and
the index of the bookie in its ensemble."""


class Audit:
    """One audit: it plans pieces of work and collects their answers."""

    def __init__(self) -> None:
        self.ledgers: dict[int, PlannedLedger] = {}
        self.entries = 0
        """The number of replicas of entries that were read and are good."""
        self.bytes = 0
        """The number of payload bytes of the replicas of entries that were read and are good."""
        self.unread = Unread()
        """The ledgers that were not audited completely, because their metadata cannot be read."""
        self._bad: dict[Where, list[Bad]] = {}
        self._compared: dict[Where, list[Bad]] = {}
        self._silent: dict[str, str] = {}
        """The reasons why bookies did not answer `probe`, by bookie id."""
        self._sums: dict[tuple[int, int], dict[int, Sums]] = {}
        """The checksums of the good entries of each replica, by ledger id and the first entry id of
        the segment, then by the index of the member."""

    def looking(self, ids: Sequence[int]) -> list[Piece]:
        """Return the pieces that read the metadata of these ledgers."""
        step = audit_pieces.LEDGERS_PER_PIECE
        return [{"ledgers": list(ids[at : at + step])} for at in range(0, len(ids), step)]

    def saw(self, answer: Piece) -> None:
        """Add the answer of a piece of `looking`."""
        for one in answer["ledgers"]:
            planned = PlannedLedger.from_json(one)
            self.ledgers[planned.ledger] = planned
        self._skipped(answer)

    def _skipped(self, answer: Piece) -> None:
        for ledger_id, why in answer.get("unreadable", ()):
            self.unread.add(ledger_id, why)

    async def probe(self, client: Client) -> None:
        """Ask each bookie that the ledgers name whether it answers.

        `reading` returns no pieces of work for bookies that do not answer, because each piece would
        wait for the bookie. All their entries count as UNREACHABLE.
        """
        bookies = sorted(
            {b for p in self.ledgers.values() for f in p.fragments for b in f.ensemble}
        )
        whys = await each(bookies, lambda bookie: answers(client, bookie))
        self._silent = {bookie: why for bookie, why in zip(bookies, whys) if why}

    def reading(self, bytes_per_second: float | None = None) -> list[list[Piece]]:
        """Return the pieces of work that read replicas, in turns.

        The pieces of a turn may be done at the same time, and the turns one after the other.
        `bytes_per_second` limits the rate at which each bookie is read. None means no limit.
        """
        rate = bytes_per_second
        size = PIECE_BYTES if rate is None else max(int(min(rate * TURN_S, PIECE_BYTES)), 1)
        by_bookie = audit_pieces.parts(self.ledgers.values(), size)
        for bookie, why in self._silent.items():
            for part, _ in by_bookie.pop(bookie, ()):
                ledger, segment, index, first, last = part
                bad = Bad(first, last, Kind.UNREACHABLE, why)
                self._bad.setdefault((ledger, segment, index), []).append(bad)
        return audit_pieces.pieces(by_bookie, size, rate)

    def has_read(self, answer: Piece) -> None:
        """Add the answer of a piece of `reading`."""
        for one in answer["answers"]:
            ledger, segment, index, _, _ = one["part"]
            bad = audit_pieces.bad_from_json(one["bad"])
            if bad:
                self._bad.setdefault((ledger, segment, index), []).extend(bad)
            sums = audit_pieces.sums_from_json(one["sums"])
            self._sums.setdefault((ledger, segment), {}).setdefault(index, {}).update(sums)
            self.entries += one["entries"]
            self.bytes += one["bytes"]
        self._skipped(answer)

    def comparing(self, bytes_per_second: float | None = None) -> list[Piece]:
        """Return the pieces of work that compare replicas entry by entry.

        They cover the blocks of entries whose checksums differ between replicas. `bytes_per_second`
        limits the rate at which each piece reads. None means no limit.
        """
        silent = self._unreachable()
        pieces: list[Piece] = []
        for planned in self.ledgers.values():
            blocks = list(self._suspicious(planned))
            pieces += [
                {
                    "ledger": planned.ledger,
                    "blocks": blocks[at : at + BLOCKS_PER_PIECE],
                    "ends": [[one.segment_first, one.last] for one in planned.fragments],
                    "silent": silent,
                    "rate": bytes_per_second,
                }
                for at in range(0, len(blocks), BLOCKS_PER_PIECE)
            ]
        return pieces

    def _suspicious(self, planned: PlannedLedger) -> Iterator[tuple[int, int, int]]:
        for fragment in planned.fragments:
            sums = self._sums.get((planned.ledger, fragment.segment_first), {})
            for block, residue in suspicious(planned.metadata, sums):
                yield fragment.segment_first, block, residue

    def _unreachable(self) -> list[str]:
        """Return the bookies that have not answered `probe` or a read, sorted by id."""
        found = set()
        for (ledger, segment, index), bad in self._bad.items():
            if any(one.kind is Kind.UNREACHABLE for one in bad):
                ensemble = self.ledgers[ledger].metadata.segment_of(segment).ensemble
                found.add(ensemble[index])
        return sorted(found)

    def has_compared(self, answer: Piece) -> None:
        """Add the answer of a piece of `comparing`."""
        for segment, index, bad in answer["answers"]:
            found = audit_pieces.bad_from_json(bad)
            self._compared.setdefault((answer["ledger"], segment, index), []).extend(found)
        self._skipped(answer)

    async def findings(self, client: Client) -> list[Finding]:
        """Return what is wrong with which replicas, sorted by ledger, bookie and entry.

        Replicas that were deleted or moved since they were read are left out. Entries of up to
        `RECHECKED_MAX` findings of missing entries are read again after `LAG_S`. These findings are
        left out if the bookie has the entries by then.

        Raises JobError if there are more than `FINDINGS_MAX` findings, and MetadataError if the
        metadata store does not answer.
        """
        found: list[Finding] = []
        by_segment: dict[tuple[int, int], dict[int, list[Bad]]] = {}
        for where in {**self._bad, **self._compared}:
            ledger_id, segment, index = where
            bad = [*self._bad.get(where, ()), *self._compared.get(where, ())]
            by_segment.setdefault((ledger_id, segment), {})[index] = bad
        for (ledger_id, segment), by_member in sorted(by_segment.items()):
            planned = self.ledgers[ledger_id]
            for fragment in planned.fragments:
                if fragment.segment_first == segment:
                    found += findings(ledger_id, planned.metadata, fragment, by_member)
            if len(found) > FINDINGS_MAX:
                raise JobError(
                    f"the audit found more than {FINDINGS_MAX:,} damaged or missing replicas, "
                    "which is more than it can report",
                    remedy="Audit fewer ledgers at a time (--ledger, --streams). If this is one "
                    "ledger, begin with `quire explain ledger` without --deep",
                )
        found = await _unless_lagging(client, await _still(client, found))
        return sorted(found, key=lambda one: (one.ledger, one.bookie, one.first))


async def _unless_lagging(client: Client, found: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those of entries that arrived on their bookie late.

    The entries of at most `RECHECKED_MAX` findings of missing entries are read again. A finding
    remains if the bookie does not answer this time, or if any of its entries is still missing or
    damaged.
    """
    absent = [one for one in found if one.kind in (Kind.MISSING, Kind.SHORT)][:RECHECKED_MAX]
    if not absent:
        return list(found)
    await asyncio.sleep(LAG_S)
    bookies = sorted({one.bookie for one in absent})
    whys = await each(bookies, lambda bookie: answers(client, bookie))
    silent = {bookie for bookie, why in zip(bookies, whys) if why}

    async def lags(one: Finding) -> bool:
        return one.bookie not in silent and await _whole(client, one)

    lagged = {one for one, whole in zip(absent, await each(absent, lags)) if whole}
    return [one for one in found if one not in lagged]


async def _whole(client: Client, found: Finding) -> bool:
    """Return whether the finding's bookie has all of the finding's entries now.

    The result is False if the ledger was deleted, cannot be read, or no longer names the bookie for
    these entries.
    """
    try:
        ledger = await open_for_repair(client, found.ledger, ask=False)
    except (NoSuchLedgerError, *UNREADABLE):
        return False
    whole = False
    for fragment in ledger.fragments():
        first, last = max(found.first, fragment.first), min(found.last, fragment.last)
        for index in members(fragment, (found.bookie,)) if first <= last else ():
            if (await scan(client, ledger, fragment, index, first, last)).bad:
                return False
            whole = True
    return whole


async def _still(client: Client, found: Sequence[Finding]) -> list[Finding]:
    """Return the findings whose ledger still exists and still names the bookie for these entries.

    A ledger whose metadata can no longer be read keeps its findings.
    """
    unread = Unread()

    async def ensembles(ledger_id: int) -> list[tuple[int, int, set[str]]]:
        stored = await read_or_skip(client.metadata, ledger_id, unread)
        if stored is None:
            return []
        value = stored.value
        return [
            (one.first_entry_id, value.segment_end(one, 2**63 - 1), set(one.ensemble))
            for one in value.segments
        ]

    ids = sorted({one.ledger for one in found})
    known: Mapping[int, Any] = dict(zip(ids, await each(ids, ensembles)))
    return [
        one
        for one in found
        if one.ledger in unread
        or any(
            first <= one.first <= last and one.bookie in bookies
            for first, last, bookies in known[one.ledger]
        )
    ]
