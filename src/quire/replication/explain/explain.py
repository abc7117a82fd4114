"""The explanation of one ledger: where its replicas are, which are missing, and why they are not
repaired yet.

By default, each bookie is asked for its list of entries, and of each segment the first and the last
entry that it should have are read. A deep examination reads every entry of every replica, as an
audit does.
Nothing is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from quire._runtime.names.in_commands import COMMANDS_MAX, command_with, for_each
from quire._runtime.tasks import TaskGroup, each
from quire._runtime.units import are, counted, does, duration_text, plural, some_of, them
from quire.client import Client
from quire.client.client import pool_of
from quire.core.append.quorum import write_set
from quire.core.fragments import Fragment, last_stored, stored_by, stored_count, unlisted
from quire.core.ranges import Range
from quire.core.replicas import Bad, Finding, Kind, add_bad, findings
from quire.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuireError,
)
from quire.metadata.bookies import tls_files
from quire.metadata.bookies.damage_notes import FoundDamage, damage_notes
from quire.metadata.bookies.start_commands import StartCommand, read_start_command
from quire.metadata.interface import Bookies
from quire.metadata.ledgers.unreadable import UNREADABLE
from quire.net.port_probe import ProbeResult
from quire.replication.audit import pieces as audit_pieces
from quire.replication.audit.audit import Audit
from quire.replication.autorecovery.election import auditor_of
from quire.replication.explain.at_risk import can_recover
from quire.replication.explain.silence import (
    Silence,
    SilenceKind,
    ask_anew,
    cut_off_advice,
    data_directories,
    probed_text,
    renewal,
    silent_repair,
    start_command,
    start_manner,
)
from quire.replication.explain.status import WhyNot, why_not
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.marks.notes import last_waiting
from quire.replication.repair.opened_ledger import OpenedLedger, open_for_repair
from quire.replication.repair.replica_reader import LAG_S, ReplicaReader, Unreachable, answers

NOT_LISTED = "no such entry"
MANY_NOT_LISTED = "at least the first and some others are missing"
GAPS_MAX = 10_000
"""The largest number of gaps in a bookie's list of entries that are reported one by one."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The replica of one segment on one bookie."""

    bookie: str
    host: str | None
    """The host of the bookie, or None if it is not registered."""
    registered: str
    """"writable", "read-only", or "gone" if the bookie is not registered."""
    state: str
    """"present", "empty" (the bookie should have no entries), or the worst problem that was found:
    "short", "missing", "damaged", "different" or "unreachable"."""
    entries: int
    """The number of entries that the bookie should have."""
    bad: tuple[tuple[int, int, str, str], ...]
    """The ranges with problems: first entry, last entry, kind and detail."""


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment of the ledger, with its replicas."""

    first: int
    last: int
    """The last known entry. It is less than `first` if the segment has no known entries."""
    closed: bool
    """Whether the segment is complete and gets no more entries."""
    copies_min: int
    """The number of good copies of the entry that has the fewest. It is the write quorum if all
    replicas are good."""
    replicas: tuple[ReplicaReport, ...]


@dataclass(frozen=True, slots=True)
class Explained:
    """The explanation of one ledger."""

    ledger: int
    """The id of the ledger."""
    state: str
    """The state in the metadata: "OPEN", "IN_RECOVERY" or "CLOSED"."""
    last_entry: int
    """The last entry that is known to be acknowledged."""
    quorums: tuple[int, int, int]
    """The ensemble size, the write quorum and the ack quorum."""
    segments: tuple[SegmentView, ...]
    mark: WhyNot | None
    """The ledger's mark for repair, or None if it is not marked."""
    lock_owner: str | None
    """The process that repairs the ledger now, or None."""
    auditor: str | None
    """The process that looks for lost bookies, or None if there is no auditor."""
    enabled: bool
    """Whether autorecovery is enabled in the cluster."""
    delay_s: int
    """Seconds that the auditor waits for a lost bookie, or 0 if the stored delay cannot be read."""
    waiting: tuple[str, float] | None
    """The lost bookie that the auditor waits for now, and the seconds left, or None."""
    spare: int
    """The number of writable bookies that can replace a lost one: those outside the ensemble of its
    segment. If several segments need a replacement, it is the smallest of their numbers. If none
    does, it is that of the last segment."""
    deep: bool
    """Whether every entry of every replica was read."""
    verdict: Diagnosis
    silences: Mapping[str, Silence] = field(default_factory=dict)
    """Why registered bookies of the ledger do not answer, by bookie. Bookies that answer are
    missing."""
    directories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The data directories of bookies of the ledger that are gone or do not run, as far as they are
    known."""
    started: Mapping[str, StartCommand] = field(default_factory=dict)
    """The commands that started the bookies of the ledger that are gone or do not run, as far as
    they are known."""
    probes: Mapping[str, ProbeResult] = field(default_factory=dict)
    """For each bookie of the ledger that is not registered, how its address answers, as far as that
    is known."""
    damage: Mapping[str, tuple[FoundDamage, ...]] = field(default_factory=dict)
    """The notes of each bookie about unrepaired damage because of which the ledger may lack
    entries."""


SEVERITY = (Kind.SHORT, Kind.MISSING, Kind.DIFFERENT, Kind.DAMAGED, Kind.UNREACHABLE)
"""The kinds of problems, the worst last."""


async def explain_ledger(
    client: Client, ledger_id: int, *, deep: bool = False, password: bytes = b""
) -> Explained:
    """Examine every replica of a ledger, and explain its state. Nothing is changed.

    With `deep`, every entry of every replica is read. `password` is used if the metadata does not
    contain one. Cancel-safe.

    Raises:
        NoSuchLedgerError: The ledger does not exist.
        MetadataError: The metadata store does not answer, or the metadata cannot be read.
        JobError: A deep examination found more than 1,000,000 ranges of entries with problems.
    """
    ledger = await open_for_repair(client, ledger_id, password=password)
    bookies = await client.bookies()
    look = _deep if deep else _shallow
    looked = await look(client, ledger, password)
    if not deep and _absent(looked):
        # Replicas of a ledger that was just closed may lag. (An audit does this check itself.)
        await asyncio.sleep(LAG_S)
        looked = await look(client, ledger, password)
    metadata, store = ledger.metadata, client.metadata
    segments = tuple(
        _view(ledger, fragment, looked.get(fragment.segment_first, ()), bookies)
        for fragment in ledger.fragments()
    )
    mark = await why_not(store, ledger_id, clock=client.clock)
    marks, auditor = ReplicationMarks(store), await auditor_of(store)
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
        spare=spare_bookies(segments, bookies.writable),
        deep=deep,
        verdict=Diagnosis("", ""),
        damage=_damage_of(ledger_id, segments, await damage_notes(store, client.clock.now_ms())),
    )
    return diagnosed(await _with_reasons(client, facts, bookies))


async def _with_reasons(client: Client, facts: Explained, bookies: Bookies) -> Explained:
    """Add why registered bookies do not answer, and the directories of those that do not run."""
    lost = {one.bookie: one.registered for one in _lost_ones(facts)}
    names = sorted(name for name, registered in lost.items() if registered != "gone")
    answers = await each(names, lambda one: ask_anew(client, one, client.config.read_timeout_s))
    silences = {name: answer for name, answer in zip(names, answers) if isinstance(answer, Silence)}
    silences = {name: _with_file(one, name, bookies) for name, one in silences.items()}
    down = [
        name for name in sorted(lost)
        if lost[name] == "gone"
        or (name in silences and silences[name].kind is SilenceKind.REFUSED)
    ]  # fmt: skip
    gone = [name for name in down if lost[name] == "gone"]
    answered = await each(
        gone, lambda one: pool_of(client).probe_port(one, client.config.read_timeout_s)
    )
    found = await each(down, lambda one: data_directories(client.metadata, one))
    commands = await each(down, lambda one: read_start_command(client.metadata, one))
    return replace(
        facts,
        silences=silences,
        directories=dict(zip(down, found)),
        started={name: one for name, one in zip(down, commands) if one is not None},
        probes={name: one for name, one in zip(gone, answered) if one is not None},
    )


def _damage_of(
    ledger_id: int,
    segments: Sequence[SegmentView],
    notes: Mapping[str, Sequence[FoundDamage]],
) -> dict[str, tuple[FoundDamage, ...]]:
    """Return the notes about damage because of which the ledger lacks entries, or may lack some.

    A note names only some ledgers, and none if the bookie does not know what it lost.
    """
    members = {one.bookie for segment in segments for one in segment.replicas}
    found = {
        bookie: tuple(
            one
            for one in notes[bookie]
            if one.repaired_ms is None
            and (ledger_id in one.named or one.ledgers > len(one.named) or not one.file)
        )
        for bookie in sorted(members & notes.keys())
    }
    return {bookie: those for bookie, those in found.items() if those}


def _with_file(silence: Silence, bookie: str, bookies: Bookies) -> Silence:
    """Add the file of an expired certificate, if the bookie's registration names it."""
    if silence.kind is not SilenceKind.EXPIRED:
        return silence
    address = bookies.find(bookie)
    files = None if address is None else tls_files.from_properties(address.properties)
    path = "" if files is None else files.own
    return replace(silence, remedy=renewal(silence.remedy, {bookie: path}))


