"""Defects of streams that somebody has damaged: lost ledgers, and nodes that cannot be read."""

from __future__ import annotations

import pytest

from quire.streams.ownership import lost_ledgers, orphans, owners
from quire.streams.read.reader import StreamReader
from quire.streams.write import takeover
from quire.streams.write.segments import Segments
from tests.sim.mutants.mutant import edit, exchange, mutant


@mutant(
    lost="The gap of a deleted ledger disappears, and its positions are assigned again.",
    invariants=("a_lost_segment_keeps_its_number", "a_position_is_assigned_once"),
    workload="damaged",
    seeds=60,
    rule="deleted ledger of a stream",
)
def a_takeover_drops_a_lost_segment(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        takeover,
        "complete",
        (
            "await metadata.change(taken.claim, complete=lost)\n"
            "        tell_lost(metadata.paths.name, lost)\n"
            "        return lost",
            "await metadata.change(taken.claim, drop=segment)\n        return None",
        ),
    )


@mutant(
    lost="A writer whose ledger was deleted assigns its positions again.",
    invariants=("a_lost_segment_keeps_its_number", "a_position_is_assigned_once"),
    workload="damaged",
    seeds=60,
    rule="deleted ledger of a stream",
)
def a_writer_drops_a_lost_segment(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Segments, "mend", ("end, gone = -1, writer.used", "end, gone = -1, False"))


@mutant(
    lost="The sequence ids of lost records are assigned again.",
    invariants=("readers_agree", "a_record_is_what_its_writer_said", "no_record_is_skipped"),
    workload="damaged",
    seeds=100,
    rule="deleted ledger of a stream",
)
def a_lost_segment_counts_no_records(patch: pytest.MonkeyPatch) -> None:
    edit(patch, takeover, "complete", ("record_count=MAX_POSITION", "record_count=0"))


@mutant(
    lost="A ledger of a stream is deleted by its id without a warning.",
    invariants=("an_owned_ledger_is_not_deleted",),
    workload="damaged",
    seeds=30,
    rule="deleted ledger of a stream",
)
def a_deletion_does_not_ask_for_the_owner(patch: pytest.MonkeyPatch) -> None:
    async def refuse_owned(client: object, ledger_ids: object, **how: object) -> None:
        pass

    exchange(patch, owners.refuse_owned, refuse_owned)
    patch.setattr("quire_simulator.streams.damage.refuse_owned", refuse_owned)


@mutant(
    lost="Nobody learns that a ledger that a stream needs is gone.",
    invariants=("what_is_lost_is_reported",),
    workload="damaged",
    seeds=30,
    rule="deleted ledger of a stream",
)
def lost_ledgers_are_not_reported(patch: pytest.MonkeyPatch) -> None:
    edit(patch, lost_ledgers, "_exists", ("return False", "return True"))


@mutant(
    lost="A segment whose node cannot be read loses its ledger to the search for orphans.",
    invariants=("a_named_ledger_is_no_orphan",),
    workload="damaged",
    seeds=100,
)
def an_unreadable_stream_names_nothing(patch: pytest.MonkeyPatch) -> None:
    edit(patch, orphans._Place, "is_orphan", ("self.skipped or ", ""))


@mutant(
    lost="A reader passes over records whose ledger was deleted, and says nothing.",
    invariants=("no_record_is_skipped", "a_read_comes_to_the_end"),
    workload="damaged",
    seeds=100,
)
def a_reader_passes_over_a_lost_ledger(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        StreamReader,
        "_segment",
        (
            "gap = await self._missing(segment, listed)\n"
            "        if gap is not None and self._tell(gap):\n"
            "            yield gap\n",
            "await self._missing(segment, listed)\n"
            "        self._position = segment.first_dlsn.next_segment()\n",
        ),
    )
