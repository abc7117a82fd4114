"""The data source without a JVM: options, planning, filters, columns, discovery."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as ds
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

import pyspark_quire
from quire import DigestType, EntryRun, TlsClientConfig, blocking
from quire.cli.pipeline.job import cluster_options
from quire.client.cluster.placement import parse_placement
from quire.config import ClientConfig
from quire.errors import UsageError
from quire.spark import worker
from quire.spark.jobs.tasks import ClusterOptions
from quire.spark.ledgers.plan import ENTRY_OVERHEAD_BYTES, Range, WeightedRange, plan
from quire.spark.ledgers.reader import (
    Bounds,
    LedgerPartition,
    QuirePushdownReader,
    QuireReader,
    cut,
    narrowed,
    spark_schema,
)
from quire.spark.ledgers.writer import value_column
from quire.spark.options import (
    BATCH_ONLY,
    QUERY_ONLY,
    READING,
    STREAM_READING,
    STREAM_WRITING,
    TABLE_READING,
    WRITING,
    ReadOptions,
    WriteOptions,
)
from quire.spark.source import QuireDataSource
from quire.spark.streams.options import TABLES, StreamReadOptions, TableOptions
from quire.spark.streams.sink import SinkColumns, check_streams
from quire.spark.streams.view import warn_if_reversed
from quire.spark.streams.write_options import StreamWriteOptions
from quire.streams import DLSN

URI = "sqlite:////nowhere/metadata.db"


def read(**options: str) -> ReadOptions:
    return ReadOptions.parse({"metadata": URI, **options}, environ={})


def write(**options: str) -> WriteOptions:
    return WriteOptions.parse({"metadata": URI, "dataset": "d", **options}, environ={})


# -- options ----------------------------------------------------------------------------------


def test_options_have_the_documented_defaults() -> None:
    assert read(dataset="d") == ReadOptions(metadata=URI, dataset="d")
    assert write() == WriteOptions(metadata=URI, dataset="d")


def test_all_read_options_are_parsed() -> None:
    parsed = read(
        LEDGERS=" 7, 8 ,9", Password="p", RECOVER="True", columns="Value,entry_id",
        PartitionEntries="10", partitionbytes="1k", minPartitions="4", pushDown="true",
    )  # fmt: skip
    assert parsed == ReadOptions(
        metadata=URI,
        ledgers=(7, 8, 9),
        password=b"p",
        recover=True,
        columns=("value", "entry_id"),
        pushdown=True,
        partition_entries=10,
        partition_bytes=1024,
        min_partitions=4,
    )


def test_all_write_options_are_parsed() -> None:
    parsed = write(
        password="p", ensemble="5", writeQUORUM="4", ackQuorum="3", digest="hmac",
        valueColumn="body", txnID="t1", placement="rack-aware,min_racks=2",
    )  # fmt: skip
    assert parsed == WriteOptions(
        metadata=URI,
        dataset="d",
        password=b"p",
        ensemble=5,
        write_quorum=4,
        ack_quorum=3,
        digest=DigestType.parse("hmac"),
        value_column="body",
        txn_id="t1",
        placement="rack-aware,min_racks=2",
    )


def test_placement_options_of_writers_are_parsed() -> None:
    environ = {"QUIRE_METADATA": URI, "QUIRE_PLACEMENT": "any"}
    assert WriteOptions.parse({"dataset": "d"}, environ=environ).placement == "any"
    stream = {"stream": "s", "writerId": "w"}
    parsed = StreamWriteOptions.parse(stream, streaming=True, environ=environ)
    assert parsed.placement == "any"
    given = {**stream, "placement": "zone-aware,min_zones=3"}
    parsed = StreamWriteOptions.parse(given, streaming=True, environ=environ)
    assert parsed.placement == "zone-aware,min_zones=3"
    with pytest.raises(UsageError, match="min_rack"):
        write(placement="rack-aware,min_rack=2")
    with pytest.raises(UsageError, match="'placement' cannot be used for reading"):
        read(dataset="d", placement="any")


def test_the_placement_is_that_of_the_client_that_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ClientConfig] = []

    class Client:
        def close(self) -> None:
            pass

    def connect(uri: str, *, config: ClientConfig) -> Client:
        made.append(config)
        return Client()

    monkeypatch.setattr(worker.blocking, "connect", connect)
    monkeypatch.setattr(worker, "_clients", {})
    racks = write(placement="rack-aware,min_racks=3")
    stream = StreamWriteOptions.parse(
        {"metadata": URI, "stream": "s", "placement": "any"}, streaming=False, environ={}
    )
    for options in (racks, write(), racks, stream):
        with worker.writing(options) as client, worker.writing(options) as again:
            assert again is client
    assert [(one.placement.policy, one.placement.min_racks) for one in made] == [
        ("rack-aware", 3), ("rack-aware", ClientConfig().placement.min_racks),
        ("any", ClientConfig().placement.min_racks),
    ]  # fmt: skip


def test_the_environment_names_the_cluster() -> None:
    environ = {"QUIRE_METADATA": URI}
    assert ReadOptions.parse({"ledger": "1"}, environ=environ).metadata == URI
    given = {"ledger": "1", "metadata": "memory:"}
    assert ReadOptions.parse(given, environ=environ).metadata == "memory:"


def test_the_value_column_can_be_omitted() -> None:
    assert read(ledger="1", value="false").columns == ("ledger_id", "entry_id", "length")
    assert read(ledger="1", value="true").columns == read(ledger="1").columns


def test_the_pushdown_option_overrides_the_default_of_its_reader() -> None:
    given = {"metadata": URI, "ledger": "1"}
    assert ReadOptions.parse(given, pushdown=True).pushdown
    assert not ReadOptions.parse({**given, "pushdown": "false"}, pushdown=True).pushdown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no option selects what to read"),
        ({"ledger": "1", "dataset": "d"}, "exclude each other"),
        ({"ledger": "1", "ledgers": "2"}, "exclude each other"),
        ({"ledger": "1", "metadata": " "}, "no option selects the cluster"),
        ({"ledger": "seven"}, "option 'ledger': 'seven' is not a whole number"),
        ({"ledger": "-1"}, "-1 is not a ledger id"),
        ({"ledger": str(2**63)}, "not a ledger id"),
        ({"ledgers": "1,,2"}, "option 'ledgers': '' is not a whole number"),
        ({"ledgers": ""}, "option 'ledgers'"),
        ({"ledgers": "1,2,1"}, "named twice"),
        ({"dataset": ""}, "option 'dataset': its value is empty"),
        ({"dataset": "a/b"}, "option 'dataset': 'a/b' cannot be the name of a dataset"),
        ({"ledger": "1", "recover": "yes"}, "option 'recover': 'yes' is neither true nor false"),
        ({"ledger": "1", "columns": "value,size"}, "'size' is not a column"),
        ({"ledger": "1", "columns": "value,value"}, "named twice"),
        (
            {"ledger": "1", "columns": "length", "value": "true"},
            "'value' is true, but 'columns' does not name the column value",
        ),
        (
            {"ledger": "1", "columns": "value", "value": "false"},
            "'value' is false, but 'columns' names the column value",
        ),
        ({"ledger": "1", "columns": "value", "value": "false"}, "contradict"),
        ({"ledger": "1", "columns": "length", "value": "true"}, "contradict"),
        ({"ledger": "1", "partitionBytes": "0"}, "'0' is too small"),
        ({"ledger": "1", "partitionBytes": "12q"}, "'12q' is not a size"),
        ({"ledger": "1", "partitionBytes": "m"}, "'m' is not a size"),
        ({"ledger": "1", "minPartitions": "1000000"}, "use at most 10000"),
        ({"ledger": "1", "dateset": "d"}, "unknown option 'dateset'.*Did you mean 'dataset'"),
        ({"ledger": "1", "partitionentry": "d"}, "Did you mean 'partitionEntries'"),
        ({"ledger": "1", "zzz": "d"}, "unknown option 'zzz'.*The options are: metadata, "),
        ({"ledger": "1", "txnid": "d"}, "option 'txnId' cannot be used for reading"),
        ({"path": "/tmp/x"}, "takes no path.*dataset"),
        ({"provider": "quire"}, "CREATE TEMPORARY VIEW"),
    ],
)
def test_invalid_read_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){message}"):
        read(**options)


def test_the_value_option_is_checked_even_if_the_rows_are_typed() -> None:
    given = {"metadata": URI, "dataset": "d"}
    assert ReadOptions.parse({**given, "value": "false"}, typed=True, environ={}).columns
    with pytest.raises(UsageError, match="option 'value': 'yes' is neither true nor false"):
        ReadOptions.parse({**given, "value": "yes"}, typed=True, environ={})


def test_a_micro_batch_can_be_told_not_to_wait_for_records() -> None:
    """The documented default is 0, so 0 must be accepted as a value."""
    given = {"metadata": URI, "stream": "a"}
    for text, records in (("0", 0), ("7", 7)):
        options = {**given, "minRecordsPerTrigger": text}
        assert StreamReadOptions.parse(options, environ={}).records_min == records
    with pytest.raises(UsageError, match="'minRecordsPerTrigger': -1 is too small: use 0 or more"):
        StreamReadOptions.parse({**given, "minRecordsPerTrigger": "-1"}, environ={})


def test_tables_without_a_namespace_refuse_the_option() -> None:
    """The option was ignored, and the table listed the whole cluster."""
    without = {"ledgers", "fragments", "bookies"}
    for table in TABLES:
        given = {"metadata": URI, "table": table}
        assert TableOptions.parse(given, environ={"QUIRE_NAMESPACE": "/a"}).table == table
        if table in without:
            with pytest.raises(UsageError, match=f"'namespace' does not apply to table '{table}'"):
                TableOptions.parse({**given, "namespace": "/a"}, environ={})
        else:
            assert TableOptions.parse({**given, "namespace": "/a"}, environ={}).namespace == "/a"


KINDS: dict[str, tuple[Callable[..., Any], tuple[str, ...], dict[str, str]]] = {
    "dataset": (ReadOptions.parse, READING, {"dataset": "d"}),
    "ledger": (ReadOptions.parse, READING, {"ledger": "1"}),
    "streams": (StreamReadOptions.parse, STREAM_READING, {"stream": "s"}),
    "table": (TableOptions.parse, TABLE_READING, {"table": "segments"}),
    "writing": (WriteOptions.parse, WRITING, {"dataset": "d"}),
    "batch": (
        functools.partial(StreamWriteOptions.parse, streaming=False),
        (*STREAM_WRITING, *BATCH_ONLY),
        {"stream": "s"},
    ),
    "query": (
        functools.partial(StreamWriteOptions.parse, streaming=True),
        (*STREAM_WRITING, *QUERY_ONLY),
        {"topic": "t"},
    ),
}
ALL = {one for _, options, _ in KINDS.values() for one in options}


@pytest.mark.parametrize("kind", KINDS)
def test_a_suggested_option_is_one_that_can_be_used(kind: str) -> None:
    """`strat` in a read of a dataset suggested `start`, which such a read refuses."""
    parse, options, selected = KINDS[kind]
    for misspelt in {f"{one}x" for one in ALL} | {f"{one[0]}{one[2:]}" for one in ALL}:
        if misspelt.lower() in {one.lower() for one in ALL}:
            continue
        with pytest.raises(UsageError, match=f"unknown option '{misspelt.lower()}'") as caught:
            parse({"metadata": URI, **selected, misspelt: "1"}, environ={})
        if suggested := re.search("Did you mean '(.*)'", str(caught.value)):
            assert suggested[1] in options


def test_a_misspelt_option_that_selects_is_suggested_if_nothing_is_selected() -> None:
    for misspelt, meant in (("straem", "stream"), ("topc", "topic"), ("tabel", "table")):
        with pytest.raises(UsageError, match=f"Did you mean '{meant}'"):
            ReadOptions.parse({"metadata": URI, misspelt: "x"}, environ={})


ORDERED = ("3:0:0", "7:1:2"), ("seq:3", "seq:10"), ("txid:3", "txid:10")
TIMES = "time:2026-01-31", "time:2026-01-31T00:00:01"


@pytest.mark.parametrize(("low", "high"), [*ORDERED, TIMES])
def test_an_end_before_the_start_is_refused(low: str, high: str) -> None:
    """Nothing was read, and nothing was said."""
    given = {"metadata": URI, "topic": "t"}
    for start, end in ((low, high), (low, low), (high, "latest"), ("latest", low)):
        StreamReadOptions.parse({**given, "start": start, "end": end}, environ={})
    refused = ((high, low), (low, "earliest"), ("latest", "earliest"))
    for start, end in refused:
        with pytest.raises(UsageError, match=r"the end .* is before the start .* Exchange them"):
            StreamReadOptions.parse({**given, "start": start, "end": end}, environ={})
    own = {"start": json.dumps({"t/1": high}), "end": low}
    with pytest.raises(UsageError, match=r"stream t/1: the end .* is before the start"):
        StreamReadOptions.parse({**given, **own}, environ={})


def test_an_end_that_only_the_records_show_to_be_before_the_start_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for end in (None, DLSN(2, 0, 0), DLSN(2, 0, 1)):
        warn_if_reversed("s", DLSN(2, 0, 0), end)
    assert not caplog.messages
    warn_if_reversed("s", DLSN(2, 0, 0), DLSN(1, 5, 0))
    assert caplog.messages == [
        "nothing of stream s is read: the end is position 1:5:0, before the start 2:0:0"
    ]


@pytest.mark.parametrize("text", ["-1:-1:-1", "1:-1:0", "1:0:-1", "seq:-1", "txid:-1"])
def test_negative_places_are_refused(text: str) -> None:
    """The position was reported as truncated, and the others meant the beginning."""
    for name in ("start", "end"):
        with pytest.raises(UsageError, match=f"'{name}': '{text}' is not a place in a stream. Use"):
            StreamReadOptions.parse({"metadata": URI, "stream": "s", name: text}, environ={})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": ""}, "its value is empty"),
        ({"dataset": "a/b"}, "option 'dataset': 'a/b' cannot be the name of a dataset"),
        ({"dataset": ".."}, "option 'dataset': '..' cannot be the name of a dataset"),
        ({"dataset": "a\nb"}, "cannot be the name of a dataset"),
        ({"dataset": "x" * 5_000}, "at most 4096 bytes, not 5000"),
        (
            {"txnId": "x" * 300},
            "option 'txnId': a transaction key must have 1 to 256 bytes, not 300",
        ),
        ({"ensemble": "2"}, "ensemble is 2, writeQuorum is 3 and ackQuorum is 2"),
        ({"ackQuorum": "0"}, "0 is too small"),
        ({"digest": "md5"}, "option 'digest'"),
        ({"ackqourum": "2"}, "Did you mean 'ackQuorum'"),
        ({"ledger": "2"}, "option 'ledger' cannot be used for writing"),
    ],
)
def test_invalid_write_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "a//b"}, "option 'stream': 'a//b' cannot be the name of a stream"),
        ({"streams": "a*,<b>", "streamColumn": "c"}, "option 'streams': '<b>' cannot be the name"),
        ({"stream": "a", "token": "hunter2" * 10}, "option 'token': .* 70 bytes, but at most 64"),
        ({"stream": "a", "txnId": "x" * 300}, "option 'txnId': 'x*' cannot be the name of a job"),
        (
            {"stream": "a", "namespace": "<x>"},
            "option 'namespace': .* cannot be the path of a namespace",
        ),
    ],
)
def test_invalid_stream_write_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        StreamWriteOptions.parse({"metadata": URI, **options}, streaming=False, environ={})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["writerId", "queryName"])
def test_invalid_stream_writers_are_refused(name: str) -> None:
    options = {"metadata": URI, "stream": "a", name: "x" * 300}
    with pytest.raises(UsageError, match="cannot be the name of a writer"):
        StreamWriteOptions.parse(options, streaming=True, environ={})


def test_writing_needs_a_dataset() -> None:
    with pytest.raises(UsageError, match="no option selects where to write"):
        WriteOptions.parse({"metadata": URI}, environ={})


def test_passwords_do_not_show() -> None:
    for options in (read(dataset="d", password="hunter2"), write(password="hunter2")):
        assert options.password == b"hunter2"
        assert "hunter2" not in f"{options} {options!r}"
    with pytest.raises(UsageError) as caught:
        read(dataset="d", password="hunter2", zzz="1")
    assert "hunter2" not in str(caught.value)


# -- tasks ------------------------------------------------------------------------------------

extents = st.lists(
    st.builds(
        lambda first, count, size: (first, count, size),
        st.integers(0, 1000), st.integers(1, 5000), st.integers(0, 3000),
    ),
    max_size=30,
).map(
    lambda some: [
        WeightedRange(Range(ledger, first, first + count - 1), count * size)
        for ledger, (first, count, size) in enumerate(some)
    ]
)  # fmt: skip


@given(
    extents,
    st.integers(1, 10_000_000),
    st.none() | st.integers(50, 10_000),
    st.integers(1, 40),
)
def test_tasks_cover_every_entry_once_within_the_limits(
    whole: list[WeightedRange], bytes_max: int, entries_max: int | None, at_least: int
) -> None:
    tasks = plan(
        whole,
        partition_bytes=max(bytes_max, 40_000),
        partition_entries=entries_max,
        min_partitions=at_least,
    )
    flat = [part for task in tasks for part in task]
    at = 0
    for extent in whole:  # in order, without gaps
        entry = extent.range.first
        while entry <= extent.range.last:
            assert flat[at].ledger_id == extent.range.ledger_id
            assert flat[at].first == entry
            entry = flat[at].last + 1
            at += 1
        assert entry == extent.range.last + 1
    assert at == len(flat)
    entries = sum(extent.range.entries for extent in whole)
    assert len(tasks) >= min(at_least, entries)
    assert all(len(task) > 0 for task in tasks)
    weight = {extent.range.ledger_id: extent.weight / extent.range.entries for extent in whole}
    for task in tasks:  # about as heavy as was asked for: an uncut ledger or two entries more
        heaviest = max(weight[part.ledger_id] for part in task)
        carried = sum(part.entries * weight[part.ledger_id] for part in task)
        assert carried <= max(bytes_max, 40_000) * 1.3 + 2 * heaviest
    if entries_max is not None:
        assert all(sum(part.entries for part in task) <= entries_max for task in tasks)


def test_equal_entries_are_cut_evenly() -> None:
    size = 1000 - ENTRY_OVERHEAD_BYTES
    tasks = plan([WeightedRange(Range(1, 0, 9999), 10_000 * size)], partition_bytes=1_000_000)
    assert [sum(part.entries for part in task) for task in tasks] == [1000] * 10


def test_small_ledgers_share_a_task() -> None:
    whole = [WeightedRange(Range(ledger, 0, 9), 1000) for ledger in range(100)]
    assert len(plan(whole, partition_bytes=64 * 1024**2)) == 1
    assert len(plan(whole, partition_bytes=64 * 1024**2, min_partitions=7)) == 7
    assert len(plan(whole, partition_bytes=64 * 1024**2, partition_entries=10)) == 100


def test_min_partitions_of_one_ledger_is_met_exactly() -> None:
    for count in (1, 2, 3, 7):
        for size in (99, 100, 101):
            whole = [WeightedRange(Range(1, 0, 999), 1000 * size + 1)]
            assert len(plan(whole, partition_bytes=2**40, min_partitions=count)) == count


def test_an_empty_plan_has_no_tasks() -> None:
    assert plan([], partition_bytes=1, min_partitions=9) == []


def test_a_plan_never_has_more_tasks_than_entries() -> None:
    tasks = plan([WeightedRange(Range(1, 5, 7), 30)], partition_bytes=1, min_partitions=100)
    assert tasks == [(Range(1, 5, 5),), (Range(1, 6, 6),), (Range(1, 7, 7),)]


def test_the_number_of_tasks_is_bounded() -> None:
    with pytest.raises(UsageError, match="1000000 Spark tasks"):
        plan([WeightedRange(Range(1, 0, 999_999), 10**9)], partition_bytes=1)


def test_descriptors_are_small_and_frozen() -> None:
    partition = LedgerPartition((Range(7, 0, 99),))
    assert pickle.loads(pickle.dumps(partition)) == partition
    assert len(pickle.dumps(partition)) < 300
    with pytest.raises(AttributeError):
        partition.ranges = ()


# -- filters ----------------------------------------------------------------------------------

ledger, entry = ("ledger_id",), ("entry_id",)


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        (ds.EqualTo(ledger, 7), Bounds(ledger_first=7, ledger_last=7)),
        (ds.EqualNullSafe(entry, 7), Bounds(entry_first=7, entry_last=7)),
        (ds.GreaterThan(entry, 7), Bounds(entry_first=8)),
        (ds.GreaterThanOrEqual(entry, 7), Bounds(entry_first=7)),
        (ds.LessThan(entry, 7), Bounds(entry_last=6)),
        (ds.LessThanOrEqual(ledger, 7), Bounds(ledger_last=7)),
        (ds.GreaterThan(entry, -5), Bounds()),
        (ds.LessThan(entry, -5), Bounds(entry_last=-6)),
        (ds.In(ledger, (3, 4)), Bounds(ledgers=frozenset((3, 4)))),
        (ds.IsNotNull(("value",)), Bounds()),
        (ds.In(entry, (3, 4)), None),
        (ds.In(ledger, (3, None)), None),
        (ds.EqualTo(("length",), 7), None),
        (ds.EqualTo(("value",), b"x"), None),
        (ds.EqualTo(entry, None), None),
        (ds.EqualTo(entry, 7.5), None),
        (ds.EqualTo(entry, True), None),
        (ds.IsNull(entry), None),
        (ds.Not(ds.EqualTo(entry, 7)), None),
        (ds.EqualTo(("entry_id", "x"), 7), None),
        (ds.StringStartsWith(("value",), "x"), None),
    ],
)
def test_filters_narrow_the_bounds(condition: ds.Filter, bounds: Bounds | None) -> None:
    assert narrowed(Bounds(), condition) == bounds


comparisons = st.builds(
    lambda kind, column, value: kind((column,), value),
    st.sampled_from([
        ds.EqualTo, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan, ds.LessThanOrEqual,
    ]),
    st.sampled_from(["ledger_id", "entry_id"]),
    st.integers(-2, 12),
)  # fmt: skip
OPERATORS = {
    ds.EqualTo: int.__eq__,
    ds.GreaterThan: int.__gt__,
    ds.GreaterThanOrEqual: int.__ge__,
    ds.LessThan: int.__lt__,
    ds.LessThanOrEqual: int.__le__,
}


@given(st.lists(comparisons, max_size=5), st.none() | st.sets(st.integers(0, 10)))
def test_bounds_are_exact(conditions: list[ds.Filter], among: set[int] | None) -> None:
    """The reader keeps exactly what the conditions keep, because Spark does not check again."""
    reader = QuirePushdownReader(read(dataset="d"), spark_schema(["entry_id"]))
    pushed = [*conditions, *([] if among is None else [ds.In(("ledger_id",), tuple(among))])]
    assert list(reader.pushFilters(pushed)) == []
    for ledger_id in range(11):
        for entry_id in range(11):
            row = {"ledger_id": ledger_id, "entry_id": entry_id}
            wanted = all(OPERATORS[type(c)](row[c.attribute[0]], c.value) for c in conditions) and (
                among is None or ledger_id in among
            )
            bounds = reader._bounds
            whole = WeightedRange(Range(ledger_id, 0, 10), 11)
            part = whole.clip(bounds.entry_first, bounds.entry_last)
            kept = (
                bounds.has_ledger(ledger_id)
                and part is not None
                and part.range.first <= entry_id <= part.range.last
            )
            assert kept is wanted


def test_filters_that_cannot_be_pushed_down_are_returned_to_spark() -> None:
    reader = QuirePushdownReader(read(dataset="d"), spark_schema(["entry_id"]))
    kept, given_back = ds.GreaterThan(entry, 3), ds.EqualTo(("length",), 3)
    assert list(reader.pushFilters([kept, given_back])) == [given_back]


def test_pushdown_needs_its_option() -> None:
    """Spark refuses it where the session does not allow it."""
    source = QuireDataSource({"metadata": URI, "ledger": "1"})
    assert type(source.reader(source.schema())) is QuireReader
    source = QuireDataSource({"metadata": URI, "ledger": "1", "pushdown": "true"})
    assert type(source.reader(source.schema())) is QuirePushdownReader


# -- columns ----------------------------------------------------------------------------------


def test_a_user_schema_is_accepted() -> None:
    schema = StructType([StructField("Value", BinaryType()), StructField("length", LongType())])
    reader = QuireReader(read(dataset="d"), schema)
    assert reader._schema.names == ["Value", "length"]
    assert reader._schema.field("Value").nullable


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("size", LongType()), "names column 'size', which does not exist"),
        (StructField("value", StringType()), "'value' has type binary, but the schema says string"),
        (StructField("length", IntegerType()), "'length' has type bigint, but the schema says int"),
    ],
)
def test_an_invalid_user_schema_is_refused(field: StructField, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        QuireReader(read(dataset="d"), StructType([field]))


def frame(**columns: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_the_column_to_write_is_selected() -> None:
    string, binary, long = StringType(), BinaryType(), LongType()
    assert value_column(frame(id=long, value=string), None) == 1
    assert value_column(frame(a=string, VALUE=binary), None) == 1
    assert value_column(frame(body=binary), None) == 0
    assert value_column(frame(a=string, value=binary), "A") == 0
    for schema, wanted, message in (
        (frame(a=string, b=binary), None, "not clear which column.*a string, b binary"),
        (frame(id=long, body=binary), None, "not clear which column.*id bigint, body binary"),
        (frame(id=long, body=binary), None, r"'valueColumn', or .*to_json\(struct\(\*\)\)"),
        (frame(a=long, b=long), None, "not clear which column"),
        (frame(a=long), None, "'a' is bigint, but an entry must be"),
        (frame(), None, "not clear which column to write. The columns are: none"),
        (frame(value=long, b=binary), None, "'value' is bigint, but an entry must be"),
        (frame(a=string), "b", "there is no column 'b' to write. The columns are: a string"),
    ):
        with pytest.raises(UsageError, match=message):
            value_column(schema, wanted)


@pytest.mark.parametrize("streaming", [False, True])
def test_every_surplus_column_of_a_stream_write_is_refused(streaming: bool) -> None:
    string, binary, long = StringType(), BinaryType(), LongType()

    def value_of(schema: StructType, **options: str) -> str:
        where = {} if "streams" in options else {"stream": "s"}
        who = {"writerId": "w"} if streaming else {}
        parsed = StreamWriteOptions.parse(
            {"metadata": URI, **where, **who, **options}, streaming=streaming, environ={}
        )
        return str(schema.names[SinkColumns.of(schema, parsed).value])

    assert value_of(frame(body=binary)) == "body"
    assert value_of(frame(body=binary), orderBy="body") == "body"
    assert value_of(frame(txid=long, body=string)) == "body"
    assert value_of(frame(n=long, body=string), txidColumn="n") == "body"
    assert value_of(frame(n=long, body=string), orderBy="n") == "body"
    assert value_of(frame(n=long, value=string), orderBy="n") == "value"
    assert value_of(frame(n=long, value=string), valueColumn="value") == "value"
    assert value_of(frame(n=long, body=string), valueColumn="body") == "body"
    several = {"streams": "a,b", "streamColumn": "place"}
    assert value_of(frame(place=string, body=string), **several) == "body"
    assert value_of(frame(place=string, txid=long, body=string), **several) == "body"
    for schema in (frame(id=long, name=string), frame(name=string, at=long, txid=long)):
        with pytest.raises(UsageError, match=r"which column to write\. The columns are") as caught:
            value_of(schema)
        assert all(name in str(caught.value) for name in schema.names)
    with pytest.raises(UsageError, match="The columns are: id bigint, body string"):
        value_of(frame(place=string, id=long, body=string), **several)
    places = dict.fromkeys(("segment", "ledger", "entry", "slot", "time", "sequence"), long)
    assert value_of(frame(stream=string, **places, value=binary)) == "value", "a copy"
    with pytest.raises(UsageError, match="what to do with column 'key'"):
        value_of(frame(stream=string, **places, value=binary, key=binary))
    with pytest.raises(UsageError, match="what to do with column 'time'"):
        value_of(frame(time=long, value=binary))
    one = frame(key=string, n=long, txid=long, value=string)
    for schema, options in (
        (one, {}),
        (frame(place=string, key=string, n=long, value=string), several),
    ):
        with pytest.raises(UsageError, match="what to do with the columns 'key', 'n'") as caught:
            value_of(schema, **options)
        assert all(word in str(caught.value) for word in ("keyColumn", "valueColumn", "df.select"))
    with pytest.raises(UsageError, match="what to do with column 'n'"):
        value_of(frame(key=string, n=long, value=string), keyColumn="key")


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 200))
def test_large_runs_are_divided(sizes: list[int], bytes_max: int) -> None:
    data, offsets, ends = b"", [], []
    for size in sizes:
        data += b"header"
        offsets.append(len(data))
        data += bytes(size)
        ends.append(len(data))
    run = EntryRun(3, 10, data, offsets, ends, list(range(len(sizes))), 5)
    parts = list(cut(run, bytes_max))
    assert [payload for part in parts for payload in part.payloads()] == run.payloads()
    assert [n for part in parts for n in part.ledger_lengths] == run.ledger_lengths
    at = run.first
    for part in parts:
        assert part.first == at
        at += len(part)
        assert len(part) == 1 or part.ends[-1] - part.offsets[0] <= max(bytes_max, len(data))


# -- discovery --------------------------------------------------------------------------------


def test_spark_finds_the_source() -> None:
    assert pyspark_quire.DefaultSource is QuireDataSource
    assert QuireDataSource.name() == "quire"
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        pyspark_quire.Other  # noqa: B018


def test_discovery_never_raises_and_imports_nothing_early() -> None:
    """A module that raises would hide the data sources of all others."""
    code = (
        "import sys, pyspark_quire\n"
        "assert not [m for m in sys.modules if m == 'quire' or m.startswith('quire.')]\n"
        "sys.modules['pyarrow'] = None\n"
        "assert not hasattr(pyspark_quire, 'DefaultSource')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_package_can_be_imported_without_pyspark() -> None:
    code = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "import quire.spark\n"
        "try:\n"
        "    quire.spark.local_session()\n"
        "except quire.errors.UsageError as error:\n"
        "    assert 'pip install' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_local_session_without_java_says_what_to_install(tmp_path: Path) -> None:
    """Spark said that the Java gateway process exited before sending its port number."""
    code = (
        "import quire.spark\n"
        "try:\n"
        "    quire.spark.local_session()\n"
        "except quire.errors.UsageError as error:\n"
        "    assert 'Spark needs Java' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
    )
    environment = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(tmp_path)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)


def test_tls_options_are_parsed() -> None:
    assert read(dataset="d").tls is None
    files = {"tlsca": "/ca.pem", "tlscert": "/own.pem", "tlskey": "/own.key"}
    wanted = TlsClientConfig("/ca.pem", "/own.pem", "/own.key")
    assert read(dataset="d", **files).tls == wanted
    assert write(**files).tls == wanted
    assert pickle.loads(pickle.dumps(read(dataset="d", **files))).tls == wanted
    assert read(dataset="d", tlsCa="system").tls == TlsClientConfig()
    environ = {"QUIRE_TLS_CA": "/ca.pem", "QUIRE_TLS_CERT": "/own.pem", "QUIRE_TLS_KEY": "/own.key"}
    options = {"metadata": URI, "dataset": "d"}
    assert ReadOptions.parse(options, environ=environ).tls == wanted
    with pytest.raises(UsageError, match="require the option 'tlsCa'"):
        write(tlsCert="/own.pem")


def test_tls_options_for_key_passwords_and_host_names_are_parsed() -> None:
    """The help of the jobs offered both, and the jobs refused them."""
    tls = TlsClientConfig(
        "/ca.pem", "/own.pem", "/own.key", key_password_file="/secret", verify_host_name=False
    )
    for wanted in (tls, TlsClientConfig(), TlsClientConfig("/ca.pem", verify_host_name=False)):
        options = ClusterOptions(URI, tls=wanted).options()
        assert read(**options, dataset="d").tls == wanted
        assert StreamReadOptions.parse({**options, "stream": "s"}, environ={}).tls == wanted
    environ = {"QUIRE_TLS_KEY_PASSWORD_FILE": "/secret", "QUIRE_TLS_ANY_HOST_NAME": "1"}
    files = {"tlsCa": "/ca.pem", "tlsCert": "/own.pem", "tlsKey": "/own.key"}
    options = {"metadata": URI, "dataset": "d"}
    assert ReadOptions.parse(options | files, environ=environ).tls == tls
    assert ReadOptions.parse(options, environ=environ).tls is None
    checked = ReadOptions.parse(options | files | {"tlsAnyHostName": "false"}, environ=environ).tls
    assert checked is not None
    assert checked.verify_host_name
    for name, value in (("tlsKeyPasswordFile", "/secret"), ("tlsAnyHostName", "true")):
        with pytest.raises(UsageError, match=f"'{name}' requires the option 'tlsCa'"):
            write(**{name: value})
    environ["QUIRE_TLS_ANY_HOST_NAME"] = "perhaps"
    with pytest.raises(UsageError, match="QUIRE_TLS_ANY_HOST_NAME is 'perhaps'"):
        ReadOptions.parse(options | files, environ=environ)


@pytest.mark.parametrize(
    ("names", "expected"), [("key KEY value", 0), ("KEY key value", 1), ("Key value", 0)]
)
def test_letter_case_distinguishes_columns(names: str, expected: int) -> None:
    schema = StructType([StructField(name, BinaryType()) for name in names.split()])
    given = {"metadata": "m", "stream": "s", "keyColumn": "key", "valueColumn": "value"}
    parsed = StreamWriteOptions.parse(given, streaming=False)
    assert SinkColumns.of(schema, parsed).key == expected


@pytest.mark.parametrize("names", ["key key value", "KEY Key value"])
def test_an_ambiguous_column_name_is_refused(names: str) -> None:
    """A join may leave two columns of one name. Either could be meant."""
    schema = StructType([StructField(name, BinaryType()) for name in names.split()])
    given = {"metadata": "m", "stream": "s", "keyColumn": "key", "valueColumn": "value"}
    parsed = StreamWriteOptions.parse(given, streaming=False)
    with pytest.raises(UsageError, match="option 'keyColumn': the rows have 2 columns with"):
        SinkColumns.of(schema, parsed)


@pytest.mark.parametrize("kind", [StructType(), ArrayType(LongType())])
def test_rows_cannot_be_ordered_by_a_column_with_parts(kind: DataType) -> None:
    """Each task failed with an error of Arrow."""
    schema = StructType([StructField("n", kind), StructField("value", BinaryType())])
    given = {"metadata": "m", "stream": "s", "orderBy": "n"}
    parsed = StreamWriteOptions.parse(given, streaming=False)
    with pytest.raises(UsageError, match=r"'orderBy': column 'n' has type .* without parts"):
        SinkColumns.of(schema, parsed)


@pytest.mark.parametrize(
    ("columns", "options", "lost"),
    [
        ({"txid": LongType(), "value": BinaryType()}, {}, "txid"),
        ({"TxId": LongType(), "body": BinaryType()}, {}, "TxId"),
        ({"txid": LongType(), "value": BinaryType()}, {"valueColumn": "value"}, ""),
        ({"value": BinaryType()}, {}, ""),
        ({"ledger": LongType(), "entry": LongType(), "txid": LongType(), "value": BinaryType()},
         {}, ""),
    ],
    ids=["lost", "other case", "value named", "without txids", "read from Quire"],
)  # fmt: skip
def test_a_column_of_txids_that_a_stream_cannot_take_is_refused(
    columns: dict[str, DataType], options: dict[str, str], lost: str
) -> None:
    """It was dropped without a word."""
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    parsed = StreamWriteOptions.parse({"metadata": URI, "stream": "s", **options}, streaming=False)
    found = SinkColumns.of(schema, parsed)

    class Streams:
        path = "/streams"
        txids = "time"

        async def exists(self, name: str) -> bool:
            return True

        async def stream_settings(self, name: str) -> SimpleNamespace:
            return SimpleNamespace(txids=self.txids)

    streams: Any = Streams()
    if lost:
        with pytest.raises(UsageError, match=f"column '{lost}' would be lost"):
            asyncio.run(check_streams(streams, parsed, found))
        streams.txids = "given"
    assert asyncio.run(check_streams(streams, parsed, found)) == ["s"]


def test_jobs_follow_the_placement_of_their_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repairs, recoveries and replications ignored QUIRE_PLACEMENT."""
    text = "any"
    monkeypatch.setenv("QUIRE_PLACEMENT", text)
    with click.Context(click.Command("repair")):
        cluster = cluster_options(URI)
    assert cluster.placement == text
    assert cluster.config().placement == parse_placement(text)
    assert WriteOptions.parse(
        cluster.options(writing=True) | {"dataset": "d"}, environ={}
    ).placement == (text)
    assert ReadOptions.parse(cluster.options() | {"ledger": "1"}, environ={}).metadata == URI
    configs: list[ClientConfig] = []

    def connect(uri: str, *, config: ClientConfig) -> SimpleNamespace:
        configs.append(config)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(blocking, "connect", connect)
    try:
        with cluster.client():
            pass
    finally:
        worker.close_clients()
    assert [config.placement for config in configs] == [parse_placement(text)]
    monkeypatch.setenv("QUIRE_PLACEMENT", "rack-aware,min_racks=two")
    with click.Context(click.Command("repair")), pytest.raises(click.UsageError):
        cluster_options(URI)