def spare_bookies(segments: Sequence[SegmentView], writable: Collection[str]) -> int:
    """Return the number of writable bookies that can replace the lost ones (`Explained.spare`)."""
    lost = [one for one in segments if any(_is_lost(replica) for replica in one.replicas)]
    members = [{replica.bookie for replica in one.replicas} for one in lost or segments[-1:]]
    return min(sum(bookie not in those for bookie in writable) for those in members)


def _is_lost(one: ReplicaReport) -> bool:
    return one.state == Kind.UNREACHABLE.value and one.registered == "gone"


async def _delay_s(marks: ReplicationMarks) -> int:
    """Return the delay for a single lost bookie, or 0 if it cannot be read.

    `quire explain cluster` reports a delay that cannot be read.
    """
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
    """Return the number of good copies of the entry that has the fewest.

    A copy that cannot be reached does not count.
    """
    metadata = ledger.metadata
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    least = quorum
    cuts = sorted({one.first for one in found} | {one.last + 1 for one in found})
    for begin, end in pairwise(cuts):
        bad = {one.bookie for one in found if one.first <= begin and one.last >= begin}
        # Entries with the same write set have the same copies: one of each is examined.
        for entry in range(begin, min(end, begin + size)):
            members = [fragment.ensemble[index] for index in write_set(entry, size, quorum)]
            least = min(least, sum(bookie not in bad for bookie in members))
    return least


