"""Defects of the arithmetic of quorums and votes, and of placement."""

from __future__ import annotations

from typing import Any

import pytest

from quire.client.cluster.placement import Placement
from quire.core import placement
from quire.core.append import quorum
from quire.core.append.pipeline import AddPipeline
from quire.core.recovery import RecoveryVotes
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="acknowledged appends that one bookie has not got are cut off",
    invariants=("acknowledged_is_kept",),
    workload="recovery",
    seeds=110,
    rule="bk#1067, rule 3",
)
def one_no_is_enough(patch: pytest.MonkeyPatch) -> None:
    real = RecoveryVotes.__init__

    def init(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        self._negatives_needed = 1

    patch.setattr(RecoveryVotes, "__init__", init)


@mutant(
    lost="one broken bookie keeps a ledger from being recovered, though the others suffice",
    invariants=("quiet_heals",),
    workload="rot",
    seeds=20,
    rule="bk#1067, rule 3",
)
def everybody_has_to_say_no(patch: pytest.MonkeyPatch) -> None:
    edit(patch, quorum, "negatives_needed", ("write_quorum - ack_quorum + 1", "write_quorum"))


@mutant(
    lost="acknowledged appends are cut off when bookies are slow to answer",
    invariants=("acknowledged_is_kept",),
    workload="fences",
    seeds=120,
    rule="rule 9",
)
def an_error_counts_as_a_no(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecoveryVotes, "neither", RecoveryVotes.negative)


@mutant(
    lost="entries of striped ledgers are looked for on the wrong bookies",
    invariants=("no_false_absence", "quiet_heals", "acknowledged_is_kept"),
    workload="all",
    seeds=20,
)
def readers_shift_the_write_set(patch: pytest.MonkeyPatch) -> None:
    edit(patch, quorum, "write_set", ("(entry_id + k)", "(entry_id + k + 1)"))


@mutant(
    lost="acknowledged appends of striped ledgers that too few bookies have",
    invariants=("acknowledged_is_on_a_quorum", "acknowledged_is_kept"),
    workload="all",
    seeds=20,
    rule="rule 15",
)
def a_stripe_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        AddPipeline,
        "_stored_striped",
        ("for residue in range(size)", "for residue in range(size - 1)"),
    )


@mutant(
    lost="appends acknowledged by one bookie that stands in the ensemble twice",
    invariants=("the_bookies_of_a_segment_are_distinct",),
    workload="all",
    seeds=20,
)
def a_bookie_stands_in_the_ensemble_twice(patch: pytest.MonkeyPatch) -> None:
    edit(patch, placement, "choose", (" if bookie not in exclude]", "]"))
    # What policies choose is looked at once more.
    edit(patch, Placement, "fill", ("if bookie in barred or", "if"))
