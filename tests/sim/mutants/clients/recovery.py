"""Defects of recovery: fencing, finding the end, writing back, closing."""

from __future__ import annotations

from typing import Any

import pytest

from quire.client import recovery as module
from quire.client.read import last_confirmed
from quire.client.recovery import LedgerRecovery
from quire.codec.wire.v2 import Flag
from quire.core import ledger_changes
from quire.core import recovery as core
from quire.metadata.ledgers.update import update_ledger
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="Appends of the old writer are acknowledged after another client closed the ledger.",
    invariants=("nothing_acknowledged_beyond_the_close",),
    workload="recovery",
    seeds=20,
    rule="rule 34",
)
def recovery_does_not_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "FENCED_READ", Flag.HIGH_PRIORITY)
    real = last_confirmed.read_last_confirmed

    async def without(metadata, codec, pool, timeout_s, *, fence_with=None, **more):  # type: ignore[no-untyped-def]
        return await real(metadata, codec, pool, timeout_s, **more)

    patch.setattr(module, "read_last_confirmed", without)


@mutant(
    lost="An append that an unfenced bookie completes is acknowledged and cut off.",
    invariants=("acknowledged_is_kept", "nothing_acknowledged_beyond_the_close"),
    workload="resets",
    seeds=40,
    rule="bk#2614, rule 1",
)
def only_the_lac_read_fences(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "FENCED_READ", Flag.HIGH_PRIORITY)


@mutant(
    lost="A ledger with a new, empty ensemble is closed as if it had no entries.",
    invariants=("acknowledged_is_kept",),
    workload="churn",
    seeds=20,
    rule="bk#2615, rule 2",
)
def the_lac_has_no_floor(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        core,
        "recovery_lac",
        ("max([last_segment_first - 1, *answers.values()])", "max(answers.values())"),
    )


@mutant(
    lost="The newest ensemble is asked for older entries, denies them, and they are cut off.",
    invariants=("acknowledged_is_kept",),
    workload="recovery",
    seeds=110,
    rule="rule 2",
)
def recovery_starts_at_minus_one(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerRecovery,
        "_run",
        ("recovery_lac({0: known.lac}, snapshot.last_segment.first_entry_id)", "-1"),
    )


@mutant(
    lost="Acknowledged appends are cut off if no later entry carries their LAC.",
    invariants=("acknowledged_is_kept",),
    workload="recovery",
    seeds=20,
)
def recovery_closes_at_the_lac(patch: pytest.MonkeyPatch) -> None:
    async def write_back(self: Any, snapshot: Any, lac: int) -> tuple[int, int]:
        return lac, 0

    patch.setattr(LedgerRecovery, "_write_back", write_back)


@mutant(
    lost="Acknowledged appends are cut off if the bookie that is asked lacks the last ones.",
    invariants=("acknowledged_is_kept",),
    workload="takeover",
    seeds=120,
)
def a_short_batch_is_the_end(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerRecovery,
        "_read_batch",
        (
            "_Found(run.payloads(), run.ledger_lengths, end=False)",
            "_Found(run.payloads(), run.ledger_lengths, end=len(run) < WINDOW_ENTRIES)",
        ),
    )


@mutant(
    lost="Acknowledged appends are cut off if bookies are away during the recovery.",
    invariants=("acknowledged_is_kept",),
    workload="takeover",
    seeds=130,
)
def what_cannot_be_decided_is_the_end(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerRecovery,
        "_decided",
        (
            "return _Found(payloads, lengths, end=False)\n        else:",
            "return _Found(payloads, lengths, end=True)\n        else:",
        ),
    )


@mutant(
    lost="The last entries of a closed ledger have too few copies.",
    invariants=("acknowledged_is_on_a_quorum", "quiet_heals"),
    workload="takeover",
    seeds=20,
    rule="rule 5",
)
def what_is_written_back_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LedgerRecovery, "_write_back", ("await session.wait_for(last)", "pass"))