# -- the examination --------------------------------------------------------------------------

Looked = Mapping[int, Sequence[Finding]]
"""Findings by the first entry of their segment."""


def _absent(looked: Looked) -> bool:
    """Return whether a bookie says that it does not have entries that it should have."""
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
    """The examination of what one bookie has of the ledger."""

    def __init__(self, client: Client, ledger: OpenedLedger, bookie: str) -> None:
        self._client = client
        self._ledger = ledger
        self._bookie = bookie
        self._reader = ReplicaReader(
            client, ledger.ledger_id, ledger.metadata, ledger.codec, bookie
        )

    async def fragments(self) -> dict[int, list[Bad]]:
        """Return the problems of each segment, by its first entry."""
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

    async def _list(self) -> Sequence[Range] | None:
        """Return the entries that the bookie lists, or None if it cannot list them."""
        try:
            return await self._client.list_entries(self._bookie, self._ledger.ledger_id)
        except (NoSuchEntryError, NoSuchLedgerError):
            return []
        except (BookieUnavailableError, BookieTimeoutError):
            return None  # reading entries shows why
        except QuireError:
            return None

    async def _fragment(self, fragment: Fragment, listed: Sequence[Range] | None) -> list[Bad]:
        index = fragment.ensemble.index(self._bookie)
        bad: list[Bad] = []
        if listed is not None:
            bad = await self._missing(fragment, index, listed)
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

    async def _missing(self, fragment: Fragment, index: int, listed: Sequence[Range]) -> list[Bad]:
        """Return the entries that the bookie should have and does not list."""
        metadata = self._ledger.metadata
        absent: list[Bad] = []
        gaps = unlisted(metadata, index, fragment.first, fragment.last, listed)
        for looked, (first, last) in enumerate(gaps, 1):
            if len(absent) == GAPS_MAX:
                # The rest is one range, so that no bookie can fill the memory.
                end = last_stored(metadata, index, fragment.last)
                return [*absent, Bad(first, end, Kind.MISSING, MANY_NOT_LISTED)]
            add_bad(metadata, index, absent, Bad(first, last, Kind.MISSING, NOT_LISTED))
            if looked % GAPS_MAX == 0:
                await asyncio.sleep(0)
        return absent


