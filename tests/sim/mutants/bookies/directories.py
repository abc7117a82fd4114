"""Defects of bookies with several data directories."""

from __future__ import annotations

import pytest

from quire.bookie.protocol.service import BookieService
from quire.storage.directories import LedgerDirectories, ServedDirectory
from tests.sim.mutants.mutant import edit, mutant
from tests.sim.mutants.storage.storage import LOST_IN_A_CRASH

UNKNOWN_IS_ABSENT = ("no_false_absence", "what_is_durable_stays", *LOST_IN_A_CRASH)


@mutant(
    lost="A bookie denies the entries of a directory that is not mounted.",
    invariants=(*UNKNOWN_IS_ABSENT, "nothing_acknowledged_beyond_the_close"),
    workload="directories",
    seeds=20,
)
def a_missing_directory_held_nothing(patch: pytest.MonkeyPatch) -> None:
    edit(patch, ServedDirectory, "may_hold", ("not self.read", "False"))


@mutant(
    lost="A bookie denies the entries of a directory that failed.",
    invariants=(*UNKNOWN_IS_ABSENT, "nothing_acknowledged_beyond_the_close"),
    workload="directories",
    seeds=40,
)
def a_failed_directory_held_nothing(patch: pytest.MonkeyPatch) -> None:
    edit(patch, ServedDirectory, "may_hold", ("or ledger_id in store.ledgers", ""))


@mutant(
    lost='Reads from a failed directory are answered with "no such entry".',
    invariants=("no_false_absence", "acknowledged_is_kept"),
    workload="directories",
    seeds=90,
)
def lost_is_answered_as_absent(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        BookieService,
        "code_of_missing",
        ("if self.store.is_lost(ledger_id):", "if False:"),
        ("if self.store.absence_unknown(ledger_id):", "if False:"),
    )


@mutant(
    lost="After a restart, a ledger is in two directories and cannot be used.",
    invariants=LOST_IN_A_CRASH,
    workload="directories",
    seeds=20,
)
def a_fence_goes_to_the_first_directory(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerDirectories,
        "fence",
        (
            "self._home_of(ledger_id).fence(ledger_id, done)",
            "home, first = self._home_of(ledger_id), self._serving[0].store\n"
            "    if first is not home and ledger_id not in first.ledgers:\n"
            "        first.create_ledger(ledger_id, home.ledgers[ledger_id].master_key)\n"
            "        home.ledgers[ledger_id].fenced = True\n"
            "    first.fence(ledger_id, done)",
        ),
    )


@mutant(
    lost="Forced appends in the other directories are not durable.",
    invariants=("acknowledged_is_on_a_quorum", *LOST_IN_A_CRASH),
    workload="directories",
    seeds=80,
    rule="rule 8",
)
def a_force_asks_the_first_directory(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerDirectories,
        "force",
        ("home.force(ledger_id, done)", "self._serving[0].store.force(ledger_id, done)"),
    )
