"""The rows of a task as entries: divided by partition values, in order, within limits."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import date
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    Not,
)
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    LongType,
    StringType,
    StructType,
)

from quire.client.datasets import rows as encoding
from quire.client.datasets.rows import decode_rows, encode_rows
from quire.client.datasets.schema import Partition, PartitionValue
from quire.errors import ReadError, UsageError
from quire.spark.ledgers import typed_rows
from quire.spark.ledgers.reader import QuireReader
from quire.spark.ledgers.reader import spark_schema as entry_schema
from quire.spark.ledgers.typed_reader import TypedPushdownReader
from quire.spark.ledgers.typed_rows import EncodedRows, RowBuffer
from quire.spark.ledgers.typed_schema import dataset_schema, spark_schema
from quire.spark.options import ReadOptions

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("shop", pa.string())])


def batch(rows: list[tuple[int, int | None, str | None]]) -> pa.RecordBatch:
    """Return rows as Spark gives them: in another order of columns, and not nullable."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([shop for _, _, shop in rows], pa.string()),
            pa.array([number for number, _, _ in rows], pa.int64()),
            pa.array([day for _, day, _ in rows], pa.int32()).cast(pa.date32()),
        ],
        schema=pa.schema(
            [
                ("shop", pa.string()),
                pa.field("id", pa.int64(), nullable=False),
                ("day", pa.date32()),
            ]
        ),
    )


def encoded(
    batches: Iterable[pa.RecordBatch], partition_by: tuple[str, ...], compression: str = "lz4"
) -> Iterator[EncodedRows]:
    buffer = RowBuffer(SCHEMA, [1, 2, 0], partition_by, compression)
    for one in batches:
        yield from buffer.add(one)
    yield from buffer.rest()


def ids(parts: Iterable[EncodedRows]) -> dict[Partition, list[int]]:
    found: dict[Partition, list[int]] = {}
    for part in parts:
        decoded = [
            number
            for entry in part.entries
            for rows in decode_rows(entry, 7, 0, ["id"])
            for number in rows.column(0).to_pylist()
        ]
        assert len(decoded) == part.rows
        found.setdefault(part.partition, []).extend(decoded)
    return found


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 99), st.sampled_from([None, 0, 1]), st.sampled_from("ab")),
            min_size=1,
            max_size=20,
        ),
        max_size=5,
    ),
    st.sampled_from([(), ("day",), ("shop", "day")]),
    st.sampled_from([1, 300, encoding.ENTRY_BYTES]),
)
def test_each_row_is_written_once_in_order(
    batches: list[list[tuple[int, int | None, str | None]]],
    partition_by: tuple[str, ...],
    limit: int,
) -> None:
    wanted: dict[Partition, list[int]] = {}
    for number, day, shop in (row for rows in batches for row in rows):
        values = {"day": None if day is None else f"1970-01-0{day + 1}", "shop": shop}
        partition = tuple((name, values[name]) for name in partition_by)
        wanted.setdefault(partition, []).append(number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typed_rows, "WRITE_BYTES", limit)
        patch.setattr(typed_rows, "BUFFER_BYTES_MAX", 2 * limit)
        patch.setattr(encoding, "ENTRY_BYTES", limit)
        assert ids(encoded(map(batch, batches), partition_by)) == wanted


def test_entries_stay_below_a_frame() -> None:
    """Rows are divided by their number first, so an entry may get several of the largest."""
    rng = random.Random(3)
    large = [rng.randbytes(900_000) for _ in range(12)]
    blobs = [*[b"small"] * 1_000, *large, *[b"small"] * 1_000, b"x" * 4_500_000]
    entries = list(encode_rows(pa.table({"blob": blobs})))
    assert sum(rows for _, rows in entries) == len(blobs)
    assert len(entries) < 30
    assert max(len(entry) for entry, _ in entries) <= encoding.ENTRY_BYTES_MAX
    decoded = [
        one
        for entry, _ in entries
        for rows in decode_rows(entry, 7, 0, ["blob"])
        for one in rows.column(0).to_pylist()
    ]
    assert decoded == blobs


