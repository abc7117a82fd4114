"""Defects that the walkthroughs of the wire protocols find: answers, limits and counters."""

from __future__ import annotations

import pytest

from quire.bookie.protocol.add_batcher import AddBatcher
from quire.bookie.protocol.answer_budget import AnswerBudget
from quire.bookie.protocol.connection_limits import ConnectionLimits
from quire.bookie.protocol.service import BookieService
from quire.bookie.protocol.v2 import RequestsV2
from quire.bookie.protocol.v3 import RequestsV3
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="A long poll that waits for milliseconds waits as many seconds.",
    invariants=("answers_follow_the_protocol",),
    workload="protocol walks",
    seeds=60,
)
def milliseconds_are_seconds(patch: pytest.MonkeyPatch) -> None:
    edit(patch, RequestsV3, "_long_poll", ("read.timeOut / 1000", "read.timeOut / 1"))


@mutant(
    lost="The answer to an old version of protocol v2 has the present version.",
    invariants=("answers_follow_the_protocol",),
    workload="protocol walks",
    seeds=60,
)
def an_old_add_is_answered_anew(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        RequestsV2,
        "_synced_old",
        ("run.first, version)", "run.first)"),
    )


@mutant(
    lost="A batch read returns one entry that exceeds its budget.",
    invariants=("answers_follow_the_protocol",),
    workload="protocol walks",
    seeds=60,
)
def a_batch_read_ignores_its_head(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        BookieService,
        "_budget",
        ("request.max_bytes - BATCH_READ_BASE_BYTES", "request.max_bytes"),
    )


@mutant(
    lost="Dashboards show entries of recoveries as copies.",
    invariants=("reports_are_true",),
    workload="protocol walks",
    seeds=60,
)
def recoveries_count_as_copies(patch: pytest.MonkeyPatch) -> None:
    edit(patch, AddBatcher, "_note", ("elif flags & RECOVERY_ADD", "if flags & RECOVERY_ADD"))


@mutant(
    lost="A new connection always replaces one that has sent nothing yet, although there is room.",
    invariants=("reports_are_true", "connections_end_in_time"),
    workload="protocol walks",
    seeds=60,
)
def a_few_newcomers_are_too_many(patch: pytest.MonkeyPatch) -> None:
    edit(patch, ConnectionLimits, "admit", ("> max(1,", ">= max(1,"))


@mutant(
    lost="A client that receives nothing keeps its connection for good.",
    invariants=(
        "reports_are_true",
        "connections_end_in_time",
        "answers_follow_the_protocol",
    ),
    workload="protocol walks",
    seeds=60,
)
def a_stalled_client_stays(patch: pytest.MonkeyPatch) -> None:
    edit(patch, AnswerBudget, "cut_stalled", ("stalled_s > limit_s", "stalled_s > 100 * limit_s"))
