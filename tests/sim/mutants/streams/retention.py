"""Defects of retention and truncation: one segment too many or too few, or the wrong place."""

from __future__ import annotations

import pytest

from quire.streams.namespace import truncation
from quire.streams.write.segments import Segments
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="Retention by age deletes one segment more than the settings allow.",
    invariants=("retention_takes_only_what_is_expired",),
    workload="retention",
    seeds=30,
)
def age_takes_one_segment_more(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        truncation,
        "_expired",
        (
            "expired += 1\n    if settings.retention_bytes",
            "expired += 1\n        expired = min(expired + 1, len(segments))\n"
            "    if settings.retention_bytes",
        ),
    )


@mutant(
    lost="Retention by size deletes one segment more than the settings allow.",
    invariants=("retention_takes_only_what_is_expired",),
    workload="retention",
    seeds=30,
)
def size_takes_one_segment_more(patch: pytest.MonkeyPatch) -> None:
    edit(patch, truncation, "_expired", ("left - sizes[expired] >=", "left >="))


@mutant(
    lost="Retention keeps one segment more than the settings want, so a disk may fill up.",
    invariants=("what_is_given_up_is_truncated", "a_writer_applies_retention"),
    workload="retention",
    seeds=30,
)
def retention_keeps_one_segment_more(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        truncation,
        "_expired",
        (
            "return segments[expired - 1].last_dlsn.next_slot() if expired else None",
            "return segments[expired - 2].last_dlsn.next_slot() if expired > 1 else None",
        ),
    )


@mutant(
    lost="Retention applies the limit of size only to streams without a limit of age.",
    invariants=("what_is_given_up_is_truncated", "a_writer_applies_retention"),
    workload="retention",
    seeds=100,
)
def only_one_limit_counts(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        truncation,
        "_expired",
        ("if settings.retention_bytes:", "if settings.retention_bytes and not expired:"),
    )


@mutant(
    lost="Records are deleted by age although only explicit truncation may delete them.",
    invariants=("only_what_was_asked_for_is_truncated",),
    workload="retention",
    seeds=60,
)
def explicit_truncation_is_ignored(patch: pytest.MonkeyPatch) -> None:
    edit(patch, truncation, "retain", ("if settings.explicit_truncation:", "if False:"))


@mutant(
    lost="A writer never deletes what the settings do not keep.",
    invariants=("a_writer_applies_retention",),
    workload="retention",
    seeds=30,
)
def a_writer_does_not_apply_retention(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Segments, "_completed", ("self.retain()", "pass"))


@mutant(
    lost="The ledger of the newest completed segment is deleted, and with it the producers.",
    invariants=("the_newest_completed_segment_is_kept", "no_producer_is_forgotten"),
    workload="retention",
    seeds=30,
)
def the_newest_completed_segment_is_freed(patch: pytest.MonkeyPatch) -> None:
    edit(patch, truncation, "_truncated", ("completed[:-1]", "completed"))


@mutant(
    lost="A ledger that holds only truncated records is never deleted.",
    invariants=("what_is_truncated_is_freed",),
    workload="retention",
    seeds=30,
)
def the_newest_truncated_ledger_is_kept(patch: pytest.MonkeyPatch) -> None:
    edit(patch, truncation, "_free", ("if truncated and truncated[-1] in there:", "if False:"))


@mutant(
    lost="A reader that has read everything is told that records are missing.",
    invariants=("the_newest_truncated_segment_is_named",),
    workload="retention",
    seeds=30,
)
def no_truncated_segment_is_named(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        truncation,
        "_free",
        ("for segment in truncated[:-1]:", "for segment in truncated:"),
        ("if truncated and truncated[-1] in there:", "if False:"),
    )


@mutant(
    lost="A truncation before the last record of a segment deletes that record as well.",
    invariants=("only_what_was_asked_for_is_truncated", "retention_takes_only_what_is_expired"),
    workload="retention",
    seeds=100,
)
def a_truncation_at_the_last_record_takes_it(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, truncation, "_marked", ("segment.last_dlsn < before", "segment.last_dlsn <= before")
    )


@mutant(
    lost="Records before the position stay readable when the position is in a later segment.",
    invariants=("what_was_truncated_is_gone", "what_was_truncated_is_not_read"),
    workload="retention",
    seeds=100,
)
def a_truncation_beyond_the_end_does_nothing(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        truncation,
        "_marked",
        (
            "if segment.last_dlsn < before:",
            "if segment.last_dlsn < before and before.lssn <= segment.lssn + 1:",
        ),
    )


@mutant(
    lost="A dry run names segments that would be kept.",
    invariants=("a_dry_run_says_what_happens",),
    workload="retention",
    seeds=60,
)
def a_dry_run_looks_at_the_newest_segment_too(patch: pytest.MonkeyPatch) -> None:
    edit(patch, truncation, "_would_free", ("_truncated(completed)", "completed"))