def test_a_task_with_too_many_partition_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_rows, "PARTITIONS_MAX", 3)
    rows = batch([(number, number, "a") for number in range(4)])
    with pytest.raises(UsageError, match=r"more than 3 combinations .* columns day\."):
        list(encoded([rows], ("day",)))


def test_rows_that_wait_do_not_keep_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition with one row of each batch would otherwise hold all batches in memory."""
    monkeypatch.setattr(typed_rows, "WRITE_BYTES", 100_000)
    buffer = RowBuffer(SCHEMA, [1, 2, 0], ("day",), "lz4")
    before = pa.total_allocated_bytes()
    written = 0
    for at in range(50):
        rows = [(at * 5_000 + n, 0, "x" * 100) for n in range(5_000)]
        written += sum(part.rows for part in buffer.add(batch([*rows, (-at, 1, "rare")])))
    assert written == 250_000
    assert pa.total_allocated_bytes() - before < 200_000


@pytest.mark.parametrize("cut", [0, 4, 40, 200])
def test_a_cut_entry_is_an_error(cut: int) -> None:
    [(entry, _)] = encode_rows(pa.table({"id": list(range(100))}), "none")
    with pytest.raises(ReadError, match="entry 3 of ledger 7 cannot be decoded as rows"):
        list(decode_rows(entry[:cut], 7, 3, ["id"]))
    with pytest.raises(ReadError, match="has no column 'other'"):
        list(decode_rows(entry, 7, 3, ["other"]))


@pytest.mark.parametrize(
    ("kind", "values", "condition", "left"),
    [
        (LongType(), [None, 1, 2, 3], EqualTo(("P",), 2), [2]),
        (LongType(), [None, 1, 2, 3], GreaterThanOrEqual(("p",), 2), [2, 3]),
        (ByteType(), [None, 1, 2], In(("p",), (2, None)), [None, 2]),
        (BooleanType(), [None, False, True], EqualTo(("p",), True), [True]),
        (BooleanType(), [None, False, True], EqualNullSafe(("p",), None), [None]),
        (StringType(), [None, "", "a", "𝄞"], GreaterThan(("p",), "\uffff"), ["𝄞"]),
        (StringType("UNICODE_CI"), ["A", "a"], EqualTo(("p",), "a"), ["A", "a"]),
        (DateType(), [None, "2026-11-03", "2027-01-01"], LessThan(("p",), date(2027, 1, 1)),
         ["2026-11-03"]),
        (LongType(), [None, 1], Not(EqualTo(("p",), 1)), [None, 1]),
        (LongType(), [None, 1], EqualTo(("p", "inner"), 2), [None, 1]),
        (LongType(), [None, 1], EqualTo(("other",), 2), [None, 1]),
    ],
)  # fmt: skip
def test_filters_select_partitions_by_their_values(
    kind: DataType, values: list[PartitionValue], condition: Filter, left: list[PartitionValue]
) -> None:
    schema = StructType().add("p", kind).add("other", LongType())
    options = ReadOptions(metadata="x", dataset="d")
    known = dataset_schema(schema, ("p",))
    reader = TypedPushdownReader(options, spark_schema(known), known)
    assert list(reader.pushFilters([condition])) == [condition]  # Spark applies it to the rows.
    assert [one for one in values if reader.reads((("p", one),))] == left


def test_entries_of_a_dataset_that_gained_columns_meanwhile_are_not_rows() -> None:
    """It was overwritten between the look at its columns and the plan."""
    dataset = SimpleNamespace(schema=object(), ledgers=())
    client: Any = SimpleNamespace(datasets=SimpleNamespace(read=lambda _: dataset))
    options = ReadOptions.parse({"metadata": "m", "dataset": "d"})
    reader = QuireReader(options, entry_schema(("value",)))
    with pytest.raises(ReadError, match="'d' was replaced by one with other columns"):
        list(reader._extents(client))
    dataset.schema = None
    assert list(reader._extents(client)) == []
