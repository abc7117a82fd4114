"""Defects of the writer: what it counts, how it changes the ensemble, how it closes."""

from __future__ import annotations

from typing import Any

import pytest

from quire.client.cluster.pool import BookiePool
from quire.client.write.add_session import AddSession, Member
from quire.client.write.caller_ids import CallerIdWriter
from quire.client.write.deferred_session import DeferredSession
from quire.client.write.ensemble_changes import EnsembleChanges
from quire.client.write.explicit_lac import ExplicitLac
from quire.client.write.writer import WriteHandle
from quire.core import ledger_changes
from quire.core.append.deferred_pipeline import DeferredPipeline
from quire.core.append.pipeline import AddPipeline
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="Acknowledged appends are on a bookie that no metadata names.",
    invariants=("acknowledged_is_on_a_quorum", "acknowledged_is_kept"),
    workload="all",
    seeds=20,
    rule="bk#1591, rule 8",
)
def ensemble_change_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    async def change(self: Any, failed: Any, replacements: Any, first: int) -> tuple[str, ...]:
        ensemble = list(getattr(self, "_unstored", self.metadata.last_segment.ensemble))
        for index, bookie in replacements.items():
            ensemble[index] = bookie
        self._unstored = tuple(ensemble)
        return self._unstored

    patch.setattr(WriteHandle, "_change_ensemble", change)


@mutant(
    lost="Entries in flight when a bookie died are looked for on the wrong bookies.",
    invariants=("acknowledged_is_on_a_quorum",),
    workload="all",
    seeds=30,
)
def a_segment_begins_behind_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        EnsembleChanges,
        "_replace",
        (
            "first = session.pipeline.last_confirmed + 1",
            "first = session.pipeline.last_pushed + 1",
        ),
    )


@mutant(
    lost="Entries confirmed during an ensemble change are looked for on the wrong bookies.",
    invariants=("acknowledged_is_on_a_quorum",),
    workload="takeover",
    seeds=540,
    rule="bk#4651, rule 10",
)
def entries_are_confirmed_during_a_change(patch: pytest.MonkeyPatch) -> None:
    edit(patch, AddPipeline, "confirm", ("if self.frozen:", "if False:"))


@mutant(
    lost="An acknowledgement of a replaced bookie confirms an entry.",
    invariants=("acknowledged_is_on_a_quorum",),
    workload="fences",
    seeds=300,
    rule="bk#3005, bk#4097, rule 12",
)
def entries_are_confirmed_before_the_reset(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        EnsembleChanges,
        "_replace",
        (
            "session.begin_again(set(after",
            "session.pipeline.frozen = False\n"
            "    session.after_acks()\n"
            "    session.pipeline.frozen = True\n"
            "    session.begin_again(set(after",
        ),
    )


@mutant(
    lost="The new bookie lacks acknowledged appends that it was never sent.",
    invariants=("acknowledged_is_on_a_quorum",),
    workload="takeover",
    seeds=40,
    rule="rule 12",
)
def the_acks_of_a_replaced_bookie_stay(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        AddPipeline,
        "restart",
        ("self._next[index] = self._stripe_from(index, self.last_confirmed + 1)", "pass"),
    )


@mutant(
    lost="The new bookie lacks acknowledged appends that it was never sent.",
    invariants=("acknowledged_is_on_a_quorum",),
    workload="all",
    seeds=20,
    rule="rule 13",
)
def nothing_is_sent_again_to_a_replacement(patch: pytest.MonkeyPatch) -> None:
    edit(patch, AddSession, "_join", ("self.pipeline.unowed(index)", "self.pipeline.last_pushed"))
    edit(
        patch,
        AddPipeline,
        "restart",
        (
            "self._stripe_from(index, self.last_confirmed + 1)",
            "self._stripe_from(index, self.last_pushed + 1)",
        ),
    )


@mutant(
    lost="Acknowledged appends have one copy less than they should.",
    invariants=("acknowledged_is_on_a_quorum", "acknowledged_is_kept"),
    workload="all",
    seeds=20,
    rule="rule 15",
)
def an_ack_is_counted_twice(patch: pytest.MonkeyPatch) -> None:
    real = AddPipeline.__init__

    def init(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        self._ack_quorum = max(1, self._ack_quorum - 1)

    patch.setattr(AddPipeline, "__init__", init)


@mutant(
    lost="An append is acknowledged although a bookie refused it.",
    invariants=("acknowledged_is_on_a_quorum",),
    workload="full",
    seeds=550,
    rule="rule 15",
)
def a_watermark_skips_an_error(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Member,
        "on_add_error",
        ("if not self.gone:", "if not self.gone and type(error).__name__ == 'LedgerFencedError':"),
    )
    edit(patch, AddPipeline, "acked", ("if entry == upcoming:", "if entry >= upcoming:"))
    edit(patch, AddPipeline, "acked_run", ("first == self._next", "first >= self._next"))


@mutant(
    lost="The old writer continues during a recovery, so there are two writers.",
    invariants=("acknowledged_is_kept", "nothing_acknowledged_beyond_the_close"),
    workload="churn",
    seeds=400,
    rule="rule 19",
)
def the_ensemble_changes_during_a_recovery(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        ledger_changes,
        "changed_ensemble",
        ("if now.state is not LedgerState.OPEN:", "if now.closed:"),
    )
    edit(patch, WriteHandle, "_over", ("if now.state is LedgerState.IN_RECOVERY:", "if False:"))


@mutant(
    lost="A closed ledger names entries that do not exist.",
    invariants=("acknowledged_is_on_a_quorum", "quiet_heals"),
    workload="all",
    seeds=30,
)
def a_ledger_is_closed_at_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        WriteHandle,
        "_close",
        ("await self.flush()", "self._send_batch()"),
        ("last = await self.force()", "last = self.last_add_pushed"),
    )


