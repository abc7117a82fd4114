"""Defects of a bookie's disk: syncs, torn tails, footers, state records, freed space."""

from __future__ import annotations

from typing import Any

import pytest

from quire.bookie.protocol.add_batcher import AddBatcher
from quire.storage import directory
from quire.storage.background.collector import Collector
from quire.storage.background.sealer import Sealer
from quire.storage.log import preallocation
from quire.storage.log.appender import Appender
from quire.storage.log.group_commit import LogWriter
from quire.storage.read.reader import Reader
from quire.storage.recovery import replay
from quire.storage.segment import footer, footer_rows
from quire.storage.segment.batch import LogBatch
from quire.storage.segment.catalogue import Catalogue
from quire.storage.store import LedgerStore
from tests.sim.mutants.mutant import edit, mutant

LOST_IN_A_CRASH = (
    "what_is_durable_stays",
    "a_good_disk_gives_back_what_it_names",
    "acknowledged_is_on_a_quorum",
    "acknowledged_is_kept",
    "replicated",
    "quiet_heals",
)


@mutant(
    lost="Acknowledged appends are lost when the power fails.",
    invariants=LOST_IN_A_CRASH,
    workload="disk",
    seeds=20,
)
def groups_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LogWriter, "write", ("file.sync()", "pass"))


@mutant(
    lost="A segment of the log is lost when the power fails.",
    invariants=LOST_IN_A_CRASH,
    workload="torn",
    seeds=420,
)
def a_segment_header_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LogWriter, "_begin", ("segment.file.sync()", "pass"))


@mutant(
    lost="A segment of the log is lost when the power fails.",
    invariants=LOST_IN_A_CRASH,
    workload="disk",
    seeds=20,
)
def the_directory_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    edit(patch, preallocation, "prepare", ("disk.sync_directory(LOG_DIRECTORY)", "pass"))


@mutant(
    lost="After a power failure, a bookie does not recognise its own directory.",
    invariants=("replicated", "quiet_heals"),
    workload="disk",
    seeds=20,
)
def small_files_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    edit(patch, directory, "write_small_file", ("file.sync()", "pass"))


@mutant(
    lost="Entries of a sealed segment are lost when the power fails.",
    invariants=LOST_IN_A_CRASH,
    workload="torn",
    seeds=60,
)
def a_footer_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        footer,
        "write_footer",
        ("file_bytes)\n    segment.file.sync()", "file_bytes)"),
        ("TRAILER_BYTES)\n    segment.file.sync()", "TRAILER_BYTES)"),
    )


@mutant(
    lost="Acknowledged appends are lost when the power fails.",
    invariants=LOST_IN_A_CRASH,
    workload="disk",
    seeds=20,
)
def adds_are_acknowledged_when_queued(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Appender,
        "submit",
        (
            "self._writer.submit(batch, segment)",
            "self._writer.submit(batch, segment)\n"
            "    done, batch.done = batch.done, None\n"
            "    if done is not None:\n"
            "        done(batch, None)",
        ),
    )


@mutant(
    lost="A sync that fails and then succeeds wrote nothing, so acknowledged appends are lost.",
    invariants=LOST_IN_A_CRASH,
    workload="disk",
    seeds=20,
    rule="fsyncgate",
)
def a_failed_sync_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LogWriter,
        "write",
        (
            "file.sync()",
            "try:\n        file.sync()\n    except OSError:\n        file.sync()",
        ),
    )


@mutant(
    lost="Acknowledged appends are lost when the disk fails.",
    invariants=LOST_IN_A_CRASH,
    workload="disk",
    seeds=30,
)
def failed_adds_are_acknowledged(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Appender, "on_failed", ("done(batch, error)", "done(batch, None)"))


@mutant(
    lost="A copy that is only queued is acknowledged, and lost when the power fails.",
    invariants=LOST_IN_A_CRASH,
    workload="disk",
    seeds=590,
)
def a_duplicate_is_acknowledged_at_once(patch: pytest.MonkeyPatch) -> None:
    real = AddBatcher._hand_over

    def hand_over(self: Any, batch: LogBatch, urgent: bool, done: Any) -> None:
        ledgers = self._service.store.ledgers
        if any(run.last > ledgers[run.ledger_id].last_entry_id for run in batch.runs):
            real(self, batch, urgent, done)
        else:
            done(batch, None)

    patch.setattr(AddBatcher, "_hand_over", hand_over)


@mutant(
    lost="After two crashes a log looks damaged, although it is not.",
    invariants=LOST_IN_A_CRASH,
    workload="disk",
    seeds=20,
)
def the_last_group_is_not_written_again(patch: pytest.MonkeyPatch) -> None:
    edit(patch, replay, "_write_again", ("header = group.header", "return"))


