#!/usr/bin/env python3
"""Measure how long each page of the dashboard takes to load in a cluster of a given size.

    make bench-ui
    make bench-ui ARGS="--bookies 300 --ledgers 1000000 --rounds 20"

The dashboard's server has the metadata in memory. All bookies run in one other process, on
simulated disks, and answer over loopback sockets. Prints a table in Markdown. The exit status is 1
if a page took longer than the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import statistics
import sys
import time
import urllib.parse
import urllib.request
from contextlib import AsyncExitStack

import quire
import quire_simulator.metadata  # noqa: F401 - the driver of memory://
from quire._runtime.clock import SystemClock
from quire._runtime.metrics import CONTENT_TYPE, exposition
from quire.bookie.metrics import bookie_metrics
from quire.bookie.server import Address, Bookie
from quire.client.datasets.datasets import DatasetLedger
from quire.codec.metadata.registration import Endpoint
from quire.config import BookieConfig, ClientConfig
from quire.core.placement.tables import with_location
from quire.http.server.api import Api, Call, Route, Text
from quire.http.server.run import serve_cluster
from quire.http.server.security import HttpOptions
from quire.http.server.server import HttpServer
from quire.http.views.bookie_list import LOCATIONS_NODE
from quire.http.watch.rates import ENDPOINT, LOOK_INTERVAL_S
from quire.metadata import open_metadata
from quire.metadata.interface import BookieAddress, MetadataStore
from quire.metadata.tree import Create
from quire.net.network import AsyncioNetwork
from quire.streams.namespace.namespace import open_namespace
from quire_simulator.machine.disk import SimDisk
from quire_simulator.machine.worker import SimWorker

URI = "memory://dashboard"
LIMIT_MS = 300.0
BOOKIE = BookieConfig(segment_bytes=8 * 1024 * 1024, min_free_bytes=0)
HOST = "127.0.0.1"
TOKEN = secrets.token_urlsafe()
STREAMS, OBJECTS, DATASETS = 200, 500, 100


def log(event: str, **fields: object) -> None:
    pass


async def start_bookie(number: int, store: MetadataStore, stack: AsyncExitStack) -> Bookie:
    loop, rng = asyncio.get_running_loop(), random.Random(number)
    disk = SimDisk(rng, f"b{number}")
    bookie = Bookie(
        disk=disk,
        log_worker=SimWorker(loop, rng, disk),
        maintenance_worker=SimWorker(loop, rng, disk),
        metadata=store,
        network=AsyncioNetwork(),
        clock=SystemClock(),
        address=Address(HOST, 0, HOST),
        config=BOOKIE,
        log=log,
        random_bytes=secrets.token_bytes,
    )

    async def metrics(call: Call) -> Text:
        return Text(exposition(list(bookie_metrics(bookie, time.monotonic()))), CONTENT_TYPE)

    api = Api("bookie", [Route("GET", "/metrics", "Metrics", metrics)])
    server = HttpServer(api, HttpOptions(), version="1", monotonic=time.monotonic, log=log)
    await server.start()
    stack.push_async_callback(server.stop)
    bookie.others = (Endpoint(ENDPOINT, HOST, server.port, "http"),)
    await bookie.start()
    stack.push_async_callback(bookie.stop)
    return bookie


async def serve_bookies(count: int) -> None:
    """Print the addresses as JSON, and serve until standard input ends."""
    async with AsyncExitStack() as stack:
        store = await open_metadata(URI, create=True)
        stack.push_async_callback(store.close)
        running = [await start_bookie(number, store, stack) for number in range(count)]
        where = [[one.bookie_id, one.others[0].port] for one in running]
        print(json.dumps(where), flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def fill(bookies: list[str], ledgers: int) -> int:
    """Fill the cluster, and return the id of the last ledger, which is closed."""
    racks = b""
    for at, bookie in enumerate(bookies):
        racks = with_location(racks, bookie, f"/rack{at % 10}")
    async with quire.connect(URI) as client:
        await client.metadata.tree.commit(Create(LOCATIONS_NODE, racks))
        for _ in range(ledgers - 2):
            await client.create_ledger()
        writer = await client.create_ledger()
        async with writer:
            await writer.append_many([b"entry"] * 100)
        async with await open_namespace(client, "/streams", create=True) as team:
            for number in range(STREAMS):
                name = f"orders-{number:03}" if number else "orders"
                async with await team.open_writer(name, create=True) as stream:
                    position = await stream.append(b"record")
                await team.subscription(name, "billing").commit(position)
        for number in range(OBJECTS):
            await client.objects().put(f"jobs/{number:04}", b"state")
        part = DatasetLedger(writer.ledger_id, 0, 99, 100, 500)
        for number in range(DATASETS):
            await client.datasets.publish(f"flights-{number:03}", [part], txn="1")
        ledger_id: int = writer.ledger_id
        return ledger_id


def pages(ledger_id: int, ledgers: int) -> dict[str, str]:
    namespace = urllib.parse.quote("/streams", safe="")
    base, newest = "/api/v1/quire", "limit=50&order=newest&replication=any"
    return {
        "overview, explain": f"{base}/overview",
        "bookies": f"{base}/bookies?space=true&rates=true&gone=true&limit=200",
        "ledgers": f"{base}/ledgers?{newest}",
        "ledgers, in the middle": f"{base}/ledgers?{newest}&after={ledgers // 2}",
        "ledgers, filtered": f"{base}/ledgers?{newest}&state=CLOSED&owner_name=nobody",
        "ledgers, marked": f"{base}/ledgers?limit=50&order=newest&replication=marked",
        "ledger": f"{base}/ledgers/{ledger_id}/explain",
        "namespaces": f"{base}/namespaces",
        "streams": f"{base}/streams?namespace={namespace}&limit=100&statistics=true",
        "stream": f"{base}/stream?namespace={namespace}&name=orders",
        "objects": f"{base}/objects?limit=50",
        "datasets": f"{base}/datasets?limit=50",
        "state machines": f"{base}/state_machines?limit=50",
        "repair and jobs": f"{base}/work",
        "entries": f"{base}/ledgers/{ledger_id}/entries",
        "records": f"{base}/stream/records",
    }


BODIES = {"entries": {"limit": 100}, "records": {"namespace": "/streams", "name": "orders"}}
"""The bodies of the pages that are asked for with POST."""


def ask(url: str, body: dict[str, object] | None) -> tuple[float, int]:
    """Return the milliseconds, and the size of the answer in bytes."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    data = None
    if body is not None:
        data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
    request = urllib.request.Request(url, data, headers)
    begun = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    took_ms = (time.perf_counter() - begun) * 1000
    json.loads(text)
    return took_ms, len(text)


