"""Defects of adding and removing data directories."""

from __future__ import annotations

import pytest

from quire.bookie.directories import lost_directory
from quire.bookie.directories import replacement as disk_replacement
from tests.sim.mutants.mutant import edit, mutant

LOST = ("what_is_durable_stays", "acknowledged_is_kept", "no_false_absence")


@mutant(
    lost="A directory is removed although it has entries that no other directory has.",
    invariants=LOST,
    workload="resized",
    seeds=20,
)
def a_directory_goes_that_is_needed(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        disk_replacement.DirectoryRemoval,
        "check_not_needed",
        ("if lacking.count:", "if False:"),
    )


@mutant(
    lost="The same, if the other directories have some of the ledgers.",
    invariants=LOST,
    workload="resized",
    seeds=20,
)
def only_the_first_ledger_is_looked_for(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        disk_replacement.DirectoryRemoval,
        "check_not_needed",
        ("for ledger_id, _ in page:", "for ledger_id, _ in page[:1]:"),
    )


@mutant(
    lost="A bookie does not start any more, because its directories disagree.",
    invariants=("quiet_heals",),
    workload="resized",
    seeds=60,
)
def the_cluster_knows_of_it_first(patch: pytest.MonkeyPatch) -> None:
    told = "    await metadata.write_cookie(holder.bookie_id, encode(cookie), holder.version)\n"
    edit(
        patch,
        lost_directory,
        "remove_directory",
        ("encode(cookie))\n" + told, "encode(cookie))\n"),
        ("    for disk in others:", told + "    for disk in others:"),
    )
