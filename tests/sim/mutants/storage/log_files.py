"""Defects of single log files: missing, exchanged and older segments, and foreign index caches."""

from __future__ import annotations

import pytest

from quire.storage.recovery.incarnation import ExpectedLog
from quire.storage.recovery.log_recovery import LogRecovery
from quire.storage.segment.catalogue import Catalogue
from tests.sim.mutants.mutant import edit, mutant

DENIED = (
    "what_is_lost_is_unknown",
    "no_false_absence",
    "acknowledged_is_kept",
    "what_is_here_is_not_denied",
    "what_is_durable_stays",
    "acknowledged_is_on_a_quorum",
    "nothing_acknowledged_beyond_the_close",
)


@mutant(
    lost="A bookie denies the entries of a file that it lost before its last start but one.",
    invariants=DENIED,
    workload="log files",
    seeds=20,
)
def a_loss_counts_until_the_next_start(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Catalogue, "live_numbers", ("return present | self.lossy", "return present"))


@mutant(
    lost="The same, if an index cache was written in the meantime.",
    invariants=DENIED,
    workload="log files",
    seeds=100,
    rule="ours",
)
def an_index_cache_hides_a_loss(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LogRecovery,
        "_run",
        ("cached = self._restore(self._cache, live, chain)",
         "cached = self._restore(self._cache, live, chain); catalogue.lossy.clear()"),
    )  # fmt: skip


@mutant(
    lost="A bookie denies the entries of a segment that was deleted.",
    invariants=DENIED,
    workload="log files",
    seeds=20,
)
def a_listed_segment_may_be_missing(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LogRecovery,
        "_must_exist",
        ("must.update(range(first, last + 1))", "pass"),
        ("must.update(n for n in range(low, newest + 1) if begun)", "must.update(begun)"),
    )


@mutant(
    lost="The same, if the newest segments were deleted or are older copies.",
    invariants=DENIED,
    workload="log files",
    seeds=100,
    rule="deleted log files",
)
def the_position_of_the_log_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        ExpectedLog,
        "held_against",
        ("found.newest_file < wanted.newest_file", "False"),
        ("found.end_group < wanted.end_group", "False"),
    )
