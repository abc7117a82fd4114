"""The checkpoint of a streaming query, and checks of the records that its sources give to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from quire.codec.distributedlog.dlsn import INITIAL_DLSN
from quire.spark.streams.offsets import Offsets
from quire.streams import Record
from quire_simulator.streams.facts import ObservedStream
from quire_simulator.streams.invariants import ReaderPosition
from quire_simulator.streams.stage import StreamStage

SKIPPED_MAX = 1_000
"""The number of records to look for if some are skipped. The numbers of lost segments are huge."""


@dataclass(slots=True)
class SourceView:
    """How far a query has read one source, as the model knows it."""

    facts: ObservedStream
    """The life of the stream that the query reads."""
    position: ReaderPosition

    @classmethod
    def begin(cls, who: str, facts: ObservedStream) -> SourceView:
        return cls(facts, ReaderPosition(who, INITIAL_DLSN))

    def copied(self) -> SourceView:
        return SourceView(self.facts, replace(self.position))


class SupersededError(Exception):
    """Another driver has continued from the checkpoint, so this one may not write it any more."""


@dataclass(slots=True)
class QueryCheckpoint:
    """The checkpoint of one query: Spark's logs of offsets and commits, and the model's views."""

    fail: Callable[[str, str], None]
    """Reports an invariant that does not hold, and what was found."""
    epoch: int = 0
    """The number of drivers that have opened it. Only the last one may write."""
    offsets: dict[int, str] = field(default_factory=dict)
    """The offsets at which each micro-batch ends, as JSON."""
    committed: int = -1
    """The last micro-batch in the log of commits."""
    views: dict[int, dict[int, SourceView]] = field(default_factory=dict)
    """The views of the sources after each micro-batch. Those before the first one have key -1."""
    rows: dict[int, dict[int, tuple[bytes, ...]]] = field(default_factory=dict)
    """The rows of each micro-batch by source, as they were computed first."""
    first_start: str = ""
    """The offsets, as JSON, at which the first micro-batch began when it was computed last."""
    ended: str = ""
    """The reason why the query cannot continue."""

    def open(self) -> int:
        """Let a driver continue from here, and return its epoch."""
        self.epoch += 1
        return self.epoch

    def log_offsets(self, epoch: int, number: int, offsets: str) -> None:
        self._require(epoch)
        assert number not in self.offsets
        self.offsets[number] = offsets

    def log_commit(self, epoch: int, number: int) -> None:
        self._require(epoch)
        self.committed = max(self.committed, number)

    def _require(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise SupersededError


class SourceInvariants:
    """A checker of what the sources give to a query."""

    def __init__(self, stage: StreamStage, checkpoint: QueryCheckpoint, *, lenient: bool) -> None:
        self.stage = stage
        self.checkpoint = checkpoint
        self.lenient = lenient

    def computed(
        self, number: int, who: str, found: Mapping[int, list[Record]]
    ) -> dict[int, SourceView]:
        """Check the records of a micro-batch, and return the views after it."""
        before = self.checkpoint.views[number - 1]
        views = {source: view.copied() for source, view in before.items()}
        for source, records in found.items():
            for record in records:
                self._saw(views, source, who, record)
        return views

    def _saw(self, views: dict[int, SourceView], source: int, who: str, record: Record) -> None:
        stage, view = self.stage, views[source]
        view.position.who = who
        if record.payload in stage.tainted:
            view.position.upcoming = record.sequence + 1
            return
        if record.payload not in view.facts.sent:
            now = stage.lives[source]
            if now is not view.facts and record.payload in now.sent and not self.lenient:
                what = f"{who} read {record.payload[:20]!r} of another stream {now.plan.name}"
                self.checkpoint.fail("a_query_notices_another_stream", what)
            view = views[source] = SourceView.begin(who, now)
        if self.lenient:
            self._skipped(view, record)
        self.stage.saw(view.facts, view.position, record)

    def _skipped(self, view: SourceView, record: Record) -> None:
        """Let a lenient query skip records, but only if they may be gone."""
        if _gone(view, record.sequence):
            view.position.upcoming, view.position.begin = None, record.position

    def alike(self, number: int, found: Mapping[int, list[Record]], start: Offsets) -> None:
        """Check that a micro-batch that is computed again has the same rows.

        No offsets are stored before the first one is committed. Until then, Spark asks each driver
        where it begins, which is later if its source was truncated meanwhile.
        """
        rows = {
            source: tuple(record.payload for record in records)
            for source, records in found.items()
            if records
        }
        if number == 0:
            begin, self.checkpoint.first_start = self.checkpoint.first_start, _as_text(start)
            if begin != self.checkpoint.first_start:
                self.checkpoint.rows[number] = rows
        first = self.checkpoint.rows.setdefault(number, rows)
        if first != rows and not self.lenient:
            sizes = [sum(map(len, each.values())) for each in (first, rows)]
            what = f"micro-batch {number} had {sizes[0]} rows, and has {sizes[1]} other ones now"
            self.checkpoint.fail("a_micro_batch_is_computed_again_alike", what)

    def reached(
        self, views: Mapping[int, SourceView], start: Offsets, end: Offsets,
        numbers: Mapping[str, int],
    ) -> None:  # fmt: skip
        """Check that the records that were read are as many as the offsets say."""
        for name, offset in end.streams.items():
            view = views[numbers[name]]
            upcoming = view.position.upcoming
            if offset == start.streams.get(name) or upcoming is None or offset.sequence is None:
                continue
            if offset.sequence == upcoming or (self.lenient and _gone(view, offset.sequence)):
                continue
            if self.stage.is_current(view.facts):
                what = (
                    f"the query read {name} before record {upcoming}, but its offset "
                    f"{offset.position} is before record {offset.sequence}"
                )
                self.checkpoint.fail("a_query_reads_what_its_offsets_say", what)


def _gone(view: SourceView, sequence: int) -> bool:
    """Return whether all records that the query has not read before this one may be gone."""
    facts, upcoming = view.facts, view.position.upcoming
    if upcoming is None or sequence <= upcoming or not (facts.truncated or facts.destroyed):
        return False
    known = [facts.log.get(n) for n in range(upcoming, min(sequence, upcoming + SKIPPED_MAX))]
    return all(one is None or facts.may_be_gone(one) for one in known)


def _as_text(offsets: Offsets) -> str:
    return json.dumps(offsets.to_json())
