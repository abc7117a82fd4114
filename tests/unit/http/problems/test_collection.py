"""The problems of garbage collection."""

from __future__ import annotations

from quire.http.views.problems.cluster import problems
from quire.http.views.problems.collection import Collection
from tests.support.http.problems import WELL, bookie


def test_garbage_that_is_not_collected() -> None:
    found = Collection("garbage collection is switched off by h.1", ("b:1", "b:2"))
    refused, off = problems([bookie("a")], WELL, collection=found)
    assert refused.severity == "bad"
    assert refused.what.startswith("The metadata store went back in time, as detected by b:1, b:2")
    assert "quire cluster gc status" in refused.next
    assert "quire cluster gc accept" in refused.doing
    assert (off.severity, off.what) == ("warn", "Garbage collection is switched off by h.1")
    assert off.next == "quire cluster gc on"
