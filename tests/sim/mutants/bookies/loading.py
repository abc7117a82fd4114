"""Defects of a bookie that is still loading its log."""

from __future__ import annotations

import pytest

from quire.bookie.protocol.loading_store import LoadingStore
from quire.bookie.protocol.service import BookieService
from quire.bookie.server import Bookie
from tests.sim.mutants.mutant import edit, mutant

DENIED = ("what_is_here_is_not_denied", "no_false_absence", "acknowledged_is_kept")


@mutant(
    lost="Acknowledged entries are cut off while their bookie loads its log.",
    invariants=("what_is_not_loaded_is_unknown", *DENIED),
    workload="loading",
    seeds=20,
)
def what_is_not_loaded_is_absent(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        BookieService,
        "code_of_missing",
        ("return Code.TOO_MANY_REQUESTS", "return Code.NO_ENTRY"),
    )


@mutant(
    lost="While a bookie loads, it denies entries of its other directories.",
    invariants=("what_is_not_loaded_is_unknown", *DENIED),
    workload="loading",
    seeds=40,
)
def what_the_first_directory_lacks_is_absent(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        BookieService,
        "code_of_missing",
        (
            "return Code.TOO_MANY_REQUESTS",
            "places = getattr(self.store._store, '_places', ())\n"
            "        loaded = bool(places) and places[0].read\n"
            "        return Code.NO_LEDGER if loaded else Code.TOO_MANY_REQUESTS",
        ),
    )


@mutant(
    lost="A bookie serves as if it had loaded its log, and denies entries.",
    invariants=DENIED,
    workload="loading",
    seeds=40,
)
def the_store_is_served_before_it_is_loaded(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Bookie, "_serve_while_loading", ("cast(Store, partial), True", "self.store, False"))


@mutant(
    lost='A read that waited for the load is answered with "no such entry".',
    invariants=DENIED,
    workload="loading",
    seeds=20,
)
def a_read_that_waited_is_not_looked_for_again(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LoadingStore,
        "read_blocking",
        ("return await self._store.read_blocking(*asked)", "raise NoLedger"),
    )


@mutant(
    lost="Readers take the last loaded entry for the last entry of the ledger.",
    invariants=("what_is_not_loaded_is_unknown", "acknowledged_is_kept"),
    workload="loading",
    seeds=40,
)
def the_last_entry_that_is_loaded_is_the_last(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LoadingStore,
        "last_entry_id",
        ("raise NoLedger", "return self._store.early[0]._info(ledger_id).last_entry_id"),
    )
    edit(patch, BookieService, "_answer", (" or request.entry_id < 0", ""))


@mutant(
    lost="A bookie confirms a fence and does not have it, so there are two writers.",
    invariants=(
        "what_is_not_loaded_is_unknown",
        "what_is_not_loaded_takes_nothing",
        "nothing_acknowledged_beyond_the_close",
    ),
    workload="loading",
    seeds=40,
    rule="rule 34",
)
def a_fence_is_taken_before_the_log_is_loaded(patch: pytest.MonkeyPatch) -> None:
    the_last_entry_that_is_loaded_is_the_last(patch)
    edit(
        patch,
        BookieService,
        "fence",
        ("return Code.TOO_MANY_REQUESTS", "return answer(Code.OK) or Code.OK"),
    )
