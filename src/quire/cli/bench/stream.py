"""The measurements of `quire bench stream`.

write: batches are appended as fast as the writer accepts them, until the last acknowledgement.
read: the whole stream is decoded record by record, without creating an object for each.
tail: for single records, the time from just before the append until a reader has the record.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from quire._runtime.tasks import TaskGroup
from quire.cli.bench.core import Load, RoundResult, Shape
from quire.client import Client
from quire.errors import StreamError
from quire.streams.namespace.namespace import Namespace, open_namespace
from quire.streams.read.positions import LATEST
from quire.streams.read.records import RecordBatch
from quire.streams.write.writer import StreamWriter

PATH = "/quire-bench"
PIECE_RECORDS = 1_000
TAIL_PAUSE_S = 0.002
TAIL_LIMIT_S = 60.0
"""Seconds after the last append within which readers must have all records."""


@asynccontextmanager
async def namespace(
    client: Client, shape: Shape, settings: dict[str, object], *, keep: bool
) -> AsyncIterator[Namespace]:
    """Create a namespace for the benchmark, and delete it with all its streams at the end.

    With `keep` it is not deleted.
    """
    path = f"{PATH}/{secrets.token_hex(4)}"
    quorums = {
        "ensemble_size": shape.ensemble,
        "write_quorum": shape.write_quorum,
        "ack_quorum": shape.ack_quorum,
        "digest": shape.digest,
    }
    async with await open_namespace(
        client, path, settings={**quorums, **settings}, create=True
    ) as made:
        try:
            yield made
        finally:
            if not keep:
                for name in await made.streams():
                    await made.delete_stream(name)
                await client.metadata.tree.delete_tree(path)


async def write(streams: Namespace, load: Load, count: int) -> RoundResult:
    """Measure writing `load.entries` records to each of `count` streams at once.

    The writer decides how many records are outstanding.
    """
    names = [f"s{number}" for number in range(count)]
    writers = [await streams.open_writer(name, create=True) for name in names]
    for writer in writers:  # the first segment is begun before the measurement
        await writer.append(b"")
    cpu, began = time.process_time(), time.perf_counter()
    latencies: list[tuple[float, int]] = []
    sent = [0] * count
    load.progress.begin("writing", load.entries * count, lambda: sum(sent))
    async with TaskGroup() as group:
        for index, writer in enumerate(writers):
            group.create_task(_fill(writer, load, latencies, sent, index))
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    for writer in writers:
        await writer.close()
    records = load.entries * count
    return RoundResult(records, records * load.size_bytes, seconds, used, latencies)


async def _fill(
    writer: StreamWriter,
    load: Load,
    latencies: list[tuple[float, int]],
    sent: list[int],
    index: int,
) -> None:
    """Write `load.entries` records to one stream, and count them in `sent[index]`.

    Append the latency of the last batch to `latencies`, with its number of records.
    """
    piece = [load.payload()] * PIECE_RECORDS
    while sent[index] < load.entries:
        some = piece[: min(PIECE_RECORDS, load.entries - sent[index])]
        sent[index] += len(some)
        began = time.perf_counter()
        appended = await writer.submit_many(some)
        if sent[index] == load.entries:
            await appended.wait()
            latencies.append((time.perf_counter() - began, len(some)))
        else:
            await asyncio.sleep(0)


async def read(streams: Namespace, name: str, load: Load) -> RoundResult:
    """Measure reading the whole of a stream that `write` has written.

    Raises StreamError if records are missing, and the errors of reading.
    """
    cpu, began = time.process_time(), time.perf_counter()
    records = payload_bytes = 0
    load.progress.begin("reading", load.entries, lambda: records)
    reader = await streams.open_reader(name)
    async with aclosing(reader.batches()) as batches:
        async for batch in batches:
            assert isinstance(batch, RecordBatch)
            records += len(batch)
            payload_bytes += sum(map(len, batch.payloads()))
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    if records <= load.entries:
        raise StreamError(
            f"the benchmark read {records} records of stream {name} instead of {load.entries + 1}",
            remedy="Run the benchmark again. If the error returns, report it",
        )
    return RoundResult(records, payload_bytes, seconds, used)


async def tail(streams: Namespace, load: Load, count: int) -> RoundResult:
    """Measure the latency from the append of a record to its delivery to each tailing reader.

    `load.entries` records are appended one by one, and `count` readers follow the stream. Raises
    TimeoutError if it takes `TAIL_LIMIT_S` longer than one second for each record.
    """
    writer = await streams.open_writer("tail", create=True)
    await writer.append(b"")
    await asyncio.sleep(0.5)
    sent: list[float] = []
    latencies: list[tuple[float, int]] = []
    ready = [asyncio.Event() for _ in range(count)]

    async def follow(began: asyncio.Event) -> None:
        reader = await streams.open_reader("tail", start=LATEST, follow=True)
        seen = 0
        async for record in reader:
            if not record.payload:
                began.set()
                continue
            latencies.append((time.perf_counter() - sent[seen], 1))
            seen += 1
            if seen == load.entries:
                return

    async with asyncio.timeout(load.entries + TAIL_LIMIT_S), TaskGroup() as group:
        for event in ready:
            group.create_task(follow(event))
        while not all(event.is_set() for event in ready):
            await writer.append(b"")  # until every reader follows
            await asyncio.sleep(0.05)
        load.progress.begin("appending", load.entries, lambda: len(sent))
        cpu, start = time.process_time(), time.perf_counter()
        for _ in range(load.entries):
            sent.append(time.perf_counter())
            await writer.append(load.payload())
            await asyncio.sleep(TAIL_PAUSE_S)
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    await writer.close()
    return RoundResult(load.entries, load.entries * load.size_bytes, seconds, used, latencies)
