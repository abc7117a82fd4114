"""Defects of publishing batches: twice, in part, in another order, or after an abort."""

from __future__ import annotations

import pytest

from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.publish import publishing, stream_end
from quire.streams.publish.published import Published
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="A batch that is repeated after the death of its driver is in the stream twice.",
    invariants=("a_record_is_there_once", "a_batch_is_there_once", "a_batch_is_there_whole"),
    workload="publishing",
    seeds=60,
)
def a_batch_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        publishing,
        "_commit",
        ("segments, [operation, batch.plan.used()], after)", "segments, [batch.plan.used()], {})"),
    )


@mutant(
    lost="A batch that was published before is published again.",
    invariants=("a_record_is_there_once", "a_batch_is_there_once", "a_batch_is_there_whole"),
    workload="publishing",
    seeds=60,
)
def a_publication_does_not_look_for_an_earlier_one(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        publishing._Publication,
        "run",
        ("if found.segments_of(batch.key) is not None:", "if False:"),
    )


@mutant(
    lost="A driver that repeats a batch after the next one was published publishes it again.",
    invariants=("a_record_is_there_once", "a_batch_is_there_once", "a_batch_is_there_whole"),
    workload="publishing",
    seeds=300,
)
def only_the_last_batch_counts_as_published(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Published,
        "segments_of",
        ('self.values["number"] < key.number', 'self.values["number"] != key.number'),
    )


@mutant(
    lost="A driver that was replaced publishes beside its successor.",
    invariants=("a_successor_ends_the_writer", "numbers_of_segments_have_no_hole"),
    workload="publishing",
    seeds=60,
)
def a_publication_does_not_check_the_claim(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        StreamMetadata,
        "publish",
        ("encode_number(newest), claim.ledgers_version", "encode_number(newest), ANY_VERSION"),
        ("encode_number(max_txid), claim.max_txid_version", "encode_number(max_txid), ANY_VERSION"),
    )


@mutant(
    lost="An abort after a commit whose answer was lost deletes published records.",
    invariants=("a_named_ledger_is_not_deleted",),
    workload="publishing",
    seeds=100,
)
def an_abort_deletes_what_is_published(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        publishing,
        "_discard_unnamed",
        ("[one for one in built if one.ledger_id not in named]", "built"),
    )


@mutant(
    lost="A commit that still runs publishes ledgers that an abort has deleted.",
    invariants=("a_completed_segment_is_closed", "an_aborted_batch_is_not_there"),
    workload="publishing",
    seeds=300,
)
def an_abort_leaves_the_plan(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        publishing,
        "abort",
        ('await close_plan(metadata, batch.plan, batch.claim["life"])', "pass"),
    )


@mutant(
    lost="A driver that was replaced publishes after its successor has begun.",
    invariants=("a_successor_ends_the_writer",),
    workload="publishing",
    seeds=300,
)
def a_publication_does_not_check_its_plan(patch: pytest.MonkeyPatch) -> None:
    edit(patch, publishing, "_commit", ("[operation, batch.plan.used()]", "[operation]"))


@mutant(
    lost="A batch that goes behind that of another sink keeps its earlier txids.",
    invariants=("records_are_in_order",),
    workload="publishing",
    seeds=100,
)
def a_batch_behind_another_keeps_its_txids(patch: pytest.MonkeyPatch) -> None:
    edit(patch, publishing, "_check", ("if one.first_txid < last_txid:", "if False:"))
    edit(
        patch,
        publishing._Publication,
        "_prepared",
        ('if early and batch.settings["txids"] == "time":', "if False:"),
    )


@mutant(
    lost="A commit fences a writer that took the stream over, though nobody has allowed that.",
    invariants=("a_successor_ends_the_writer",),
    workload="publishing",
    seeds=300,
)
def every_commit_fences_writers(patch: pytest.MonkeyPatch) -> None:
    edit(patch, stream_end, "find_end", ("raise _held_by_writer(name, key, claim.stamp)", "pass"))


@mutant(
    lost="The rows of small tasks are in another order than they were computed.",
    invariants=("a_batch_is_there_whole",),
    workload="publishing",
    seeds=30,
)
def a_merge_changes_the_order(patch: pytest.MonkeyPatch) -> None:
    edit(patch, publishing, "_join", ("for one in group:", "for one in reversed(group):"))


@mutant(
    lost="The last entry of each ledger is missing when small ledgers are merged.",
    invariants=("a_batch_is_there_whole", "an_acknowledged_record_is_there"),
    workload="publishing",
    seeds=100,
)
def a_merge_copies_one_entry_less(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        publishing,
        "_join",
        ("assert joined.record_count == sum(one.record_count for one in group)", "pass"),
    )
    edit(
        patch,
        publishing,
        "_copy",
        (
            "async for run in runs:",
            "last = reader.last_add_confirmed or 1\n        async for run in runs:",
        ),
        (
            "records = decode(segment, entry_id, payload).users()",
            "if entry_id == last:\n                    continue\n"
            "                records = decode(segment, entry_id, payload).users()",
        ),
    )


@mutant(
    lost="The clean-up after a commit deletes published ledgers.",
    invariants=("a_named_ledger_is_not_deleted",),
    workload="publishing",
    seeds=60,
)
def a_sweep_spares_nothing(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        publishing,
        "sweep_job",
        ("if ledger_id not in spared:", "if True:"),
        (" if ledger_id not in named", ""),
    )


@mutant(
    lost="The clean-up after a commit deletes ledgers of other batches and of writers.",
    invariants=("a_named_ledger_is_not_deleted",),
    workload="publishing",
    seeds=60,
)
def a_sweep_takes_other_jobs_too(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        publishing,
        "sweep_job",
        ("JOB_KEY: key.job.encode(), ", ""),
        (" if ledger_id not in named", ""),
    )


@mutant(
    lost="Ledgers of failed attempts fill the disks.",
    invariants=("leftovers_of_a_batch_are_swept",),
    workload="publishing",
    seeds=60,
)
def a_sweep_begins_after_the_first_ledger(patch: pytest.MonkeyPatch) -> None:
    edit(patch, publishing, "sweep_job", ("max(0, first - SWEEP_BEFORE)", "first + 1"))


@mutant(
    lost="A query that was replaced long ago publishes again, in the place of its successor.",
    invariants=("a_replaced_query_publishes_nothing",),
    workload="publishing",
    seeds=300,
)
def a_former_query_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Published,
        "with_batch",
        ('former = [*former, self.values["query"]][-FORMER_MAX:]', "pass"),
    )


@mutant(
    lost="A query with a new checkpoint continues after another one without being told to.",
    invariants=("a_replaced_query_publishes_nothing",),
    workload="publishing",
    seeds=300,
)
def every_query_takes_over(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Published, "check", ("if not takeover:", "if False:"))
