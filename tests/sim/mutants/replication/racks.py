"""Defects of placement: ensembles, replacements, and moves of misplaced ledgers."""

from __future__ import annotations

import pytest

from quire.client.cluster.placement import Placement
from quire.core.placement import RackAware
from quire.replication.autorecovery import misplaced
from quire.replication.autorecovery.auditor import Auditor
from quire.replication.repair import fragment
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="Every copy of an entry is in one rack, and is lost with it.",
    invariants=("an_ensemble_is_in_different_racks", "a_rack_may_be_lost"),
    workload="racks",
    seeds=20,
)
def racks_do_not_count(patch: pytest.MonkeyPatch) -> None:
    edit(patch, RackAware, "rules", ("least = self._racks(wanted.write_quorum)", "least = 1"))
    edit(patch, RackAware, "rank", ("uses)", ")"))


@mutant(
    lost="After a replacement, two copies are in one rack.",
    invariants=("an_ensemble_is_in_different_racks",),
    workload="racks",
    seeds=20,
)
def a_lost_bookie_is_replaced_from_anywhere(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        fragment,
        "choose_replacements",
        (
            "chosen = await pool_of(client).pick(wanted)",
            "others = sorted(set((await client.bookies()).writable) - wanted.barred)\n"
            "    chosen = dict(zip(indexes, others))",
        ),
    )


@mutant(
    lost="Clients use the former rack of a bookie that moved.",
    invariants=("an_ensemble_is_in_different_racks", "everything_is_replicated_again"),
    workload="racks",
    seeds=20,
)
def a_move_to_another_rack_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Placement, "relocate", ("self._locations = locations", "pass"))


@mutant(
    lost="Ledgers whose bookies moved into one rack stay there forever.",
    invariants=("everything_is_replicated_again",),
    workload="racks",
    seeds=20,
)
def what_is_misplaced_is_only_counted(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Auditor, "_placement", ("marked += await self._mark(movable, unread)", "pass"))


@mutant(
    lost="Copies are made without improving the placement of the ledger.",
    invariants=("an_ensemble_is_in_different_racks", "everything_is_replicated_again"),
    workload="racks",
    seeds=20,
)
def any_other_bookie_is_better(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        misplaced,
        "better_members",
        (
            "if len(chosen) == count and client.placement.adherence(changed, *quorums):",
            "if len(chosen) == count:",
        ),
    )


@mutant(
    lost="A move for the sake of placement loses copies.",
    invariants=("acknowledged_is_on_a_quorum", "everything_is_replicated_again"),
    workload="racks",
    seeds=20,
)
def a_move_for_its_rack_copies_nothing(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        fragment.CopyBatch,
        "copy",
        ("if not fragment.empty:", "if not fragment.empty and not self._living:"),
    )
