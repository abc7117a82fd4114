"""Defects of what is said about a cluster: places, counts, pages and lists."""

from __future__ import annotations

import pytest

from quire.client import Client
from quire.streams.namespace import tree_search
from quire.streams.namespace.namespace import Namespace
from quire.streams.objects.objects import Objects
from quire.streams.read import positions, statistics
from quire.streams.read.merged import MergedPeek
from tests.sim.mutants.mutant import edit, mutant

# -- places of a stream ------------------------------------------------------------------------


@mutant(
    lost="A view of the last records of a stream leaves out the oldest of them.",
    invariants=("the_last_records_are_the_last",),
    workload="retention",
    seeds=60,
)
def the_last_records_begin_one_later(patch: pytest.MonkeyPatch) -> None:
    edit(patch, statistics, "before_end", ("count + 1, password", "count + 2, password"))


@mutant(
    lost="A view of the last records of a stream begins in the newest segment.",
    invariants=("the_last_records_are_the_last",),
    workload="retention",
    seeds=60,
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
    seeds=60,
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
    seeds=60,
)
def a_chunk_begins_where_the_former_one_did(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, MergedPeek, "_read_later", ("one.upcoming, count = behind, count + 1", "count += 1")
    )


# -- lists -------------------------------------------------------------------------------------


@mutant(
    lost="A list of streams ends with its first full page.",
    invariants=("a_list_is_complete",),
    workload="lives",
    seeds=60,
)
def a_page_of_streams_is_always_the_last(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        tree_search,
        "streams_page",
        ("names[-1] if len(found) > len(names) else None", "None"),
    )


@mutant(
    lost="A stream whose name contains a / is not listed.",
    invariants=("a_list_is_complete",),
    workload="lives",
    seeds=60,
)
def a_list_of_streams_has_no_nested_ones(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Namespace,
        "_streams_in",
        ("level = [name for names in await each(level, below) for name in names]", "level = []"),
    )


@mutant(
    lost="The number of streams of a namespace is at most 1.",
    invariants=("a_list_is_complete",),
    workload="lives",
    seeds=60,
)
def only_one_stream_is_counted(patch: pytest.MonkeyPatch) -> None:
    edit(patch, tree_search, "namespace_sizes", ("found[above] += 1", "found[above] = 1"))


@mutant(
    lost="A list of ledgers that begins with a certain ledger leaves out this one.",
    invariants=("a_list_is_complete",),
    workload="delete",
    seeds=60,
)
def a_list_of_ledgers_begins_after_the_first(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Client, "list_ledgers", ("list_ledgers(first)", "list_ledgers(first + 1)"))


@mutant(
    lost="A list of objects that continues after an object leaves out the rest of its folder.",
    invariants=("an_object_is_there",),
    workload="objects",
    seeds=60,
)
def a_list_that_continues_leaves_the_folder(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Objects,
        "_names",
        ("passed = after > name and not after.startswith(name)", "passed = after > name"),
    )