@mutant(
    lost="An append returns before any bookie has it.",
    invariants=("acknowledged_is_on_a_quorum", "acknowledged_is_kept"),
    workload="recovery",
    seeds=20,
)
def appends_return_when_sent(patch: pytest.MonkeyPatch) -> None:
    edit(patch, AddSession, "wait_for", ("self.pipeline.accepted", "self.pipeline.last_pushed"))


@mutant(
    lost="Readers get unacknowledged entries, which may be cut off.",
    invariants=("only_the_acknowledged_is_read", "lac_is_acknowledged"),
    workload="tail",
    seeds=20,
)
def entries_carry_the_pushed_lac(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        AddSession,
        "push",
        ("lac = pipeline.last_confirmed if", "lac = pipeline.last_pushed if"),
    )


@mutant(
    lost="Readers get unacknowledged entries, which may be cut off.",
    invariants=("lac_is_acknowledged", "only_the_acknowledged_is_read"),
    workload="tail",
    seeds=60,
)
def the_explicit_lac_is_ahead(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        ExplicitLac,
        "_write",
        ("lac = session.pipeline.last_confirmed", "lac = session.pipeline.last_pushed"),
    )


@mutant(
    lost="A program that appends faster than its slowest bookie runs out of memory.",
    invariants=("quiet_heals", "queues_are_bounded"),
    workload="large",
    seeds=20,
)
def a_writer_is_not_held_back(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        AddSession,
        "full",
        ("self.pipeline.unacked_bytes_max() >= self.config.max_unacked_bytes", "False"),
    )


@mutant(
    lost="Entries get the ids of other entries.",
    invariants=("no_bookie_serves_wrong_bytes", "entries_are_what_was_appended"),
    workload="own ids",
    seeds=20,
)
def own_ids_are_given_in_the_order_of_arrival(patch: pytest.MonkeyPatch) -> None:
    edit(patch, CallerIdWriter, "submit_at", ("if entry_id > upcoming:", "if False:"))


@mutant(
    lost="Entries get the ids of other entries.",
    invariants=("no_bookie_serves_wrong_bytes", "entries_are_what_was_appended"),
    workload="own ids",
    seeds=20,
)
def an_id_is_taken_twice(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        CallerIdWriter,
        "_check_id",
        ("elif entry_id < upcoming or entry_id in self._held:", "elif False:"),
    )


@mutant(
    lost="Forced appends are lost when the power fails.",
    invariants=("acknowledged_is_on_a_quorum",),
    workload="deferred",
    seeds=20,
)
def what_is_accepted_counts_as_durable(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        DeferredPipeline,
        "confirm",
        (
            "self.accepted = accepted",
            "self.accepted = accepted\n    self._confirm_through(accepted)",
        ),
    )


@mutant(
    lost="A force counts a bookie that had lost the entries before.",
    invariants=("acknowledged_is_on_a_quorum",),
    workload="deferred",
    seeds=2280,
)
def a_force_counts_for_a_bookie_that_came_back(patch: pytest.MonkeyPatch) -> None:
    edit(patch, DeferredPipeline, "forced", (" or generation != self.generation", ""))


@mutant(
    lost="A force acknowledges entries that were added after it began.",
    invariants=("acknowledged_is_on_a_quorum",),
    workload="deferred",
    seeds=20,
)
def a_force_covers_what_came_behind_it(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        DeferredSession,
        "_force_once",
        (
            "pipeline.forced(through, generation)",
            "pipeline.forced(pipeline.stored_through(), generation)",
        ),
    )


@mutant(
    lost="A deferred-sync writer at its byte limit waits forever.",
    invariants=("quiet_heals",),
    workload="deferred",
    seeds=30,
    rule="ours",
)
def nobody_forces_for_who_waits_for_room(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        DeferredSession,
        "_force_all",
        ("if self._room is not None and self._too_much_unforced and not", "if False and not"),
    )


@mutant(
    lost="A writer changes its ensemble as fast as connections are refused, until it gives up.",
    invariants=("metadata_is_not_hammered",),
    workload="churn",
    seeds=210,
    rule="ours",
)
def a_bookie_that_failed_is_chosen_at_once(patch: pytest.MonkeyPatch) -> None:
    edit(patch, BookiePool, "pick_now", ("if rested:", "if False:"))


@mutant(
    lost="A writer without an ack quorum acknowledges with fewer bookies.",
    invariants=("acknowledged_is_on_a_quorum",),
    workload="switch",
    seeds=60,
    rule="ours",
)
def whoever_is_left_is_enough(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        EnsembleChanges,
        "_go_on_without",
        (
            "self._limit_the_wait()",
            "session.pipeline._ack_quorum = 1",
        ),
    )


@mutant(
    lost="Readers do not learn of the last entry of a writer that rests.",
    invariants=("the_last_entry_becomes_known",),
    workload="calm",
    seeds=140,
)
def a_resting_writer_says_nothing(patch: pytest.MonkeyPatch) -> None:
    edit(patch, ExplicitLac, "_run", ("if lac > self._told and", "if False and"))


@mutant(
    lost="The first entry of a ledger whose writer chooses ids is refused.",
    invariants=("a_right_call_is_not_refused",),
    workload="own ids",
    seeds=20,
)
def the_id_0_is_refused(patch: pytest.MonkeyPatch) -> None:
    edit(patch, CallerIdWriter, "_check_id", ("if entry_id < 0:", "if entry_id == 0:"))
