"""What `follow` reports about a query that has ended."""

from __future__ import annotations

import importlib
import threading
from typing import Any

import pytest

from quire.spark.jobs.ingest import IngestTarget

# The package has a function of the same name.
ingest = importlib.import_module("quire.spark.jobs.ingest")
TARGET = IngestTarget("orders")


class Query:
    """A query of Spark that writes micro-batches of ten records."""

    def __init__(self, looks: int, *, interrupt: bool = False) -> None:
        self.recentProgress: list[dict[str, int]] = []
        self._looks, self._interrupt = looks, interrupt

    def write(self, *, rows: int = 10) -> None:
        number = sum(1 for one in self.recentProgress if one["numInputRows"])
        self.recentProgress.append({"batchId": number, "numInputRows": rows})

    def awaitTermination(self, _: float) -> bool:
        self._looks -= 1
        self.write(rows=0)
        self.write()
        if self._interrupt and self._looks == 0:
            raise KeyboardInterrupt
        return self._looks == 0

    def stop(self) -> None:
        self.write()  # the micro-batch of this moment


def watched(query: Query, stop: threading.Event, *, available_now: bool) -> tuple[int, int, str]:
    def progress(what: str, done: int, total: int | None) -> None:
        if done >= 30:
            stop.set()

    nothing: Any = query
    found = ingest._watch(nothing, TARGET, "/c", stop, progress, available_now=available_now)
    return found.records, found.batches, found.ended


@pytest.mark.parametrize("how", ["stop", "interrupt"])
def test_the_last_micro_batch_of_a_stopped_run_is_counted(how: str) -> None:
    """A micro-batch that ended after the last look was written and not counted."""
    query = Query(looks=99) if how == "stop" else Query(looks=3, interrupt=True)
    assert watched(query, threading.Event(), available_now=False) == (40, 4, "stopped")


def test_a_query_that_ends_by_itself_or_is_stopped_is_reported() -> None:
    """Another thread of the program may stop a query that would continue."""
    assert watched(Query(2), threading.Event(), available_now=True) == (20, 2, "available")
    assert watched(Query(2), threading.Event(), available_now=False) == (20, 2, "stopped")
