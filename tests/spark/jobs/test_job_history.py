"""Offloaded history and live tail as one DataFrame.

Nothing is missing or duplicated, whatever is offloaded and truncated meanwhile. The commands are
covered too.
"""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from quire import blocking
from quire.blocking import Namespace
from quire.blocking.background import call
from quire.cli.main import cli
from quire.errors import (
    HistoryDamagedError,
    NoSuchLedgerError,
    NoSuchStreamError,
    ReadError,
    StreamGapError,
    UsageError,
)
from quire.spark.jobs import ClusterOptions, history, offload
from quire.spark.jobs.archive.manifest import DATA, OffloadHistory
from quire.spark.jobs.archive.parquet_files import read_file
from quire.spark.jobs.history import LiveTail, _planned, history_facts, position_not_before
from quire.streams import DLSN
from quire.streams.read.arrow import COLUMNS
from quire.streams.read.positions import parse_start
from quire.streams.write.pending_entry import PendingEntry
from quire.testing.cluster import LocalCluster
from tests.support.long import long_after
from tests.support.spark.offloads import NAMESPACE, Fact, counted_files, facts, facts_of_rows
from tests.support.spark.streams import append, numbered

pytestmark = pytest.mark.spark

Read = Callable[..., Any]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "a [b] {c}*"


@pytest.fixture
def move(spark: SparkSession, cluster: LocalCluster, name: str, target: Path) -> Callable[..., Any]:
    """Offload closed segments and truncate them."""

    def moved(**options: Any) -> Any:
        given = {"truncate": True, "wait_s": 0.0, **options}
        return offload(spark, ClusterOptions(cluster.uri), NAMESPACE, name, str(target), **given)

    return moved


@pytest.fixture
def frame(spark: SparkSession, cluster: LocalCluster, name: str, target: Path) -> Read:
    def read(**options: Any) -> Any:
        return history(spark, ClusterOptions(cluster.uri), NAMESPACE, name, str(target), **options)

    return read


def ordered(found: Any) -> list[Fact]:
    rows = found.orderBy("segment", "entry", "slot").collect()
    return facts_of_rows(row.asDict() for row in rows)


# -- bounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("txids", long_after(1, ["time", "given"]))
def test_bounds_apply_across_files_and_tail(
    streams: Namespace, client: blocking.Client, cluster: LocalCluster, name: str, target: Path,
    move: Callable[..., Any], frame: Read, txids: str,
) -> None:  # fmt: skip
    """Bounds have the same meaning in files, in the tail, and across both."""
    streams.create_stream(name, settings={"txids": txids, "entry_bytes": 1024})
    chance = random.Random(5)

    def batch(first: int, last: int) -> dict[str, Any]:
        numbers = [10 * n for n in range(first, last)] if txids == "given" else None
        return {"payloads": numbered(first, last), "txids": numbers}

    with streams.open_writer(name) as writer:
        for at in range(0, 600, 100):
            writer.append_many(**batch(at, at + 100))
            writer.roll()
        writer.append_many(**batch(600, 650))
        everything = facts(streams, name)
        places = ["earliest", "latest", "9:0:0", "seq:650", "seq:0", "txid:0"]
        for at in (0, 99, 100, 250, 399, 400, 401, 555, 600, 649):
            position, txid, sequence, _ = everything[at]
            places += [str(position), f"seq:{sequence}", f"txid:{txid + chance.randrange(2)}"]
        if txids == "time":
            places += ["time:2000-01-01", "time:2101-01-01"]
        meant = {place: streams.find(name, parse_start(place)) for place in places}
        assert move(file_bytes=4_096).records == 600
        pairs = [(place, None) for place in places]
        pairs += [(chance.choice(places), chance.choice(places)) for _ in range(80)]
        for start, end in pairs:
            low, high = meant[start], meant[end] if end is not None else DLSN(99, 0, 0)
            wanted = [fact for fact in everything if low <= fact[0] < high]
            assert planned(client, cluster, name, target, start, end) == wanted, (start, end)
        first, last = everything[399][0], everything[620][0]
        for start, end in ((first, None), (None, first), (first, last), (first, "seq:250")):
            low = start or DLSN(0, 0, 0)
            high = everything[250][0] if isinstance(end, str) else end or DLSN(99, 0, 0)
            found = ordered(frame(start=start or "earliest", end=end))
            assert found == [fact for fact in everything if low <= fact[0] < high]