async def measure(bookies: int, ledgers: int, rounds: int) -> bool:
    """Return whether every page was within the limit."""
    well = True
    async with AsyncExitStack() as stack:
        store = await open_metadata(URI, create=True)
        stack.push_async_callback(store.close)
        command = [sys.executable, __file__, "--serve", "--bookies", str(bookies)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        stack.push_async_callback(process.communicate, b"")  # It ends when its input ends.
        assert process.stdout is not None
        where = json.loads(await process.stdout.readline())
        for name, http_port in where:
            http = Endpoint(ENDPOINT, HOST, http_port, "http")
            port = int(name.rpartition(":")[2])
            registered = BookieAddress(name, HOST, port, others=(http,))
            stack.push_async_callback((await store.register_bookie(registered)).close)
        ledger_id = await fill([name for name, _ in where], ledgers)
        served = serve_cluster(
            HttpOptions(token=TOKEN), URI, ClientConfig(), "1", log, owner="bench"
        )
        server = await stack.enter_async_context(served)
        print(f"{bookies} bookies, {ledgers} ledgers, {rounds} requests of each page\n")
        print("| page | median ms | longest ms | kB |\n|---|---|---|---|")
        for name, path in pages(ledger_id, ledgers).items():
            took = []
            for _ in range(rounds):
                # Wait until cached rates have expired, so that each request measures a new
                # collection.
                await asyncio.sleep(LOOK_INTERVAL_S if "bookies" in name or "over" in name else 0)
                took_ms, size = await asyncio.to_thread(ask, server.url + path, BODIES.get(name))
                took.append(took_ms)
            longest = max(took)
            well = well and longest <= LIMIT_MS
            middle = statistics.median(took)
            print(f"| {name} | {middle:.0f} | {longest:.0f} | {size / 1000:.1f} |", flush=True)
    return well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--bookies", type=int, default=100)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve_bookies(given.bookies))
        return 0
    if asyncio.run(measure(given.bookies, given.ledgers, given.rounds)):
        return 0
    print(f"\na page took longer than {LIMIT_MS:.0f} ms", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
