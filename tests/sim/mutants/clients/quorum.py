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
    lost="Acknowledged appends that a single bookie lacks are cut off.",
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
    lost="One broken bookie keeps a ledger from being recovered, although the others suffice.",
    invariants=("quiet_heals",),
    workload="rot",
    seeds=20,
    rule="bk#1067, rule 3",
)
def everybody_has_to_say_no(patch: pytest.MonkeyPatch) -> None:
    edit(patch, quorum, "negatives_needed", ("write_quorum - ack_quorum + 1", "write_quorum"))


@mutant(
    lost="Acknowledged appends are cut off when bookies answer slowly.",
    invariants=("acknowledged_is_kept",),
    workload="fences",
    seeds=120,
    rule="rule 9",
)
def an_error_counts_as_a_no(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecoveryVotes, "neither", RecoveryVotes.negative)


@mutant(
    lost="Readers ask the wrong bookies for entries of striped ledgers.",
    invariants=("no_false_absence", "quiet_heals", "acknowledged_is_kept"),
    workload="all",
    seeds=40,
)
def readers_shift_the_write_set(patch: pytest.MonkeyPatch) -> None:
    edit(patch, quorum, "write_set", ("(entry_id + k)", "(entry_id + k + 1)"))


@mutant(
    lost="Appends to striped ledgers are acknowledged with too few copies.",
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
    lost="A bookie that is in the ensemble twice acknowledges an append alone.",
    invariants=("the_bookies_of_a_segment_are_distinct",),
    workload="all",
    seeds=20,
)
def a_bookie_stands_in_the_ensemble_twice(patch: pytest.MonkeyPatch) -> None:
    edit(patch, placement, "choose", (" if bookie not in exclude]", "]"))
    # The choices of policies are checked once more.
    edit(patch, Placement, "fill", ("if bookie in barred or", "if"))