# -- what is wrong, and what to type -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict about the ledger, and the command to type."""

    sentence: str
    """The verdict as a sentence."""
    command: str
    """The command to type, or '' if there is nothing to do."""


def diagnosed(facts: Explained) -> Explained:
    """Return the explanation with its verdict."""
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
        return _bad(facts, bad)
    if short:
        what = some_of(sorted({one.bookie for one in short}))
        return Diagnosis(
            f"No entry is lost: every entry is on an ack quorum of bookies, but the last entries "
            f"of a segment never reached {what}. This is allowed, and can be repaired",
            f"quire pipeline audit --ledger {facts.ledger} --repair",
        )
    if facts.damage and facts.mark is None:
        return _noted(facts)
    if facts.mark is not None:
        return Diagnosis(
            f"No problem was found, but the ledger is marked for repair: {facts.mark.sentence()}",
            "" if facts.deep else f"quire explain ledger {facts.ledger} --deep",
        )
    well = f"Nothing is wrong: no replica is missing ({_looked(facts)})"
    return Diagnosis(f"{well}{_unclosed(facts)}", "")


def _unclosed(facts: Explained) -> str:
    """Return the sentence that says how to close a ledger, with the period before it, or ""."""
    if facts.state == "CLOSED":
        return ""
    recover = f"`quire ledger recover {facts.ledger}`"
    if facts.state == "IN_RECOVERY":
        return f". If the client that began to recover it has ended, {recover} completes that"
    return (
        ". While its writer works, an open ledger is normal. If the writer is gone or hangs, "
        f"{recover} closes the ledger, and a writer that is alive can add nothing more"
    )


def _looked(facts: Explained) -> str:
    if facts.deep:
        return "every entry was read"
    return "the first and the last entry of each were read, not all"


def _noted(facts: Explained) -> Diagnosis:
    """Return the verdict if no replica is bad, but a bookie reports damage that affects the ledger.

    The entries that are missing may be among those that were not read.
    """
    bookie, notes = next(iter(facts.damage.items()))
    note = notes[0]
    certain = facts.ledger in note.named
    lacks = "has lost entries of this ledger" if certain else "may have lost entries of this ledger"
    told = f"{bookie} reported damage in {note.path}: it {lacks}"
    if facts.deep:
        return Diagnosis(
            f"No replica is missing (every entry was read), but {told}. The bookie notices the "
            "repair within a minute or two",
            "",
        )
    repaired = _unrepaired_too(facts) or (
        ". Autorecovery restores them by itself, usually within a minute or two"
    )
    return Diagnosis(
        f"No problem was found in what was read ({_looked(facts)}), but {told}, and they are not "
        f"restored yet{repaired}",
        f"quire explain ledger {facts.ledger} --deep",
    )


def _replicas(facts: Explained) -> list[ReplicaReport]:
    return [one for segment in facts.segments for one in segment.replicas]


def _lost_ones(facts: Explained) -> list[ReplicaReport]:
    return [one for one in _replicas(facts) if one.state == "unreachable"]


def _gone(facts: Explained) -> list[str]:
    """Return the bookies that do not answer and are not registered."""
    return sorted({one.bookie for one in _lost_ones(facts) if one.registered == "gone"})


