"""Make a small plan that breaks the same invariant as a failing run.

A plan is data, so it can be taken apart. Faults, ledgers, clients and their work are removed one by
one, the rest becomes shorter and rounder, and every candidate is run. Removing something changes
all later random decisions of a run. So when nothing more can be removed with the original seed, a
few other seeds are tried with each smaller plan.

The same plan and limits give the same result, unless time runs out first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, get_args, get_origin

from quire.errors import UsageError
from quire_simulator.plans.file import hints_of
from quire_simulator.plans.plans import RunPlan
from quire_simulator.report.result import RunFailure, RunResult
from quire_simulator.run import run_plan

RUNS_MAX = 1_000
SEEDS_TRIED = 4
"""The number of other seeds tried for each part to be removed."""
DECIMALS_MAX = 6

NAMES = ("seed", "workload", "number", "drawn")
"""Fields of which a smaller value is not simpler. The simplest value of a knob is its default, and
a knob that is left out has it."""
SMALLER = ("bookies", "span_s", "explicit_lac_interval_ms", "metadata_delay_s", "skew_ms")
"""Numbers of the plan itself to make smaller.

Its other numbers are limits of bookies and clients. Small limits make a run longer or impossible.
"""
ONE_AT_LEAST = ("bookies", "scale", "batch_entries_max")

Path = tuple[str | int, ...]
"""The field names and tuple positions that lead from the plan to one value."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    plan: RunPlan
    failure: RunFailure
    """The failure of the smaller plan."""
    runs: int
    finished: bool
    """Whether nothing smaller was found. Otherwise a limit ended the search."""


def shrink(
    plan: RunPlan,
    *,
    same: Callable[[RunFailure], bool] | None = None,
    budget_runs: int = RUNS_MAX,
    budget_s: float = math.inf,
    clock: Callable[[], float] = lambda: 0.0,
    on_run: Callable[[], None] = lambda: None,
    run: Callable[[RunPlan], RunResult] = run_plan,
) -> Shrunk:
    """Return a smaller plan whose failure is the `same`: by default, of the same invariant.

    `budget_s` is measured on `clock`, between runs. The default clock stands still, so that only
    `budget_runs` limits the search.

    Raises:
        UsageError: The plan does not fail.
    """
    begin = run(plan)
    if begin.failure is None:
        raise UsageError(
            f"Seed {plan.seed} of workload {plan.workload!r} does not fail, "
            "so there is nothing to make smaller."
        )
    invariant = begin.failure.invariant
    deadline = clock() + budget_s

    def may_go_on(runs: int) -> bool:
        return runs < budget_runs and clock() < deadline

    search = _Search(
        plan, begin.failure, same or (lambda failure: failure.invariant == invariant), run
    )
    search.may_go_on, search.on_run = may_go_on, on_run
    try:
        search.to_the_end()
    except _OutOfBudgetError:
        return Shrunk(search.plan, search.failure, search.runs, finished=False)
    return Shrunk(search.plan, search.failure, search.runs, finished=True)


class _OutOfBudgetError(Exception):
    pass


class _Search:
    """The search for a smaller plan. `plan` is the smallest so far."""

    may_go_on: Callable[[int], bool]
    on_run: Callable[[], None]

    def __init__(
        self,
        plan: RunPlan,
        failure: RunFailure,
        same: Callable[[RunFailure], bool],
        run: Callable[[RunPlan], RunResult],
    ) -> None:
        self.plan = plan
        self.failure = failure
        self.runs = 1
        self._same = same
        self._run = run
        self._tried = {plan}

    def to_the_end(self) -> None:
        while self._leave_out() or self._simplify() or self._leave_out_with_other_seeds():
            pass

    def _fails(self, candidate: RunPlan) -> bool:
        """Return whether the candidate fails in the same way, and if so, keep it as the plan."""
        candidate = _of_those_who_are_there(candidate)
        if candidate in self._tried:
            return False
        if not self.may_go_on(self.runs):
            raise _OutOfBudgetError
        self._tried.add(candidate)
        self.runs += 1
        self.on_run()
        try:
            failure = self._run(candidate).failure
        except Exception:  # noqa: BLE001 - an inconsistent plan is not a failure
            return False
        if failure is None or not self._same(failure):
            return False
        self.plan, self.failure = candidate, failure
        return True

    # -- less ---------------------------------------------------------------------------------

    def _leave_out(self) -> bool:
        """Remove large parts first, then single parts, until all that remain are needed."""
        found = again = False
        while True:
            for path in _lists(self.plan):
                again |= self._leave_out_of(path)
            for path in _scalars(self.plan):
                if path == ("bookies",) or _is_optional(self.plan, path):
                    again |= any(self._fails(smaller) for smaller in _smaller(self.plan, path))
            if not again:
                return found
            found, again = True, False

    def _leave_out_of(self, path: Path) -> bool:
        found = False
        try:
            size = len(_get(self.plan, path))
        except LookupError:
            return False  # The part that contained it was just removed.
        while size:
            at = 0
            while at < len(items := _get(self.plan, path)):
                if self._fails(_put(self.plan, path, items[:at] + items[at + size :])):
                    found = True
                else:
                    at += size
            size //= 2
        return found

    def _leave_out_with_other_seeds(self) -> bool:
        smaller = []
        for path in _lists(self.plan):
            items = _get(self.plan, path)
            smaller += [
                _put(self.plan, path, items[:at] + items[at + 1 :]) for at in range(len(items))
            ]
        for path in _scalars(self.plan):
            if isinstance(_get(self.plan, path), int):
                smaller += _smaller(self.plan, path)
        return any(
            self._fails(replace(plan, seed=seed)) for plan in smaller for seed in range(SEEDS_TRIED)
        )

    # -- shorter and rounder ------------------------------------------------------------------

    def _simplify(self) -> bool:
        found = False
        for path in list(_scalars(self.plan)):
            while any(self._fails(smaller) for smaller in _smaller(self.plan, path)):
                found = True
        return found


