"""Defects of streams: writers, retries, readers, truncation."""

from __future__ import annotations

import pytest

from quire.streams.namespace import truncation
from quire.streams.namespace.namespace import Namespace
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.read.reader import StreamReader
from quire.streams.read.segment_list import SegmentList
from quire.streams.read.subscriptions import Subscription
from quire.streams.statemachine.state_machine import Leader
from quire.streams.write import takeover
from quire.streams.write.pending_entry import PendingEntry
from quire.streams.write.segments import Segments, SegmentWriter
from quire.streams.write.takeover import TakenStream
from quire.streams.write.writer import Producer, StreamWriter
from quire.streams.write.writer_task import WriterTask
from tests.sim.mutants.mutant import edit, mutant

# -- who writes --------------------------------------------------------------------------------


@mutant(
    lost="A replaced writer continues in a new segment beside its successor.",
    invariants=("a_successor_ends_the_writer", "numbers_of_segments_have_no_hole"),
    workload="streams",
    seeds=30,
)
def a_roll_does_not_check_the_claim(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        StreamMetadata,
        "change",
        ("encode_number(newest), claim.ledgers_version", "encode_number(newest), ANY_VERSION"),
        ("encode_number(max_txid), claim.max_txid_version", "encode_number(max_txid), ANY_VERSION"),
        ("NO_LEDGER, claim.allocation_version", "NO_LEDGER, ANY_VERSION"),
    )


@mutant(
    lost="The former writer continues, so there are two writers.",
    invariants=("a_successor_ends_the_writer", "only_a_successor_ends_a_writer"),
    workload="streams",
    seeds=120,
)
def a_claim_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        StreamMetadata,
        "_claim",
        ("await self.tree.commit(stamped, claim)", "pass"),
        ("ledgers_version=ledgers.version + 1", "ledgers_version=ledgers.version"),
    )


@mutant(
    lost="Acknowledged records of a replaced writer are lost.",
    invariants=("a_completed_segment_is_closed", "an_acknowledged_record_is_there"),
    workload="streams",
    seeds=60,
)
def a_takeover_does_not_recover_the_ledger(patch: pytest.MonkeyPatch) -> None:
    edit(patch, takeover, "complete", ("recover=True", "recover=False"))


@mutant(
    lost="A replaced writer takes a conflict for a success and acknowledges.",
    invariants=("a_successor_ends_the_writer",),
    workload="streams",
    seeds=60,
)
def a_conflict_is_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        StreamMetadata,
        "_commit",
        ("if not await self._is_so(claim, version, after)", "if False"),
    )


@mutant(
    lost="Truncated records come back under the new name.",
    invariants=("truncation_never_goes_back",),
    workload="lives",
    seeds=540,
)
def a_rename_does_not_see_a_truncation(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Namespace, "_rename", ("Delete(life.path, life.version)", "Delete(life.path, -1)"))


@mutant(
    lost="A stream that was deleted and created again has two writers, and loses ledgers.",
    invariants=("a_deleted_stream_takes_no_more", "only_empty_segments_are_dropped"),
    workload="lives",
    seeds=30,
)
def a_life_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        StreamMetadata,
        "_commit",
        ("guard = [Check(claim.life, ANY_VERSION)]", "guard = []"),
    )


@mutant(
    lost="Deleted or renamed streams exist again, empty.",
    invariants=("a_segment_goes_when_it_is_truncated", "what_was_deleted_is_gone"),
    workload="lives",
    seeds=30,
)
def a_deleted_stream_comes_back_by_half(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        StreamMetadata,
        "make_below",
        (
            "await self.tree.commit(Check(self.paths.segments, ANY_VERSION), Create(path, value))",
            "await self.tree.make_path(path, value)",
        ),
    )


@mutant(
    lost="A stream that was ended continues.",
    invariants=("an_ended_stream_takes_no_more",),
    workload="streams",
    seeds=100,
)
def an_end_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    edit(patch, takeover, "check_not_ended", ("if last_txid == MAX_TXID:", "if False:"))


@mutant(
    lost="Appends succeed although their condition does not hold.",
    invariants=("conditions_are_kept",),
    workload="streams",
    seeds=30,
)
def a_condition_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, StreamWriter, "_append", ("expect is not None and expect !=", "False and expect !=")
    )


# -- what is sent, and sent again ----------------------------------------------------------------


@mutant(
    lost="Records are in the stream twice.",
    invariants=("a_record_is_there_once",),
    workload="streams",
    seeds=840,
)
def what_is_stored_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Segments,
        "mend",
        (
            "settle(writer.acknowledged_through(end))\n",
            "again = [entry for entry in writer.in_flight if not entry.control]\n"
            "    settle(writer.acknowledged_through(end))\n",
        ),
        ("return lost", "return again"),
    )


