"""The breadth-first search, which finds a shortest trace to a violation."""

from __future__ import annotations

import gc
import resource
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from quire_simulator.exploration.bounds import Bounds
from quire_simulator.exploration.model import META, Model, State
from quire_simulator.exploration.properties import Properties
from quire_simulator.exploration.values import Label, Violation
from quire_simulator.exploration.writer import ZombieError

ZOMBIE = Violation("a_dead_writer_stays_dead", "a writer that has ended would confirm an entry")
RSS_UNIT_BYTES = 1024


@dataclass(slots=True)
class Result:
    """The result of a search."""

    bounds: Bounds
    states: int = 0
    transitions: int = 0
    depth: int = 0
    """The number of steps to the state that is farthest from the first one."""
    seconds: float = 0.0
    processor_seconds: float = 0.0
    memory_bytes: int = 0
    """The peak of the memory of the process."""
    closed: int = 0
    """The number of states in which the ledger is closed."""
    judged: int = 0
    """The number of recoveries that the judge has tried."""
    whole: int = 0
    """The number of combinations of a closed ledger and its bookies in which every entry is on its
    whole write quorum."""
    short: int = 0
    """The number of such combinations in which an entry is on fewer bookies."""
    complete: bool = False
    """Whether every state was visited."""
    violation: Violation | None = None
    trace: list[Label] = field(default_factory=list)


class Search:
    """A search over all states within some bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.model = Model(bounds)
        self._properties = Properties(self.model)
        self._numbers: dict[bytes, int] = {}
        """The number of each state that was visited."""
        self._parents = array("I")
        """The state from which each of them was reached first."""
        self._result = Result(bounds)
        self._began_cpu = 0.0

    def run(
        self, states_max: int | None = None, progress: Callable[[Result], None] | None = None
    ) -> Result:
        """Visit every state, up to a number of states, or to the first violation.

        `progress` is called after each level.
        """
        collecting = gc.isenabled()
        gc.disable()  # the search makes no cycles, and millions of tuples
        try:
            return self._run(states_max, progress)
        finally:
            if collecting:
                gc.enable()

    def _run(self, states_max: int | None, progress: Callable[[Result], None] | None) -> Result:
        began, self._began_cpu = time.perf_counter(), time.process_time()
        result, first = self._result, self.model.canonical(self.model.first())
        self._numbers[_packed(first)] = 0
        self._parents.append(0)
        level = [first]
        result.violation = self._properties.of_state(first)
        while level and result.violation is None:
            if states_max is not None and len(self._numbers) >= states_max:
                break
            level = self._next_level(level, began)
            result.depth += bool(level)
            self._measure(began)
            if progress is not None:
                progress(result)
        result.complete = not level and result.violation is None
        self._measure(began)
        return result

    def _measure(self, began: float) -> None:
        result, properties = self._result, self._properties
        result.states = len(self._numbers)
        result.seconds = time.perf_counter() - began
        result.processor_seconds = time.process_time() - self._began_cpu
        result.memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT_BYTES
        result.judged, result.whole = properties.judged, properties.whole
        result.short = properties.short_of_write_quorum

    def _next_level(self, level: list[State], began: float) -> list[State]:
        """Return the new states that one step leads to. Sets the violation if there is one."""
        upcoming: list[State] = []
        numbers, parents, result = self._numbers, self._parents, self._result
        steps, canonical = self.model.steps, self.model.canonical
        properties = self._properties
        of_step, of_state, ended = properties.of_step, properties.of_state, properties.ended
        for state in level:
            number = numbers[_packed(state)]
            try:
                for label, reached in steps(state):
                    result.transitions += 1
                    bad = of_step(state, reached) if reached[META] != state[META] else None
                    after = canonical(reached)
                    key = _packed(after)
                    if bad is None and key in numbers:
                        continue
                    bad = bad or of_state(after)
                    if bad is not None:
                        result.violation = bad
                        result.trace = self._trace(number, key, label)
                        return upcoming
                    numbers[key] = len(parents)
                    parents.append(number)
                    upcoming.append(after)
                    result.closed += ended(after)
            except ZombieError:
                result.violation = ZOMBIE
                result.trace = self._trace(number)
                return upcoming
        return upcoming

    def _trace(self, number: int, last: bytes = b"", kind: Label = ()) -> list[Label]:
        """Return the steps of a shortest way to a state, and a last step of this kind from there.

        The bookies have the names that they had in the first state.
        """
        way = [number]
        while way[-1]:
            way.append(self._parents[way[-1]])
        way.reverse()
        keys = list(self._numbers)
        state, labels = self.model.first(), list[Label]()
        ends = [keys[one] for one in way[1:]]
        for end in [*ends, last] if last else ends:
            found = [
                (label, after)
                for label, after in self.model.steps(state)
                if _packed(self.model.canonical(after)) == end
            ]
            # Several steps may lead there. The last one must be of the kind that was noticed.
            label, state = next(
                (one for one in found if end == last and one[0][:1] == kind[:1]), found[0]
            )
            labels.append(label)
        return labels


def _packed(state: State) -> bytes:
    return array("I", state).tobytes()
