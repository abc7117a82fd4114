"""Benchmark of Quire's streams with Quire's own client.

It prints one JSON object for each result, as `KafkaBench.java` and `nats/main.go` do. Arguments are
NAME=VALUE:

    mode=stream   n records of size bytes to one stream, then read from its beginning
    mode=latency  n records, each after the acknowledgement of the one before
    mode=half     rate records/s for `seconds`: from the time a record is due to its acknowledgement
    mode=many     n records to each of `topics` streams at once
    mode=loss     a stream; after a line of standard input, records with numbers until it ends; then
                  how many were acknowledged
    mode=check    reads a stream that `loss` wrote, and prints how many of 0..n-1 are missing

at=METADATA_URI  name=STREAM  rounds=R  window=RECORDS
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing

import quire
from quire.streams import Namespace, RecordBatch, StreamWriter

PATH = "/peers"
PIECE_RECORDS = 1_000
TICK_S = 0.001
"""The pause between two batches at half load. The other clients look at the clock as often."""
OPENING = 32
"""The number of streams that are opened at the same time. The other clients create all at once."""
SETTINGS = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
NUMBER_BYTES = 8


def show(kind: str, **values: float) -> None:
    print(json.dumps({"kind": kind, "errors": 0, **values}), flush=True)


def percentiles(took: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Return p50 and p99 of times that each count for a number of records."""
    total = sum(count for _, count in took)
    found: dict[str, float] = {}
    for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99)):
        passed = 0
        for seconds, count in sorted(took):
            passed += count
            if passed > total * share:
                found[name] = seconds * 1e3
                break
    return found


class Bench:
    def __init__(self, streams: Namespace, given: dict[str, str]) -> None:
        self._streams = streams
        self._n = int(given.get("n", 100_000))
        self._size = int(given.get("size", 100))
        self._given = given
        self._payload = random.Random(1).randbytes(self._size)

    def _number(self, name: str, otherwise: int) -> int:
        return int(self._given.get(name, otherwise))

    async def _open(self, name: str) -> StreamWriter:
        writer = await self._streams.open_writer(name, create=True)
        await writer.append(self._payload)
        return writer

    async def _fill(self, writer: StreamWriter, count: int) -> None:
        piece = [self._payload] * PIECE_RECORDS
        left = count
        while left:
            some = piece[:left]
            left -= len(some)
            appended = await writer.submit_many(some)
            if left:
                await asyncio.sleep(0)
            else:
                await appended.wait()

    async def stream(self, name: str) -> None:
        writer = await self._open(name)
        began = time.perf_counter()
        await self._fill(writer, self._n)
        self._show_rate("produce", self._n, time.perf_counter() - began)
        seen = 0
        began = time.perf_counter()
        reader = await self._streams.open_reader(name)
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                assert isinstance(batch, RecordBatch)
                seen += len(batch.payloads())
                if seen > self._n:
                    break
        self._show_rate("consume", seen, time.perf_counter() - began)
        await writer.close()
        await self._streams.delete_stream(name)

    def _show_rate(self, kind: str, records: int, seconds: float) -> None:
        rate = records / seconds
        show(kind, records=records, rate_per_s=rate, mb_per_s=rate * self._size / 1e6)

    async def latency(self, name: str) -> None:
        writer = await self._open(name)
        took = []
        for _ in range(self._n):
            began = time.perf_counter()
            await writer.append(self._payload)
            took.append((time.perf_counter() - began, 1))
        show("latency", records=self._n, **percentiles(took))
        await writer.close()
        await self._streams.delete_stream(name)

    async def half(self, name: str) -> None:
        rate, seconds = self._number("rate", 10_000), self._number("seconds", 5)
        writer = await self._open(name)
        took: list[tuple[float, int]] = []
        waiting: set[asyncio.Task[None]] = set()

        async def one(due: float, count: int) -> None:
            appended = await writer.submit_many([self._payload] * count)
            await appended.wait()
            took.append((time.perf_counter() - due, count))

        began = time.perf_counter()
        sent, total = 0, rate * seconds
        while sent < total:
            due = min(total, int((time.perf_counter() - began) * rate))
            if due > sent:
                # The first record of a batch has waited longest, so its time counts for all.
                task = asyncio.create_task(one(began + sent / rate, due - sent))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
                sent = due
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*waiting)
        lasted = time.perf_counter() - began
        show("half", records=total, rate_per_s=total / lasted, **percentiles(took))
        await writer.close()
        await self._streams.delete_stream(name)

    async def many(self, name: str) -> None:
        count = self._number("topics", 1_000)
        began = time.perf_counter()
        at_once = asyncio.Semaphore(OPENING)

        async def one(at: int) -> StreamWriter:
            async with at_once:
                return await self._open(f"{name}-{at}")

        writers = await asyncio.gather(*(one(at) for at in range(count)))
        created = time.perf_counter() - began
        began = time.perf_counter()
        await asyncio.gather(*(self._fill(writer, self._n) for writer in writers))
        seconds = time.perf_counter() - began
        records = self._n * count
        show("many", records=records, rate_per_s=records / seconds, created_s=created)

    async def loss(self, name: str) -> None:
        writer = await self._streams.open_writer(name, create=True)
        window = asyncio.Semaphore(self._number("window", 1_000))
        acknowledged = 0

        async def write() -> None:
            number = 0
            while True:
                await window.acquire()
                body = number.to_bytes(NUMBER_BYTES, "big").ljust(self._size, b"\0")
                confirming.put_nowait(await writer.submit_many([body]))
                number += 1

        async def confirm() -> None:
            # In order, and nothing counts after the first failure: 0..n-1 were acknowledged.
            nonlocal acknowledged
            while True:
                appended = await confirming.get()
                await appended.wait()
                acknowledged += 1
                if acknowledged == 1:
                    show("first")
                window.release()

        confirming: asyncio.Queue[quire.streams.Appended] = asyncio.Queue()
        show("created")
        await asyncio.to_thread(sys.stdin.readline)
        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            group.create_task(confirm())
            await asyncio.to_thread(sys.stdin.read)
            show("loss", acknowledged=acknowledged)
            os._exit(0)  # Closing would wait for servers that are gone.

    async def check(self, name: str) -> None:
        seen = bytearray(self._n)
        writer = await self._streams.open_writer(
            name
        )  # recovers the segment that was being written
        await writer.close()
        reader = await self._streams.open_reader(name)
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                assert isinstance(batch, RecordBatch)
                for payload in batch.payloads():
                    number = int.from_bytes(payload[:NUMBER_BYTES], "big")
                    if number < self._n:
                        seen[number] = 1
        show("check", lost=self._n - sum(seen))


async def main(arguments: Sequence[str]) -> None:
    given = dict(one.split("=", 1) for one in arguments)
    name, mode = given.get("name", "bench"), given.get("mode", "stream")
    async with quire.connect(given["at"]) as client:
        streams = await client.namespace(PATH, create=True, settings=SETTINGS)
        bench = Bench(streams, given)
        if mode in ("loss", "check"):
            await getattr(bench, mode)(name)
            return
        for number in range(int(given.get("rounds", "1"))):
            await getattr(bench, mode)(f"{name}-{number}")


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(sys.argv[1:]))
