"""Defects of the metrics of a bookie."""

from __future__ import annotations

import pytest

from quire.bookie.protocol.service import BookieService
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="Dashboards show too few added entries.",
    invariants=("metrics_are_true",),
    workload="all",
    seeds=20,
)
def only_batches_are_counted(patch: pytest.MonkeyPatch) -> None:
    edit(patch, BookieService, "count_adds", ("counters.adds += entries", "counters.adds += 1"))


@mutant(
    lost="Dashboards do not show the bytes that were read from the disk.",
    invariants=("metrics_are_true",),
    workload="all",
    seeds=40,
)
def bytes_from_the_disk_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        BookieService,
        "_read_from_disk",
        ("self.counters.read_bytes += entry_bytes(entries)", "entry_bytes(entries)"),
    )