def _unreadable(facts: Explained, lost: list[str]) -> Diagnosis:
    if lost:
        what = "Some entries have no good copy on a bookie that answers"
        if not _gone(facts):
            why = _registered(facts, lost)
            return replace(why, sentence=f"{what}. {why.sentence}")
        gone = _gone(facts)
        restart, command = _restart(facts, gone, only=True)
        silent = [one for one in lost if one not in gone]
        also = f". {some_of(silent)} {does(len(silent))} not answer, too" if silent else ""
        return Diagnosis(
            f"{what}. {restart}{also}. Then check the ledger: `quire explain ledger {facts.ledger} "
            f"--deep`{_unrepaired_too(facts)}",
            command,
        )
    return Diagnosis(
        "Some entries have no good copy on any bookie: they are lost, unless a backup of a "
        "bookie's directory has them",
        f"quire explain ledger {facts.ledger} --deep",
    )


def _bad(facts: Explained, bad: Sequence[ReplicaReport]) -> Diagnosis:
    """Return the verdict about replicas that lack entries or have wrong ones.

    A bookie reports its own damage as soon as something reads it, and autorecovery repairs it
    within a minute or two. A Spark job is needed only for what no bookie reports.
    """
    audit = f"quire pipeline audit --ledger {facts.ledger} --repair"
    what = some_of(sorted({f"{one.bookie} ({one.state})" for one in bad}))
    told = f"Some replicas are bad: {what}"
    if not facts.enabled or facts.auditor is None:
        start = "enable" if not facts.enabled else "start"
        return Diagnosis(f"{told}. {_why(facts)}", f"quire autorecovery {start}")
    if facts.mark is not None and facts.mark.failure is not None:
        return Diagnosis(f"{told}. {_why(facts)}", audit)
    damaged = all(one.state == Kind.DAMAGED.value for one in bad)
    if facts.mark is not None or damaged:
        why = (
            _why(facts)
            if facts.mark is not None
            else "The bookie reports the damage now that it was read"
        )
        leave = command_with("quire bookie decommission", bad[0].bookie)
        liar = (
            ". If the overview then shows no damage of this bookie, its disk is good, and its "
            f"memory or its network changes what it sends. Take it out of service with `{leave}`"
        )
        return Diagnosis(
            f"{told}. {why}. Autorecovery repairs it by itself, usually within a minute or two. "
            f"Check again then. If it is still bad, repair it with `{audit}`"
            f"{liar if damaged else ''}",
            f"quire explain ledger {facts.ledger}{' --deep' if facts.deep else ''}",
        )
    return Diagnosis(f"{told}. No bookie reports this by itself, so nothing repairs it yet", audit)


def _lost(facts: Explained, lost: list[str]) -> Diagnosis:
    newest = facts.segments[-1]
    written = [one.bookie for one in newest.replicas if one.bookie in lost]
    waits = bool(written) and not newest.closed
    gone = _gone(facts)
    what = f"{some_of(lost)} {does(len(lost))} not answer"
    if state := probed_text([facts.probes.get(one) for one in lost]):
        what = f"{what} ({state})"
    if not gone:
        return _registered(facts, lost)
    if not newest.closed and not _recoverable(facts, lost):
        restart, command = _restart(facts, gone, only=True)
        return Diagnosis(
            f"{what}. The ledger is not closed, and too few bookies of its last segment are left "
            f"to recover it: {_no_quorum(facts)}. {restart}{_unrepaired_too(facts)}",
            command,
        )
    if facts.spare < max(sum(map(_is_lost, one.replicas)) for one in facts.segments):
        few = (
            f"and only {counted(facts.spare, 'writable bookie')} outside of the ensemble can take "
            "over their copies"
            if facts.spare
            else "and every writable bookie is in the ensemble already, so no bookie can replace "
            f"{them(len(lost))}"
        )
        restart, command = _restart(facts, gone)
        return Diagnosis(f"{what}, {few}. {restart}{_unrepaired_too(facts)}", command)
    recover = {one: command_with("quire bookie recover", one) for one in gone}
    whose = "it is lost for good, copy what it" if len(gone) == 1 else (
        "one is lost for good, copy what that bookie"
    )  # fmt: skip
    again = f"{_back(facts, gone)}. If {whose} stored to other bookies"
    command = recover[gone[0]]
    if facts.enabled:
        again += _others({one: f": `{typed}`" for one, typed in recover.items()}, "For")
    else:
        # The switch is the reason that nothing is copied, and it is that of all ledgers.
        command = "quire autorecovery enable"
    if waits:
        return Diagnosis(
            f"{what}, and the last segment, which is open, uses "
            f"{'it' if len(lost) == 1 else some_of(written)}. If the writer is alive, it replaces "
            f"the {plural('bookie', len(written))} with its next entry. If not, close the "
            f"ledger first: `quire ledger recover {facts.ledger}`. {_why(facts)}. {again}",
            command,
        )
    return Diagnosis(f"{what}. {_why(facts)}. {again}", command)


