"""`quire pipeline compact` and its functions, on a real cluster."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from quire import blocking
from quire.blocking import Namespace
from quire.errors import HistoryError, JobError, StreamGapError, StreamLockedError, UsageError
from quire.spark.failures import one_error
from quire.spark.jobs import ClusterOptions, compact, preview_compact
from quire.spark.jobs.archive.versions import Versions
from quire.spark.jobs.compact import (
    CompactPreview,
    RecordKey,
    _as_json,
    compacted,
    source_of,
)
from quire.spark.jobs.locking import locked
from quire.streams import DLSN
from quire.testing.cluster import LocalCluster
from tests.support.spark.streams import append, make_copy, replace_ledger, values

pytestmark = pytest.mark.spark

NAMESPACE = "/spark/compact"
Command = Callable[..., tuple[int, str, str]]
ID = RecordKey("id", tombstone_field="v")


@pytest.fixture
def options(cluster: LocalCluster) -> ClusterOptions:
    return ClusterOptions(cluster.uri)


def changes(*pairs: tuple[Any, Any]) -> list[bytes]:
    return [json.dumps({"id": key, "v": value}).encode() for key, value in pairs]


def table(spark: SparkSession, directory: Path) -> dict[str, Any]:
    rows = compacted(spark, str(directory)).collect()
    found = {row.key: json.loads(row.value)["v"] for row in rows}
    assert len(found) == len(rows)
    return found


# -- to a table -------------------------------------------------------------------------------


def test_a_compacted_table_follows_its_stream(
    spark: SparkSession, options: ClusterOptions, streams: Namespace, tmp_path: Path
) -> None:
    """The latest of each key, over segments, runs and tombstones; each run reads what is new."""
    expected: dict[str, Any] = {}
    first = [(f"k{n % 40}", n) for n in range(1000)]
    append(streams, "table", changes(*first), segments=3)
    expected |= dict(first)

    def planned(**how: Any) -> CompactPreview:
        return preview_compact(options, "table", ID, to=str(tmp_path), namespace=NAMESPACE, **how)

    assert planned().records == 1000
    assert list(tmp_path.iterdir()) == [], "a dry run changes nothing"
    made = compact(spark, options, "table", ID, to=str(tmp_path), namespace=NAMESPACE)
    assert (made.records, made.rows, made.changed) == (1000, 40, True)
    assert table(spark, tmp_path) == expected

    second = [("k3", None), ("new", 1), ("k5", 7), ("k4", None), ("k4", 8)]
    append(streams, "table", changes(*second))
    expected |= dict(second)
    del expected["k3"]
    plan = planned()
    assert (plan.start, plan.records) == (made.end, 5)
    assert planned(full=True).records == 1005
    made = compact(spark, options, "table", ID, to=str(tmp_path), namespace=NAMESPACE)
    assert (made.records, made.rows) == (5, 40)
    assert table(spark, tmp_path) == expected

    again = compact(spark, options, "table", ID, to=str(tmp_path), namespace=NAMESPACE)
    assert (again.records, again.rows, again.changed) == (0, 40, False)
    assert again.version == made.version

    # The position and the rows tell the same story as the stream as a whole.
    anew = compact(spark, options, "table", ID, to=str(tmp_path), namespace=NAMESPACE, full=True)
    assert (anew.records, anew.end) == (1005, made.end)
    assert table(spark, tmp_path) == expected
    assert len(list((tmp_path / "data").iterdir())) == 2  # the newest, and the one before


@pytest.mark.long
def test_records_written_during_a_compaction_are_compacted_later(
    spark: SparkSession, options: ClusterOptions, streams: Namespace, tmp_path: Path
) -> None:
    """The segment in progress counts as far as it is acknowledged."""
    with streams.open_writer("live", create=True) as writer:
        writer.append_many(changes(("a", 1), ("b", 1)))
        compact(spark, options, "live", ID, to=str(tmp_path), namespace=NAMESPACE)
        assert table(spark, tmp_path) == {"a": 1, "b": 1}
        writer.append_many(changes(("a", 2)))
        made = compact(spark, options, "live", ID, to=str(tmp_path), namespace=NAMESPACE)
        assert made.records == 1
        writer.append_many(changes(("c", 3)))
    made = compact(spark, options, "live", ID, to=str(tmp_path), namespace=NAMESPACE)
    assert made.records == 1
    assert table(spark, tmp_path) == {"a": 2, "b": 1, "c": 3}


@pytest.mark.long
def test_a_directory_name_with_pattern_characters_is_taken_literally(
    spark: SparkSession, options: ClusterOptions, streams: Namespace, tmp_path: Path
) -> None:
    append(streams, "pattern", changes(("a", 1), ("b", 1)))
    directory = tmp_path / "orders [2026] {x} *"
    made = compact(spark, options, "pattern", ID, to=str(directory), namespace=NAMESPACE)
    assert made.rows == 2
    append(streams, "pattern", changes(("a", 2)))
    compact(spark, options, "pattern", ID, to=str(directory), namespace=NAMESPACE)
    assert table(spark, directory) == {"a": 2, "b": 1}


@pytest.mark.long
def test_a_truncation_after_the_read_is_not_a_loss(
    spark: SparkSession, options: ClusterOptions, streams: Namespace, tmp_path: Path
) -> None:
    append(streams, "cut", changes(*[(f"k{n}", n) for n in range(30)]), segments=3)
    compact(spark, options, "cut", ID, to=str(tmp_path), namespace=NAMESPACE)
    append(streams, "cut", changes(("k0", 100)))
    last = streams.segments("cut")[-1].lssn
    streams.truncate("cut", DLSN(last, 0, 0))
    made = compact(spark, options, "cut", ID, to=str(tmp_path), namespace=NAMESPACE)
    assert made.records == 1
    assert table(spark, tmp_path) == {**{f"k{n}": n for n in range(1, 30)}, "k0": 100}

    append(streams, "cut", changes(("k1", 101)))
    append(streams, "cut", changes(("k2", 102)))
    streams.truncate("cut", DLSN(streams.segments("cut")[-1].lssn, 0, 0))
    with pytest.raises(StreamGapError):
        compact(spark, options, "cut", ID, to=str(tmp_path), namespace=NAMESPACE)
    anew = compact(spark, options, "cut", ID, to=str(tmp_path), namespace=NAMESPACE, full=True)
    assert anew.records == 1
    assert table(spark, tmp_path) == {"k2": 102}
    fresh = preview_compact(options, "cut", ID, to=str(tmp_path / "new"), namespace=NAMESPACE)
    assert fresh.records == 1, "a first run starts at the oldest remaining record"


def test_a_copy_with_a_replaced_ledger_is_still_the_same_stream(
    options: ClusterOptions, client: blocking.Client, streams: Namespace, tmp_path: Path
) -> None:
    """Each run of `replicate` may replace the ledger of the copy's segment in progress."""
    writer = streams.open_writer("copy", create=True)
    writer.append_many(changes(("k1", 1), ("k2", 2)))
    writer.abandon()
    make_copy(streams, "copy")
    where = {"to": str(tmp_path), "namespace": NAMESPACE}
    source = source_of(options, "copy", ID, str(tmp_path), None, NAMESPACE)
    end = source.span(None).end
    state = {"of": source.made_of, "life": source.life, "reached": _as_json(end), "rows": 2}
    claim = Versions(str(tmp_path)).claim()
    Path(claim.output.removeprefix("file://")).mkdir()
    claim.commit(state)
    assert preview_compact(options, "copy", ID, **where).records == 0
    replace_ledger(client, streams, "copy")
    assert preview_compact(options, "copy", ID, **where).records == 0
    streams.delete_stream("copy")
    append(streams, "copy", changes(("k3", 3)))
    with pytest.raises(StreamGapError, match="another stream has its name now"):
        preview_compact(options, "copy", ID, **where)


