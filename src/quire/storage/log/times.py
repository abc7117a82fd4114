"""How long the steps of the log take, for metrics."""

from __future__ import annotations

from collections.abc import Callable

from quire._runtime.metrics import Histogram
from quire.storage.log.group_commit import WrittenGroup


class StorageTimes:
    """Observed once for each group, however much is in it. Patient batches wait on purpose, and
    are not in what is said of entries."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.queued = Histogram()
        """Of a group: from the receipt of its oldest batch until it was begun."""
        self.written = Histogram()
        """Of a group: composing it and handing it to the system."""
        self.synced = Histogram()
        """Of a group: its fdatasync."""
        self.added = Histogram()
        """Of an entry: from the receipt of the oldest in its group until they were durable."""
        self.answered = Histogram()
        """The same, until all of the group had their answers."""

    def on_written(self, group: WrittenGroup) -> None:
        """Whoever waited for its batches was told."""
        began_s, written_s, synced_s = group.times_s
        self.written.observe(written_s - began_s)
        self.synced.observe(synced_s - written_s)
        oldest_s, entries = 0.0, 0
        for batch in group.batches:
            if batch.entries and not batch.patient:
                oldest_s = oldest_s or batch.received_s
                entries += batch.entries
        if entries:
            self.queued.observe(began_s - oldest_s)
            self.added.observe(synced_s - oldest_s, entries)
            self.answered.observe(self._monotonic() - oldest_s, entries)