def _others(commands: Mapping[str, str], where: str = "On the machine of", manner: str = "") -> str:
    """Return the sentences with the commands of all bookies but the first, or "".

    The command of the first bookie is that of the diagnosis, and `manner` says how to type it. A
    period is before the sentences.
    """
    if len(commands) < 2:
        return ""
    first, *others = commands
    each_one = for_each(((one, commands[one]) for one in others), where)
    return f". The command to type is that for {first}{manner}. {each_one}"


def _runs(facts: Explained, bookie: str) -> bool:
    """Return whether a bookie that is not registered accepts connections all the same."""
    return facts.probes.get(bookie) is ProbeResult.ACCEPTED


def _recoverable(facts: Explained, lost: list[str]) -> bool:
    """Return whether the ledger can be recovered without these bookies."""
    _, write_quorum, ack_quorum = facts.quorums
    members = [one.bookie for one in facts.segments[-1].replicas]
    return can_recover(members, write_quorum, ack_quorum, lost)


def _no_quorum(facts: Explained) -> str:
    """Return what becomes of a ledger that is not closed and has too few bookies."""
    fails = f"`quire ledger recover {facts.ledger}` fails until another of them is back"
    if facts.state == "IN_RECOVERY":
        return fails
    return f"{fails}, and a writer that is alive can add nothing unless it can replace enough"


def _back(facts: Explained, gone: Sequence[str]) -> str:
    """Return the sentences that say to bring these bookies back, without commands."""
    running = [one for one in gone if _runs(facts, one)]
    stopped = [one for one in gone if one not in running]
    start = [f"Start {some_of(stopped)} again"] if stopped else []
    named = some_of(running) if stopped else ""
    return ". ".join([*start, *([cut_off_advice(len(running), named)] if running else [])])


def _restart(facts: Explained, gone: Sequence[str], *, only: bool = False) -> tuple[str, str]:
    """Return how to get bookies back, and the command for the first of them.

    `only` says that a new bookie cannot replace them.
    """
    running = [one for one in gone if _runs(facts, one)]
    stopped = [one for one in gone if one not in running]
    those = them(len(gone))
    if not stopped:
        replaced = "" if only else f". Another bookie could replace {those}"
        return f"{_back(facts, gone)}{replaced}", _again(facts)
    other = "" if only else ", or another bookie" if len(stopped) == 1 else ", or other bookies"
    text, command = _start_each(facts, stopped, f"Start {some_of(stopped)} again", other)
    cut_off = f". {cut_off_advice(len(running), some_of(running))}" if running else ""
    return f"{text}{cut_off}", command


def _start_each(
    facts: Explained, stopped: Sequence[str], start: str, other: str = ""
) -> tuple[str, str]:
    """Return how to start bookies again, and the command for the first of them.

    `start` are the first words, and `other` follows the manner in which a bookie is started.
    """
    first = stopped[0]
    command = _start_command(facts, first)
    if len(stopped) == 1:
        return f"{start}{start_manner(facts.started.get(first))}{other}", command
    manners = {one: start_manner(facts.started.get(one)) for one in stopped}
    commands = {one: f"{manners[one]}: `{_start_command(facts, one)}`" for one in stopped}
    return f"{start}{other}{_others(commands, manner=manners[first])}", command


