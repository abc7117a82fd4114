"""All steps that the parts of a state can take.

A state is a tuple of numbers: the metadata, the writer, the copy of a disk, the bookies, and the
recoveries. Each number stands for a value in the table of its part. A step changes one or two
parts, and is computed once for each pair of their values.
"""

from __future__ import annotations

from collections.abc import Iterator

from quire_simulator.exploration import bookies as rules
from quire_simulator.exploration.bounds import Bounds
from quire_simulator.exploration.metadata import Metadata
from quire_simulator.exploration.pipelines import Pipelines
from quire_simulator.exploration.recoverer import RecoverySteps
from quire_simulator.exploration.symmetry import Renaming, Symmetry
from quire_simulator.exploration.values import Bookie, Copy, Label, Recovery, Table, Writer
from quire_simulator.exploration.writer import WriterSteps

State = tuple[int, ...]
META, WRITER, COPY, FIRST_BOOKIE = range(4)
"""The places in a state. The recoveries come after the bookies."""

Alone = list[tuple[Label, int]]
Pair = list[tuple[Label, int, int]]


class Model:
    """The steps of a protocol run within some bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        shape = bounds.ensemble, bounds.write_quorum, bounds.ack_quorum
        self.metadata = Metadata(bounds)
        self.pipelines = Pipelines(*shape)
        self.writer = WriterSteps(bounds, self.pipelines, self.metadata)
        self.recovery = RecoverySteps(bounds, self.pipelines, self.metadata)
        self.writers: Table[Writer] = Table()
        self.recoveries: Table[Recovery] = Table()
        self.bookies: Table[Bookie] = Table()
        self.copies: Table[Copy] = Table()
        self._none = self.copies.number(Copy())
        self._places = {name: FIRST_BOOKIE + n for n, name in enumerate(bounds.names)}
        self._first_recovery = FIRST_BOOKIE + bounds.bookies
        self._alone: dict[tuple[int, ...], Alone] = {}
        self._stored: dict[tuple[int, ...], Pair] = {}
        self._arrivals: dict[tuple[object, ...], tuple[Label, int, int]] = {}
        self._targets: dict[int, list[tuple[str, int, int, str]]] = {}
        self._queues: dict[int, list[tuple[str, int, int]]] = {}
        self._restarts: dict[tuple[int, str], int] = {}
        self._healed: dict[tuple[int, str, Bookie], Bookie | None] = {}
        self._useful: dict[tuple[int, ...], int] = {}
        self._symmetry = None
        if bounds.symmetry and not bounds.striped:
            tables = self.writers, self.copies, self.recoveries
            renaming = Renaming(bounds, self.pipelines, self.metadata)
            self._symmetry = Symmetry(bounds, renaming, tables)

    def first(self) -> State:
        """Return the state after the ledger was created."""
        bounds = self.bounds
        meta = self.metadata.first()
        bookie = self.bookies.number(rules.empty(bounds.entries))
        recovery = self.recoveries.number(self.recovery.first())
        return (
            meta,
            self.writers.number(self.writer.first(meta)),
            self._none,
            *[bookie] * bounds.bookies,
            *[recovery] * bounds.recoverers,
        )

    def parts(self, state: State) -> tuple[Writer, tuple[Bookie, ...], tuple[Recovery, ...]]:
        """Return the values of the writer, the bookies and the recoveries."""
        return (
            self.writers.values[state[WRITER]],
            self.bookies_of(state),
            tuple(self.recoveries.values[one] for one in state[self._first_recovery :]),
        )

    def bookies_of(self, state: State) -> tuple[Bookie, ...]:
        """Return the values of the bookies."""
        values = self.bookies.values
        return tuple(values[one] for one in state[FIRST_BOOKIE : self._first_recovery])

    def canonical(self, state: State) -> State:
        """Return the state that stands for this one and all that behave alike."""
        writer = state[WRITER]
        if self.writers.values[writer].strays:
            key = (writer, *state[FIRST_BOOKIE : self._first_recovery])
            useful = self._useful.get(key)
            if useful is None:
                useful = self._useful[key] = self._without_useless_strays(state)
            state = (state[META], useful, *state[COPY:])
        return state if self._symmetry is None else self._symmetry.canonical(state)

    def _without_useless_strays(self, state: State) -> int:
        """Return the writer without strays that a bookie has, or refuses as fenced.

        With a rollback, both may change, so they stay.
        """
        writer = self.writers.values[state[WRITER]]
        if self.bounds.rollbacks or not self.bounds.rules.late_answers_ignored:
            return state[WRITER]
        strays = []
        for stray in writer.strays:
            bookie = self.bookies.values[state[self._places[stray[0]]]]
            if not bookie.has(stray[1]) and not bookie.fenced:
                strays.append(stray)
        return self.writers.number(writer._replace(strays=tuple(strays)))

    def steps(self, state: State) -> Iterator[tuple[Label, State]]:
        """Yield every step that is possible, and the state after it."""
        yield from self._writer_steps(state)
        before = None
        for at in range(self._first_recovery, len(state)):
            # Equal recoveries take the same steps. After the close, a recovery only adds copies and
            # fences, which forbid the writer more.
            if state[at] != before and not self.metadata[state[META]].closed:
                yield from self._recovery_steps(state, at)
            before = state[at]
        if self.bounds.rollbacks:
            yield from self._disk_steps(state)

    # -- the writer ---------------------------------------------------------------------------

    def _writer_steps(self, state: State) -> Iterator[tuple[Label, State]]:
        number, stored = state[WRITER], state[META]
        alone = self._alone.get((WRITER, number))
        if alone is None:
            steps = self.writer.alone(self.writers.values[number])
            alone = [(label, self.writers.number(after)) for label, after in steps]
            self._alone[WRITER, number] = alone
        for label, after in alone:
            yield label, (stored, after, *state[2:])
        pair = self._stored.get((WRITER, number, stored))
        if pair is None:
            found = self.writer.with_metadata(self.writers.values[number], stored)
            pair = [(label, self.writers.number(after), meta) for label, after, meta in found]
            self._stored[WRITER, number, stored] = pair
        for label, after, meta in pair:
            yield label, (meta, after, *state[2:])
        queues = self._queues.get(number)
        if queues is None:
            queues = self._queues[number] = list(self._arriving(self.writers.values[number]))
        for kind, index, place in queues:
            key = (kind, number, index, state[place])
            arrival = self._arrivals.get(key)
            if arrival is None:
                writer, bookie = self.writers.values[number], self.bookies.values[state[place]]
                label, after_writer, changed_bookie = self._arrive(kind, writer, index, bookie)
                arrival = (
                    label, self.writers.number(after_writer), self.bookies.number(changed_bookie)
                )  # fmt: skip
                self._arrivals[key] = arrival
            label, after_number, after_bookie = arrival
            changed = list(state)
            changed[WRITER] = after_number
            yield from self._with_bookie(state, changed, label, place, after_bookie)

    def _arriving(self, writer: Writer) -> Iterator[tuple[str, int, int]]:
        for index, link in enumerate(writer.links):
            if link is None or link.broken:
                continue
            if link.queue:
                yield "arrive", index, self._places[writer.ensemble[index]]
            if writer.losses and not self.bounds.late_answers:
                for unheard in range(len(link.queue) + 1):
                    yield f"lose {unheard}", index, self._places[writer.ensemble[index]]
        for at, stray in enumerate(writer.strays):
            yield "stray", at, self._places[stray[0]]

    def _arrive(
        self, kind: str, writer: Writer, index: int, bookie: Bookie
    ) -> tuple[Label, Writer, Bookie]:
        if kind == "arrive":
            return self.writer.arrive(writer, index, bookie)
        if kind == "stray":
            return self.writer.stray(writer, index, bookie)
        return self.writer.lose(writer, index, int(kind.removeprefix("lose ")), bookie)

    def _with_bookie(
        self, state: State, changed: list[int], label: Label, place: int, bookie: int
    ) -> Iterator[tuple[Label, State]]:
        """Yield the state after a step with a bookie.

        If the step changes the disk, the disk may have been copied just before. A copy that was
        taken earlier is equal.
        """
        changed[place] = bookie
        yield label, tuple(changed)
        if self.bounds.rollbacks and state[COPY] == self._none and state[place] != bookie:
            before = self.bookies.values[state[place]]
            name = self.bounds.names[place - FIRST_BOOKIE]
            changed[COPY] = self.copies.number(Copy(name, before.lacs, before.fenced))
            yield (*label, "after a copy of", name), tuple(changed)

    # -- recoveries ---------------------------------------------------------------------------

    def _recovery_steps(self, state: State, at: int) -> Iterator[tuple[Label, State]]:
        number, stored, who = state[at], state[META], at - self._first_recovery
        copy = self.copies.values[state[COPY]]
        alone = self._alone.get((-1, number, state[COPY]))
        if alone is None:
            restarted = copy.bookie if copy.restored else ""
            steps = self.recovery.alone(self.recoveries.values[number], restarted)
            alone = [(label, self.recoveries.number(after)) for label, after in steps]
            self._alone[-1, number, state[COPY]] = alone
        for label, after in alone:
            yield ("recovery", who, *label), self._with_recovery(list(state), at, after)
        pair = self._stored.get((-1, number, stored))
        if pair is None:
            found = self.recovery.with_metadata(self.recoveries.values[number], stored)
            pair = [(label, self.recoveries.number(after), meta) for label, after, meta in found]
            self._stored[-1, number, stored] = pair
        for label, after, meta in pair:
            changed = [meta, *state[1:]]
            yield ("recovery", who, *label), self._with_recovery(changed, at, after)
        targets = self._targets.get(number)
        if targets is None:
            targets = self._targets[number] = [
                (kind, index, self._places[name], name)
                for kind, index, name in self.recovery.targets(self.recoveries.values[number])
            ]
        for kind, index, place, name in targets:
            key = (kind, number, index, state[place])
            arrival = self._arrivals.get(key)
            if arrival is None:
                one, bookie = self.recoveries.values[number], self.bookies.values[state[place]]
                label, after_one, after_bookie = self.recovery.arrive(
                    one, kind, index, name, bookie
                )
                arrival = (
                    label, self.recoveries.number(after_one), self.bookies.number(after_bookie)
                )  # fmt: skip
                self._arrivals[key] = arrival
            label, after, bookie_after = arrival
            if after == number and bookie_after == state[place]:
                continue
            whole: Label = ("recovery", who, *label)
            for text, reached in self._with_bookie(state, list(state), whole, place, bookie_after):
                yield text, self._with_recovery(list(reached), at, after)

    def _with_recovery(self, changed: list[int], at: int, after: int) -> State:
        """Return the state with another recovery. They are sorted: their order is irrelevant."""
        changed[at] = after
        changed[self._first_recovery :] = sorted(changed[self._first_recovery :])
        return tuple(changed)

    # -- disks --------------------------------------------------------------------------------

    def _disk_steps(self, state: State) -> Iterator[tuple[Label, State]]:
        copy = self.copies.values[state[COPY]]
        if not copy.bookie:
            return
        place = self._places[copy.bookie]
        bookie = self.bookies.values[state[place]]
        if not copy.restored:
            if (copy.lacs, copy.fenced) == bookie[:2]:
                return
            changed = list(state)
            changed[place] = self.bookies.number(rules.restored(self.bounds, copy))
            changed[COPY] = self.copies.number(Copy(copy.bookie, restored=True))
            key = (state[WRITER], copy.bookie)
            if key not in self._restarts:
                writer = self.writer.restarted(self.writers.values[state[WRITER]], copy.bookie)
                self._restarts[key] = self.writers.number(writer)
            changed[WRITER] = self._restarts[key]
            yield ("rollback", copy.bookie), tuple(changed)
        elif bookie.lost and self.bounds.heals:
            metadata = self.metadata[state[META]]
            question = (state[META], copy.bookie, bookie)
            if question not in self._healed:
                self._healed[question] = rules.healed(self.bounds, copy.bookie, bookie, metadata)
            healed = self._healed[question]
            if healed is not None:
                changed = list(state)
                changed[place] = self.bookies.number(healed)
                yield ("healed", copy.bookie), tuple(changed)
            if metadata.closed:
                repaired = rules.repaired(copy.bookie, bookie, self.bookies_of(state), metadata)
                if repaired != bookie:
                    changed = list(state)
                    changed[place] = self.bookies.number(repaired)
                    yield ("repaired", copy.bookie), tuple(changed)
