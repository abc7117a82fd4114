"""Defects of what relies on a server of the metadata store, which may lag behind the others."""

from __future__ import annotations

import pytest

from quire.client.datasets.heads import DatasetHeads
from quire.streams.objects.objects import Objects
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="An object that was acknowledged does not exist, or is an earlier version.",
    invariants=("an_object_is_there", "a_version_is_the_present_one"),
    workload="lagging metadata",
    seeds=200,
    rule="a server that lags",
)
def an_object_is_read_as_a_server_shows_it(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Objects, "_newest", ("await self._store.tree.sync()", "pass"))


@mutant(
    lost="A reader of a dataset gets an earlier publication than the one that was acknowledged.",
    invariants=("a_dataset_never_goes_back", "what_was_published_stays"),
    workload="lagging metadata",
    seeds=200,
    rule="a server that lags",
)
def a_dataset_is_read_as_a_server_shows_it(patch: pytest.MonkeyPatch) -> None:
    edit(patch, DatasetHeads, "newest_ledgers", ("await self._store.tree.sync()", "pass"))