@mutant(
    lost="One broken disk destroys the last entries of a closed ledger.",
    invariants=("acknowledged_is_on_a_quorum",),
    workload="recovery",
    seeds=90,
    rule="rule 5",
)
def one_copy_written_back_is_enough(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LedgerRecovery, "_write_back", ("ack_quorum=snapshot.ack_quorum", "ack_quorum=1"))


@mutant(
    lost="A tailing reader gets an entry that is cut off later.",
    invariants=("only_the_acknowledged_is_read", "lac_is_within_the_close", "what_was_read_stays"),
    workload="takeover",
    seeds=200,
    rule="rule 42",
)
def what_is_written_back_carries_the_moving_lac(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "WINDOW_ENTRIES", 2)  # which does no harm: there are more rounds
    patch.setattr(module, "STRIPED_WINDOW_ENTRIES", 2)
    edit(patch, LedgerRecovery, "_write_back", ("lac_sent=lac,", "lac_sent=None,"))


@mutant(
    lost="The next recovery asks bookies that never got acknowledged appends.",
    invariants=("acknowledged_is_on_a_quorum", "acknowledged_is_kept"),
    workload="fences",
    seeds=60,
    rule="rule 6",
)
def recovery_publishes_its_ensembles(patch: pytest.MonkeyPatch) -> None:
    async def change(self: Any, failed: Any, replacements: Any, first: int) -> tuple[str, ...]:
        def moved(now: Any) -> Any:
            ensemble = list(now.last_segment.ensemble)
            for index, bookie in replacements.items():
                ensemble[index] = bookie
            return None if now.closed else now.with_ensemble_from(first, tuple(ensemble))

        self._current = await update_ledger(self._store, self.ledger_id, self._current, moved)
        ensemble: tuple[str, ...] = self._current.value.last_segment.ensemble
        return ensemble

    patch.setattr(LedgerRecovery, "_change_ensemble", change)


@mutant(
    lost="Recovery writes entries to bookies that no metadata names.",
    invariants=("acknowledged_is_on_a_quorum", "quiet_heals"),
    workload="takeover",
    seeds=40,
    rule="rule 6",
)
def recovery_forgets_its_ensembles(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        ledger_changes,
        "closed_by_recovery",
        ("with_private(now, segments)", "with_private(now, ())"),
    )


@mutant(
    lost="Two readers disagree about the end of a ledger.",
    invariants=("one_close_wins",),
    workload="recovery",
    seeds=30,
    rule="rule 20",
)
def a_recovery_that_came_late_believes_itself(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerRecovery,
        "_close",
        (
            "if not closed.value.closed:",
            "closed = Versioned(closed.value.with_close(last, length), closed.version)\n"
            "    if not closed.value.closed:",
        ),
    )


@mutant(
    lost="The old writer moves to other bookies while the ledger is recovered without them.",
    invariants=(
        "the_length_is_that_of_the_entries",
        "nothing_acknowledged_beyond_the_close",
        "acknowledged_is_kept",
    ),
    workload="churn",
    seeds=110,
    rule="rule 19",
)
def recovery_begins_without_saying_so(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        ledger_changes,
        "marked_in_recovery",
        (
            "now.with_state(LedgerState.IN_RECOVERY) if now.state is LedgerState.OPEN else None",
            "None",
        ),
    )
    edit(
        patch,
        ledger_changes,
        "closed_by_recovery",
        ("if now.state is not LedgerState.IN_RECOVERY:", "if now.closed:"),
    )


@mutant(
    lost="The length of a ledger that was recovered twice is wrong.",
    invariants=("the_length_is_that_of_the_entries", "one_close_wins"),
    workload="race",
    seeds=30,
)
def recovery_counts_the_length_from_zero(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerRecovery,
        "_write_back",
        ("session.pipeline.length = found.lengths[0] - len(found.payloads[0])", "pass"),
    )
