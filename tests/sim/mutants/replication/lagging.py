"""Defects of what relies on a server of the metadata store, which may lag behind the others."""

from __future__ import annotations

import pytest

from quire.streams import Namespace
from quire.streams.objects.objects import Objects
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="An object that was acknowledged does not exist, or is an earlier version.",
    invariants=("an_object_is_there", "a_version_is_the_present_one"),
    workload="lagging metadata",
    seeds=30,
)
def an_object_is_read_as_a_server_shows_it(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Objects, "_newest", ("await self._store.tree.sync()", "pass"))


@mutant(
    lost="A search of a stream finds an earlier place, because later segments are not seen.",
    invariants=("find_finds_the_first", "the_last_records_are_the_last"),
    workload="lagging metadata",
    seeds=120,
    rule="ours",
)
def segments_are_listed_as_a_server_shows_them(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Namespace, "_segments_now", ("await self._tree.sync()", "pass"))
