"""The used share of each data directory, as a metric with Apache's name."""

from __future__ import annotations

import math

from quire.bookie.metrics import _directory_usage


def test_directories_with_the_same_metric_name_are_distinguished_by_label() -> None:
    spaces = [("/a-b", 200, 50), ("/a_b", 100, 100), ("/c", 0, 0)]
    first, second = _directory_usage(spaces)
    assert first.name == "bookie_ledger_dir__a_b_usage"
    assert [(one.value, one.labels["directory"]) for one in first.samples] == [
        (75.0, "/a-b"),
        (0.0, "/a_b"),
    ]
    assert second.name == "bookie_ledger_dir__c_usage"
    assert math.isnan(second.samples[0].value)
