"""The properties that every state, and every step, must have."""

from __future__ import annotations

from quire.codec.metadata.ledger_metadata import LedgerState
from quire.core.append.quorum import write_set
from quire_simulator.exploration.judge import Judge
from quire_simulator.exploration.model import COPY, FIRST_BOOKIE, META, WRITER, Model, State
from quire_simulator.exploration.values import NOTHING, Bookie, RecoveryPhase, Violation


class Properties:
    """The properties, with the results for parts of states that were seen before."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._judge = Judge(model.bounds, model.metadata, model.recovery)
        self._stored: dict[tuple[int, ...], Violation | None] = {}
        self._told: dict[tuple[int, int], Violation | None] = {}
        self._lacs: dict[tuple[int, int], Violation | None] = {}
        self._shape = model.bounds.ensemble, model.bounds.write_quorum
        self._end = FIRST_BOOKIE + model.bounds.bookies
        self.short_of_write_quorum = 0
        """The number of combinations of a closed ledger and its bookies in which an entry is on
        fewer bookies than the write quorum."""
        self.whole = 0
        """The number of such combinations in which every entry is on its whole write quorum."""

    @property
    def judged(self) -> int:
        """The number of recoveries that were tried from states of open ledgers."""
        return self._judge.runs

    def of_step(self, before: State, after: State) -> Violation | None:
        """Return what a change of the metadata violates."""
        old, new = self._model.metadata[before[META]], self._model.metadata[after[META]]
        if old.closed:
            return Violation(
                "one_close_wins", f"closed at {old.last_entry_id}, and then at {new.last_entry_id}"
            )
        if new.state < old.state:
            return Violation("the_state_goes_on", f"{old.state.name} became {new.state.name}")
        return None

    def of_state(self, state: State) -> Violation | None:
        """Return what a state violates."""
        meta, acknowledged = state[META], self._acknowledged(state)
        key = (meta, acknowledged, state[COPY], *state[FIRST_BOOKIE : self._end])
        if key not in self._stored:
            self._stored[key] = self._of_stored(state, acknowledged)
        if self._stored[key] is not None:
            return self._stored[key]
        for number in state[self._end :]:
            if (meta, number) not in self._told:
                self._told[meta, number] = self._of_told(meta, number)
            if self._told[meta, number] is not None:
                return self._told[meta, number]
        return None

    def _acknowledged(self, state: State) -> int:
        return self._model.writer.acknowledged(self._model.writers.values[state[WRITER]])

    def _of_told(self, meta: int, number: int) -> Violation | None:
        now = self._model.metadata[meta]
        recovery = self._model.recoveries.values[number]
        told = [recovery.told]
        if now.closed:  # those that are about to close adopt this end
            steps = self._model.recovery.with_metadata(recovery, meta)
            told += [after.told for _, after, _ in steps]
        for last in told:
            if last != NOTHING and not (now.closed and now.last_entry_id == last):
                return Violation(
                    "one_close_wins",
                    f"a recovery reports the end {last}, stored is {now.state.name} at "
                    f"{now.last_entry_id}",
                )
        return None

    def _of_stored(self, state: State, acknowledged: int) -> Violation | None:
        now = self._model.metadata[state[META]]
        bookies = self._model.bookies_of(state)
        lacs = [lac for one in bookies for lac in one.lacs if lac != NOTHING]
        floor = now.last_segment.first_entry_id - 1 if not now.closed else -1
        lac = max([floor, *lacs])
        if not now.closed and lac > acknowledged:
            return Violation(
                "lac_is_acknowledged",
                f"a reader sees the LAC {lac}, acknowledged is {acknowledged}",
            )
        if now.closed:
            end = now.last_entry_id
            if acknowledged > end:
                return Violation(
                    "acknowledged_is_kept",
                    f"{acknowledged} was acknowledged, the ledger was closed at {end}",
                )
            if lac > end:
                return Violation(
                    "what_was_read_stays", f"a reader saw the LAC {lac}, the ledger ends at {end}"
                )
        short = self._short(state, bookies, now.last_entry_id if now.closed else acknowledged)
        if short is not None:
            return short
        if not now.closed and self._model.bounds.judge:
            return self._judge.of(now, bookies, acknowledged)
        return None

    def _short(self, state: State, bookies: tuple[Bookie, ...], last: int) -> Violation | None:
        """Return a violation if an entry up to `last` is not on an ack quorum.

        A bookie that has lost data counts as if it had the entry, while it knows that it lost some.
        """
        now = self._model.metadata[state[META]]
        copy = self._model.copies.values[state[COPY]]
        places = {name: n for n, name in enumerate(self._model.bounds.names)}
        whole = True
        for entry in range(last + 1):
            ensemble = now.segment_of(entry).ensemble
            copies = 0
            for index in write_set(entry, *self._shape):
                name = ensemble[index]
                one = bookies[places[name]]
                lost = copy.restored and copy.bookie == name and one.lost
                copies += one.has(entry) or lost
            if copies < now.ack_quorum:
                name = "closed" if now.closed else "acknowledged"
                return Violation(
                    f"{name}_is_on_a_quorum", f"entry {entry} is on {copies} of {ensemble}"
                )
            whole = whole and copies == now.write_quorum
        if now.closed:
            self.whole += whole
            self.short_of_write_quorum += not whole
        return None

    def ended(self, state: State) -> bool:
        """Return whether the ledger is closed."""
        return self._model.metadata.state(state[META]) is LedgerState.CLOSED

    def recoveries_done(self, state: State) -> bool:
        """Return whether all recoveries have ended."""
        values = self._model.recoveries.values
        over = (RecoveryPhase.DONE, RecoveryPhase.FAILED)
        return all(values[one].phase in over for one in state[self._end :])