@mutant(
    lost="Appends never return, although their records are in the stream.",
    invariants=("quiet_heals",),
    workload="streams",
    seeds=60,
)
def what_a_recovery_has_found_is_not_acknowledged(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Segments,
        "mend",
        ("settle(writer.acknowledged_through(end))", "writer.acknowledged_through(end)"),
    )


@mutant(
    lost="Records are acknowledged when they are sent, and may be lost.",
    invariants=("an_acknowledged_record_is_there",),
    workload="streams",
    seeds=60,
)
def what_is_sent_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        SegmentWriter,
        "acknowledged",
        ("await self.ledger.wait(self.in_flight[0].entry_id)", "pass"),
        ("self.ledger.last_add_confirmed", "self.ledger.last_add_pushed"),
    )


@mutant(
    lost="Readers cannot find a record at the position that its writer was told.",
    invariants=("told_positions_are_true", "a_record_is_what_its_writer_said"),
    workload="streams",
    seeds=30,
)
def positions_leave_out_the_marks(patch: pytest.MonkeyPatch) -> None:
    edit(patch, PendingEntry, "position", ("index + before", "index"))


@mutant(
    lost="Sequence ids are assigned twice or not at all.",
    invariants=("sequence_ids_have_no_hole", "a_record_is_what_its_writer_said"),
    workload="streams",
    seeds=60,
)
def a_segment_without_records_counts(patch: pytest.MonkeyPatch) -> None:
    def next_sequence(self: TakenStream) -> int:
        if not self.segments:
            return 0
        last = self.segments[-1]
        return last.following_sequence_id + (last.record_count == 0)

    patch.setattr(TakenStream, "next_sequence", property(next_sequence))


@mutant(
    lost="Ledgers are left behind that nobody deletes.",
    invariants=("no_ledger_is_orphaned",),
    workload="streams",
    seeds=300,
)
def a_ledger_is_left_when_its_node_is_not_written(patch: pytest.MonkeyPatch) -> None:
    async def drop(self: Segments) -> None:
        self._made = None

    patch.setattr(Segments, "_drop_made", drop)


# -- producers and fencing tokens ----------------------------------------------------------------


@mutant(
    lost="A producer's records are lost, because the next writer believes that it has them.",
    invariants=("producers_are_in_the_stream_without_a_gap", "an_acknowledged_record_is_there"),
    workload="relay",
    seeds=60,
)
def a_snapshot_of_producers_is_ahead(patch: pytest.MonkeyPatch) -> None:
    edit(patch, WriterTask, "__init__", ("segments.taken.marks.copy()", "segments.taken.marks"))


@mutant(
    lost="After a failover a retry is a duplicate, and a fencing token is forgotten.",
    invariants=("no_producer_is_forgotten", "a_record_is_there_once"),
    workload="streams",
    seeds=30,
)
def marks_are_not_read_back(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        takeover,
        "take_over",
        ("taken.marks = await read_marks(client, taken.segments, password)", "pass"),
    )


@mutant(
    lost="The same, after everything was truncated.",
    invariants=("no_producer_is_forgotten", "a_record_is_there_once", "conditions_are_kept"),
    workload="lives",
    seeds=30,
)
def marks_of_what_is_truncated_are_not_read(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        takeover,
        "take_over",
        (
            "read_marks(client, taken.segments, password)",
            "read_marks(client, [s for s in taken.segments if not s.status], password)",
        ),
    )


@mutant(
    lost="A retry is acknowledged before its record is, and then the writer dies.",
    invariants=("a_retry_waits_for_the_record",),
    workload="streams",
    seeds=60,
)
def a_retry_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Producer, "append_many", ("await writer.flush()", "pass"))


# -- readers -------------------------------------------------------------------------------------


@mutant(
    lost="Readers miss a segment.",
    invariants=("no_record_is_skipped",),
    workload="streams",
    seeds=30,
)
def a_reader_skips_a_segment(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        StreamReader,
        "_segment",
        (
            "self._position = segment.first_dlsn.next_segment()",
            "self._position = segment.first_dlsn.next_segment().next_segment()",
        ),
    )


@mutant(
    lost="Readers miss the last entry of a segment.",
    invariants=(
        "no_record_is_skipped",
        "a_read_comes_to_the_end",
        "an_acknowledged_record_is_there",
    ),
    workload="streams",
    seeds=30,
)
def the_last_entry_of_a_segment_is_not_read(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, StreamReader, "_runs", ("reader.last_add_confirmed", "reader.last_add_confirmed - 1")
    )


