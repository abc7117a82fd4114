"""Defects of autorecovery: auditors, workers, their marks and locks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from quire.core import fragments
from quire.replication.autorecovery.auditor import Auditor
from quire.replication.autorecovery.election import Election
from quire.replication.autorecovery.lost_bookies import LostBookies
from quire.replication.autorecovery.worker import ReplicationWorker
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.repair import bookie_removal, fragment
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="Bookies that died before the auditor was elected are never noticed.",
    invariants=("everything_is_replicated_again",),
    workload="autorecovery",
    seeds=60,
    rule="bk#4419, rule 29",
)
def an_auditor_begins_without_an_audit(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Auditor,
        "_look_for_lost_bookies",
        ("audit_at_s = loop.time()\n", "audit_at_s = loop.time() + 1e9\n"),
    )
    edit(patch, Auditor, "_prepare", ("await self._store.list_cookies()", "()"))


@mutant(
    lost="Restarting a bookie causes a copy of everything that it has.",
    invariants=("a_lost_bookie_is_waited_for",),
    workload="autorecovery",
    seeds=30,
)
def a_lost_bookie_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LostBookies, "wait_until_s", ("since_s + self.delay_s", "since_s"))


@mutant(
    lost="A living writer is fenced as soon as one of its bookies is lost.",
    invariants=("a_writer_has_its_grace",),
    workload="autorecovery",
    seeds=100,
    rule="rule 25",
)
def a_writer_has_no_grace(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        bookie_removal,
        "fence_if_abandoned",
        ("if seen != before:", "if False:"),
    )


@mutant(
    lost="Appends that the writer sends to the replaced bookie are lost.",
    invariants=("acknowledged_is_on_a_quorum", "acknowledged_is_kept"),
    workload="autorecovery",
    seeds=100,
    rule="rules 24, 25",
)
def what_is_still_written_is_copied(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        bookie_removal._Pass,
        "replace",
        (
            "if not fragment.closed or not members(fragment, self.lost):",
            "if not members(fragment, self.lost):",
        ),
    )
    edit(patch, fragment.CopyBatch, "copy", ("if not fragment.closed:", "if False:"))
    edit(
        patch,
        fragments,
        "replaced_in",
        ("if there is metadata.last_segment and not metadata.closed:", "if False:"),
    )


@mutant(
    lost="A new bookie does not get the entries that belong in its place.",
    invariants=("acknowledged_is_on_a_quorum", "everything_is_replicated_again"),
    workload="autorecovery",
    seeds=100,
)
def a_copy_takes_the_next_stripe(patch: pytest.MonkeyPatch) -> None:
    def next_one(metadata: object, index: int, first: int, last: int) -> Sequence[int]:
        return fragments.stored_by(metadata, index + 1, first, last)  # type: ignore[arg-type]

    patch.setattr(fragment, "stored_by", next_one)


@mutant(
    lost="The metadata names a new bookie that does not have the entries on disk yet.",
    invariants=("acknowledged_is_on_a_quorum",),
    workload="autorecovery",
    seeds=60,
)
def a_copy_is_named_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        fragment.CopyBatch,
        "copy",
        ("if not fragment.empty:", "await self._name_all(self._stored, [segment])\n"
         "    if not fragment.empty:"),
    )  # fmt: skip


@mutant(
    lost="A lock is never released, so nobody can work on the ledger any more.",
    invariants=("everything_is_replicated_again",),
    workload="autorecovery",
    seeds=100,
)
def a_lock_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    edit(patch, ReplicationLocks, "_give_back", ("await self._release(path, tag)", "pass"))


@mutant(
    lost="A ledger whose repair failed once is never repaired.",
    invariants=("everything_is_replicated_again",),
    workload="autorecovery",
    seeds=100,
)
def what_failed_is_not_tried_again(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        ReplicationWorker,
        "_attempt",
        ("await self._note(ledger_id, reason, rest.attempts, pause_s)",
         "await self._locks.replicated(lock)"),
    )  # fmt: skip


@mutant(
    lost="A ledger that lacks copies loses its mark without a repair.",
    invariants=("a_mark_goes_when_nothing_is_missing", "everything_is_replicated_again"),
    workload="autorecovery",
    seeds=100,
    rule="rule 40",
)
def a_bookie_that_lives_lacks_nothing(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        ReplicationWorker,
        "_look_at",
        ("for bookie in sorted(bookies):", "for bookie in ():"),
    )


@mutant(
    lost="Nobody replaces an auditor that died.",
    invariants=("everything_is_replicated_again",),
    workload="autorecovery",
    seeds=100,
)
def nobody_watches_the_vote_before(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Election, "_when_gone", ("gone.set()", "pass"))


@mutant(
    lost="Older segments of a lost bookie are not copied.",
    invariants=("everything_is_replicated_again",),
    workload="autorecovery",
    seeds=100,
)
def only_the_last_segment_counts(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Auditor,
        "_members",
        ("for segment in found.value.segments", "for segment in found.value.segments[-1:]"),
    )


@mutant(
    lost="Empty segments name a dead bookie forever.",
    invariants=("everything_is_replicated_again",),
    workload="autorecovery",
    seeds=60,
    rule="bk#3239, rule 28",
)
def an_empty_segment_lacks_nothing(patch: pytest.MonkeyPatch) -> None:
    real = bookie_removal.members

    def unless_empty(found: fragments.Fragment, bookies: Collection[str]) -> list[int]:
        return [] if found.empty else real(found, bookies)

    patch.setattr(bookie_removal, "members", unless_empty)