@mutant(
    lost="A bookie denies entries that come after damage in its log.",
    invariants=("no_false_absence", "acknowledged_is_kept"),
    workload="amnesia",
    seeds=250,
    rule="rule 32",
)
def lost_groups_are_not_missed(patch: pytest.MonkeyPatch) -> None:
    edit(patch, replay, "judge", ("chain.lost[number] = lost", "chain.lost[number] = 0"))


@mutant(
    lost="A bookie denies damaged entries.",
    invariants=("no_false_absence", "acknowledged_is_kept"),
    workload="spoiled",
    seeds=760,
    rule="bk#2908, rule 32",
)
def a_damaged_copy_is_no_copy(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Reader, "_some", ("if problem is not None:", "if False:"))


@mutant(
    lost="A restart undoes a fence, so there are two writers.",
    invariants=("what_is_durable_stays", "nothing_acknowledged_beyond_the_close"),
    workload="recovery",
    seeds=20,
    rule="BOOKKEEPER-135, rule 34",
)
def a_start_forgets_fences(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Catalogue, "apply_record", ("elif kind is RecordKind.FENCE:", "elif False:"))


@mutant(
    lost="A restart undoes fences and loses keys of a sealed segment.",
    invariants=("what_is_durable_stays", "nothing_acknowledged_beyond_the_close", "quiet_heals"),
    workload="recovery",
    seeds=130,
    rule="rule 34",
)
def a_footer_forgets_the_records(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Sealer, "seal", ("[*segment.records, *mentions_of(segment)]", "[]"))


@mutant(
    lost="A bookie cannot fence a ledger any more.",
    invariants=("what_is_durable_stays", "quiet_heals"),
    workload="idle",
    seeds=30,
)
def the_master_key_is_not_logged(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerStore,
        "create_ledger",
        ("add_pending(StateRecord(RecordKind.MASTER_KEY, ledger_id, master_key))", "groups"),
    )


@mutant(
    lost="A fence disappears with its segment, so there are two writers.",
    invariants=("what_is_durable_stays", "nothing_acknowledged_beyond_the_close"),
    workload="idle",
    seeds=40,
    rule="rule 34",
)
def a_fence_goes_with_its_segment(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Collector,
        "_still_needed",
        ("elif record.kind is RecordKind.FENCE and info.fenced:", "elif False:"),
    )


@mutant(
    lost="Live ledgers are lost with a segment that they share with a deleted one.",
    invariants=("what_is_durable_stays", "quiet_heals", "no_false_absence"),
    workload="delete",
    seeds=50,
)
def a_segment_with_one_live_ledger_is_dropped(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Collector, "collect", ("segment.live_ledgers == 0", "segment.live_ledgers <= 1"))


@mutant(
    lost="A bookie misses a segment that it removed itself, and turns read-only.",
    invariants=("what_is_durable_stays", "quiet_heals"),
    workload="delete",
    seeds=20,
)
def a_dropped_segment_is_not_logged(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Collector,
        "_on_records",
        ("needed.append(StateRecord(RecordKind.DROPPED", "str((RecordKind.DROPPED"),
        ("value=segment_value(segment.number)))", "segment_value(segment.number)))"),
    )


@mutant(
    lost="An append to a ledger that was closed and deleted is acknowledged.",
    invariants=("nothing_acknowledged_beyond_the_close",),
    workload="idle",
    seeds=40,
    rule="bk#4462, rule 36",
)
def a_deleted_ledger_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerStore, "is_refused", lambda self, ledger_id: False)


@mutant(
    lost="The footer of a sealed segment does not find some entries.",
    invariants=(
        "a_good_disk_gives_back_what_it_names",
        "quiet_heals",
        "no_false_absence",
        "entries_are_what_was_appended",
    ),
    workload="disk",
    seeds=20,
)
def a_footer_joins_runs_of_different_sizes(patch: pytest.MonkeyPatch) -> None:
    edit(patch, footer_rows, "_joined", ("and before.frame_size == run.frame_size\n", ""))


@mutant(
    lost="Entries that were being written when their segment was sealed are lost.",
    invariants=LOST_IN_A_CRASH,
    workload="disk",
    seeds=20,
)
def a_segment_is_sealed_with_adds_in_flight(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Appender, "_roll", ("if not old.in_flight:", "if True:"))


@mutant(
    lost="After a failed sync during its start, a bookie believes that it lost data.",
    invariants=("what_is_durable_stays", "quiet_heals"),
    workload="disk",
    seeds=20,
    rule="ours: seeds 512, 564",
)
def a_preparation_that_fails_leaves_a_gap(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        preallocation,
        "prepare",
        ("if new:\n            disk.remove(name)", "disk.remove(name)"),
    )


@mutant(
    lost="A read that ends during a clean stop loses queued entries.",
    invariants=("the_run_comes_to_its_end",),
    workload="rolling",
    seeds=1170,
    rule="ours: seeds 5268, 5684",
)
def a_read_that_ends_closes_the_log(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerStore,
        "close",
        (
            "self._preallocated.closed = True",
            "self._preallocated.closed = self._cold.closed = True",
        ),
    )
