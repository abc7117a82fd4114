"""Defects of calls: what they report, what they cost, and how long their handles live."""

from __future__ import annotations

import pytest

from quire.client.cluster import pool
from quire.client.read.ledger_view import LedgerView
from quire.client.write.add_session import AddSession
from quire.client.write.writer import WriteHandle
from quire.errors import MetadataUnavailableError
from quire.metadata.ledgers import creation
from quire.replication.autorecovery.autorecovery import Autorecovery
from tests.sim.mutants.mutant import edit, exchange, mutant


@mutant(
    lost="A program repeats an append that is in the ledger already.",
    invariants=("what_was_refused_is_not_there",),
    workload="cancelled",
    seeds=40,
)
def a_sent_entry_counts_as_not_sent(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        AddSession,
        "fail",
        ("error.outcome_known = False", "error.outcome_known = True"),
    )


@mutant(
    lost="A program believes that a ledger is open which it has closed.",
    invariants=("what_was_refused_is_not_done",),
    workload="sessions",
    seeds=30,
)
def an_unanswered_change_counts_as_not_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MetadataUnavailableError, "outcome_known", True)


@mutant(
    lost="A program believes that a cancelled close has not closed its ledger.",
    invariants=("a_cancelled_close_is_in_doubt",),
    workload="cancelled",
    seeds=20,
)
def a_cancelled_close_is_certain(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        WriteHandle,
        "_cut_short",
        ("return LedgerClosedError(", "return UsageError("),
        ("ledger_id=self.ledger_id,\n", ""),
    )


@mutant(
    lost="A recovery replaces dead bookies by each other, as fast as it can.",
    invariants=("calls_are_bounded",),
    workload="churn",
    seeds=40,
)
def a_failed_bookie_does_not_rest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pool, "REST_S", 0.01)


@mutant(
    lost="A program that holds a handle for long cannot read when replicas have moved.",
    invariants=("a_long_lived_reader_follows",),
    workload="moving",
    seeds=20,
    rule="rule 38",
)
def a_handle_keeps_its_first_bookies(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerView,
        "adopt",
        (
            "if stored.version < self._stored.version:",
            "if stored.version < self._stored.version or self._stored.value.closed:",
        ),
    )


@mutant(
    lost="The former writer of a ledger closes the one that was created with its id.",
    invariants=("a_recreated_ledger_is_left_alone", "a_handle_stays_with_its_ledger"),
    workload="recreated",
    seeds=30,
    rule="ledger id used again",
)
def a_creation_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    exchange(patch, creation.check_same_creation, lambda ledger_id, known, stored: None)


@mutant(
    lost="A reader continues with another ledger that was created with the same id.",
    invariants=("a_handle_stays_with_its_ledger",),
    workload="recreated",
    seeds=30,
    rule="ledger id used again",
)
def a_handle_changes_to_the_new_ledger(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerView,
        "adopt",
        ("check_same_creation(self.ledger_id, self._stored, stored)", "pass"),
    )


@mutant(
    lost="A bookie whose connection is still being made lacks entries for good.",
    invariants=("a_close_leaves_whole_write_sets",),
    workload="calm",
    seeds=100,
)
def a_close_waits_for_an_ack_quorum_only(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: AddSession) -> None:
        pass

    patch.setattr(AddSession, "reached", at_once)


@mutant(
    lost="A vote that could not be withdrawn keeps every other candidate waiting.",
    invariants=("everything_is_replicated_again",),
    workload="autorecovery",
    seeds=30,
)
def a_cancelled_candidate_leaves_its_vote(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Autorecovery,
        "_stand_and_audit",
        ("election = self._election", "election = Election(self._store, self._owner, self._clock)"),
    )
