"""Defects of what is said about copies that are missing, damaged or different."""

from __future__ import annotations

import pytest

from quire.client.cluster.absences import Absences
from quire.client.cluster.health import BookieHealth
from quire.core import replicas
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="A bookie that sends bytes with a wrong digest is not among the suspects.",
    invariants=("a_liar_is_named",),
    workload="ledger walks",
    seeds=120,
)
def wrong_bytes_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, BookieHealth, "bad_entry",
        ("elif metadata.password is not None:", "elif metadata.password is None:"),
    )  # fmt: skip


@mutant(
    lost="A bookie that keeps denying an entry which others have is not among the suspects.",
    invariants=("a_liar_is_named",),
    workload="ledger walks",
    seeds=120,
)
def a_repeated_denial_counts_as_late(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Absences, "_check", ("if not denies:", "if denies:"))


@mutant(
    lost="Only the first of the replicas that need repair is reported.",
    invariants=("reports_are_true",),
    workload="ledger walks",
    seeds=240,
)
def a_second_replica_is_not_reported(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, BookieHealth, "_report",
        ("(ledger_id, bookie) in self._reported", "self._reported"),
    )  # fmt: skip


@mutant(
    lost="An audit calls entries short that fewer than an ack quorum of others have.",
    invariants=("reports_are_true", "what_an_audit_finds_is_true"),
    workload="ledger walks",
    seeds=240,
)
def too_few_copies_are_enough(patch: pytest.MonkeyPatch) -> None:
    edit(patch, replicas, "_missing", ("copies >= metadata.ack_quorum", "copies >= 0"))


@mutant(
    lost="If half of the copies of an entry differ from the others, an audit names only one half.",
    invariants=("reports_are_true",),
    workload="ledger walks",
    seeds=240,
)
def half_of_the_copies_are_most(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, replicas, "differing_copies",
        ("2 * votes.count(most) > len(votes)", "2 * votes.count(most) >= len(votes)"),
    )  # fmt: skip
