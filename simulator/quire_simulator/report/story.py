"""What happened in a run, for people: who did what, and who said what to whom.

A `Recorder` listens while the run goes on, and changes nothing of it. What it collects are
`Moment`s; `as_text` makes lines of them, `diagram.as_mermaid` a sequence diagram.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire_simulator.invariants.history import History, Record
from quire_simulator.machine.loop import START_TIME_S
from quire_simulator.machine.trace import Event, Field
from quire_simulator.machine.transport import End
from quire_simulator.plans.faults import Fault
from quire_simulator.report.wire import Wiretap
from quire_simulator.world.world import PORT, World

if TYPE_CHECKING:
    from quire_simulator.run import Result

EVENTS_MAX = 1_000_000
"""Of a run's trace that a story looks at: the last ones."""
TEXT_LINES_MAX = 3_000
TEXT_ROOM_LINES = 200
"""A text that is longer is told with less detail."""
NOTE_CHARACTERS_MAX = 160
TOGETHER_S = 0.25
"""Steps of one kind that are no further apart are told as one."""
REFRAIN_STEPS_MAX = 4
STRIDE_MAX = 8
"""Entries of a striped ledger lie so far apart on one bookie, at most."""
METADATA = "metadata"
NETWORK_EVENTS_TOLD = ("continued", "refused")
FIELDS_NOT_TOLD = ("ledger", "first", "last", "note", "bookie", "metadata", "directory", "peer")


class Kind(Enum):
    REQUEST = "request"
    ANSWER = "answer"
    CLIENT = "client"
    BOOKIE = "bookie"
    METADATA = "metadata"
    FAULT = "fault"
    LAW = "law"


BARRIERS = (Kind.BOOKIE, Kind.METADATA, Kind.FAULT, Kind.LAW)
"""What happened before one of these and after it is never told as one."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One step, or several of a kind: entries first..last (-1: it names none)."""

    time_s: float
    """Since the begin of the run."""
    kind: Kind
    actor: str
    verb: str
    to: str = ""
    ledger_id: int = -1
    first: int = -1
    last: int = -1
    lac: int | None = None
    """The last one that was said."""
    note: str = ""
    count: int = 1
    """Of entries, or of repetitions."""
    until_s: float = -1.0

    @property
    def end_s(self) -> float:
        return max(self.time_s, self.until_s)

    def what(self, *, ledger: bool = True) -> str:
        """In words, without who and when."""
        parts = [self.verb]
        if self.first >= 0:
            span = self.last - self.first + 1
            parts.append(str(self.first) if span == 1 else f"{self.first}..{self.last}")
            if self.count != max(1, span) and self.last > self.first:
                parts.append(f"({self.count} of them)")
        if ledger and self.ledger_id >= 0:
            named = self.first >= 0 or self.kind in (Kind.REQUEST, Kind.ANSWER)
            parts.append(f"{'of ' if named else ''}ledger {self.ledger_id}")
        if self.lac is not None:
            parts.append(f"(LAC {self.lac})")
        if self.note:
            parts.append(f"({self.note})")
        if self.count > 1 and self.first == self.last:
            parts.append(f"x{self.count}")
        return " ".join(parts)

    def joined(self, other: Moment) -> Moment | None:
        """Both as one, where `other` goes on with what this one does."""
        if other.time_s - self.end_s > TOGETHER_S:
            return None
        repeats = (self.first, self.last) == (other.first, other.last)
        follows = self.last >= 0 and 0 < other.first - self.last <= STRIDE_MAX
        if not repeats and (not follows or self.count > self.last - self.first + 1):
            return None
        if repeats and self.first >= 0 and self.first != self.last:
            return None  # a range twice cannot be told from a longer one by its count
        return replace(
            self,
            last=other.last,
            lac=other.lac,
            until_s=other.end_s,
            count=self.count + other.count,
        )


def together(moments: Iterable[Moment], room: int) -> list[Moment]:
    """Steps of one kind that follow each other, as one. Where there is no room for so many, also
    those with steps of others in between: their order is lost."""
    told = _joined(_without_refrain(list(moments)), across=False)
    return told if len(told) <= room else _joined(told, across=True)


