"""Failing plans become small and still fail in the same way. A plan survives its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from quire.errors import UsageError
from quire_simulator import (
    WORKLOADS,
    Fault,
    RunFailure,
    RunPlan,
    RunResult,
    Shrunk,
    describe_plan,
    dump_plan,
    load_plan,
    run_plan,
    shrink,
)
from tests.support.sim.defects import (
    failing_plan,
    one_ack_less_is_enough,
    recovery_closes_at_the_lac,
)

INVARIANT = "acknowledged_is_kept"
BUDGET_RUNS = 400


def made_up(fails: Callable[[RunPlan], str | None]) -> Callable[[RunPlan], RunResult]:
    """A run that breaks the invariant that `fails` names."""

    def run(plan: RunPlan) -> RunResult:
        invariant = fails(plan)
        failure = None if invariant is None else RunFailure(invariant, "because")
        return RunResult(plan.seed, plan.workload, "", 0.0, 0, 0, failure, plan.schedule)

    return run


def size_of(value: Any) -> int:
    """Return the number of parts of a plan."""
    if is_dataclass(value):
        return 1 + sum(size_of(getattr(value, field.name)) for field in fields(value))
    return sum(map(size_of, value)) if isinstance(value, tuple) else 1


def rich_plan() -> RunPlan:
    """Return a plan with several ledgers, one with recoveries, and faults that name no bookie."""
    for seed in range(1_000):
        plan = RunPlan.make(seed, "all")
        if len(plan.ledgers) >= 3 and plan.ledgers[1].recoveries_s:
            faults = (
                Fault(1.234567 * at, f"kind {at}", "", 2.345678, "", (at + 1) / 10)
                for at in range(8)
            )
            return replace(plan, schedule=tuple(faults))
    raise AssertionError("no seed makes such a plan")


@pytest.mark.parametrize(
    ("defect", "workload"),
    [(recovery_closes_at_the_lac, "recovery"), (one_ack_less_is_enough, "all")],
)
@pytest.mark.long
def test_a_defect_leaves_a_small_plan(
    defect: Callable[[pytest.MonkeyPatch], None], workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    plan = failing_plan(workload)
    invariant = run_plan(plan).failure
    found = shrink(plan, budget_runs=BUDGET_RUNS)
    assert invariant is not None
    assert found.failure.invariant == invariant.invariant
    assert found.finished
    assert found.runs <= BUDGET_RUNS
    assert len(found.plan.ledgers) == 1
    assert size_of(found.plan) < size_of(plan)
    # The plan gives the same result to others, and a repetition changes nothing.
    assert run_plan(load_plan(dump_plan(found.plan))).failure == found.failure
    if workload == "all":  # Once is enough: each repetition takes many runs.
        assert shrink(plan, budget_runs=BUDGET_RUNS) == found


def test_shrinking_keeps_only_the_needed_parts() -> None:
    plan = rich_plan()
    needed, number = plan.schedule[5], plan.ledgers[1].number

    def fails(candidate: RunPlan) -> str | None:
        kinds = [(fault.kind, fault.target) for fault in candidate.schedule]
        ledgers = [ledger for ledger in candidate.ledgers if ledger.number == number]
        there = (needed.kind, needed.target) in kinds and ledgers and ledgers[0].recoveries_s
        return INVARIANT if there else None

    found = shrink(plan, run=made_up(fails)).plan
    (fault,) = found.schedule
    assert (fault.kind, fault.target, fault.at_s, fault.duration_s) == (
        needed.kind, needed.target, 0.0, 0.0,
    )  # fmt: skip
    (ledger,) = found.ledgers
    assert (ledger.number, ledger.recoveries_s) == (number, (0.0,))
    assert (ledger.tails_s, ledger.reads_s, ledger.delete_s, ledger.piped) == ((), (), None, False)
    assert (ledger.batches, ledger.batch_entries_max, ledger.begin_s) == (0, 1, 0.0)
    assert ledger.shape == plan.ledgers[1].shape
    assert (found.bookies, found.span_s, found.seed) == (1, 0.0, plan.seed)
    assert found.segment_bytes == plan.segment_bytes


def test_shrinking_keeps_pairs_that_only_fail_together() -> None:
    plan = rich_plan()
    pair = {plan.schedule[1].amount, plan.schedule[6].amount}

    def fails(candidate: RunPlan) -> str | None:
        return INVARIANT if pair <= {fault.amount for fault in candidate.schedule} else None

    found = shrink(plan, run=made_up(fails)).plan
    assert {fault.amount for fault in found.schedule} == pair
    assert found.ledgers == ()


def test_shrinking_rounds_numbers_and_keeps_their_order() -> None:
    plan = rich_plan()
    late = plan.schedule[-1]

    def fails(candidate: RunPlan) -> str | None:
        times = [fault.at_s for fault in candidate.schedule]
        assert times == sorted(times)
        there = any(f.kind == late.kind and f.at_s > 1.2 for f in candidate.schedule)
        return INVARIANT if there and candidate.bookies >= 3 else None

    found = shrink(plan, run=made_up(fails)).plan
    assert [fault.at_s for fault in found.schedule] == [2.0]
    assert found.bookies == 3


def test_shrinking_tries_other_seeds() -> None:
    plan = replace(rich_plan(), seed=77)

    def fails(candidate: RunPlan) -> str | None:
        # With the seed of the plan every fault seems to be needed.
        enough = len(candidate.schedule) >= (len(plan.schedule) if candidate.seed == 77 else 2)
        return INVARIANT if enough else None

    found = shrink(plan, run=made_up(fails)).plan
    assert len(found.schedule) == 2
    assert found.seed == 0


def test_shrinking_keeps_the_violated_invariant() -> None:
    plan = rich_plan()

    def fails(candidate: RunPlan) -> str | None:
        return INVARIANT if len(candidate.schedule) > 3 else "another"

    found = shrink(plan, run=made_up(fails))
    assert (len(found.plan.schedule), found.failure.invariant) == (4, INVARIANT)
    found = shrink(plan, run=made_up(fails), same=lambda failure: True)
    assert (len(found.plan.schedule), found.failure.invariant) == (0, "another")


def test_an_invalid_plan_is_not_a_failure() -> None:
    """A fault may name a client that was left out."""
    plan = rich_plan()

    def fails(candidate: RunPlan) -> str | None:
        if len(candidate.ledgers) < 2:
            raise KeyError("writer-1")
        return INVARIANT

    assert len(shrink(plan, run=made_up(fails)).plan.ledgers) == 2


def test_removing_a_client_removes_its_faults() -> None:
    plan = rich_plan()
    first, second = (f"writer-{ledger.number}" for ledger in plan.ledgers[:2])
    faults = [Fault(1.0, "pause client", name) for name in (first, second)]
    faults += [Fault(2.0, "cut", "bookie-0", other=first), Fault(3.0, "slow network")]
    plan = replace(plan, schedule=tuple(faults))

    def fails(candidate: RunPlan) -> str | None:
        for fault in candidate.schedule:
            assert {fault.target, fault.other} <= {"", *candidate.names}
        numbers = [ledger.number for ledger in candidate.ledgers]
        # The pause seems to be needed, as long as there is anybody to pause.
        paused = first in {fault.target for fault in candidate.schedule}
        return INVARIANT if paused or plan.ledgers[0].number not in numbers else None

    found = shrink(plan, run=made_up(fails)).plan
    assert (found.ledgers, found.schedule) == ((), ())


def test_a_fault_may_be_removed_while_others_are_tried() -> None:
    plan = rich_plan()
    ledger = replace(plan.ledgers[0], delete_s=1.0)
    fault = Fault(1.0, "pause client", f"deleter-{ledger.number}.0")
    plan = replace(plan, ledgers=(ledger,), schedule=(fault, fault, fault))

    def fails(candidate: RunPlan) -> str | None:
        # The faults stay as long as there is a deleter, which is removed last.
        if not candidate.ledgers:
            return None
        deleter = candidate.ledgers[0].delete_s is not None
        return INVARIANT if len(candidate.schedule) == (3 if deleter else 0) else None

    found = shrink(plan, run=made_up(fails)).plan
    assert found.schedule == ()
    assert [ledger.delete_s for ledger in found.ledgers] == [None]


def test_shrinking_respects_its_limits() -> None:
    plan, now, runs = rich_plan(), 0.0, 0

    def run(candidate: RunPlan) -> RunResult:
        nonlocal now, runs
        now, runs = now + 1.0, runs + 1
        return made_up(lambda plan: INVARIANT if len(plan.schedule) >= 3 else None)(candidate)

    found = shrink(plan, budget_runs=5, run=run)
    assert (found.finished, found.runs, runs) == (False, 5, 5)
    now, runs = 0.0, 0
    # The first run is of the plan itself, and the seconds count after it.
    found = shrink(plan, budget_s=7.0, clock=lambda: now, run=run)
    assert (found.finished, found.runs, runs) == (False, 8, 8)
    assert isinstance(found, Shrunk)
    assert found.failure.invariant == INVARIANT


def test_a_passing_plan_cannot_be_shrunk() -> None:
    with pytest.raises(UsageError, match="Seed 1 of workload 'calm' does not fail"):
        shrink(RunPlan.make(1, "calm"), run=made_up(lambda _: None))


# -- the file ---------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_plan_can_be_saved_and_loaded(workload: str) -> None:
    for seed in range(20):
        plan = RunPlan.make(seed, workload)
        assert load_plan(dump_plan(plan, commit="abc", invariant=INVARIANT)) == plan


def test_an_invalid_plan_file_is_refused() -> None:
    good = json.loads(dump_plan(rich_plan()))
    for text in ("", "[]", "{}", '{"plan": 3}'):
        with pytest.raises(UsageError, match="The file is not a plan"):
            load_plan(text)
    for change in (
        {"bookies": "three"}, {"bookies": True}, {"span_s": None}, {"ledgers": 3}, {"more": 1},
        {"schedule": [{"kind": "crash"}]}, {"seed": 1.5},
    ):  # fmt: skip
        with pytest.raises(UsageError, match="not a plan of this version"):
            load_plan(json.dumps({"plan": {**good["plan"], **change}}))
    del good["plan"]["span_s"]
    with pytest.raises(UsageError, match="RunPlan has unknown or missing fields: span_s"):
        load_plan(json.dumps(good))


def test_a_plan_is_described_in_words() -> None:
    plan = rich_plan()
    lines = list(describe_plan(plan))
    assert len(lines) == 1 + len(plan.ledgers) + len(plan.knobs) + len(plan.schedule)
    assert lines[0].startswith(f"RunPlan seed={plan.seed} workload=all bookies={plan.bookies} ")
    for fault in plan.schedule:
        assert f"  {str(fault).strip()}" in lines
