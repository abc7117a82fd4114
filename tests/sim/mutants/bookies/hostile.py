"""Defects of limits: what clients that want a bookie to fail may take from it."""

from __future__ import annotations

import pytest

from quire.bookie.protocol.answer_budget import AnswerBudget
from quire.bookie.protocol.connection_limits import ConnectionLimits
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="A few hundred batch reads of one client fill the memory of a bookie.",
    invariants=("answers_are_bounded",),
    workload="hostile",
    seeds=20,
    rule="unread answers",
)
def a_client_may_have_any_number_of_answers(patch: pytest.MonkeyPatch) -> None:
    edit(patch, AnswerBudget, "_fits_share", ("return not held or", "return True or"))


@mutant(
    lost="Many such clients together fill it.",
    invariants=("answers_are_bounded",),
    workload="hostile",
    seeds=60,
    rule="unread answers",
)
def all_clients_may_have_any_number_of_answers(patch: pytest.MonkeyPatch) -> None:
    edit(patch, AnswerBudget, "_fits_limit", ("return not self.held_bytes or", "return True or"))


@mutant(
    lost="Unfinished requests of many connections fill the memory of a bookie.",
    invariants=("unfinished_requests_are_bounded",),
    workload="hostile",
    seeds=40,
    rule="unfinished requests",
)
def unfinished_requests_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    edit(patch, ConnectionLimits, "partial", ("if grown > 0 and", "if False and"))