def _joined(moments: list[Moment], *, across: bool) -> list[Moment]:
    told: list[Moment] = []
    going_on: dict[tuple[object, ...], int] = {}
    for moment in moments:
        if not across or moment.kind in BARRIERS or "fence" in moment.verb:
            last = max(going_on.values(), default=-1)
            going_on = {key: at for key, at in going_on.items() if not across and at == last}
        key = (moment.kind, moment.actor, moment.to, moment.verb, moment.ledger_id, moment.note)
        at = going_on.get(key)
        joined = None if at is None else told[at].joined(moment)
        if at is not None and joined is not None:
            told[at] = joined
        else:
            going_on[key] = len(told)
            told.append(moment)
    return told


def _without_refrain(moments: list[Moment]) -> list[Moment]:
    """A bookie that starts in vain does so again and again: once is enough."""
    told: list[Moment] = []
    at = 0
    while at < len(moments):
        size = next((n for n in range(1, REFRAIN_STEPS_MAX + 1) if _again(told, moments, at, n)), 0)
        if size == 0:
            told.append(moments[at])
        at += size or 1
    return told


def _again(told: list[Moment], moments: list[Moment], at: int, size: int) -> bool:
    """Whether the next steps say what the last ones said."""
    last, upcoming = told[-size:], moments[at : at + size]
    return len(last) == len(upcoming) == size and all(
        one.kind is Kind.BOOKIE and replace(one, time_s=other.time_s) == other
        for one, other in zip(last, upcoming)
    )


# -- while it happens -------------------------------------------------------------------------


class Recorder:
    """Made before the run begins, behind the checker, and asked for `moments` after it."""

    def __init__(self, world: World, history: History, schedule: Sequence[Fault] = ()) -> None:
        self._world = world
        self._schedule = schedule
        self._left: list[Fault] = []
        """Faults that were not told of yet."""
        self._heard: list[tuple[int, Moment]] = []
        """Beside the trace: with how many of its events came before."""
        self._paused: set[str] = set()
        self._tap = Wiretap(PORT)
        world.trace.keep(EVENTS_MAX)
        world.network.tap = self._message
        self._stored, world.cluster.observer = world.cluster.observer, self._changed
        self._listener, history.listener = history.listener, self._written

    def moments(self) -> tuple[Moment, ...]:
        """In the order in which they happened."""
        before, events = self._world.trace.events()
        self._left, self._paused = list(self._schedule), set()
        numbered = [
            (before + number, 1, moment)
            for number, event in enumerate(events)
            if (moment := self._of_trace(event)) is not None
        ]
        # One that was heard with n events behind it comes before event number n.
        numbered += [(number, 0, moment) for number, moment in self._heard]
        told = [moment for _, _, moment in sorted(numbered, key=lambda at: at[:2])]
        told = [
            moment for before, moment in zip([None, *told], told) if not _says_again(before, moment)
        ]
        end = next((at for at, moment in enumerate(told) if moment.kind is Kind.LAW), len(told))
        # What comes behind a broken law is the clearing away.
        return tuple(told[: end + 1])

    def _add(self, moment: Moment) -> None:
        self._heard.append((self._world.trace.count, moment))

    def _now(self) -> float:
        return self._world.loop.time() - START_TIME_S

    def _message(self, local: End, remote: End, data: bytes) -> None:
        for said in self._tap.heard(local, remote, data):
            self._add(
                Moment(
                    self._now(), Kind.ANSWER if said.answer else Kind.REQUEST, local[0], said.verb,
                    remote[0], said.ledger_id, said.first, said.last, said.lac,
                    count=max(1, said.last - said.first + 1),
                )
            )  # fmt: skip

    def _changed(self, ledger_id: int) -> None:
        caller = self._world.metadata_caller.partition(" ")[0]
        self._metadata(caller, ledger_id, "store")
        self._stored(ledger_id)

    def _written(self, record: Record) -> None:
        if record.kind == "create":
            self._metadata(record.client, record.ledger_id, "create")
        self._listener(record)

    def _metadata(self, actor: str, ledger_id: int, verb: str) -> None:
        cluster, note = self._world.cluster, ""
        if ledger_id not in cluster.ledgers:
            verb = "delete"
        else:
            metadata = cluster.ledger(ledger_id).value
            verb, note = f"{verb} {metadata.state.name}", _segments(metadata)
        self._add(
            Moment(self._now(), Kind.METADATA, actor, verb, METADATA, ledger_id, note=note)
        )  # fmt: skip

    # -- what the trace has -------------------------------------------------------------------

    def _of_trace(self, event: Event) -> Moment | None:
        time, node, name, fields = event
        time -= START_TIME_S
        if "peer" in fields and not self._told_of_network(node, name):
            return None
        if name == "recovered" and time == 0 and node in self._world.disks:
            return None  # every bookie begins with that
        match node:
            case "network" | "metadata":  # the latter is told as it happens, with who did it
                return None
            case "nemesis":
                return Moment(time, Kind.FAULT, node, self._fault(name, fields))
            case "checker":
                return Moment(time, Kind.LAW, node, f"{fields.get('law')}: {fields.get('what')}")
        actor = node.partition(" ")[0]  # the lives of a bookie are numbered
        rest = [f"{key}={value}" for key, value in fields.items() if key not in FIELDS_NOT_TOLD]
        if name == "refused":
            rest.append(f"a connection of {fields.get('peer')}")
        note = ", ".join(filter(None, (str(fields.get("note", "")), *rest)))
        first, last = _number(fields, "first"), _number(fields, "last")
        return Moment(
            time,
            Kind.BOOKIE if actor in self._world.disks else Kind.CLIENT,
            actor,
            name,
            ledger_id=_number(fields, "ledger"),
            first=first if last >= first else -1,
            last=last if last >= first else -1,
            note=cut(note, NOTE_CHARACTERS_MAX),
            count=max(1, last - first + 1),
        )

    def _told_of_network(self, node: str, name: str) -> bool:
        if name == "stopped":
            self._paused.add(node)
        if name == "continued":
            if node not in self._paused:
                return False  # said to all of them in the end
            self._paused.remove(node)
        return name in NETWORK_EVENTS_TOLD

    def _fault(self, kind: str, fields: dict[str, Field]) -> str:
        target, other = str(fields.get("target", "")), str(fields.get("other", ""))
        text = " ".join(filter(None, (kind, target, other)))
        for fault in self._left:
            # What strikes a member of a ledger's ensemble names the ledger until it strikes.
            same = fault.target == target or fault.target.startswith("ledger-")
            if same and (fault.kind, fault.other) == (kind, other):
                self._left.remove(fault)
                return f"{text} for {fault.duration_s:.3f} s" if fault.duration_s else text
        return text


