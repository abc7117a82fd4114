"""Defects of what inspections say about data directories, and of what they change there."""

from __future__ import annotations

import pytest

from quire.storage.inspect import check, contents, erase, rebuild, scrub_report, space_report
from quire.storage.recovery import index_cache
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="The space report calls the bytes of other ledgers dead.",
    invariants=("what_an_inspection_tells_is_true",),
    workload="all",
    seeds=20,
)
def the_index_counts_as_live(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        space_report._Look,
        "_segment",
        ("named - segment.live_bytes", "named - segment.live_bytes - 1"),
    )


@mutant(
    lost="The check of a healthy directory reports damage.",
    invariants=("what_an_inspection_tells_is_true",),
    workload="all",
    seeds=20,
)
def the_check_expects_later_entries(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        check,
        "_not_indexed",
        ("for one in segment.rows(ledger_id)", "for one in segment.rows(ledger_id)[1:]"),
    )


@mutant(
    lost="The description of a ledger leaves out that it is fenced.",
    invariants=("what_an_inspection_tells_is_true",),
    workload="all",
    seeds=20,
)
def a_fence_is_not_described(patch: pytest.MonkeyPatch) -> None:
    edit(patch, contents, "_ledger", ("bool(info.master_key), info.fenced", "True, False"))


@mutant(
    lost="The scrub of a directory skips its oldest segment.",
    invariants=("what_an_inspection_tells_is_true",),
    workload="all",
    seeds=20,
)
def a_scrub_skips_a_segment(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        scrub_report.DirectoryScrub,
        "segments",
        ("._catalogue.segments.items()):", "._catalogue.segments.items())[1:]:"),
    )


@mutant(
    lost="A rebuilt index has no ledgers.",
    invariants=("an_index_is_rebuilt_as_it_was",),
    workload="all",
    seeds=20,
)
def a_rebuilt_index_is_empty(patch: pytest.MonkeyPatch) -> None:
    edit(patch, rebuild, "_write", ("segment.parts.items()):", "segment.parts.items())[1:]:"))


@mutant(
    lost="Files of an erased bookie stay in its directory.",
    invariants=("an_erased_directory_is_empty",),
    workload="all",
    seeds=20,
)
def an_erasure_leaves_the_last_file(patch: pytest.MonkeyPatch) -> None:
    edit(patch, erase, "erase", ("enumerate(plan.files)", "enumerate(plan.files[:-1])"))


@mutant(
    lost="A start with an index cache compacts other segments than one without.",
    invariants=("a_start_finds_what_was_stopped",),
    workload="all",
    seeds=40,
)
def a_cached_segment_has_one_more_live_ledger(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        index_cache,
        "_restored",
        (
            "segment.live_bytes, segment.live_ledgers = one.live_bytes, one.live_ledgers",
            "segment.live_bytes, segment.live_ledgers = one.live_bytes, one.live_ledgers + 1",
        ),
    )
