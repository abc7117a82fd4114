"""Defects of garbage collection while the metadata store is in an older state."""

from __future__ import annotations

import pytest

from quire.bookie.background import garbage
from quire.bookie.background.collection_guard import CollectionGuard
from quire.metadata.bookies.collection import BookieMark
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="Ledgers that are newer than a restored backup are deleted.",
    invariants=("an_older_store_deletes_nothing", "an_older_store_raises_an_alarm"),
    workload="older metadata",
    seeds=20,
    rule="older metadata store",
)
def an_older_store_is_believed(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        CollectionGuard,
        "check_store",
        ("async with self._changing:\n        await self._look()", "pass"),
    )


@mutant(
    lost="A bookie raises its mark in an older store, and then trusts that store.",
    invariants=("an_older_store_deletes_nothing", "an_older_store_raises_an_alarm"),
    workload="older metadata",
    seeds=20,
    rule="older metadata store",
)
def a_mark_is_raised_in_an_older_store(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        CollectionGuard,
        "raise_mark",
        ("found = await self._look()",
         "from quire.metadata.bookies.collection import read_mark\n"
         "        found = await read_mark(self._metadata, self._bookie_id)"),
    )  # fmt: skip


@mutant(
    lost="A restored store that reached the same number of marks is taken for the newest.",
    invariants=("an_older_store_deletes_nothing", "an_older_store_raises_an_alarm"),
    workload="older metadata",
    seeds=20,
    rule="older metadata store",
)
def a_bookie_forgets_its_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BookieMark, "holds", lambda self, remembered: True)


@mutant(
    lost="Entries are deleted although an operator has switched garbage collection off.",
    invariants=("what_is_switched_off_deletes_nothing",),
    workload="older metadata",
    seeds=100,
    rule="older metadata store",
)
def the_switch_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    edit(patch, CollectionGuard, "check_store", ("if switch is not None:", "if False:"))


@mutant(
    lost="A store that goes back while a bookie lists the ledgers deletes newer ones.",
    invariants=("an_older_store_deletes_nothing",),
    workload="older metadata",
    seeds=60,
    rule="older metadata store",
)
def the_store_is_checked_before_the_list_only(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        garbage,
        "collect_garbage",
        ("named=True)\n    await guard.check()", "named=True)"),
    )
