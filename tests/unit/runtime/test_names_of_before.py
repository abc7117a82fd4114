"""Public names that have changed are still found by their former spelling, with a warning."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

import quire.replication
from quire._runtime.names.former_names import former_names


@pytest.mark.parametrize(
    ("home", "former", "present"),
    [
        ("quire.replication", "LedgerWork", "LedgerResult"),
        ("quire.replication", "Move", "LedgerMove"),
        ("quire.replication", "Seen", "OpenLedgerState"),
        ("quire.replication", "Work", "LedgerOutcome"),
        ("quire.spark.jobs", "Progress", "ProgressCallback"),
        ("quire.spark.jobs.compact", "Key", "RecordKey"),
        ("quire.spark.jobs.ingest", "Target", "IngestTarget"),
    ],
)
def test_a_former_name_gives_the_present_object(home: str, former: str, present: str) -> None:
    import_module(home)
    module = sys.modules[home]  # not an attribute: a job hides the module of its name
    with pytest.warns(DeprecationWarning, match=present):
        found = getattr(module, former)
    assert found is getattr(module, present)


def test_other_names_are_missing_or_found_as_before() -> None:
    plain = former_names(__name__, {})
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        plain("Missing")
    assert former_names(__name__, {}, otherwise=str.upper)("missing") == "MISSING"
    assert "Work" not in quire.replication.__all__
