"""Record the readable trace during a run, without changing the run."""

from __future__ import annotations

from collections.abc import Sequence

from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire_simulator.invariants.history import HistoryRecord, RunHistory
from quire_simulator.machine.loop import START_TIME_S
from quire_simulator.machine.trace import Event, Field
from quire_simulator.machine.transport import End
from quire_simulator.plans.faults import Fault
from quire_simulator.report.steps import StepKind, TraceStep, cut
from quire_simulator.report.wire import Wiretap
from quire_simulator.world.world import PORT, World

EVENTS_MAX = 1_000_000
"""The number of events that are kept, counted from the end of the run."""
NOTE_CHARACTERS_MAX = 160
METADATA = "metadata"
NETWORK_EVENTS_TOLD = ("continued", "refused")
FIELDS_NOT_TOLD = ("ledger", "first", "last", "note", "bookie", "metadata", "directory", "peer")


class TraceRecorder:
    """Records the readable trace. Create it before the run but after the checker, and call `steps`
    at the end.
    """

    def __init__(self, world: World, history: RunHistory, schedule: Sequence[Fault] = ()) -> None:
        self._world = world
        self._schedule = schedule
        self._left: list[Fault] = []
        """Scheduled faults that are not in the trace yet."""
        self._heard: list[tuple[int, TraceStep]] = []
        """Steps that are not in the trace, each with the number of trace events before it."""
        self._paused: set[str] = set()
        self._tap = Wiretap(PORT)
        world.trace.keep(EVENTS_MAX)
        world.network.tap = self._message
        self._stored, world.cluster.observer = world.cluster.observer, self._changed
        self._listener, history.listener = history.listener, self._written

    def steps(self) -> tuple[TraceStep, ...]:
        """Return all steps in the order in which they happened."""
        before, events = self._world.trace.events()
        self._left, self._paused = list(self._schedule), set()
        numbered = [
            (before + number, 1, step)
            for number, event in enumerate(events)
            if (step := self._of_trace(event)) is not None
        ]
        # A step recorded after n events comes before event number n.
        numbered += [(number, 0, step) for number, step in self._heard]
        told = [step for _, _, step in sorted(numbered, key=lambda at: at[:2])]
        told = [step for before, step in zip([None, *told], told) if not _says_again(before, step)]
        end = next(
            (at for at, step in enumerate(told) if step.kind is StepKind.INVARIANT), len(told)
        )
        # Whatever follows a broken invariant is cleanup.
        return tuple(told[: end + 1])

    def _add(self, step: TraceStep) -> None:
        self._heard.append((self._world.trace.count, step))

    def _now(self) -> float:
        return self._world.loop.time() - START_TIME_S

    def _message(self, local: End, remote: End, data: bytes) -> None:
        for said in self._tap.heard(local, remote, data):
            kind = StepKind.ANSWER if said.answer else StepKind.REQUEST
            self._add(
                TraceStep(
                    self._now(), kind, local[0], said.verb, remote[0], said.ledger_id, said.first,
                    said.last, said.lac, count=max(1, said.last - said.first + 1),
                )
            )  # fmt: skip

    def _changed(self, ledger_id: int) -> None:
        caller = self._world.metadata_caller.partition(" ")[0]
        self._metadata(caller, ledger_id, "store")
        self._stored(ledger_id)

    def _written(self, record: HistoryRecord) -> None:
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
            TraceStep(self._now(), StepKind.METADATA, actor, verb, METADATA, ledger_id, note=note)
        )  # fmt: skip

    # -- what the trace has -------------------------------------------------------------------

    def _of_trace(self, event: Event) -> TraceStep | None:
        time, node, name, fields = event
        time -= START_TIME_S
        if "peer" in fields and not self._told_of_network(node, name):
            return None
        if name == "recovered" and time == 0 and node in self._world.disks:
            return None  # Every bookie begins with this.
        match node:
            case "network" | "metadata":  # Recorded separately, together with the caller.
                return None
            case "nemesis":
                return TraceStep(time, StepKind.FAULT, node, self._fault(name, fields))
            case "checker":
                return TraceStep(
                    time,
                    StepKind.INVARIANT,
                    node,
                    f"{fields.get('invariant')}: {fields.get('what')}",
                )
        actor = node.partition(" ")[0]  # The starts of a bookie are numbered.
        rest = [f"{key}={value}" for key, value in fields.items() if key not in FIELDS_NOT_TOLD]
        if name == "refused":
            rest.append(f"a connection of {fields.get('peer')}")
        note = ", ".join(filter(None, (str(fields.get("note", "")), *rest)))
        first, last = _number(fields, "first"), _number(fields, "last")
        return TraceStep(
            time,
            StepKind.BOOKIE if actor in self._world.disks else StepKind.CLIENT,
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
                return False  # At the end, all nodes are continued.
            self._paused.remove(node)
        return name in NETWORK_EVENTS_TOLD

    def _fault(self, kind: str, fields: dict[str, Field]) -> str:
        target, other = str(fields.get("target", "")), str(fields.get("other", ""))
        text = " ".join(filter(None, (kind, target, other)))
        for fault in self._left:
            # A fault that strikes a member of a ledger's ensemble names the ledger until it
            # strikes.
            same = fault.target == target or fault.target.startswith("ledger-")
            if same and (fault.kind, fault.other) == (kind, other):
                self._left.remove(fault)
                return f"{text} for {fault.duration_s:.3f} s" if fault.duration_s else text
        return text


def _says_again(before: TraceStep | None, step: TraceStep) -> bool:
    """Return whether a bookie only reports the fault that has just struck it."""
    return (
        before is not None
        and (before.kind, step.kind) == (StepKind.FAULT, StepKind.BOOKIE)
        and before.time_s == step.time_s
        and before.verb.startswith(f"{step.verb} {step.actor}")
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
