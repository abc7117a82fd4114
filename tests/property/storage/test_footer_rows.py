"""The rows of a footer are the same, however they were assembled."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from quire.codec.entry.digest import crc32c
from quire.codec.log.footer import PLAIN_ROWS_MAX, _encode_any_rows, encode_ledger_rows
from quire.codec.log.group import ColumnarBatch
from quire.storage.segment import footer_rows
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.footer_rows import FooterRows, _joined
from quire.storage.segment.segment import LogSegment

shapes = st.tuples(
    st.integers(1, 4),  # entries
    st.sampled_from([80, 80, 80, 81]),  # bytes of each frame
    st.sampled_from([0, 0, 80]),  # bytes of others between it and the run before
    st.sampled_from([0, 0, 3]),  # ids left out before it
    st.sampled_from(["plain"] * 8 + ["sizes", "ids"]),
)


def runs_of(steps: list[Any]) -> list[Run]:
    """Return runs of one ledger, each after the previous one in the file."""
    runs, offset, first = [], 0, 0
    for count, size, gap, jump, kind in steps:
        offset += gap
        first += jump
        sizes = array("I", [size] * count) if kind == "sizes" else None
        ids = array("q", range(first, first + 2 * count, 2)) if kind == "ids" else None
        run = Run(7, first, count, offset, 0 if sizes else size, sizes, ids)
        run.batch = SimpleNamespace(file_offset=4096)  # type: ignore[assignment]
        runs.append(run)
        offset += size * count
        first = run.last + 1
    return runs


@given(st.lists(shapes, min_size=1, max_size=2 * PLAIN_ROWS_MAX))
def test_the_fast_packing_of_rows_equals_the_general_one(steps: list[Any]) -> None:
    runs = runs_of(steps)
    offsets = [run.offset for run in runs]
    assert encode_ledger_rows(runs, offsets) == _encode_any_rows(runs, offsets)


@given(st.lists(shapes, min_size=1, max_size=30))
def test_joined_runs_locate_each_entry(steps: list[Any]) -> None:
    runs = runs_of(steps)
    joined, offsets = _joined(runs)

    def places(some: Any, begins: list[int]) -> list[tuple[int, int, int]]:
        found = []
        for run, at in zip(some, begins, strict=True):
            for entry, size in zip(
                run.ids or range(run.first, run.first + run.count),
                run.sizes or [run.frame_size] * run.count,
                strict=True,
            ):
                found.append((entry, at, size))
                at += size
        return found

    assert places(joined, offsets) == places(runs, [4096 + run.offset for run in runs])
    for (one, at), (other, behind) in zip(zip(joined, offsets), list(zip(joined, offsets))[1:]):
        plain = one.ids is None and other.ids is None and one.frame_size and other.frame_size
        assert not (
            plain
            and one.frame_size == other.frame_size
            and one.last + 1 == other.first
            and at + one.size_bytes == behind
        ), "these two rows should be one"


batches = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.integers(1, 6), st.sampled_from([0, 0, 0, 1, 2])), min_size=1, max_size=40
        ),
        st.sampled_from([80] * 15 + [81]),  # bytes of each frame
        st.sampled_from([0, 0, 80, 4096]),  # bytes of others before it
    ),
    max_size=12,
)


@given(batches, st.sets(st.integers(1, 6), max_size=2), st.sampled_from([1, 3, 500]))
@example([([(1, 0), (1, 0), (2, 0)], 80, 0)], set(), 500)
@example([([(1, 0), (2, 0), (2, 1), (1, 0)], 80, 0)], set(), 500)
def test_interleaved_ledgers_are_described_like_separate_ones(
    steps: list[Any], listed: set[int], at_once: int
) -> None:
    catalogue, segment = Catalogue(), LogSegment(1, None, 1 << 20)
    catalogue.segments[1] = segment
    upcoming = {ledger: catalogue.create(ledger, b"", 1) and 0 for ledger in range(1, 7)}
    offset = 4096
    for turns, size, gap in steps:
        rows = []
        for ledger, jump in turns:
            rows.append((ledger, upcoming[ledger] + jump))
            upcoming[ledger] += jump + 1
        batch = LogBatch((), ColumnarBatch(*zip(*rows), size))  # type: ignore[arg-type]
        batch.buffers, batch.file_offset = None, offset + gap
        offset += gap + size * len(rows)
        catalogue.index_batch(batch, segment)
    for ledger in listed & segment.parts.keys():
        part = segment.parts[ledger]
        part.listed = part.runs

    found, alone = FooterRows(segment), FooterRows(segment)
    described = [(ledger, part, ledger - 3) for ledger, part in sorted(segment.parts.items())]
    most, footer_rows.LEDGERS_AT_ONCE = footer_rows.LEDGERS_AT_ONCE, at_once
    try:
        found.add(described)
    finally:
        footer_rows.LEDGERS_AT_ONCE = most
    for one in described:
        alone._add_one(one)
    assert found.summary == alone.summary
    rows_of_all = b"".join(found.pieces)
    assert rows_of_all == b"".join(alone.pieces)
    summary = found.summary
    for (ledger, part, lac), *row in zip(
        described, *(getattr(summary, name) for name in summary.__slots__), strict=True
    ):
        assert row[:3] == [ledger, part.first, part.last]
        assert (row[3], row[4]) == (lac, part.size_bytes)
        assert row[9] == crc32c(rows_of_all[row[6] : row[6] + row[7]])
