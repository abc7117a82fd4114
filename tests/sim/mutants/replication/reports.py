"""Defects of audits, explanations and overviews: what they say about ledgers and copies."""

from __future__ import annotations

import pytest

from quire.replication.audit import pieces
from quire.replication.explain import at_risk, entry, explain, status
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="An audit does not read the last entries of ledgers.",
    invariants=("what_an_audit_finds_is_true",),
    workload="all",
    seeds=20,
)
def an_audit_ends_early(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        pieces,
        "parts",
        (
            "fragment.segment_first, index, first, last)",
            "fragment.segment_first, index, first, max(first, last - 1))",
        ),
    )


@mutant(
    lost="A ledger that lacks copies is called complete.",
    invariants=("what_is_explained_is_true",),
    workload="all",
    seeds=80,
)
def every_entry_has_all_copies(patch: pytest.MonkeyPatch) -> None:
    edit(patch, explain, "copies_min", ("least = min(least,", "least = max(least,"))


@mutant(
    lost="A good copy of an entry is called different.",
    invariants=("what_is_explained_is_true",),
    workload="all",
    seeds=20,
)
def a_good_copy_is_called_different(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        entry,
        "_compared",
        ("if len(counts) < 2:", "if len(counts) > 2:"),
        ("one.payload != most", "one.payload == most"),
    )


@mutant(
    lost="Ledgers that are about to be lost are not counted.",
    invariants=("ledgers_at_risk_are_counted",),
    workload="all",
    seeds=20,
)
def the_last_copy_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    edit(patch, at_risk, "at_risk", ("last_copy += copies == 1 <", "last_copy += copies == 1 >"))


@mutant(
    lost="An overview counts marked ledgers that nobody marked.",
    invariants=("what_is_explained_is_true",),
    workload="all",
    seeds=20,
)
def one_more_ledger_is_marked(patch: pytest.MonkeyPatch) -> None:
    edit(patch, status, "count_marks", ("marked = failed = 0", "marked = failed = 1"))