def _registered(facts: Explained, lost: list[str]) -> Diagnosis:
    """Return the diagnosis for a ledger whose silent bookies are all registered."""
    known = [one for one in lost if one in facts.silences]
    if not known:
        return Diagnosis(
            f"{some_of(lost)} did not answer, and {does(len(lost))} now. Check again",
            _again(facts),
        )
    what = f"{some_of(lost)} {are(len(lost))} registered but {does(len(lost))} not answer"
    reasons = [
        f"{f'{one}: ' if len(lost) > 1 else ''}{facts.silences[one].why}"
        for one in known[:COMMANDS_MAX]
    ]
    kinds = {one: facts.silences[one].kind for one in known}
    stopped = [one for one, kind in kinds.items() if kind is SilenceKind.REFUSED]
    silent = [one for one, kind in kinds.items() if kind is SilenceKind.OTHER]
    remedies = dict.fromkeys(
        facts.silences[one].remedy for one, kind in kinds.items() if kind.is_refusal
    )
    parts = [f"{what} ({'; '.join(reasons)})", *remedies]
    if silent:
        one_only = len(silent) == 1
        log = "its log" if one_only else "their logs"
        if len(silent) < len(known):
            log = f"the {plural('log', len(silent))} of {some_of(silent)}"
        parts.append(
            f"Check {log} and the network to {them(len(silent))}. If "
            f"{'it' if one_only else 'one'} hangs, stop it: then it counts as lost, and "
            "autorecovery restores its copies"
            f"{' if it runs' if _unrepaired(facts) else ''}"
        )
    command = _again(facts)
    if not stopped:
        return Diagnosis(f"{'. '.join(parts)}. Then check again{_unrepaired_too(facts)}", command)
    down = "Its process does" if len(stopped) == 1 else "Their processes do"
    if len(stopped) < len(lost):
        down = f"The {plural('process', len(stopped))} of {some_of(stopped)} {does(len(stopped))}"
    start, command = _start_each(facts, stopped, f"Start {them(len(stopped))} again")
    repair = silent_repair(_unrepaired(facts), down=True)
    return Diagnosis(". ".join([*parts, f"{down} not run", repair, start]), command)


def _start_command(facts: Explained, bookie: str) -> str:
    return start_command(bookie, facts.directories.get(bookie, ()), facts.started.get(bookie))


def _again(facts: Explained) -> str:
    return f"quire explain ledger {facts.ledger}"


def _unrepaired(facts: Explained) -> str:
    """Return why nothing in the cluster is repaired, or "" if lost bookies are looked for."""
    if not facts.enabled:
        return "autorecovery is switched off (`quire autorecovery enable` switches it on)"
    if facts.auditor is None:
        return "there is no auditor (`quire autorecovery start` runs one)"
    return ""


def _unrepaired_too(facts: Explained) -> str:
    """Return the sentence that nothing is repaired meanwhile, with the period before it, or ""."""
    nobody = _unrepaired(facts)
    return f". Nothing is repaired meanwhile: {nobody}" if nobody else ""


def _why(facts: Explained) -> str:
    """Return the sentence that says why the ledger is not repaired yet."""
    if facts.mark is not None:
        return f"Not repaired yet: {facts.mark.sentence()}"
    if nobody := _unrepaired(facts):
        return f"Not repaired yet: {nobody}"
    if facts.waiting is not None and facts.waiting[0] in {one.bookie for one in _lost_ones(facts)}:
        bookie, left_s = facts.waiting
        return (
            f"Not repaired yet: the auditor {facts.auditor} waits {duration_text(left_s)} more for "
            f"{bookie} to return (`quire autorecovery trigger` ends the wait)"
        )
    if facts.delay_s:
        return (
            f"Not repaired yet: the ledger is not marked; the auditor {facts.auditor} waits up to "
            f"{duration_text(facts.delay_s)} for a lost bookie to return"
        )
    return f"Not repaired yet: the auditor {facts.auditor} has not marked the ledger"
