"""Defects that the walkthrough of repairs finds: reports about copies that are really missing."""

from __future__ import annotations

import pytest

from quire.bookie.protocol.service import BookieService
from quire.replication.explain import entry, status
from quire.replication.marks.job_announcements import RunningJob
from quire.replication.marks.pauses import Pauses
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="The reason why a ledger is not repaired yet names no worker that repairs it.",
    invariants=("reports_are_true",),
    workload="repair walks",
    seeds=20,
)
def a_repair_has_no_owner(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, status, "why_not",
        ("lock_owner=holder.owner if holder is not None else None", "lock_owner=None"),
    )  # fmt: skip


@mutant(
    lost="An operator is told that a job was running, although it was paused already.",
    invariants=("reports_are_true",),
    workload="repair walks",
    seeds=20,
)
def a_job_is_paused_twice(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Pauses, "pause", ("return False", "return True"))


@mutant(
    lost="The list of running jobs says that a job has done nothing.",
    invariants=("reports_are_true",),
    workload="repair walks",
    seeds=20,
)
def a_job_has_done_nothing(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, RunningJob, "sentence", ("{far.ledgers_done} of {far.ledgers}", "0 of {far.ledgers}")
    )


@mutant(
    lost="A copy that a bookie does not have is called damaged.",
    invariants=("reports_are_true",),
    workload="repair walks",
    seeds=20,
)
def a_missing_copy_is_called_damaged(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        entry,
        "_copy",
        ('without("missing", "the bookie says', 'without("damaged", "the bookie says'),
    )


@mutant(
    lost="Dashboards do not show reads of entries that a bookie does not have.",
    invariants=("reports_are_true", "metrics_are_true"),
    workload="repair walks",
    seeds=30,
)
def reads_of_absent_entries_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    edit(patch, BookieService, "_read_code", ("reads_missing += 1", "reads_missing += 0"))
