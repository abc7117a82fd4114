"""Two defects that tests of failure reports put in. `mutants` has the defects to be found."""

from __future__ import annotations

import pytest

from quire.client.recovery import LedgerRecovery
from quire.core.append.pipeline import AddPipeline
from quire_simulator import RunPlan, run_plan

SEEDS = 40


def recovery_closes_at_the_lac(patch: pytest.MonkeyPatch) -> None:
    async def write_back(self, snapshot, lac):  # type: ignore[no-untyped-def]
        return lac, 0

    patch.setattr(LedgerRecovery, "_write_back", write_back)


def one_ack_less_is_enough(patch: pytest.MonkeyPatch) -> None:
    real = AddPipeline.__init__

    def init(self, *arguments):  # type: ignore[no-untyped-def]
        real(self, *arguments)
        self._ack_quorum = max(1, self._ack_quorum - 1)

    patch.setattr(AddPipeline, "__init__", init)


def failing_plan(workload: str) -> RunPlan:
    """Return the first plan of a workload that fails with the present defect."""
    for seed in range(SEEDS):
        plan = RunPlan.make(seed, workload)
        if run_plan(plan).failure is not None:
            return plan
    pytest.fail(f"no failure in {SEEDS} seeds of {workload}")