# -- parts of a plan --------------------------------------------------------------------------


def _get(plan: RunPlan, path: Path) -> Any:
    value: Any = plan
    for step in path:
        value = getattr(value, step) if isinstance(step, str) else value[step]
    return value


def _put(plan: RunPlan, path: Path, value: object) -> RunPlan:
    changed = _changed(plan, path, value)
    assert isinstance(changed, RunPlan)
    return changed


def _changed(whole: Any, path: Path, value: object) -> object:
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        items = list(whole)
        items[step] = _changed(items[step], rest, value)
        return _in_order(tuple(items))
    return replace(whole, **{step: _changed(getattr(whole, step), rest, value)})


def _of_those_who_are_there(plan: RunPlan) -> RunPlan:
    """Remove the faults of bookies and clients that were removed."""
    names = {"", *plan.names}
    faults = [fault for fault in plan.schedule if {fault.target, fault.other} <= names]
    return replace(plan, schedule=tuple(faults))


def _in_order(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sort faults by time."""
    if all(hasattr(item, "at_s") for item in items):
        return tuple(sorted(items, key=lambda item: item.at_s))
    return items


def _is_list(kind: type, name: str) -> bool:
    """Return whether the field may have any number of items, unlike a shape, which has three."""
    hint = hints_of(kind)[name]
    return get_origin(hint) is tuple and get_args(hint)[1:] == (...,)


def _is_optional(plan: RunPlan, path: Path) -> bool:
    name = path[-1]
    try:
        whole: type = type(_get(plan, path[:-1]))
    except LookupError:
        return False  # The faults of a client were removed with it.
    return isinstance(name, str) and type(None) in get_args(hints_of(whole)[name])


def _lists(plan: RunPlan) -> list[Path]:
    """Return the paths of removable items: faults first, then ledgers, then their parts."""
    found = list(_lists_in(plan, ()))
    return sorted(found, key=lambda path: (len(path), path[0] != "schedule"))


def _lists_in(value: Any, path: Path) -> Iterator[Path]:
    for field in fields(value):
        if _is_list(type(value), field.name):
            yield (*path, field.name)
            for at, item in enumerate(getattr(value, field.name)):
                if is_dataclass(item):
                    yield from _lists_in(item, (*path, field.name, at))


def _scalars(plan: RunPlan) -> Iterator[Path]:
    """Yield the paths of values that may become smaller."""
    for field in fields(plan):
        if _is_list(RunPlan, field.name):
            for at, item in enumerate(getattr(plan, field.name)):
                yield from _scalars_in(item, (field.name, at))
        elif field.name in SMALLER or isinstance(getattr(plan, field.name), bool):
            yield (field.name,)


def _scalars_in(value: Any, path: Path) -> Iterator[Path]:
    if not is_dataclass(value):
        yield path
        return
    for field in fields(value):
        if field.name in NAMES:
            continue
        if _is_list(type(value), field.name):
            for at, item in enumerate(getattr(value, field.name)):
                yield from _scalars_in(item, (*path, field.name, at))
        else:
            yield (*path, field.name)


def _smaller(plan: RunPlan, path: Path) -> list[RunPlan]:
    """Return plans with simpler values at this path, the simplest first."""
    try:
        value = _get(plan, path)
    except LookupError:
        return []
    simpler: list[object] = []
    if value is not None and _is_optional(plan, path):
        simpler.append(None)
    if value is True:
        simpler.append(False)
    elif isinstance(value, int) and not isinstance(value, bool):
        least = int(path[-1] in ONE_AT_LEAST)
        near = sorted({0, 1, value // 2, value - 1})
        simpler += [number for number in near if least <= number < value]
    elif isinstance(value, bytes) and value:
        simpler.append(b"")
    elif isinstance(value, float):
        simpler += _rounder(value)
    return [_put(plan, path, candidate) for candidate in simpler]


def _rounder(value: float) -> list[float]:
    """Return numbers with fewer decimals, or smaller numbers with as many decimals."""
    own = _decimals(value)
    near = {0.0, round(value / 2, own)}
    for decimals in range(min(own, 3)):
        scale = 10**decimals
        near |= {math.floor(value * scale) / scale, math.ceil(value * scale) / scale}
    return sorted(
        (number for number in near if _simplicity(number) < _simplicity(value)), key=_simplicity
    )


def _simplicity(value: float) -> tuple[int, float]:
    return _decimals(value), value


def _decimals(value: float) -> int:
    return next((d for d in range(DECIMALS_MAX) if round(value, d) == value), DECIMALS_MAX)
