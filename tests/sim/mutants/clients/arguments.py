"""Defects of the limits of arguments."""

from __future__ import annotations

import pytest

from quire.client.datasets import datasets
from quire.client.datasets.format import DatasetLedger
from quire.streams.namespace import settings
from quire.streams.read import positions
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="Two parts of a publication may share an entry, which readers then get twice.",
    invariants=("arguments_are_checked",),
    workload="ledger walks",
    seeds=60,
)
def an_entry_is_published_twice(patch: pytest.MonkeyPatch) -> None:
    edit(patch, datasets, "_check_apart", ("start <= last", "start < last"))


@mutant(
    lost="A dataset may have a ledger with a negative number of rows.",
    invariants=("arguments_are_checked",),
    workload="ledger walks",
    seeds=60,
)
def rows_may_be_negative(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, DatasetLedger, "__post_init__",
        ("self.rows < 0 or self.bytes < 0", "self.rows < 0 and self.bytes < 0"),
    )  # fmt: skip


@mutant(
    lost="A stream cannot have the largest ensemble that is documented.",
    invariants=("arguments_are_checked",),
    workload="stream walks",
    seeds=60,
)
def the_largest_ensemble_is_refused(patch: pytest.MonkeyPatch) -> None:
    edit(patch, settings, "check_value", ("value > ENSEMBLE_MAX", "value >= ENSEMBLE_MAX"))


@mutant(
    lost="A read up to a time leaves out the records of its last millisecond.",
    invariants=("arguments_are_checked",),
    workload="stream walks",
    seeds=60,
)
def an_end_is_rounded_down(patch: pytest.MonkeyPatch) -> None:
    edit(patch, positions, "_parsed_ms", ("-(-since // millisecond) if end else ", ""))
