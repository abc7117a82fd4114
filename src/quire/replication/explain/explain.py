"""One ledger explained: where its replicas are, what is missing, and why it is not repaired yet.

Bookies are asked for their lists of entries, and for the first and the last of those that they
should hold; a deep look reads every entry of every replica, as an audit does. Nothing is changed.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from quire._runtime.tasks import TaskGroup
from quire._runtime.units import are, does, some_of
from quire.client import Client
from quire.core.append.quorum import write_set
from quire.core.fragments import Fragment, stored_by, stored_count
from quire.core.replicas import BLOCK_ENTRIES, Bad, Finding, Kind, coalesced, findings
from quire.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuireError,
)
from quire.metadata.interface import Bookies
from quire.metadata.ledgers.unreadable import UNREADABLE
from quire.replication.audit import pieces as audit_pieces
from quire.replication.audit.audit import Audit
from quire.replication.autorecovery.election import auditor_of
from quire.replication.explain.status import WhyNot, why_not
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.marks.notes import last_waiting
from quire.replication.repair.opened_ledger import OpenedLedger, open_for_repair
from quire.replication.repair.replica_reader import LAG_S, ReplicaReader, Unreachable, answers

NOT_LISTED = "no such entry"


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    bookie: str
    host: str | None
    """None: it is not registered."""
    registered: str
    """writable, read-only, or gone."""
    state: str
    """present, empty (it has nothing to hold), or the worst that was found there: short, missing,
    damaged, different, unreachable."""
    entries: int
    """That it should hold."""
    bad: tuple[tuple[int, int, str, str], ...]
    """first, last, kind, detail"""


@dataclass(frozen=True, slots=True)
class SegmentView:
    first: int
    last: int
    """Less than `first`: it has no entries, as far as is known."""
    closed: bool
    """It gets no more entries."""
    copies_min: int
    """Of the entry that has the fewest good ones; the write quorum where all is well."""
    replicas: tuple[ReplicaReport, ...]


@dataclass(frozen=True, slots=True)
class Explained:
    ledger: int
    state: str
    last_entry: int
    """As far as it is known to be confirmed."""
    quorums: tuple[int, int, int]
    segments: tuple[SegmentView, ...]
    mark: WhyNot | None
    """None: it is not marked for repair."""
    lock_owner: str | None
    """Who works on its replicas now."""
    auditor: str | None
    """Who looks for lost bookies; None: nobody."""
    enabled: bool
    delay_s: int
    """So long the auditor waits for a lost bookie."""
    waiting: tuple[str, float] | None
    """The bookie that it waits for now, and how many seconds more; None: none is known of."""
    spare: int
    """Writable bookies that are not in its last ensemble."""
    deep: bool
    verdict: Diagnosis


SEVERITY = (Kind.SHORT, Kind.MISSING, Kind.DIFFERENT, Kind.DAMAGED, Kind.UNREACHABLE)


async def explain_ledger(
    client: Client, ledger_id: int, *, deep: bool = False, password: bytes = b""
) -> Explained:
    """Look at every replica of the ledger. `password` counts where the metadata has none. Raises
    NoSuchLedgerError, MetadataError. Cancel-safe; nothing is changed."""
    ledger = await open_for_repair(client, ledger_id, password=password)
    bookies = await client.bookies()
    look = _deep if deep else _shallow
    looked = await look(client, ledger, password)
    if not deep and _absent(looked):
        # A ledger that was just closed may have replicas that lag. (An audit asks again by itself.)
        await asyncio.sleep(LAG_S)
        looked = await look(client, ledger, password)
    metadata, store = ledger.metadata, client.metadata
    segments = tuple(
        _view(ledger, fragment, looked.get(fragment.segment_first, ()), bookies)
        for fragment in ledger.fragments()
    )
    mark = await why_not(store, ledger_id, clock=client.clock)
    marks, auditor = ReplicationMarks(store), await auditor_of(store)
    newest = metadata.last_segment.ensemble
    facts = Explained(
        ledger=ledger_id,
        state=metadata.state.name,
        last_entry=ledger.last_add_confirmed,
        quorums=(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum),
        segments=segments,
        mark=mark,
        lock_owner=mark.lock_owner if mark is not None else None,
        auditor=auditor.owner if auditor is not None else None,
        enabled=await marks.enabled(),
        delay_s=await _delay_s(marks),
        waiting=await _waiting(client),
        spare=sum(bookie not in newest for bookie in bookies.writable),
        deep=deep,
        verdict=Diagnosis("", ""),
    )
    return diagnosed(facts)


async def _delay_s(marks: ReplicationMarks) -> int:
    """Return the delay; 0 where it cannot be read, which `quire explain cluster` reports."""
    try:
        return await marks.delay_s()
    except UNREADABLE:
        return 0


async def _waiting(client: Client) -> tuple[str, float] | None:
    now_ms = client.clock.now_ms()
    found = await last_waiting(client.metadata, now_ms)
    return None if found is None else (found.bookie, (found.until_ms - now_ms) / 1000)


def _view(
    ledger: OpenedLedger, fragment: Fragment, found: Sequence[Finding], bookies: Bookies
) -> SegmentView:
    metadata = ledger.metadata
    replicas = []
    for index, bookie in enumerate(fragment.ensemble):
        address = bookies.find(bookie)
        registered = "gone" if address is None else "read-only"
        if bookie in bookies.writable:
            registered = "writable"
        mine = [one for one in found if one.bookie == bookie]
        count = stored_count(metadata, index, fragment.first, fragment.last)
        state = "present" if count else "empty"
        if mine:
            state = max((one.kind for one in mine), key=SEVERITY.index).value
        elif address is None:
            state = Kind.UNREACHABLE.value
        replicas.append(
            ReplicaReport(
                bookie,
                None if address is None else address.host,
                registered,
                state,
                count,
                tuple((one.first, one.last, one.kind.value, one.detail) for one in mine),
            )
        )
    return SegmentView(
        fragment.first,
        fragment.last,
        fragment.closed,
        copies_min(ledger, fragment, found),
        tuple(replicas),
    )


def copies_min(ledger: OpenedLedger, fragment: Fragment, found: Sequence[Finding]) -> int:
    """Good copies of the entry that has the fewest; what is not reached does not count as one."""
    metadata = ledger.metadata
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    least = quorum
    cuts = sorted({one.first for one in found} | {one.last + 1 for one in found})
    for begin, end in pairwise(cuts):
        bad = {one.bookie for one in found if one.first <= begin and one.last >= begin}
        # One entry of each write set says it for all of them.
        for entry in range(begin, min(end, begin + size)):
            members = [fragment.ensemble[index] for index in write_set(entry, size, quorum)]
            least = min(least, sum(bookie not in bad for bookie in members))
    return least


# -- looking ----------------------------------------------------------------------------------

Looked = Mapping[int, Sequence[Finding]]
"""By the first entry of the segment."""


def _absent(looked: Looked) -> bool:
    """Whether a bookie that answers denies entries."""
    return any(one.kind in (Kind.MISSING, Kind.SHORT) for found in looked.values() for one in found)


async def _deep(client: Client, ledger: OpenedLedger, password: bytes) -> Looked:
    audit = Audit()
    ids = [ledger.ledger_id]
    for piece in audit.looking(ids):
        audit.saw(await audit_pieces.look(client, piece, password))
    await audit.probe(client)
    for turn in audit.reading():
        for piece in turn:
            audit.has_read(await audit_pieces.read(client, piece, password))
    for piece in audit.comparing():
        audit.has_compared(await audit_pieces.compare_blocks(client, piece, password))
    found = await audit.findings(client)
    return {
        fragment.segment_first: [
            one
            for one in found
            if fragment.first <= one.first <= fragment.last and one.bookie in fragment.ensemble
        ]
        for fragment in ledger.fragments()
    }


async def _shallow(client: Client, ledger: OpenedLedger, password: bytes) -> Looked:
    names = sorted({bookie for one in ledger.fragments() for bookie in one.ensemble})
    async with TaskGroup() as group:
        tasks = {
            bookie: group.create_task(_Look(client, ledger, bookie).fragments()) for bookie in names
        }
    by_bookie = {bookie: task.result() for bookie, task in tasks.items()}
    looked = {}
    for fragment in ledger.fragments():
        bad = {
            index: by_bookie[bookie][fragment.segment_first]
            for index, bookie in enumerate(fragment.ensemble)
        }
        looked[fragment.segment_first] = findings(ledger.ledger_id, ledger.metadata, fragment, bad)
    return looked


class _Look:
    """What one bookie has of the ledger."""

    def __init__(self, client: Client, ledger: OpenedLedger, bookie: str) -> None:
        self._client = client
        self._ledger = ledger
        self._bookie = bookie
        self._reader = ReplicaReader(
            client, ledger.ledger_id, ledger.metadata, ledger.codec, bookie
        )

    async def fragments(self) -> dict[int, list[Bad]]:
        """By segment, what is wrong there."""
        found: dict[int, list[Bad]] = {}
        why = await answers(self._client, self._bookie)
        listed = None if why else await self._list()
        for fragment in self._ledger.fragments():
            if self._bookie not in fragment.ensemble:
                continue
            bad = found.setdefault(fragment.segment_first, [])
            if fragment.empty:
                continue
            if not why:
                try:
                    bad += await self._fragment(fragment, listed)
                    continue
                except Unreachable as error:
                    why = str(error)
            bad[:] = [Bad(fragment.first, fragment.last, Kind.UNREACHABLE, why)]
        return found

    async def _list(self) -> list[tuple[int, int]] | None:
        """None: this kind of bookie cannot tell."""
        try:
            return await self._client.list_entries(self._bookie, self._ledger.ledger_id)
        except (NoSuchEntryError, NoSuchLedgerError):
            return []
        except (BookieUnavailableError, BookieTimeoutError):
            return None  # reading tells
        except QuireError:
            return None

    async def _fragment(
        self, fragment: Fragment, listed: Sequence[tuple[int, int]] | None
    ) -> list[Bad]:
        index = fragment.ensemble.index(self._bookie)
        bad: list[Bad] = []
        if listed is not None:
            bad = list(self._missing(fragment, index, listed))
        absent = [(one.first, one.last) for one in bad]
        ends = {*self._ends(fragment, index)}
        ends -= {entry for entry in ends if any(a <= entry <= b for a, b in absent)}
        if ends:
            parts = await self._reader.read(sorted(ends))
            bad += [part for part in parts if isinstance(part, Bad)]
        return bad

    def _ends(self, fragment: Fragment, index: int) -> Iterator[int]:
        metadata, size = self._ledger.metadata, self._ledger.metadata.ensemble_size
        first = stored_by(metadata, index, fragment.first, fragment.first + size - 1)
        last = stored_by(metadata, index, max(fragment.last - size + 1, 0), fragment.last)
        for entry in (*first[:1], *last[-1:]):
            if fragment.first <= entry <= fragment.last:
                yield entry

    def _missing(
        self, fragment: Fragment, index: int, listed: Sequence[tuple[int, int]]
    ) -> Iterator[Bad]:
        """What it should hold and does not list."""
        metadata = self._ledger.metadata
        firsts = [first for first, _ in listed]
        begin = fragment.first
        while begin <= fragment.last:
            end = min(begin + BLOCK_ENTRIES - 1, fragment.last)
            absent = []
            for entry in stored_by(metadata, index, begin, end):
                at = bisect_right(firsts, entry) - 1
                if at < 0 or listed[at][1] < entry:
                    absent.append(Bad(entry, entry, Kind.MISSING, NOT_LISTED))
            yield from coalesced(metadata, index, absent)
            begin = end + 1


# -- what is wrong, and what to type -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Diagnosis:
    sentence: str
    command: str
    """What to type; '' where nothing is to be done."""


def diagnosed(facts: Explained) -> Explained:
    """The same with its verdict."""
    return replace(facts, verdict=_diagnosis(facts))


def _diagnosis(facts: Explained) -> Diagnosis:
    lost = sorted({one.bookie for one in _lost_ones(facts)})
    bad = [one for one in _replicas(facts) if one.state in ("missing", "damaged", "different")]
    short = [one for one in _replicas(facts) if one.state == "short"]
    if any(not one.copies_min for one in facts.segments):
        return _unreadable(facts, lost)
    if lost:
        return _lost(facts, lost)
    if bad:
        what = some_of(sorted({f"{one.bookie} ({one.state})" for one in bad}))
        return Diagnosis(
            f"Replicas are not what they should be: {what}. {_why(facts)}",
            f"quire pipeline audit --ledger {facts.ledger} --repair",
        )
    if short:
        what = some_of(sorted({one.bookie for one in short}))
        return Diagnosis(
            f"Nothing is lost: every entry is on its ack quorum, but the last ones of a segment "
            f"never reached {what}, which may be so",
            f"quire pipeline audit --ledger {facts.ledger} --repair",
        )
    if facts.mark is not None:
        return Diagnosis(
            f"Nothing that was looked at is wrong, but the ledger is marked for repair: "
            f"{facts.mark.sentence()}",
            "" if facts.deep else f"quire explain ledger {facts.ledger} --deep",
        )
    looked = "every entry was read" if facts.deep else "--deep reads every entry"
    return Diagnosis(f"Nothing is wrong: all replicas are there ({looked})", "")


def _replicas(facts: Explained) -> list[ReplicaReport]:
    return [one for segment in facts.segments for one in segment.replicas]


def _lost_ones(facts: Explained) -> list[ReplicaReport]:
    return [one for one in _replicas(facts) if one.state == "unreachable"]


def _unreadable(facts: Explained, lost: list[str]) -> Diagnosis:
    if lost:
        return Diagnosis(
            f"Entries have no good copy that answers: bring back {some_of(lost)}",
            f"quire explain ledger {facts.ledger} --deep",
        )
    return Diagnosis(
        "Entries have no good copy on any bookie: they are lost, unless a backup of a bookie's "
        "directory has them",
        f"quire explain ledger {facts.ledger} --deep",
    )


def _lost(facts: Explained, lost: list[str]) -> Diagnosis:
    newest = facts.segments[-1]
    waits = not newest.closed and any(one.bookie in lost for one in newest.replicas)
    gone = sorted({one.bookie for one in _replicas(facts) if one.bookie in lost
                   and one.registered == "gone"})  # fmt: skip
    what = f"{some_of(lost)} {does(len(lost))} not answer"
    if not gone:
        return Diagnosis(
            f"{what}, but {are(len(lost))} registered: look at the network, and "
            "at the bookie's log",
            "quire cluster bookies --space",
        )
    if not facts.spare:
        return Diagnosis(
            f"{what}, and there is no writable bookie that is not in the ensemble already: start "
            "another one",
            "quire bookie --dir DIR",
        )
    if waits:
        return Diagnosis(
            f"{what}, and the last segment is open there: its writer replaces the bookie with its "
            f"next entry if it lives; else the ledger has to be closed first. {_why(facts)}",
            f"quire bookie recover {gone[0]}",
        )
    return Diagnosis(f"{what}. {_why(facts)}", f"quire bookie recover {gone[0]}")


def _why(facts: Explained) -> str:
    """Why it is not repaired yet."""
    if facts.mark is not None:
        return f"Not repaired yet: {facts.mark.sentence()}"
    if not facts.enabled:
        return "Not repaired yet: autorecovery is disabled (quire autorecovery enable)"
    if facts.auditor is None:
        return "Not repaired yet: no auditor runs (quire autorecovery start)"
    if facts.waiting is not None and facts.waiting[0] in {one.bookie for one in _lost_ones(facts)}:
        bookie, left_s = facts.waiting
        return (
            f"Not repaired yet: the auditor {facts.auditor} waits {left_s:.0f} s more for {bookie} "
            "to come back (at once: quire autorecovery trigger)"
        )
    if facts.delay_s:
        return (
            f"Not repaired yet: it is not marked; the auditor {facts.auditor} waits up to "
            f"{facts.delay_s} s for a lost bookie"
        )
    return f"Not repaired yet: the auditor {facts.auditor} has not marked it"
