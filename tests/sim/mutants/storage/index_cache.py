"""Defects of the index cache: its content, when it is used, and which segments it covers."""

from __future__ import annotations

import pytest

from quire.codec.log import index_cache as index_cache_format
from quire.storage.background import index_cache_writer
from quire.storage.background.index_cache_writer import Snapshot
from quire.storage.recovery.index_cache import CachedIndex
from quire.storage.recovery.log_recovery import LogRecovery
from tests.sim.mutants.mutant import edit, mutant
from tests.sim.mutants.storage.storage import LOST_IN_A_CRASH

LOST_WITH_A_CACHE = (*LOST_IN_A_CRASH, "no_false_absence", "nothing_acknowledged_beyond_the_close")


@mutant(
    lost="Segments that were sealed after the index cache was written are ignored.",
    invariants=LOST_WITH_A_CACHE,
    workload="index",
    seeds=20,
)
def an_older_cache_is_all_there_is(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LogRecovery,
        "_run",
        (
            "for number in live if number not in cached]",
            "for number in live if number not in cached\n"
            "                       and (not cached or number in self._unsealed)]",
        ),
    )


@mutant(
    lost="Deleted ledgers come back with the index cache, without their segments.",
    invariants=("what_is_dropped_stays_gone", *LOST_WITH_A_CACHE),
    workload="index",
    seeds=40,
)
def a_cache_of_segments_that_are_gone_counts(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LogRecovery,
        "_restore",
        ("cache.check(set(live))", "pass"),
        ("for number in cache.segments}", "for number in cache.segments if number in live}"),
    )
    edit(
        patch,
        CachedIndex,
        "restore",
        (
            "for number, one in self.segments.items():",
            "for number, one in self.segments.items():\n"
            "        if number not in trailers:\n"
            "            continue",
        ),
    )


@mutant(
    lost="A start from an index cache undoes a fence, so there are two writers.",
    invariants=("what_is_durable_stays", "nothing_acknowledged_beyond_the_close"),
    workload="index",
    seeds=20,
    rule="rule 34",
)
def a_cache_forgets_fences(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        index_cache_writer,
        "_cached",
        ("info.fenced, info.fence_durable,", "False, False,"),
    )


@mutant(
    lost="An append to a ledger that was closed and deleted is acknowledged.",
    invariants=("nothing_acknowledged_beyond_the_close", "what_is_dropped_stays_refused"),
    workload="index",
    seeds=100,
    rule="bk#4462, rule 36",
)
def a_cache_forgets_the_deleted(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Snapshot, "blocks", ("fmt.encode_dead(self._tombstones)", "fmt.encode_dead({})"))


@mutant(
    lost="A wrong bit in the index cache changes a fence, a location or the end of a ledger.",
    invariants=("the_run_comes_to_its_end", *LOST_WITH_A_CACHE),
    workload="index",
    seeds=200,
)
def a_cache_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    edit(patch, index_cache_format, "check_block", ("or crc != header.crc", "or False"))
