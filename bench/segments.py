#!/usr/bin/env python3
"""Measure what a stream of many small segments costs, as a streaming query leaves them.

    make bench-segments                                  10,000 micro-batches, metadata in SQLite
    make bench-segments ARGS=--zookeeper                 metadata in ZooKeeper
    make bench-segments ARGS="--batches 2000"
    make bench-segments ARGS="--spark 50"                and 50 micro-batches of a real query

Micro-batches of 10 records are published one after the other by the code of the Spark sink: the
plan, the task's ledger, the commit and its clean-up. No JVM runs, so 10,000 of them take minutes.
Then each way to use the stream is measured: reading, tailing, planning a query, `quire stream
show`, retention and deletion.

The requests to the metadata store are counted as well. They do not depend on the machine, so they
show what grows with the number of segments.

The results are results.md and results.json in bench/out/segments (`--out`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import quire
from harness.ending import status_of
from harness.facts import machine_facts, warnings_about
from quire.cli.common.options import run_async
from quire.client import Client
from quire.codec.metadata.ledger_metadata_format import encode
from quire.errors import QuireError
from quire.http.views.stream_statistics import stream_statistics
from quire.spark import local_session, worker
from quire.spark.streams.options import StreamReadOptions
from quire.spark.streams.plan import StreamPartition, partitions
from quire.spark.streams.query import StreamQuery
from quire.spark.streams.reader import StreamTasks, spark_schema
from quire.spark.streams.sink import (
    Committer,
    StreamTaskOutput,
    message_of,
    open_streams,
)
from quire.spark.streams.write_options import StreamWriteOptions
from quire.spark.streams.writer import plan_of_batch, plan_query
from quire.streams import Namespace, RecordBatch
from quire.streams.publish.publishing import BatchKey
from quire.streams.read.arrow import COLUMNS
from quire.testing.cluster import LocalCluster

ROOT = Path(__file__).resolve().parent
NAMESPACE = "/bench/segments"
STREAM = "s"
WRITER = "bench-segments"
RECORDS = 10
PAYLOAD = b"x" * 100
BOOKIES = 3
LOOKED_AT = (100, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
"""The numbers of segments at which publishing is measured."""
SAMPLE_BATCHES = 50
"""The number of micro-batches of one sample."""
TAIL_LIMIT_S = 120.0
CLI_LIMIT_S = 600.0
SPARK_LIMIT_S = 600.0
COUNTED_IN_TREE = ("read", "read_each", "exists", "children", "commit")
COUNTED_IN_STORE = ("create_ledger", "read_ledger", "write_ledger", "delete_ledger")


# -- counting ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Requests:
    """The requests of one client to its metadata store, and the nodes that these named."""

    count: int = 0

    def of(self, client: Client) -> Requests:
        """Count the requests of a client from now on, and return the counter."""
        store: Any = client.metadata
        for target, names in ((store.tree, COUNTED_IN_TREE), (store, COUNTED_IN_STORE)):
            for name in names:
                if hasattr(target, name):
                    setattr(target, name, self._counted(getattr(target, name)))
        return self

    def _counted(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return await call(*arguments, **named)

        return counted


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    segments: int
    seconds: float | None = None
    cpu_s: float | None = None
    """The processor time of this process."""
    requests: float | None = None
    more: str = ""


@dataclass(slots=True)
class Report:
    """The lines so far. They are written after each, so that an interrupted run keeps them."""

    out: Path
    facts: dict[str, str]
    lines: list[Line] = field(default_factory=list)

    def add(self, line: Line) -> None:
        self.lines.append(line)
        say(_text(line))
        rows = [
            f"| {one.what} | {one.segments:,} | {_ms(one.seconds)} | {_ms(one.cpu_s)} | "
            f"{_number(one.requests)} | {one.more} |"
            for one in self.lines
        ]
        head = [
            "| what | segments | ms | CPU ms | metadata requests | |",
            "|---|---|---|---|---|---|",
        ]
        facts = [f"- {name}: {value}" for name, value in self.facts.items()]
        (self.out / "results.md").write_text("\n".join([*head, *rows, "", *facts, ""]))
        found = {"facts": self.facts, "lines": [asdict(one) for one in self.lines]}
        (self.out / "results.json").write_text(json.dumps(found, indent=2))

    @contextmanager
    def timed(self, what: str, segments: int, requests: Requests | None) -> Iterator[list[str]]:
        """Measure the block, which may add remarks to the list."""
        before, cpu_s = 0 if requests is None else requests.count, time.process_time()
        began, more = time.perf_counter(), list[str]()
        yield more
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
        count = None if requests is None else requests.count - before
        self.add(Line(what, segments, took_s, cpu_s, count, ", ".join(more)))


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def _text(line: Line) -> str:
    parts = [f"{line.what}, {line.segments:,} segments:"]
    parts += [f"{_ms(line.seconds)} ms"] if line.seconds is not None else []
    parts += [f"{_ms(line.cpu_s)} ms of CPU"] if line.cpu_s is not None else []
    parts += [f"{_number(line.requests)} requests"] if line.requests is not None else []
    return " ".join([*parts, line.more])


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.1f}"


def _number(number: float | None) -> str:
    return "" if number is None else f"{number:,.1f}".removesuffix(".0")


# -- publishing -------------------------------------------------------------------------------


class Sink:
    """A streaming query's sink: what Spark calls for each micro-batch, in one process."""

    def __init__(self, client: Client, uri: str, tasks: int) -> None:
        self._client = client
        self._tasks = tasks
        self._options = StreamWriteOptions(uri, NAMESPACE, (STREAM,), writer=WRITER)
        self.published = 0
        self.took_s: list[float] = []
        self.cpu_s: list[float] = []
        self.asked: list[int] = []
        self.requests = Requests().of(client)

    async def publish(self, *, sweep: bool = False) -> None:
        """Publish one micro-batch. With `sweep` as the first one after a start of the query."""
        client, options = self._client, self._options
        began, before = time.perf_counter(), self.requests.count
        cpu_s = time.process_time()
        async with await open_streams(client, options) as streams:
            names = [STREAM] if await streams.exists(STREAM) else []
            await streams.stream_settings(STREAM)
        planned = await plan_query(client, options, names, sweep=sweep)
        key = BatchKey(WRITER, "bench", self.published)
        messages = []
        for partition in range(self._tasks):
            plan = await plan_of_batch(client, options, planned, key)
            output = StreamTaskOutput(client, options, plan)
            await output.append(STREAM, [PAYLOAD] * (RECORDS // self._tasks), None)
            messages.append(message_of(plan, partition, 0, await output.close()))
        await Committer(options).commit_written(client, messages)
        self.published += 1
        self.took_s.append(time.perf_counter() - began)
        self.cpu_s.append(time.process_time() - cpu_s)
        self.asked.append(self.requests.count - before)

    def sample(self, report: Report, what: str, first: int) -> None:
        """Report the micro-batches from number `first` on."""
        took_s, cpu_s, asked = self.took_s[first:], self.cpu_s[first:], self.asked[first:]
        p90_s = sorted(took_s)[len(took_s) * 9 // 10]
        report.add(
            Line(
                what,
                self.published,
                statistics.median(took_s),
                statistics.median(cpu_s),
                statistics.median(asked),
                f"p90 {_ms(p90_s)} ms",
            )
        )


async def publish(sink: Sink, report: Report, count: int) -> None:
    """Publish `count` micro-batches, and report samples on the way."""
    stops = sorted({*(at for at in LOOKED_AT if at <= count), count})
    began = time.perf_counter()
    for stop in stops:
        while sink.published < stop:
            await sink.publish()
        sink.sample(report, "publishing a micro-batch, p50", -SAMPLE_BATCHES)
    took_s = time.perf_counter() - began
    report.add(Line("publishing all of them", count, took_s))
    first = len(sink.took_s)
    await sink.publish(sweep=True)
    sink.sample(report, "publishing after a start of the query", first)


# -- what it costs ----------------------------------------------------------------------------


async def metadata_bytes(client: Client, report: Report, segments: int) -> None:
    """Report the bytes of names and values of the stream's segments and of its ledgers."""
    paths = (await open_metadata_of(client)).paths
    names = await client.metadata.tree.children(paths.segments)
    values = 0
    for name in names:
        values += len((await client.metadata.tree.read(f"{paths.segments}/{name}")).value)
    listed = sum(len(name) for name in names)
    ledgers = [ledger_id async for ledger_id in client.list_ledgers()]
    size = 0
    for ledger_id in ledgers:
        size += len(encode(await client.ledger_metadata(ledger_id)))
    for what, number in (
        ("bytes of the names of segments", listed),
        ("bytes of the values of segments", values),
        ("bytes of the metadata of ledgers", size),
        ("ledgers", len(ledgers)),
    ):
        report.add(Line(what, segments, more=f"{number:,}"))


async def open_metadata_of(client: Client) -> Any:
    streams = await client_namespace(client)
    return streams.metadata(STREAM)


async def client_namespace(client: Client) -> Namespace:
    return await open_streams(client, StreamWriteOptions("", NAMESPACE, (STREAM,)))


# -- reading ----------------------------------------------------------------------------------


async def count_records(batches: AsyncIterator[Any], limit: int | None = None) -> int:
    count = 0
    async for batch in batches:
        assert isinstance(batch, RecordBatch)
        count += len(batch)
        if limit is not None and count >= limit:
            break
    return count


async def reading(client: Client, requests: Requests, report: Report, segments: int) -> None:
    """Measure opening, reading everything, and reading from near the end."""
    streams = await client_namespace(client)
    with report.timed("opening, and the first record", segments, requests):
        async with aclosing(streams.open_reader(STREAM).__aiter__()) as records:
            await anext(records)
    with report.timed("reading all records", segments, requests) as more:
        async with streams.open_reader(STREAM, follow=False) as reader:
            count = await count_records(reader.batches())
        assert count == segments * RECORDS, count
        more.append(f"{count:,} records")
    last = (await streams.segments(STREAM))[-1]
    for what, lssn in (("the last 10", last.lssn - 9), ("the last one", last.lssn)):
        with report.timed(f"reading {what} segments from a position", segments, requests):
            start = last.first_dlsn.__class__(lssn, 0, 0)
            async with streams.open_reader(STREAM, start=start, follow=False) as reader:
                await count_records(reader.batches())
    with report.timed("finding the end (LATEST)", segments, requests):
        await streams.find(STREAM, quire.streams.LATEST)


async def tailing(
    uri: str, sink: Sink, report: Report, segments: int, what: str,
    opened: Callable[[Client, asyncio.Queue[float]], Awaitable[None]],
) -> None:  # fmt: skip
    """Measure the time from the end of a publication to its delivery by a reader that follows."""
    delivered: asyncio.Queue[float] = asyncio.Queue()
    async with quire.connect(uri) as client:
        requests = Requests().of(client)
        task = asyncio.ensure_future(opened(client, delivered))
        try:
            await asyncio.wait_for(delivered.get(), TAIL_LIMIT_S)  # it is at the end
            before = requests.count
            took_s, cpu_s = [], time.process_time()
            for _ in range(SAMPLE_BATCHES):
                await sink.publish()
                at = time.perf_counter()
                took_s.append(await asyncio.wait_for(delivered.get(), TAIL_LIMIT_S) - at)
        finally:
            if task.done():
                task.result()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    # The process publishes as well, and may do so while the reader is at work.
    cpu_s = time.process_time() - cpu_s
    asked = (requests.count - before) / SAMPLE_BATCHES
    report.add(
        Line(
            what, segments, max(0.0, statistics.median(took_s)), cpu_s / SAMPLE_BATCHES, asked,
            "CPU with that of publishing",
        )
    )  # fmt: skip


async def follow_reader(client: Client, delivered: asyncio.Queue[float]) -> None:
    """Follow the stream with a reader."""
    streams = await client_namespace(client)
    start = await streams.find(STREAM, quire.streams.LATEST)
    reader = await streams.open_reader(STREAM, start=start, follow=True)
    batches = reader.batches()
    waiting = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(1.0)  # until it waits
    delivered.put_nowait(time.perf_counter())
    while True:
        await waiting
        delivered.put_nowait(time.perf_counter())
        waiting = asyncio.ensure_future(anext(batches))


def query_of(client: Client) -> StreamQuery:
    return StreamQuery(client, StreamReadOptions("", NAMESPACE, (STREAM,)))


async def follow_query(client: Client, delivered: asyncio.Queue[float]) -> None:
    """Follow the stream as a streaming query does, whose tasks are only planned."""
    query = query_of(client)
    await query.open()
    try:
        start = await query.initial()
        end = await query.latest(start, limited=False, wait=False)
        assert end is not None
        start = end
        delivered.put_nowait(time.perf_counter())
        while True:
            end = await query.latest(start, limited=False, wait=True)
            if end is None:
                continue
            laid = await query.splits(start, end, counts=False)
            assert sum(map(len, laid)), "the micro-batch is empty"
            start = end
            delivered.put_nowait(time.perf_counter())
    finally:
        await query.close()


async def planning(
    client: Client, requests: Requests, report: Report, segments: int
) -> list[StreamPartition]:
    """Measure the planning of a query that reads the whole stream, and return its tasks."""
    query = query_of(client)
    await query.open()
    try:
        with report.timed("Spark's source: where a query begins and ends", segments, requests):
            start = await query.initial()
            end = await query.latest(start, limited=False, wait=False)
        assert end is not None
        with report.timed("Spark's source: planning the tasks", segments, requests) as more:
            laid = await query.splits(start, end, counts=False)
            tasks = partitions(laid, partition_bytes=StreamReadOptions("").partition_bytes)
            more.append(f"{len(tasks)} tasks")
        return tasks
    finally:
        await query.close()


def run_tasks(uri: str, tasks: Sequence[StreamPartition], report: Report, segments: int) -> None:
    """Measure the tasks of that query, one after the other."""
    reader = StreamTasks(StreamReadOptions(uri, NAMESPACE, (STREAM,)), spark_schema(COLUMNS))
    try:
        with report.timed("Spark's source: the tasks, one by one", segments, None) as more:
            rows = sum(batch.num_rows for task in tasks for batch in reader.read(task))
            more.append(f"{rows:,} records")
        assert rows == segments * RECORDS, rows
    finally:
        worker.close_clients()


async def show(client: Client, requests: Requests, report: Report, segments: int) -> None:
    """Measure the figures of `quire stream show`, and of the dashboard's page of a stream."""
    streams = await client_namespace(client)
    with report.timed("the figures of `quire stream show`", segments, requests):
        found = await stream_statistics(streams, STREAM, b"")
        assert found.records == segments * RECORDS


async def command(uri: str, report: Report, segments: int) -> None:
    """Measure `quire stream show` as a process."""
    arguments = [
        "-m",
        "quire",
        "stream",
        "show",
        "--metadata",
        uri,
        "--namespace",
        NAMESPACE,
        STREAM,
        "--json",
    ]
    with report.timed("`quire stream show`", segments, None) as more:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), CLI_LIMIT_S)
        if process.returncode:
            raise QuireError(f"`quire stream show` ended with status {process.returncode}")
        more.append(f"{len(output):,} bytes")


async def retention(client: Client, requests: Requests, report: Report, segments: int) -> None:
    """Measure passes of retention: one that deletes nothing, a half, and then a few segments."""
    streams = await client_namespace(client)
    found = await streams.segments(STREAM)
    size_bytes = sum([(await client.ledger_metadata(one.ledger_id)).length for one in found])
    for what, kept_bytes, least in (
        ("retention by size that deletes nothing", size_bytes * 2, 0),
        ("retention by size that deletes half", size_bytes // 2, segments // 3),
        ("the next retention, which deletes nothing", size_bytes // 2, 0),
    ):
        await streams.configure_stream(STREAM, {"retention_bytes": kept_bytes})
        with report.timed(what, segments, requests) as more:
            freed = await streams.retain(STREAM)
            more.append(f"{len(freed):,} segments deleted")
        assert (least <= len(freed) < segments) if least else not freed, (what, len(freed))
    await streams.configure_stream(STREAM, {"retention_bytes": 0, "retention_s": 1e6})
    with report.timed("retention by age that deletes nothing", segments - segments // 2, requests):
        await streams.retain(STREAM)


async def removal(client: Client, requests: Requests, report: Report) -> None:
    streams = await client_namespace(client)
    left = len(await streams.segments(STREAM))
    with report.timed("deleting the stream", left, requests):
        await streams.delete_stream(STREAM)


# -- a real query -----------------------------------------------------------------------------


def real_query(uri: str, report: Report, count: int) -> None:
    """Run a streaming query of `count` micro-batches of 10 records."""
    session = local_session("bench-segments")
    try:
        with tempfile.TemporaryDirectory() as checkpoint:
            rows = (
                session.readStream.format("rate-micro-batch")
                .options(rowsPerBatch=RECORDS, numPartitions=1)
                .load()
                .selectExpr("cast(rpad('', 100, 'x') AS binary) AS value")
            )
            began = time.perf_counter()
            query = (
                rows.writeStream.format("quire")
                .options(metadata=uri, namespace=NAMESPACE, stream="spark", writerId="real")
                .option("checkpointLocation", checkpoint)
                .start()
            )
            while query.isActive and (
                query.lastProgress is None or query.lastProgress["batchId"] < count - 1
            ):
                if time.perf_counter() - began > SPARK_LIMIT_S:
                    raise QuireError("the query did not end in time")
                time.sleep(0.1)
            took = [one["batchDuration"] / 1e3 for one in query.recentProgress]
            query.stop()
            if query.exception() is not None:
                raise QuireError(f"the query failed: {query.exception()}")
    finally:
        session.stop()
        worker.close_clients()
    report.add(Line("a micro-batch of a real query, p50", count, statistics.median(took)))


async def shape(client: Client, name: str) -> dict[str, object]:
    """Return what publishing leaves in the metadata, without ids and times."""
    streams = await client_namespace(client)
    found = await streams.segments(name)
    ledgers = [await client.ledger_metadata(one.ledger_id) for one in found]
    paths = streams.metadata(name).paths
    return {
        "nodes": await client.metadata.tree.children(paths.root),
        "records": {one.record_count for one in found},
        "slots": {(one.last_entry_id, one.last_slot_id) for one in found},
        "ledgers": {(one.length, one.last_entry_id, one.write_quorum) for one in ledgers},
        "custom": {tuple(sorted(one.custom)) for one in ledgers},
    }


# -- the program ------------------------------------------------------------------------------


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--tasks", type=int, default=1, help="of each micro-batch (1)")
    parser.add_argument("--zookeeper", action="store_true", help="instead of SQLite; needs Java")
    parser.add_argument("--spark", type=int, default=0, help="micro-batches of a real query (0)")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "segments", help="results")
    parser.add_argument("--dir", type=Path, help="data, whose disk is measured (OUT/work)")
    return parser.parse_args(arguments)


@asynccontextmanager
async def counted_client(uri: str) -> AsyncIterator[tuple[Client, Requests]]:
    async with quire.connect(uri) as client:
        yield client, Requests().of(client)


async def measure(uri: str, options: argparse.Namespace, report: Report) -> int:
    """Publish, and measure what changes nothing. Returns the number of segments."""
    async with quire.connect(uri) as writing:
        async with writing.namespace(NAMESPACE, create=True) as streams:
            for name in (STREAM, "spark"):
                await streams.create_stream(name)
        sink = Sink(writing, uri, options.tasks)
        await publish(sink, report, options.batches)
        await tailing(
            uri, sink, report, sink.published, "tailing: from a publication to its delivery",
            follow_reader,
        )  # fmt: skip
        await tailing(
            uri, sink, report, sink.published, "Spark's source: from a publication to its plan",
            follow_query,
        )  # fmt: skip
        segments = sink.published
        await metadata_bytes(writing, report, segments)
    async with counted_client(uri) as (client, requests):
        await reading(client, requests, report, segments)
    async with counted_client(uri) as (client, requests):
        await show(client, requests, report, segments)
    await command(uri, report, segments)
    return segments


async def plan_all(uri: str, report: Report, segments: int) -> list[StreamPartition]:
    async with counted_client(uri) as (client, requests):
        return await planning(client, requests, report, segments)


async def reduce(uri: str, report: Report, segments: int) -> None:
    async with counted_client(uri) as (client, requests):
        await retention(client, requests, report, segments)
        await removal(client, requests, report)


async def compare(uri: str) -> None:
    async with quire.connect(uri) as client:
        mine, real = await shape(client, STREAM), await shape(client, "spark")
    for what, value in mine.items():
        if real[what] != value:
            raise QuireError(f"the real query left other {what}: {real[what]}, not {value}")
    say("the real query left the same in the metadata")


def run(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    work = (options.dir or options.out / "work").resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    facts = machine_facts(work)
    facts["metadata"] = "ZooKeeper" if options.zookeeper else "SQLite"
    facts["bookies"] = f"{BOOKIES}, E=3 Wq=3 Aq=2"
    facts["micro-batches"] = f"{options.batches:,} of {RECORDS} records of {len(PAYLOAD)} B"
    for warning in warnings_about(facts):
        say(f"note: {warning}")
    report = Report(options.out, facts)
    try:
        with LocalCluster(BOOKIES, work / "cluster", options.zookeeper) as cluster:
            segments = run_async(measure(cluster.uri, options, report))
            tasks = run_async(plan_all(cluster.uri, report, segments))
            run_tasks(cluster.uri, tasks, report, segments)
            if options.spark:
                real_query(cluster.uri, report, options.spark)
                run_async(compare(cluster.uri))
            run_async(reduce(cluster.uri, report, segments))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"done: {options.out / 'results.md'}")
    return 0


def main(arguments: Sequence[str]) -> int:
    return status_of(lambda: run(parse_arguments(arguments)), QuireError)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