@mutant(
    lost="Followers miss entries that are written after they opened the segment.",
    invariants=("no_record_is_skipped",),
    workload="streams",
    seeds=30,
)
def the_end_so_far_is_the_end_of_the_segment(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        StreamReader,
        "_runs",
        ("if not self._follow or reader.ledger_closed:", "if True:"),
    )
    edit(
        patch,
        StreamReader,
        "_segment",
        ("closed, last = reader.ledger_closed,", "closed, last = True,"),
        ("if closed and segment.in_progress:", "if False:"),
    )


@mutant(
    lost="Applications see control records.",
    invariants=("only_what_was_appended_is_read",),
    workload="streams",
    seeds=30,
)
def control_records_are_shown(patch: pytest.MonkeyPatch) -> None:
    edit(patch, StreamReader, "_batch", ("records = records.users()", "pass"))


@mutant(
    lost="A read that ends at the beginning of an entry misses the entry before it.",
    invariants=("a_read_comes_to_the_end",),
    workload="streams",
    seeds=990_000,
)
def an_end_between_entries_cuts_the_last(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        StreamReader,
        "_batch",
        ("if end.entry_id == entry_id and end.lssn == segment.lssn:", "if True:"),
    )


@mutant(
    lost="A reader that has read everything is told of a gap; a state machine cannot start.",
    invariants=("no_command_is_lost", "quiet_heals"),
    workload="streams",
    seeds=100,
)
def nobody_is_behind_a_truncated_segment(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        StreamReader,
        "_is_behind",
        ("return self._at > max(segment.last_dlsn, segment.first_dlsn)", "return False"),
    )


@mutant(
    lost="The position of a subscription goes back, so records are delivered again.",
    invariants=("a_subscription_never_goes_back",),
    workload="streams",
    seeds=300,
)
def a_subscription_stores_what_comes(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Subscription, "position", ("return self._decode(value)", "return None"))


@mutant(
    lost="A reader continues in another stream of the same name, and skips its first records.",
    invariants=("a_reader_stays_with_its_stream",),
    workload="lives",
    seeds=300,
    rule="stream created again",
)
def a_reader_follows_the_name(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        SegmentList,
        "look",
        ("if self.life is not None and life != self.life:", "if False:"),
    )


@mutant(
    lost="A subscription skips records of a stream that was deleted and created again.",
    invariants=("a_subscription_belongs_to_its_stream",),
    workload="lives",
    seeds=300,
    rule="stream created again",
)
def a_subscription_follows_the_name(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Subscription,
        "_check_life",
        ("if path != self._life:", "if False:"),
        ("return [Check(path, ANY_VERSION)] if path else []", "return []"),
    )


# -- what is given up ----------------------------------------------------------------------------


@mutant(
    lost="Records are deleted that nobody truncated.",
    invariants=("only_what_was_asked_for_is_truncated",),
    workload="streams",
    seeds=60,
)
def a_truncation_takes_the_whole_segment(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        truncation,
        "_marked",
        ("if segment.last_dlsn < before:", "if segment.first_dlsn < before:"),
    )


@mutant(
    lost="Truncated records come back without their ledger.",
    invariants=("truncation_never_goes_back",),
    workload="streams",
    seeds=160,
)
def truncations_do_not_see_each_other(patch: pytest.MonkeyPatch) -> None:
    edit(patch, StreamMetadata, "mark_truncated", ("known.value, known.version))", "known.value))"))


@mutant(
    lost="A ledger is deleted although a part of its segment is still needed.",
    invariants=("a_named_ledger_is_not_deleted", "nothing_is_lost"),
    workload="streams",
    seeds=100,
)
def what_is_truncated_in_part_is_freed(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        truncation,
        "_truncated",
        ("s.truncation is Truncation.TRUNCATED", "s.truncation is not Truncation.ACTIVE"),
    )


@mutant(
    lost="A stream has no settings if its creator dies.",
    invariants=("settings_are_there_from_the_beginning",),
    workload="streams",
    seeds=300,
)
def settings_are_written_later(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Namespace,
        "create_stream",
        (
            "await metadata.create({STREAM_SETTINGS_NODE: encoded} if settings else {}, guard)",
            "await metadata.create({}, guard)\n"
            "    root = metadata.paths.root\n"
            '    await self._tree.make_path(f"{root}/{STREAM_SETTINGS_NODE}", encoded)',
        ),
    )


# -- state machines ------------------------------------------------------------------------------


@mutant(
    lost="A leader returns results of commands that are not in the log.",
    invariants=("machines_agree", "a_command_is_applied_once", "no_command_is_lost"),
    workload="streams",
    seeds=60,
)
def a_leader_applies_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Leader,
        "_submit",
        (
            "self._more.set()\n",
            "self._more.set()\n    self._settle(command, result)\n    self._waiting.pop()\n",
        ),
    )
