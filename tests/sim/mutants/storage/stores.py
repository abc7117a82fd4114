"""Defects that the walkthrough of a store finds: what it says, and its effort."""

from __future__ import annotations

import pytest

from quire.storage.background import quarantine_record
from quire.storage.background.compactor import Compactor
from quire.storage.background.quarantine import Quarantine
from quire.storage.log.appender import Appender
from quire.storage.log.group_commit import LogWriter
from quire.storage.read import reader
from quire.storage.recovery.scan import TolerantReader
from quire.storage.store import LedgerStore
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="The metric of copied bytes has only those of the last compaction.",
    invariants=("reports_are_true",),
    workload="store walks",
    seeds=100,
)
def the_bytes_of_a_compaction_replace_those_before(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Compactor,
        "_on_finished",
        ("self.copied_bytes += result", "self.copied_bytes = result"),
    )


@mutant(
    lost="A suspension of major compactions never ends.",
    invariants=("reports_are_true",),
    workload="store walks",
    seeds=60,
)
def a_resumed_suspension_goes_on(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerStore,
        "resume_compaction",
        ("minor=minor, major=major", "minor=minor, major=False"),
    )


@mutant(
    lost="Each group of the log is synced twice, so adds take twice as long.",
    invariants=("a_store_works_little",),
    workload="store walks",
    seeds=60,
)
def each_group_is_synced_twice(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LogWriter,
        "write",
        ("file.sync()", "file.sync(); file.sync()"),
    )


@mutant(
    lost="A read stops before its budget is used, so clients need more requests.",
    invariants=("reports_are_true",),
    workload="store walks",
    seeds=30,
)
def a_read_leaves_room_for_one_more_entry(patch: pytest.MonkeyPatch) -> None:
    edit(patch, reader, "_that_fit", ("left < 0 or", "left < size or"))


@mutant(
    lost="A scrub reports the damage of a block, and does not say which block it is.",
    invariants=("reports_are_true",),
    workload="store walks",
    seeds=30,
)
def damaged_blocks_are_not_recorded(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Quarantine, "take", ("tuple(found.blocks)", "()"))


@mutant(
    lost="After a restart, a bookie knows only the last of several adjacent damaged entries.",
    invariants=("reports_are_true",),
    workload="store walks",
    seeds=30,
)
def a_record_of_damage_keeps_the_ends_of_ranges(patch: pytest.MonkeyPatch) -> None:
    edit(patch, quarantine_record, "decode_record", ("zip(row[1::2]", "zip(row[2::2]"))


@mutant(
    lost="A bookie with one bad sector in its newest segment does not start.",
    invariants=("one_bad_sector_stops_no_start",),
    workload="store walks",
    seeds=30,
)
def an_unreadable_block_ends_the_start(patch: pytest.MonkeyPatch) -> None:
    edit(patch, TolerantReader, "read", ("not in UNREADABLE", "in UNREADABLE"))


@mutant(
    lost="On a full disk, a recovery is refused while most of the reserve is unused.",
    invariants=("reports_are_true",),
    workload="store walks",
    seeds=30,
)
def a_recovery_leaves_the_last_segment_unused(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Appender, "_check_share", ("cost + share", "cost << share"))


@mutant(
    lost="Recoveries use all space of a full disk, so a bookie cannot fence a ledger.",
    invariants=("reports_are_true",),
    workload="store walks",
    seeds=30,
)
def a_recovery_uses_the_space_of_fences(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Appender, "_check_share", ("cost + share", "cost"))