def test_a_run_that_died_keeps_the_former_version(
    spark: SparkSession,
    options: ClusterOptions,
    streams: Namespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from quire.spark.jobs.archive import versions

    directory = tmp_path / "table"
    append(streams, "dies", changes(("a", 1)))

    class Died(Exception):
        pass

    def dies(*_: Any) -> None:
        raise Died

    for expected in ({"a": 1}, {"a": 2}):
        with monkeypatch.context() as patched:
            patched.setattr(versions.VersionClaim, "commit", dies)
            with pytest.raises(Died):
                compact(spark, options, "dies", ID, to=str(directory), namespace=NAMESPACE)
        left = len(list((directory / "data").iterdir()))
        made = compact(spark, options, "dies", ID, to=str(directory), namespace=NAMESPACE)
        assert made.records == 1
        assert table(spark, directory) == expected
        assert len(list((directory / "data").iterdir())) == left  # Dead data is gone.
        append(streams, "dies", changes(("a", 2)))


@pytest.mark.long
def test_only_one_of_two_concurrent_runs_is_committed(
    spark: SparkSession, options: ClusterOptions, streams: Namespace, tmp_path: Path
) -> None:
    append(streams, "two", changes(("a", 1)))
    compact(spark, options, "two", ID, to=str(tmp_path), namespace=NAMESPACE)
    slow = Versions(str(tmp_path)).claim()
    spark.range(1).write.parquet(slow.output)
    append(streams, "two", changes(("b", 1)))
    compact(spark, options, "two", ID, to=str(tmp_path), namespace=NAMESPACE)
    with pytest.raises(HistoryError, match="another job has begun"):
        slow.commit({})
    assert table(spark, tmp_path) == {"a": 1, "b": 1}
    shutil.rmtree(tmp_path / "manifest")
    with pytest.raises(UsageError, match="holds no compacted stream"):
        compacted(spark, str(tmp_path))


def test_a_table_of_another_stream_or_key_is_refused(
    spark: SparkSession, options: ClusterOptions, streams: Namespace, tmp_path: Path
) -> None:
    append(streams, "mine", changes(("a", 1)))
    append(streams, "other", changes(("a", 1)))
    compact(spark, options, "mine", ID, to=str(tmp_path), namespace=NAMESPACE)
    with pytest.raises(
        UsageError, match="was compacted with stream mine, but this run has stream other"
    ):
        compact(spark, options, "other", ID, to=str(tmp_path), namespace=NAMESPACE)
    with pytest.raises(UsageError, match="was compacted with key"):
        compact(spark, options, "mine", RecordKey("v"), to=str(tmp_path), namespace=NAMESPACE)
    with pytest.raises(UsageError, match="tombstone_field"):
        compact(spark, options, "mine", RecordKey("id"), to=str(tmp_path), namespace=NAMESPACE)
    streams.delete_stream("mine")
    append(streams, "mine", changes(("b", 1), ("c", 1)))
    with pytest.raises(StreamGapError, match="another stream has its name now"):
        compact(spark, options, "mine", ID, to=str(tmp_path), namespace=NAMESPACE)


# -- keys -------------------------------------------------------------------------------------


def test_keys_of_all_types_are_compacted(
    spark: SparkSession, options: ClusterOptions, streams: Namespace, tmp_path: Path
) -> None:
    append(streams, "prefixed", [b"a=1", b"b=1", b"a=2=3", b"b=", b"c=\xff\x00"])

    def rows(directory: str, stream: str, key: RecordKey) -> dict[str, bytes]:
        to = str(tmp_path / directory)
        compact(spark, options, stream, key, to=to, namespace=NAMESPACE)
        return {row.key: bytes(row.value) for row in compacted(spark, to).collect()}

    assert rows("prefix", "prefixed", RecordKey(prefix="=")) == {"a": b"a=2=3", "c": b"c=\xff\x00"}
    keep = RecordKey(prefix="=", tombstone_sql="false")
    assert rows("all", "prefixed", keep)["b"] == b"b="
    sql = RecordKey(sql="substr(string(value), 1, 1)", tombstone_sql="length(value) > 4")
    assert rows("sql", "prefixed", sql) == {"b": b"b=", "c": b"c=\xff\x00"}
    nested = [b'{"a": {"b c": 1}, "n": 1}', b'{"a": {"b c": 1}, "n": 2}']
    append(streams, "nested", nested)
    assert rows("nested", "nested", RecordKey("$.a['b c']")) == {"1": nested[1]}
    for wrong in ({}, {"field": "a", "prefix": "b"}):
        with pytest.raises(UsageError):
            RecordKey(**wrong)


def test_records_without_a_key_are_refused(
    spark: SparkSession, options: ClusterOptions, streams: Namespace, tmp_path: Path
) -> None:
    append(streams, "keyless", [*changes(("a", 1)), b"no json"])
    with pytest.raises(PySparkException) as caught:
        compact(spark, options, "keyless", ID, to=str(tmp_path), namespace=NAMESPACE)
    error = one_error(caught.value, "compact")
    assert str(error).startswith("compact failed: record 1:0:1 has no key") or str(
        error
    ).startswith("compact failed: record 1:1:0 has no key")
    assert isinstance(error, JobError)
    assert error.outcome_known, "no version was published"
    made = compact(
        spark, options, "keyless", ID, to=str(tmp_path), namespace=NAMESPACE, skip_keyless=True
    )
    assert (made.records, made.rows) == (2, 1)


# -- to a stream ------------------------------------------------------------------------------


def test_a_target_stream_gets_each_change_once(
    spark: SparkSession, cluster: LocalCluster, options: ClusterOptions, streams: Namespace
) -> None:
    append(streams, "log", changes(*[(f"k{n % 3}", n) for n in range(10)]), segments=2)
    streams.create_stream("log-latest")

    def run() -> int:
        return compact(spark, options, "log", ID, to_stream="log-latest", namespace=NAMESPACE).rows

    assert run() == 3
    found = [
        json.loads(value) for value in values(cluster.uri, namespace=NAMESPACE, stream="log-latest")
    ]
    assert [(one["id"], one["v"]) for one in found] == [("k1", 7), ("k2", 8), ("k0", 9)]
    assert run() == 0
    append(streams, "log", changes(("k2", None), ("x", 1), ("x", 2)))
    assert run() == 2
    found = [
        json.loads(value) for value in values(cluster.uri, namespace=NAMESPACE, stream="log-latest")
    ][3:]
    assert [(one["id"], one["v"]) for one in found] == [("k2", None), ("x", 2)]
    assert run() == 0
    for number in (1, 2):  # `full` appends again, also if nothing is new
        again = compact(
            spark, options, "log", ID, to_stream="log-latest", namespace=NAMESPACE, full=True
        )
        assert (again.records, again.rows, again.changed) == (13, 4, True)
        assert len(values(cluster.uri, namespace=NAMESPACE, stream="log-latest")) == 5 + 4 * number
    assert run() == 0
    with pytest.raises(UsageError, match="into itself"):
        compact(spark, options, "log", ID, to_stream="log", namespace=NAMESPACE)


def test_two_runs_to_one_stream_do_not_overlap(
    options: ClusterOptions, streams: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both appended what had changed, and the one that ended last could have read less."""
    module = importlib.import_module("quire.spark.jobs.compact")
    append(streams, "busy", changes(("a", 1)))
    streams.create_stream("busy-latest")
    ran: list[str] = []
    monkeypatch.setattr(module, "WAIT_S", 0.1)
    monkeypatch.setattr(module, "_to_stream", lambda *given: ran.append(given[2]))
    session: Any = None

    def run() -> None:
        compact(session, options, "busy", ID, to_stream="busy-latest", namespace=NAMESPACE)

    with options.client() as client:
        held = f"{NAMESPACE}/{module.LOCKS}", "busy-latest", 0.1, "busy", "Nothing was done"
        with locked(client.aio, *held), pytest.raises(StreamLockedError) as caught:
            run()
    assert "another job is compacting to stream busy-latest" in str(caught.value)
    assert "Nothing was appended by this job" in str(caught.value)
    assert ran == []
    run()
    assert ran == ["busy-latest"]


def test_a_run_that_lost_its_lock_appends_no_older_records_last(
    spark: SparkSession,
    cluster: LocalCluster,
    options: ClusterOptions,
    streams: Namespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The older value stayed the last one, because the next run began after both."""
    module = importlib.import_module("quire.spark.jobs.compact")
    append(streams, "lost", changes(("a", 1)))
    streams.create_stream("lost-latest")

    def run(**how: Any) -> int:
        return compact(
            spark, options, "lost", ID, to_stream="lost-latest", namespace=NAMESPACE, **how
        ).rows

    def last() -> Any:
        found = values(cluster.uri, namespace=NAMESPACE, stream="lost-latest")
        return json.loads(found[-1])["v"]

    transaction = module._transaction

    def slow(*given: Any) -> str:
        monkeypatch.undo()
        monkeypatch.setattr(module, "locked", lambda *_: nullcontext())  # the session has ended
        append(streams, "lost", changes(("a", 2)))
        assert run() == 1
        return str(transaction(*given))

    monkeypatch.setattr(module, "_transaction", slow)
    with pytest.raises(Exception, match="nothing was appended to stream lost-latest"):
        run()
    assert last() == 2
    assert run() == 0
    assert run(full=True) == 1
    assert last() == 2


# -- the command ------------------------------------------------------------------------------


def test_the_compact_command_writes_the_table(
    pipeline: Command, spark: SparkSession, streams: Namespace, tmp_path: Path
) -> None:
    append(streams, "command", changes(("a", 1), ("b", 2), ("a", 3)))
    given = ["compact", "command", "-n", NAMESPACE, "--key", "id", "--to", str(tmp_path / "t")]
    status, out, err = pipeline(*given)
    assert (status, err) == (0, "")
    assert out.startswith("3 records of command read, up to 2:0:0; 2 keys: ")
    assert "is up to date" in pipeline(*given)[1]
    status, out, err = pipeline(*given, "--json")
    assert json.loads(out)["changed"] is False
    assert table(spark, tmp_path / "t") == {"a": 3, "b": 2}
    for wrong, code, told in (
        (["--key-prefix", ":"], 2, "only one of"),
        (["--to-stream", "x"], 2, "give exactly one target: --to"),
        (["--tombstone", "gone"], 2, "was compacted with key"),
    ):
        status, out, err = pipeline(*given, *wrong)
        assert (status, out) == (code, "")
        assert told in err
        assert len(err.splitlines()) == 1
