"""Defects of placement: ensembles, replacements, and moving ledgers to where it wants them."""

from __future__ import annotations

import pytest

from quire.client.cluster.placement import Placement
from quire.core.placement import RackAware
from quire.replication.autorecovery import misplaced
from quire.replication.autorecovery.auditor import Auditor
from quire.replication.repair import fragment
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="entries of which every copy is in one rack, with that rack",
    invariants=("an_ensemble_is_in_different_racks", "a_rack_may_be_lost"),
    workload="racks",
    seeds=20,
)
def racks_do_not_count(patch: pytest.MonkeyPatch) -> None:
    edit(patch, RackAware, "rules", ("least = self._racks(wanted.write_quorum)", "least = 1"))
    edit(patch, RackAware, "rank", ("uses)", ")"))


@mutant(
    lost="the rack of whoever replaces a lost bookie: two copies are in one",
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
    lost="where bookies stand now: clients go by where they stood",
    invariants=("an_ensemble_is_in_different_racks", "everything_is_replicated_again"),
    workload="racks",
    seeds=20,
)
def a_move_to_another_rack_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Placement, "relocate", ("self._locations = locations", "pass"))


@mutant(
    lost="ledgers whose bookies were moved into one rack stay there for ever",
    invariants=("everything_is_replicated_again",),
    workload="racks",
    seeds=20,
)
def what_is_misplaced_is_only_counted(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Auditor, "_placement", ("marked += await self._mark(movable, unread)", "pass"))


@mutant(
    lost="copies that are made for nothing: the ledger lies no better than before",
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
    lost="the copies of an entry that a move has left out",
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
