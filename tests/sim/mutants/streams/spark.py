"""Defects of Spark's streaming queries: sources that skip or repeat, sinks that publish twice."""

from __future__ import annotations

import pytest

from quire.spark.streams import plan
from quire.spark.streams.offsets import StreamOffset
from quire.spark.streams.query import StreamQuery
from quire.spark.streams.sink import Committer, StreamTaskOutput
from quire.spark.streams.view import StreamView
from quire.streams.publish import publishing
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="A query skips the records of a stream that was deleted and created again.",
    invariants=("a_query_notices_another_stream", "no_record_is_skipped"),
    workload="spark",
    seeds=400,
    rule="stream created again",
)
def a_query_does_not_know_the_life(patch: pytest.MonkeyPatch) -> None:
    def same_stream(self: StreamView, reached: StreamOffset) -> bool:
        if not self.segments:
            return reached.position <= self.oldest
        here = self._segment(reached.position.lssn)
        if here is None:
            return reached.position.lssn <= self.segments[-1].lssn + 1
        return reached.ledger_id is None or reached.ledger_id == here.ledger_id

    patch.setattr(StreamView, "same_stream", same_stream)


@mutant(
    lost="A micro-batch that is computed again lacks its last entry.",
    invariants=("no_record_is_skipped", "a_query_reads_what_its_offsets_say"),
    workload="spark",
    seeds=60,
)
def a_range_ends_one_entry_early(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        plan,
        "split_of",
        ("part.end.entry_id - (not part.end.slot_id)", "part.end.entry_id - 1"),
    )


@mutant(
    lost="A micro-batch repeats the records of the entry in which it begins.",
    invariants=("no_record_is_skipped", "a_query_reads_what_its_offsets_say"),
    workload="spark",
    seeds=100,
)
def a_range_begins_with_the_whole_entry(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        plan,
        "split_of",
        ("start = part.start if part.start.slot_id else None", "start = None"),
    )


@mutant(
    lost="The limit of a micro-batch skips records at the end of a segment.",
    invariants=("a_query_reads_what_its_offsets_say", "no_record_is_skipped"),
    workload="spark",
    seeds=100,
)
def a_limit_counts_one_record_too_few(patch: pytest.MonkeyPatch) -> None:
    edit(patch, StreamView, "after_records", ("left = limit + start.records", "left = limit"))


@mutant(
    lost="A query is told that there is nothing to read although there is.",
    invariants=("a_query_reads_everything",),
    workload="spark",
    seeds=100,
)
def the_end_of_a_query_is_where_it_began(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        StreamQuery,
        "prepare_available_now",
        ("await followed.view.frontier()", "await followed.view.mark(followed.view.oldest)"),
    )


@mutant(
    lost="The rows that a task holds back are lost when it ends.",
    invariants=("a_batch_is_there_whole", "an_acknowledged_record_is_there"),
    workload="spark",
    seeds=60,
)
def a_task_does_not_wait_for_its_rows(patch: pytest.MonkeyPatch) -> None:
    edit(patch, StreamTaskOutput, "close", ("await self._settle()", "pass"))


@mutant(
    lost="The clean-up after a micro-batch deletes what it has published.",
    invariants=("a_named_ledger_is_not_deleted",),
    workload="spark",
    seeds=60,
)
def the_clean_up_keeps_what_tasks_built(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Committer,
        "clean_up",
        ("[segment.ledger_id for segment in segments]", "[one.ledger_id for one in built]"),
    )
    edit(patch, publishing, "sweep_job", (" if ledger_id not in named", ""))