def test_a_time_bound_keeps_records_of_unknown_time(
    streams: Namespace, client: blocking.Client, cluster: LocalCluster, name: str, target: Path,
    move: Callable[..., Any], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Other programs store no time with txids of their own, which may be small numbers."""
    streams.create_stream(name, settings={"txids": "given"})
    moments = []
    with streams.open_writer(name) as writer, monkeypatch.context() as patch:
        patch.setattr(PendingEntry, "mark", lambda self, payload: None)
        for at in range(0, 40, 10):
            moments.append(f"time:{datetime.now(UTC).isoformat()}")
            writer.append_many(numbered(at, at + 10), txids=[*range(at, at + 10)])
            writer.roll()
    everything = facts(streams, name)
    assert move(truncate=False).records == 40

    def found(start: str, end: str | None = None) -> list[Fact]:
        return planned(client, cluster, name, target, start, end)

    # The metadata of segments that bookies still have says which records are older.
    for at, moment in enumerate(moments):
        assert found(moment)[-10 * (4 - at) :] == everything[10 * at :]
        assert found("earliest", moment) == everything
    move()
    for moment in moments:
        assert found(moment) == everything
    # The first of two later records says that all are older than the second.
    with streams.open_writer(name) as writer:
        writer.append(b"x", txid=40)
        writer.roll()
        time.sleep(0.002)
        moment = f"time:{datetime.now(UTC).isoformat()}"
        time.sleep(0.002)  # Times of records are whole milliseconds.
        writer.append(b"y", txid=41)
        writer.roll()
        everything = facts(streams, name)
    for _ in range(2):
        assert [fact[1] for fact in found(moment)] == [41]
        assert [fact[1] for fact in found("earliest", moment)] == [*range(41)]
        move()


def test_a_changed_byte_of_a_file_is_an_error(
    streams: Namespace, name: str, target: Path, move: Callable[..., Any], frame: Read
) -> None:
    """The size stays the same, so only the checksum of the page shows it."""
    append(streams, name, numbered(0, 10, size=20))
    assert move(compression="none").files == 1
    assert len(ordered(frame())) == 10
    archive = OffloadHistory(str(target), name)
    manifest = archive.newest()
    assert manifest is not None
    [file] = manifest.files
    path = Path(archive.store.path(f"data/{file.name}"))
    data = bytearray(path.read_bytes())
    data[data.index(b"5" + b"." * 20) + 7] ^= 1
    path.write_bytes(data)
    for bounds in ({}, {"start": "seq:2"}):
        with pytest.raises(Exception, match="CRC checksum verification failed"):
            frame(**bounds).collect()
    later = position_not_before(DLSN(1, 0, 2))
    for filters in (None, later):
        with pytest.raises(HistoryDamagedError, match="CRC checksum verification failed"):
            list(read_file(archive, file.name, filters=filters))


def planned(
    client: blocking.Client, cluster: LocalCluster, name: str, target: Path, start: str,
    end: str | None,
) -> list[Fact]:  # fmt: skip
    """Return what `history` reads, without Spark."""
    options, found = ClusterOptions(cluster.uri), OffloadHistory(str(target), name)
    places = parse_start(start), None if end is None else parse_start(end)
    plan = call(_planned(client.aio, options, NAMESPACE, found, *places, True))
    rows = [r for f in plan.files for b in read_file(found, f.name) for r in b.to_pylist()]
    facts = [
        fact
        for fact in facts_of_rows(rows)
        if (plan.start is None or fact[0] >= plan.start)
        and (plan.end is None or fact[0] < plan.end)
    ]
    tail = LiveTail(options, found.directory, COLUMNS)
    for piece in plan.live:
        for batch in tail.of_piece(client, piece):
            facts += facts_of_rows(batch.to_pylist())
    return facts


@pytest.mark.long
def test_history_has_the_requested_columns(
    spark: SparkSession, streams: Namespace, cluster: LocalCluster, name: str,
    move: Callable[..., Any], frame: Read,
) -> None:  # fmt: skip
    append(streams, name, numbered(0, 200), segments=2)
    move()
    append(streams, name, numbered(200, 300))
    live = spark.read.format("quire").options(
        metadata=cluster.uri, namespace=NAMESPACE, stream=name, start="3:0:0"
    )
    both = frame()
    assert [(f.name, f.dataType) for f in both.schema] == [
        (f.name, f.dataType) for f in live.load().schema
    ]
    assert frame(end="3:0:0").unionAll(live.load()).count() == 300
    assert both.where("time is null").count() == 0
    assert both.select("stream").distinct().collect()[0][0] == name
    assert frame(columns=("value", "sequence")).columns == ["value", "sequence"]
    with pytest.raises(UsageError, match="do not exist"):
        frame(columns=("valu",))


# -- meanwhile --------------------------------------------------------------------------------


def test_records_offloaded_between_plan_and_read_are_read_once(
    streams: Namespace, client: blocking.Client, name: str, move: Callable[..., Any], frame: Read
) -> None:
    """Everything that was live when planned is in files when read. Later records are not seen."""
    append(streams, name, numbered(0, 100))
    move()
    append(streams, name, numbered(100, 300), segments=2)
    with streams.open_writer(name) as writer:
        writer.append_many(numbered(300, 400))
        planned = frame()
        planned_ledgers = [segment.ledger_id for segment in streams.segments(name)]
        cut = frame(start="seq:205", end="seq:355")
        writer.append_many(numbered(400, 450))
        writer.roll()
        writer.append(b"last")
        writer.roll()
        writer.append(b"live")
        move()
    for ledger_id in planned_ledgers:
        with pytest.raises(NoSuchLedgerError):
            client.ledger_metadata(ledger_id)
    for _ in range(2):
        assert [value for *_, value in ordered(planned)] == numbered(0, 400)
    assert [value for *_, value in ordered(cut)] == numbered(205, 355)
    assert frame().count() == 452


@pytest.mark.parametrize("error", [NoSuchLedgerError, ReadError])
def test_a_task_continues_in_the_files_after_a_truncation(
    streams: Namespace, client: blocking.Client, cluster: LocalCluster, name: str, target: Path,
    move: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, error: type[Exception],
) -> None:  # fmt: skip
    """The task continues in the file after the entries that it has."""
    streams.create_stream(name, settings={"entry_bytes": 1024})
    append(streams, name, numbered(0, 1_000), segments=1, create=False)
    append(streams, name, numbered(1_000, 1_010))
    options = ClusterOptions(cluster.uri)
    found = OffloadHistory(str(target), name)
    args = (client.aio, options, NAMESPACE, found, parse_start("seq:7"), parse_start("seq:990"))
    plan = call(_planned(*args, True))
    [piece] = plan.live
    tail = LiveTail(
        options, found.directory, ("segment", "entry", "slot", "txid", "sequence", "value")
    )
    original = LiveTail._runs

    def fails(self: LiveTail, *arguments: Any) -> Iterator[Any]:
        for run in original(self, *arguments):
            yield dataclasses.replace(run, offsets=run.offsets[:5], ends=run.ends[:5])
            move()
            raise error("gone")

    monkeypatch.setattr(LiveTail, "_runs", fails)
    rows = [row for batch in tail.of_piece(client, piece) for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == numbered(7, 990)
    assert [row["sequence"] for row in rows] == list(range(7, 990))


def test_an_error_of_an_existing_ledger_is_raised(
    streams: Namespace, client: blocking.Client, cluster: LocalCluster, name: str, target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    append(streams, name, numbered(0, 100))
    options, found = ClusterOptions(cluster.uri), OffloadHistory(str(target), name)
    plan = call(_planned(client.aio, options, NAMESPACE, found, "earliest", None, True))

    def fails(self: LiveTail, *arguments: Any) -> Iterator[Any]:
        raise ReadError("bookies are down")
        yield

    monkeypatch.setattr(LiveTail, "_runs", fails)
    tail = LiveTail(options, found.directory, ("value",))
    with pytest.raises(ReadError, match="bookies are down"):
        list(tail.of_piece(client, plan.live[0]))


def test_truncated_records_that_were_not_offloaded_are_a_gap(
    streams: Namespace, client: blocking.Client, cluster: LocalCluster, name: str, target: Path
) -> None:
    append(streams, name, numbered(0, 200), segments=2)
    options, found = ClusterOptions(cluster.uri), OffloadHistory(str(target), name)
    plan = call(_planned(client.aio, options, NAMESPACE, found, "earliest", None, True))
    streams.truncate(name, DLSN(2, 0, 0))
    tail = LiveTail(options, found.directory, ("value",))
    with pytest.raises(StreamGapError, match=r"segment 1 .* were not offloaded"):
        list(tail.of_piece(client, plan.live[0]))


# -- what is missing --------------------------------------------------------------------------


def test_missing_files_of_the_history_are_an_error(
    streams: Namespace, name: str, target: Path, move: Callable[..., Any], frame: Read
) -> None:
    append(streams, name, numbered(0, 300), segments=3)
    streams.truncate(name, DLSN(2, 0, 0))
    move()
    assert [value for *_, value in ordered(frame())] == numbered(100, 300)
    with pytest.raises(StreamGapError, match="1:5:0 to just before 2:0:0 are truncated"):
        frame(start="1:5:0")
    assert frame(start="1:5:0", fail_on_data_loss=False).count() == 200
    append(streams, name, numbered(300, 500), segments=2)
    streams.truncate(name, DLSN(5, 0, 0))
    with pytest.raises(StreamGapError, match="4:0:0 to just before 5:0:0 are truncated"):
        frame()
    assert frame(fail_on_data_loss=False).count() == 300
    assert frame(end="4:0:0").count() == 200
    [file] = counted_files(target, name)
    Path(OffloadHistory(str(target), name).store.path(f"{DATA}/{file}")).unlink()
    with pytest.raises(
        HistoryDamagedError, match=rf"{file} should have [\d,]+ bytes, and it is missing"
    ):
        frame(fail_on_data_loss=False)


def test_a_stream_without_offloaded_files_is_read(
    streams: Namespace, name: str, frame: Read
) -> None:
    with pytest.raises(NoSuchStreamError):
        frame()
    append(streams, name, numbered(0, 50))
    assert [value for *_, value in ordered(frame())] == numbered(0, 50)
    assert frame(start="latest").count() == 0


# -- commands ---------------------------------------------------------------------------------


def test_the_history_commands_read_and_export(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace, name: str, target: Path,
    tmp_path: Path, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    append(streams, name, numbered(0, 300), segments=3)
    where = ["--metadata", cluster.uri, "-n", NAMESPACE, "--directory", str(target)]

    def quire(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["pipeline", *arguments, *where])
        told = capfd.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    status, out, err = quire("history", name)
    assert (status, err) == (0, "")
    assert "no records are offloaded" in out
    status, out, _ = quire("offload", name, "--truncate", "--json")
    assert status == 0
    result = json.loads(out)
    assert (result["records"], result["freed_ledgers"], result["failed"]) == (300, 2, {})
    append(streams, name, numbered(300, 340))
    status, out, _ = quire("offload", name, "--older-than", "1h")
    assert (status, out) == (0, "0 records of 1 stream offloaded to 0 files, 0 ledgers freed\n")
    status, out, _ = quire("history", name, "--json")
    told = json.loads(out)
    assert (told["start"], told["boundary"], told["records"]) == ("1:0:0", "4:0:0", 300)
    assert (told["live_segments"], told["live_start"]) == (1, "4:0:0")
    assert quire("history", name, "--count")[:2] == (0, "340\n")
    assert quire("history", name, "--count", "--from", "seq:290", "--to", "seq:310")[1] == "20\n"
    output = tmp_path / "copy"
    assert quire("history", name, "--output", str(output))[0] == 0
    assert spark.read.parquet(str(output)).count() == 340
    assert quire("history", name, "--check")[:2] == (
        0, f"stream {name}: all files are intact\n"
    )  # fmt: skip
    # Errors are reported in one line each.
    for arguments, status, message in (
        (["offload", "absent"], 1, "stream absent does not exist"),
        (["offload", name, "--larger-than", "much"], 2, "'much' is not a size"),
        (["history", "absent"], 1, "stream absent does not exist"),
        (["history", name, "--check", "--from", "seq:1"], 2, "--from and --to require"),
        (["history", name, "--output", str(output)], 1, "already exists"),
    ):
        found = quire(*arguments)
        assert found[0] == status, found
        assert message in found[2]
        assert found[2].count("\n") == 1, found[2]
    [file] = counted_files(target, name)
    path = Path(OffloadHistory(str(target), name).store.path(f"{DATA}/{file}"))
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    status, out, err = quire("history", name, "--check")
    assert (status, out) == (1, f"stream {name}: 1 damaged file\n")
    assert file in err


def test_facts_about_a_history_need_no_spark(
    cluster: LocalCluster, streams: Namespace, name: str, target: Path
) -> None:
    append(streams, name, numbered(0, 10))
    found = history_facts(ClusterOptions(cluster.uri), NAMESPACE, name, str(target))
    assert (found.start, found.boundary, found.records) == (None, DLSN(1, 0, 0), 0)
