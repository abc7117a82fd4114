"""Defects of what is said about a cluster: places, counts, pages and lists."""

from __future__ import annotations

import pytest

from quire.streams.read import positions, statistics
from quire.streams.read.merged import MergedPeek
from tests.sim.mutants.mutant import edit, mutant

# -- places of a stream ------------------------------------------------------------------------


@mutant(
    lost="A view of the last records of a stream leaves out the oldest of them.",
    invariants=("the_last_records_are_the_last",),
    workload="retention",
    seeds=20,
)
def the_last_records_begin_one_later(patch: pytest.MonkeyPatch) -> None:
    edit(patch, statistics, "before_end", ("count + 1, password", "count + 2, password"))


@mutant(
    lost="A view of the last records of a stream begins in the newest segment.",
    invariants=("the_last_records_are_the_last",),
    workload="retention",
    seeds=20,
)
def only_the_newest_segment_has_last_records(patch: pytest.MonkeyPatch) -> None:
    edit(patch, statistics, "before_end", ("count -= fact.records", "count = 0"))


@mutant(
    lost="A lag counts records that the reader has received.",
    invariants=("numbers_are_those_of_the_records", "the_last_records_are_the_last"),
    workload="retention",
    seeds=60,
)
def a_count_begins_with_its_segment(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        statistics,
        "records_from",
        ("count -= await _records_before(client, fact, position, password)", "pass"),
    )


@mutant(
    lost="A reader that begins at a time receives records from before it.",
    invariants=("find_finds_the_first",),
    workload="streams",
    seeds=60,
)
def the_last_record_of_a_segment_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        positions,
        "search_segment",
        ("low = at + 1", "low, best = at + 1, best or DLSN(segment.lssn, at, 0)"),
    )


@mutant(
    lost="A record is on two pages of the records of several streams.",
    invariants=("pages_have_all_records_in_order",),
    workload="retention",
    seeds=20,
)
def a_page_ends_before_its_first_record(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        MergedPeek,
        "_take_newest",
        ("one.begin = found.position", "one.begin = found.behind"),
    )


@mutant(
    lost="Records are twice on the pages of the records of several streams.",
    invariants=("pages_have_all_records_in_order",),
    workload="retention",
    seeds=20,
)
def a_chunk_begins_where_the_former_one_did(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, MergedPeek, "_read_later", ("one.upcoming, count = behind, count + 1", "count += 1")
    )
