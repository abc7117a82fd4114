"""Defects of the counters of clients whose bookies or calls fail."""

from __future__ import annotations

import pytest

from quire.client.write.add_session import Member
from quire.client.write.ensemble_changes import EnsembleChanges
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="Dashboards count an entry again for each bookie that it was sent to later.",
    invariants=("a_client_counts_what_it_did",),
    workload="churn",
    seeds=30,
)
def entries_count_again_for_a_new_member(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Member,
        "send_backlog",
        ("self.sent = last",
         "self.session.pool.counters.count_adds(last - self.sent, 0)\n        self.sent = last"),
    )  # fmt: skip


@mutant(
    lost="Dashboards show changes of ensembles that were not stored.",
    invariants=("a_client_counts_what_it_did",),
    workload="churn",
    seeds=60,
)
def a_change_counts_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        EnsembleChanges,
        "_replace",
        ("self._check_changes()",
         "self._check_changes()\n        session.pool.counters.ensemble_changes += 1"),
        ("self._changes += 1\n            session.pool.counters.ensemble_changes += 1",
         "self._changes += 1"),
    )  # fmt: skip
