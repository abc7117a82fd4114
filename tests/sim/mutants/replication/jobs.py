"""Defects of jobs: draining a bookie, moving replicas, dropping surplus copies."""

from __future__ import annotations

import pytest

from quire.bookie.background.over_replicated import OverReplicated
from quire.bookie.server import Bookie
from quire.core import fragments
from quire.replication.moves import decommission, rebalance
from quire.replication.moves.rebalance_plan import _Planner
from quire.replication.repair import bookie_removal, fragment
from quire.replication.repair.recovery_adds import RecoveryAdds
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="A named new bookie loses power before it has the entries on disk.",
    invariants=("a_new_member_has_its_part", "acknowledged_is_on_a_quorum"),
    workload="decommission",
    seeds=20,
)
def a_move_is_named_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    edit(patch, RecoveryAdds, "__aexit__", ("await self.drain()", "pass"))


@mutant(
    lost="Appends during the copy of a segment are lost.",
    invariants=("a_segment_is_its_writer_s_until_it_is_full", "acknowledged_is_on_a_quorum"),
    workload="decommission",
    seeds=40,
    rule="rules 24 and 25, UnclosedFragment",
)
def a_segment_is_moved_while_it_is_written(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        bookie_removal._Pass,
        "replace",
        (
            "if not fragment.closed or not members(fragment, self.lost):",
            "if not members(fragment, self.lost):",
        ),
    )
    edit(patch, fragment.CopyBatch, "copy", ("if not fragment.closed:", "if False:"))
    edit(
        patch,
        fragments,
        "replaced_in",
        ("if there is metadata.last_segment and not metadata.closed:", "if False:"),
    )


@mutant(
    lost="A copy is deleted that the metadata is about to name.",
    invariants=("a_new_member_has_its_part", "a_member_keeps_its_part"),
    workload="decommission",
    seeds=200,
    rule="bk#4668, rule 27",
)
def a_copy_too_many_is_dropped_without_a_lock(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        OverReplicated,
        "_collect",
        ("if self._seen.get(ledger_id) == now and await self._drop(", "if await self._drop("),
    )
    edit(
        patch,
        OverReplicated,
        "_drop",
        ("lock = await self._take_lock(ledger_id)", "lock = ''"),
        ("if not await self._renew(ledger_id, version):", "if False:"),
        ("if copies_of(self._store, ledger_id) != copies:", "if False:"),
        ("await self._give_back(lock)", "pass"),
    )


@mutant(
    lost="A copy is deleted that was named just before the lock was taken.",
    invariants=("a_new_member_has_its_part", "a_member_keeps_its_part"),
    workload="decommission",
    seeds=200,
    rule="rule 27",
)
def the_metadata_is_not_read_again_under_the_lock(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        OverReplicated,
        "_collect",
        ("if self._seen.get(ledger_id) == now and await self._drop(", "if await self._drop("),
    )
    edit(
        patch,
        OverReplicated,
        "_drop",
        ("if not await self._renew(ledger_id, version):", "if False:"),
    )


@mutant(
    lost="A bookie that ledgers need cannot start any more.",
    invariants=("a_bookie_that_is_needed_keeps_its_cookie",),
    workload="decommission",
    seeds=20,
)
def the_cookie_goes_before_the_ledgers(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        decommission,
        "decommission",
        (
            "moved = await job.empty()",
            "if before.cookie is not None:\n"
            "        await remove_cookie(client.metadata, bookie, before)\n"
            "    moved = await job.empty()",
        ),
    )


@mutant(
    lost="Two replicas of a segment are on one bookie.",
    invariants=("the_bookies_of_a_segment_are_distinct", "acknowledged_is_on_a_quorum"),
    workload="decommission",
    seeds=60,
)
def the_plan_puts_two_replicas_on_one_bookie(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        _Planner,
        "_why_not",
        ("if target in ensemble:", "if False:"),
        ("if self._hosts_of(changed) < self._hosts_of(ensemble):", "if False:"),
    )
    edit(
        patch,
        rebalance,
        "_fragment",
        ("and move.target not in fragment.ensemble", ""),
    )
    edit(patch, fragments, "replaced_in", ("if new in ensemble:", "if False:"))


@mutant(
    lost="A bookie that is being drained gets new ledgers forever.",
    invariants=("quiet_heals", "a_bookie_that_is_needed_keeps_its_cookie"),
    workload="decommission",
    seeds=20,
)
def a_bookie_that_is_drained_goes_on_taking_entries(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Bookie,
        "writable",
        ("self.store.writable and not self._held_back", "self.store.writable"),
    )