def _says_again(before: Moment | None, moment: Moment) -> bool:
    """A bookie says what was done to it."""
    return (
        before is not None
        and (before.kind, moment.kind) == (Kind.FAULT, Kind.BOOKIE)
        and before.time_s == moment.time_s
        and before.verb.startswith(f"{moment.verb} {moment.actor}")
    )


def _number(fields: dict[str, Field], name: str) -> int:
    value = fields.get(name, -1)
    return value if isinstance(value, int) else -1


def _segments(metadata: LedgerMetadata) -> str:
    segments = [
        f"from {segment.first_entry_id}: "
        + " ".join(bookie.removesuffix(f":{PORT}") for bookie in segment.ensemble)
        for segment in metadata.segments
    ]
    last = (f"last entry {metadata.last_entry_id}",) if metadata.closed else ()
    return ", ".join((*last, *segments))


def cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 3] + "..."


# -- as lines ---------------------------------------------------------------------------------

ARROWS = {Kind.REQUEST: "->", Kind.ANSWER: "-->", Kind.METADATA: "->"}


def as_text(result: Result, *, every_step: bool = False) -> list[str]:
    """Lines of time, actor and what, in columns; at most `TEXT_LINES_MAX` unless `every_step` is
    asked for, which also tells steps of one kind one by one."""
    moments = list(result.story) if every_step else together(result.story, TEXT_ROOM_LINES)
    width = max((len(moment.actor) for moment in moments), default=0)
    lines = [line(moment, width) for moment in moments]
    return lines if every_step else middle_left_out(lines, TEXT_LINES_MAX)


def line(moment: Moment, width: int) -> str:
    what = moment.what()
    if moment.kind in ARROWS:
        what = f"{ARROWS[moment.kind]} {moment.to}: {what}"
    if moment.until_s > moment.time_s:
        what = f"{what} until {moment.until_s:.4f}"
    return f"{moment.time_s:10.4f}  {moment.actor:{width}}  {what}"


def middle_left_out(lines: list[str], limit: int) -> list[str]:
    """A failure is at the end, and what led to it often before that."""
    if len(lines) <= limit:
        return lines
    head = limit // 4
    tail = limit - head - 1
    left_out = len(lines) - head - tail
    return [*lines[:head], f"... {left_out} steps are left out ...", *lines[-tail:]]
