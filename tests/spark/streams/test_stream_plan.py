"""Pure parts of reading streams: options, offsets, filters, and the division into tasks."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as ds
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from quire.errors import UsageError
from quire.spark.options import reading_kind
from quire.spark.source import QuireDataSource
from quire.spark.streams.lag import LagListener, StreamLag, lags_of
from quire.spark.streams.offsets import Offsets, StreamOffset
from quire.spark.streams.options import StreamPlaces, StreamReadOptions, TableOptions
from quire.spark.streams.plan import StreamPartition, StreamSplit, lay_out, partitions
from quire.spark.streams.query import shares
from quire.spark.streams.reader import StreamBounds, StreamTasks, narrowed, spark_schema
from quire.streams import DLSN, EARLIEST, LATEST, AtSequence, AtTime, AtTxid, Gap, StreamSegment
from quire.streams.read.arrow import COLUMNS, Origin

URI = "sqlite:////nowhere.db"


def parse(
    options: Mapping[str, object], environ: Mapping[str, str] | None = None, **how: bool
) -> StreamReadOptions:
    given = {"metadata": URI, **{name: str(value) for name, value in options.items()}}
    return StreamReadOptions.parse(given, environ=environ or {}, **how)


# -- options ----------------------------------------------------------------------------------


def test_stream_read_options_are_parsed() -> None:
    plain = parse({"stream": "orders"})
    assert plain == StreamReadOptions(URI, streams=("orders",))
    assert (plain.namespace, plain.start.of("orders"), plain.end.of("orders")) == (
        "/streams", EARLIEST, None,
    )  # fmt: skip
    full = parse(
        {
            "streams": "a, b", "namespace": "team/x", "password": "secret", "start": "txid:7",
            "end": '{"b": "latest"}', "columns": "value,TXID", "pushdown": True,
            "partitionBytes": "1m", "minPartitions": 3, "failOnDataLoss": "false",
            "maxRecordsPerTrigger": 10, "maxBytesPerTrigger": "2k", "minRecordsPerTrigger": 5,
            "maxTriggerDelay": "1.5s", "subscription": "spark", "tlsCa": "system",
        }
    )  # fmt: skip
    assert full.streams == ("a", "b")
    assert full.namespace == "/team/x"
    assert full.start.of("a") == full.start.of("b") == AtTxid(7)
    assert (full.end.of("a"), full.end.of("b")) == (None, LATEST)
    assert full.columns == ("value", "txid")
    assert (full.records_max, full.bytes_max, full.records_min) == (10, 2048, 5)
    assert (full.trigger_delay_s, full.subscription) == (1.5, "spark")
    assert not full.fail_on_data_loss
    assert "secret" not in repr(full)
    assert pickle.loads(pickle.dumps(full)) == full
    assert parse({"streamPattern": "ord*"}).pattern == "ord*"
    assert parse({"stream": "a"}, {"QUIRE_NAMESPACE": "/n"}).namespace == "/n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("5:12:3", DLSN(5, 12, 3)),
        ("txid:0", AtTxid(0)),
        ("seq:7", AtSequence(7)),
        ("time:2026-01-01T00:00:00", AtTime(1_767_225_600_000)),
        ("time:2026-01-01T01:00:00+01:00", AtTime(1_767_225_600_000)),
    ],
)
def test_start_and_end_positions_are_parsed(text: str, place: object) -> None:
    assert parse({"stream": "a", "start": text}).start == StreamPlaces(place)  # type: ignore[arg-type]
    assert parse({"stream": "a", "end": text}).end == StreamPlaces(place)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "a", "streams": "b"}, "exclude each other"),
        ({"stream": "a", "streamPattern": "b"}, "exclude each other"),
        ({"streams": "a,a"}, "a stream is named twice"),
        ({"streams": "a,,b"}, "it is empty"),
        (
            {"stream": "a", "start": "monday"},
            "'start': 'monday' is not a place in a stream. Use earl",
        ),
        ({"stream": "a", "start": '{"b": "latest"}'}, "'b' is not one of the streams"),
        ({"stream": "a", "start": '{"a": 7}'}, "the place in stream 'a' is not a text"),
        ({"stream": "a", "start": "{x"}, "is not a JSON object"),
        ({"stream": "a", "maxTriggerDelay": "5x"}, "'5x' is not a duration: use seconds"),
        ({"stream": "a", "maxRecordsPerTrigger": 0}, "0 is too small: use 1 or more"),
        (
            {"stream": "a", "columns": "value,offset"},
            "'offset' is not a column. The columns are stream, se",
        ),
        ({"stream": "a", "startingOffsets": "x"}, "'startingOffsets': use 'start'"),
        ({"stream": "a", "beginning": "x"}, "unknown option 'beginning'"),
        ({"stream": "a", "maxRecordPerTrigger": 5}, "Did you mean 'maxRecordsPerTrigger'?"),
        ({"stream": "a", "dataset": "b"}, "'dataset' cannot be used for reading streams"),
        (
            {"stream": "a", "namespace": "x//y"},
            "option 'namespace': 'x//y' cannot be the path of a namespace",
        ),
        ({"stream": "a//b"}, "option 'stream': 'a//b' cannot be the name of a stream"),
        ({"streams": "a,<b>"}, "option 'streams': '<b>' cannot be the name of a stream"),
        ({"stream": "a", "subscription": "x/y"}, "option 'subscription': 'x/y' cannot be the name"),
    ],
)
def test_invalid_stream_read_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(options)


def test_a_streaming_query_has_no_end() -> None:
    with pytest.raises(UsageError, match="'end' cannot be used for a streaming query"):
        parse({"stream": "a", "end": "latest"}, streaming=True)


def test_the_options_select_what_is_read() -> None:
    assert reading_kind({"Stream": "a"}) == reading_kind({"streampattern": "a"}) == "streams"
    assert reading_kind({"table": "a", "stream": "b"}) == "table"
    assert reading_kind({"ledger": "1"}) == reading_kind({}) == "ledgers"
    assert TableOptions.parse({"metadata": URI, "table": "Lag"}).table == "lag"
    with pytest.raises(
        UsageError,
        match=r"option 'table': 'lags' is not a table\. The tables are ledgers, fragments",
    ):
        TableOptions.parse({"metadata": URI, "table": "lags"})
    with pytest.raises(UsageError, match="'stream' cannot be used for reading tables"):
        TableOptions.parse({"metadata": URI, "table": "lag", "stream": "x"})


def test_a_stream_schema_that_does_not_fit_is_refused() -> None:
    tasks = StreamTasks(parse({"stream": "a"}), spark_schema(["value"]))
    assert not tasks.counts
    assert StreamTasks(parse({"stream": "a"}), spark_schema(["stream", "sequence"])).counts
    for field, message in (
        (
            StructField("offset", LongType()),
            "names column 'offset', which does not exist. The columns are stream, segment",
        ),
        (StructField("txid", StringType()), "'txid' has type bigint, but the schema says string"),
        (StructField("time", TimestampType(), False), "'time' may be null"),
    ):
        with pytest.raises(UsageError, match=message):
            StreamTasks(parse({"stream": "a"}), StructType([field]))


def test_a_streaming_query_of_anything_but_streams_is_refused() -> None:
    """Spark hides what is raised where the reader is made: the first call tells."""
    for options, message in (
        ({"metadata": URI, "ledger": "7"}, "a streaming query can read only streams"),
        ({"metadata": URI, "stream": "a", "end": "latest"}, "'end' cannot be used"),
        ({"metadata": URI, "stream": "a", "strat": "latest"}, "Did you mean 'start'"),
    ):
        reader = QuireDataSource(options).streamReader(spark_schema(COLUMNS))
        with pytest.raises(UsageError, match=message):
            reader.initialOffset()


# -- offsets ----------------------------------------------------------------------------------

OFFSETS = Offsets(
    "cluster-1",
    "/streams",
    {"a": StreamOffset(DLSN(5, 120, 3), 17, 61_200), "b": StreamOffset(DLSN(1, 0, 0))},
)


def test_offsets_have_the_format_of_version_1() -> None:
    """Checkpoints live long: this form is never to change."""
    stored = {
        "v": 1,
        "cluster": "cluster-1",
        "namespace": "/streams",
        "streams": {"a": "5:120:3", "b": "1:0:0"},
        "checks": {"a": {"ledger": 17, "sequence": 61_200}, "b": {}},
    }
    assert OFFSETS.to_json() == stored
    assert Offsets.from_json(stored) == OFFSETS
    del stored["checks"]
    assert Offsets.from_json(stored).streams["a"] == StreamOffset(DLSN(5, 120, 3))


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"topic": {"0": 7}}, "checkpoint was written by another source"),
        ([], "checkpoint was written by another source"),
        ({"v": 2}, "it has format 2, but this version knows only format 1"),
        ({"v": 1, "cluster": "c"}, "offsets in the query.s checkpoint cannot be decoded"),
        (
            {"v": 1, "cluster": "c", "namespace": "/n", "streams": {"a": "5"}},
            "offsets in the query.s checkpoint cannot be decoded",
        ),
        (
            {"v": 1, "cluster": "c", "namespace": "/n", "streams": ["a"]},
            "offsets in the query.s checkpoint cannot be decoded",
        ),
    ],
)
def test_offsets_of_other_sources_are_refused(stored: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Offsets.from_json(stored)


def test_offsets_of_another_cluster_or_namespace_are_refused() -> None:
    OFFSETS.check("cluster-1", "/streams")
    with pytest.raises(
        UsageError, match="streams of namespace /streams, but the query reads namespace /other"
    ):
        OFFSETS.check("cluster-1", "/other")
    with pytest.raises(
        UsageError, match="cluster cluster-1, but the query reads cluster cluster-2"
    ):
        OFFSETS.check("cluster-2", "/streams")


# -- what of a stream is read -----------------------------------------------------------------


def segment(
    number: int, records: int = 100, *, truncated: bool = False, before: DLSN | None = None
) -> StreamSegment:
    """Completed, of ten records an entry; the segments before it were as large."""
    made = StreamSegment(number, 100 + number, 0, start_sequence_id=(number - 1) * 100)
    made = made.completed(
        last_txid=0, record_count=records, last_entry_id=(records - 1) // 10,
        last_slot_id=(records - 1) % 10, completion_time_ms=0, start_sequence_id=(number - 1) * 100,
    )  # fmt: skip
    if truncated:
        return made.truncated()
    return made if before is None else made.partially_truncated(before)


OPEN = StreamSegment(4, 104, 0, start_sequence_id=300)
ALL = [segment(1), segment(2), segment(3), OPEN]


def laid(
    segments: list[StreamSegment],
    start: DLSN,
    end: DLSN | None = None,
    sequence: int | None = None,
    reached: bool = False,
) -> tuple[list[tuple[int, DLSN, DLSN | None]], list[Gap]]:
    ranges, gaps = lay_out(segments, start, end, sequence, reached=reached)
    return [(s.segment.lssn, s.start, s.end) for s in ranges], gaps


def test_whole_and_partial_segments_are_planned() -> None:
    def begin(n: int) -> DLSN:
        return DLSN(n, 0, 0)

    everything = [(n, begin(n), None) for n in (1, 2, 3, 4)]
    assert laid(ALL, begin(1)) == (everything, [])
    assert laid(ALL, begin(1), DLSN(9, 0, 0)) == (everything, [])
    start, end = DLSN(1, 4, 2), DLSN(3, 1, 5)
    assert laid(ALL, start, end) == (
        [(1, start, None), (2, begin(2), None), (3, begin(3), end)],
        [],
    )
    assert laid(ALL, DLSN(2, 1, 0), DLSN(2, 3, 0)) == ([(2, DLSN(2, 1, 0), DLSN(2, 3, 0))], [])
    assert laid(ALL, begin(2), begin(3)) == ([(2, begin(2), None)], [])
    assert laid(ALL, begin(3), begin(3)) == ([], [])
    assert laid(ALL, begin(3), begin(2)) == ([], [])
    # Nothing comes after the last record of a completed segment.
    assert laid(ALL, DLSN(1, 9, 10), begin(2)) == ([], [])
    assert laid([], begin(1)) == ([], [])
    empty = segment(2, 0)
    assert laid([segment(1), empty, segment(3)], begin(2)) == ([(3, begin(3), None)], [])


def test_missing_segments_are_reported_as_gaps() -> None:
    def told(kind: str, first: tuple[int, int, int], behind: tuple[int, int, int]) -> list[Gap]:
        return [Gap(kind, DLSN(*first), DLSN(*behind))]

    start = DLSN(1, 5, 0)
    rest = [(3, DLSN(3, 0, 0), None), (4, DLSN(4, 0, 0), None)]
    # Freed, marked, and truncated in its middle.
    assert laid(ALL[2:], start) == (rest, told("truncated", (1, 5, 0), (3, 0, 0)))
    marked = [segment(1, truncated=True), segment(2, truncated=True), *ALL[2:]]
    gaps = told("truncated", (1, 5, 0), (2, 0, 0)) + told("truncated", (2, 0, 0), (3, 0, 0))
    assert laid(marked, start) == (rest, gaps)
    partly = [segment(3, before=DLSN(3, 2, 4)), OPEN]
    assert laid(partly, DLSN(3, 1, 0)) == (
        [(3, DLSN(3, 2, 4), None), (4, DLSN(4, 0, 0), None)],
        told("truncated", (3, 1, 0), (3, 2, 4)),
    )
    # A number that is missing in between was lost.
    assert laid([segment(1), segment(3), OPEN], start) == (
        [(1, start, None), *rest],
        told("lost", (2, 0, 0), (3, 0, 0)),
    )
    # A truncation is reported as a whole if any of it was requested.
    assert laid(ALL[2:], start, DLSN(2, 0, 0)) == ([], told("truncated", (1, 5, 0), (3, 0, 0)))
    assert laid(ALL[2:], start, start) == ([], [])
    # A segment that existed when the query read up to this position, and does not exist now.
    assert laid([segment(1)], start, DLSN(2, 3, 0)) == ([(1, start, None)], [])
    assert laid([segment(1)], start, DLSN(2, 3, 0), reached=True) == (
        [(1, start, None)],
        told("lost", (2, 0, 0), (2, 3, 0)),
    )


def test_records_read_before_their_truncation_are_no_gap() -> None:
    """A query that had read all of it must not be stopped by a false alarm."""
    end_of_1 = DLSN(1, 9, 10)
    whole = [(n, DLSN(n, 0, 0), None) for n in (2, 3, 4)]
    assert laid([segment(1, truncated=True), *ALL[1:]], end_of_1) == (whole, [])
    assert laid([segment(1, 0, truncated=True), *ALL[1:]], DLSN(1, 0, 0)) == (whole, [])
    # The node is gone too. The number of records before the position shows it.
    assert laid(ALL[1:], end_of_1, sequence=100) == (whole, [])
    assert laid(ALL[1:], DLSN(1, 9, 9), sequence=99)[1] == [
        Gap("truncated", DLSN(1, 9, 9), DLSN(2, 0, 0))
    ]
    assert laid(ALL[1:], end_of_1)[1] != []  # Nothing shows it.


@given(st.data())
def test_consecutive_ranges_cover_each_record_once(data: st.DataObject) -> None:
    """Parts that follow each other have together what the whole has."""
    place = st.builds(DLSN, st.integers(1, 5), st.integers(0, 10), st.integers(0, 10))
    cuts = sorted([DLSN(1, 0, 0), *data.draw(st.lists(place, max_size=5)), DLSN(5, 0, 0)])

    def places(start: DLSN, end: DLSN) -> list[DLSN]:
        ranges, gaps = lay_out([*ALL[:3], segment(4)], start, end)
        assert gaps == []
        return [
            DLSN(one.segment.lssn, entry, slot)
            for one in ranges
            for entry in range(10)
            for slot in range(10)
            if one.start
            <= DLSN(one.segment.lssn, entry, slot)
            < (one.end or DLSN(one.segment.lssn + 1, 0, 0))
        ]

    whole = places(cuts[0], DLSN(5, 0, 0))
    assert len(whole) == 400
    parts = [here for a, b in pairwise(cuts) for here in places(a, b) if b <= DLSN(5, 0, 0)]
    assert parts == whole


# -- tasks ------------------------------------------------------------------------------------


def piece(stream: str, ledger: int, entries: int, entry_bytes: int = 1_000) -> StreamSplit:
    origin = Origin(stream, replace(OPEN, ledger_id=ledger))
    return StreamSplit(origin, 0, entries - 1, size_bytes=entries * entry_bytes)


def tasks_of(found: list[StreamPartition]) -> list[list[tuple[str, int, int]]]:
    return [[(p.origin.stream, p.first, p.last) for p in task.splits] for task in found]


def test_small_streams_share_a_task() -> None:
    streams = [[piece(f"s{n}", n, 10)] for n in range(10)]
    assert len(partitions(streams, partition_bytes=1_000_000)) == 1
    several = partitions(streams, partition_bytes=40_000)
    assert [name for task in tasks_of(several) for name, _, _ in task] == [
        f"s{n}" for n in range(10)
    ]
    assert 2 < len(several) < 5
    assert partitions([[], []], partition_bytes=1) == []


def test_the_tasks_of_large_streams_are_interleaved() -> None:
    found = tasks_of(
        partitions([[piece("a", 1, 100)], [piece("b", 2, 100)]], partition_bytes=25_000)
    )
    assert [task[0][0] for task in found] == ["a", "b"] * (len(found) // 2)
    for stream in "ab":
        ranges = [p[1:] for task in found for p in task if p[0] == stream]
        assert ranges[0][0] == 0
        assert ranges[-1][1] == 99
        assert all(a[1] + 1 == b[0] for a, b in pairwise(ranges))


def test_a_plan_has_the_requested_number_of_tasks() -> None:
    found = partitions([[piece("a", 1, 100)]], partition_bytes=10**9, min_partitions=4)
    assert len(found) == 4


@given(
    st.lists(st.lists(st.integers(1, 60), max_size=4), max_size=5),
    st.integers(1_000, 100_000),
    st.integers(1, 8),
)
def test_every_entry_is_in_one_task(
    sizes: list[list[int]], partition_bytes: int, wanted: int
) -> None:
    streams = [
        [piece(f"s{n}", 10 * n + k, entries) for k, entries in enumerate(of)]
        for n, of in enumerate(sizes)
    ]
    found = partitions(streams, partition_bytes=partition_bytes, min_partitions=wanted)
    for n, of in enumerate(streams):
        read = [
            (p.origin.segment.ledger_id, entry)
            for task in found
            for p in task.splits
            if p.origin.stream == f"s{n}"
            for entry in range(p.first, p.last + 1)
        ]
        # In the order of the stream too, on which a sink depends.
        assert read == [
            (p.origin.segment.ledger_id, entry) for p in of for entry in range(p.last + 1)
        ]


# -- filters ----------------------------------------------------------------------------------

stream, txid, time = ("stream",), ("txid",), ("time",)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
NEW_YEAR_MS = 1_767_225_600_000
LARGE = 2**63 - 1


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        (ds.EqualTo(stream, "a"), StreamBounds(streams=frozenset("a"))),
        (ds.In(stream, ("a", "b", None)), StreamBounds(streams=frozenset("ab"))),
        (ds.EqualTo(txid, 7), StreamBounds(txid=(7, 7))),
        (ds.GreaterThan(("segment",), 7), StreamBounds(segment=(7, LARGE))),
        (ds.LessThanOrEqual(("sequence",), 7), StreamBounds(sequence=(-LARGE, 7))),
        (ds.GreaterThanOrEqual(time, NEW_YEAR), StreamBounds(time_ms=(NEW_YEAR_MS, LARGE))),
        (ds.LessThan(time, NEW_YEAR), StreamBounds(time_ms=(-LARGE, NEW_YEAR_MS + 1))),
        (
            ds.EqualTo(time, NEW_YEAR.astimezone(timezone(timedelta(hours=3)))),
            StreamBounds(time_ms=(NEW_YEAR_MS, NEW_YEAR_MS + 1)),
        ),
        (ds.EqualTo(txid, None), StreamBounds()),
        (ds.EqualTo(("value",), b"x"), StreamBounds()),
        (ds.In(txid, (1, 2)), StreamBounds()),
        (ds.Not(ds.EqualTo(txid, 7)), StreamBounds()),
        (ds.StringStartsWith(stream, "a"), StreamBounds()),
    ],
)
def test_each_filter_narrows_the_bounds(condition: ds.Filter, bounds: StreamBounds) -> None:
    assert narrowed(StreamBounds(), condition) == bounds


def test_several_filters_narrow_the_bounds_together() -> None:
    bounds = StreamBounds()
    for condition in (ds.GreaterThan(txid, 3), ds.LessThan(txid, 9), ds.In(stream, ("a", "b"))):
        bounds = narrowed(bounds, condition)
    bounds = narrowed(bounds, ds.EqualTo(stream, "b"))
    assert bounds == StreamBounds(streams=frozenset("b"), txid=(3, 9))
    assert bounds.has_stream("b")
    assert not bounds.has_stream("a")


# -- admission and lag ------------------------------------------------------------------------


@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 10**6), max_size=6), st.integers(0, 10**6)
)
def test_a_limit_is_divided_among_streams_completely(wanted: dict[str, int], limit: int) -> None:
    given = shares(wanted, limit)
    assert sum(given.values()) == min(limit, sum(wanted.values()))
    assert all(0 <= given[name] <= amount for name, amount in wanted.items())


def test_reported_lag_is_parsed() -> None:
    reported = '{"v": 1, "lag": {"a": {"records": 3, "bytes": 70, "seconds": 1.5}}}'
    assert lags_of("q", 7, reported) == [StreamLag("q", 7, "a", 3, 70, 1.5)]
    for other in (None, "", "null", "{x", '{"topic": {"0": 7}}', "7"):
        assert lags_of("q", 7, other) == []


@pytest.mark.parametrize(
    ("seconds", "said"),
    [("1.5", "1 record, 70 bytes, 1.5 s behind"), ("null", "1 record, 70 bytes behind")],
)
def test_a_lag_whose_time_is_unknown_is_logged_without_it(
    caplog: pytest.LogCaptureFixture, seconds: str, said: str
) -> None:
    offset = f'{{"lag": {{"a": {{"records": 1, "bytes": 70, "seconds": {seconds}}}}}}}'
    progress = SimpleNamespace(
        name="q", id="", batchId=7, sources=[SimpleNamespace(latestOffset=offset)]
    )
    with caplog.at_level("INFO", "quire.spark"):
        LagListener().onQueryProgress(SimpleNamespace(progress=progress))
    assert caplog.messages == [f"query q, batch 7: stream a is {said}"]
