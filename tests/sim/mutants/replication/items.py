"""Defects of passes over many items, one of which cannot be read."""

from __future__ import annotations

import pytest

from quire.metadata.ledgers import unreadable
from quire.replication.autorecovery.worker import ReplicationWorker
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="One ledger with unreadable metadata stops autorecovery for the whole cluster.",
    invariants=("everything_is_replicated_again", "one_bad_item_stops_nothing"),
    workload="unreadable",
    seeds=20,
    rule="unreadable metadata",
)
def an_unreadable_ledger_ends_a_pass(patch: pytest.MonkeyPatch) -> None:
    edit(patch, unreadable, "read_or_skip", ("except UNREADABLE as error:", "except () as error:"))


@mutant(
    lost="Ledgers that were skipped are not named anywhere.",
    invariants=("what_cannot_be_read_is_named",),
    workload="unreadable",
    seeds=20,
    rule="unreadable metadata",
)
def what_is_skipped_is_not_named(patch: pytest.MonkeyPatch) -> None:
    edit(patch, unreadable, "read_or_skip", ("unread.add(ledger_id, error)", "pass"))


@mutant(
    lost="A node in the place of a mark makes a worker try again without a pause.",
    invariants=("the_store_is_not_hammered",),
    workload="unreadable",
    seeds=30,
    rule="unreadable metadata",
)
def a_stray_mark_is_taken_for_done(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        ReplicationWorker,
        "_heal_or_say_why",
        ("if strays := await self._locks.strays(lock.ledger_id):", "if strays := ():"),
    )
