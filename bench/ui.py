#!/usr/bin/env python3
"""Measure how long each page of the dashboard takes to load in a cluster of a given size.

    make bench-ui
    make bench-ui ARGS="--bookies 300 --ledgers 1000000 --rounds 20"
    make bench-ui ARGS=--chromium

The dashboard's server has the metadata in memory, and a full hour of series of all bookies. All
bookies run in one other process, on simulated disks, and answer over loopback sockets. Prints a
table in Markdown. With --chromium, it also measures from the call of a page's address until the
browser has drawn it. The exit status is 1 if a page took longer than the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import secrets
import shutil
import statistics
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import quire
import quire_simulator.metadata  # noqa: F401 - the driver of memory://
from quire._runtime.clock import SystemClock
from quire._runtime.metrics import CONTENT_TYPE, exposition
from quire.bookie.metrics import bookie_metrics
from quire.bookie.server import Address, Bookie
from quire.client.datasets.format import DatasetLedger
from quire.codec.metadata.registration import Endpoint
from quire.config import BookieConfig, ClientConfig
from quire.core.placement.tables import with_location
from quire.http.routes.dashboard import KEPT
from quire.http.server import run
from quire.http.server.api import Api, Call, Route, Text
from quire.http.server.run import serve_cluster
from quire.http.server.security import HttpOptions
from quire.http.server.server import HttpServer
from quire.http.views.bookie_list import LOCATIONS_NODE
from quire.http.views.bookie_report import PATH as REPORT_PATH
from quire.http.views.bookie_report import bookie_report
from quire.http.watch.rates import ENDPOINT, LOOK_INTERVAL_S
from quire.http.watch.recorder import SeriesRecorder
from quire.http.watch.series import OF_BOOKIES, OF_CLUSTER, SLOTS, STEP_S
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
PARTITIONS = 16


DRAWN = """
new MutationObserver((changes, self) => {
  if (!document.querySelector("main [aria-busy=false]")) return;
  self.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.drawnMs = performance.now(); }));
}).observe(document, { subtree: true, childList: true, attributes: true });
"""
"""Notes in the browser when the first state of a page was drawn."""


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

    async def report(call: Call) -> dict[str, Any]:
        return bookie_report(bookie, "1", 0)

    routes = [
        Route("GET", "/metrics", "Metrics", metrics),
        Route("GET", REPORT_PATH, "Report", report),
    ]
    api = Api("bookie", routes)
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
        async with await open_namespace(client, "/sites", create=True) as sites:
            await sites.create_topic("visits", PARTITIONS)
            async with (await sites.topic("visits")).open_writer() as writing:
                for partition in range(PARTITIONS):
                    for _ in range(20):
                        await writing.append(b"record", partition=partition)
        for number in range(OBJECTS):
            await client.objects().put(f"jobs/{number:04}", b"state")
        part = DatasetLedger(writer.ledger_id, 0, 99, 100, 500)
        for number in range(DATASETS):
            await client.datasets.publish(f"flights-{number:03}", [part], txn="1")
        ledger_id: int = writer.ledger_id
        return ledger_id


class PastClock:
    """A clock that begins an hour ago, and is the clock of the system after `goes_on`."""

    def __init__(self) -> None:
        self._behind_s = float(SLOTS * STEP_S)
        self._stands_s: float | None = time.monotonic()

    def step(self) -> None:
        self._behind_s -= STEP_S

    def goes_on(self) -> None:
        self._stands_s, self._behind_s = None, 0.0

    def monotonic(self) -> float:
        return (self._stands_s or time.monotonic()) - self._behind_s

    def now_ms(self) -> int:
        return round(1000 * (time.time() - self._behind_s))


def with_a_full_hour(bookies: list[str]) -> Callable[..., SeriesRecorder]:
    """Return a class of recorders whose store is full of random values."""

    class FullRecorder(SeriesRecorder):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            clock, rng = PastClock(), random.Random(0)
            self.store._clock = clock
            for _ in range(SLOTS):
                cluster = {name: rng.uniform(0, 1e6) for name in OF_CLUSTER}
                values = {
                    one: {name: rng.uniform(0, 1e6) for name in OF_BOOKIES} for one in bookies
                }
                self.store.add(self.store.begin(), cluster, values)
                clock.step()
            clock.goes_on()

        async def sample(self) -> None:
            used = time.process_time()
            await super().sample()
            used = time.process_time() - used
            print(f"a sample took {self.took_s:.2f} s and {used:.2f} s of CPU", file=sys.stderr)

    return FullRecorder


def pages(ledger_id: int, ledgers: int, bookie: str) -> dict[str, str]:
    namespace = urllib.parse.quote("/streams", safe="")
    base, newest = "/api/v1/quire", "limit=50&order=newest&replication=any"
    return {
        "overview": f"{base}/overview",
        "series of an hour": f"{base}/series?range=1h",
        "series of a bookie": f"{base}/series?range=1h&bookie={bookie}",
        "bookies": f"{base}/bookies?space=true&rates=true&gone=true&limit=1000",
        "bookie": f"{base}/bookies/{bookie}",
        "ledgers of a bookie": f"{base}/bookies/{bookie}/ledgers?limit=25",
        "ledgers of a bookie, in the middle": f"{base}/bookies/{bookie}/ledgers?limit=25"
        f"&after={ledgers // 2}",
        "topology": f"{base}/topology",
        "settings of the cluster": f"{base}/settings",
        "ledgers": f"{base}/ledgers?{newest}",
        "ledgers, in the middle": f"{base}/ledgers?{newest}&after={ledgers // 2}",
        "ledgers, filtered": f"{base}/ledgers?{newest}&state=CLOSED&owner_name=nobody",
        "ledgers, marked": f"{base}/ledgers?limit=50&order=newest&replication=marked",
        "ledger": f"{base}/ledgers/{ledger_id}/explain",
        "namespaces": f"{base}/namespaces",
        "streams": f"{base}/streams?namespace={namespace}&limit=100&statistics=true",
        "stream": f"{base}/stream?namespace={namespace}&name=orders",
        "topic": f"{base}/topic?namespace=/sites&name=visits",
        "objects": f"{base}/objects?limit=50",
        "datasets": f"{base}/datasets?limit=50",
        "state machines": f"{base}/state_machines?limit=50",
        "repair and jobs": f"{base}/work",
        "number of problems": f"{base}/problem_counts",
        "entries": f"{base}/ledgers/{ledger_id}/entries",
        "records": f"{base}/stream/records",
        "records of a topic": f"{base}/topic/records",
    }


BODIES: dict[str, dict[str, object]] = {
    "entries": {"limit": 100},
    "records": {"namespace": "/streams", "name": "orders"},
    "records of a topic": {"namespace": "/sites", "name": "visits"},
}
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


async def kept_round(url: str, rounds: int) -> float:
    """Return the median milliseconds of processor time to answer all kept pages in turn."""
    paths = [
        f"{path}?" + "&".join(f"{name}={value}".lower() for name, value in query.items())
        for path, query in KEPT.items()
    ]
    cpu = []
    for _ in range(rounds):
        await asyncio.sleep(LOOK_INTERVAL_S)
        used_s = time.thread_time()
        for path in paths:
            await asyncio.to_thread(ask, url + path, None)
        cpu.append(1000 * (time.thread_time() - used_s))
    return statistics.median(cpu)


def draw(url: str, ledger_id: int, rounds: int) -> bool:
    """Measure in Chromium, and return whether every page was drawn within the limit."""
    from playwright.sync_api import sync_playwright

    well = True
    shown_pages = ("", "bookies", "ledgers", f"ledger/{ledger_id}", "streams", "work")
    print("\n| page in Chromium | median ms | longest ms | median ms of CPU |\n|---|---|---|---|")
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        names = (os.environ.get("QUIRE_CHROMIUM", ""), "chromium", "chromium-headless-shell")
        path = next((found for name in names if name and (found := shutil.which(name))), None)
        browser = playwright.chromium.launch(executable_path=path, args=options)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.add_init_script(DRAWN)
        inside = page.context.new_cdp_session(page)
        inside.send("Performance.enable", {"timeDomain": "threadTicks"})
        for name in shown_pages:
            took, cpu = [], []
            for _ in range(rounds + 1):
                page.goto("about:blank")
                time.sleep(LOOK_INTERVAL_S)
                page.goto(f"{url}/#/{name}")
                page.wait_for_function("() => window.drawnMs")
                took.append(page.evaluate("window.drawnMs"))
                metrics = inside.send("Performance.getMetrics")["metrics"]
                cpu += [1000 * one["value"] for one in metrics if one["name"] == "TaskDuration"]
            del took[0], cpu[0]  # The browser had to start.
            well = well and max(took) <= LIMIT_MS
            shown = name.partition("/")[0] or "overview"
            middle, used = statistics.median(took), statistics.median(cpu)
            print(f"| {shown} | {middle:.0f} | {max(took):.0f} | {used:.0f} |", flush=True)
        browser.close()
    return well


async def measure(bookies: int, ledgers: int, rounds: int, chromium: bool) -> bool:
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
        names = [name for name, _ in where]
        ledger_id = await fill(names, ledgers)
        vars(run)["SeriesRecorder"] = with_a_full_hour(names)
        served = serve_cluster(
            HttpOptions(token=TOKEN), URI, ClientConfig(), "1", log, owner="bench"
        )
        server = await stack.enter_async_context(served)
        print(f"{bookies} bookies, {ledgers} ledgers, {rounds} requests of each page\n")
        print("| page | median ms | longest ms | median ms of CPU | kB |\n|---|---|---|---|---|")
        for name, path in pages(ledger_id, ledgers, names[0]).items():
            took, cpu = [], []
            for _ in range(rounds):
                # Wait until cached rates have expired, so that each request measures a new
                # collection.
                await asyncio.sleep(LOOK_INTERVAL_S if "bookies" in name or "over" in name else 0)
                # The server runs in this thread, and the request is made in another one.
                used_s = time.thread_time()
                took_ms, size = await asyncio.to_thread(ask, server.url + path, BODIES.get(name))
                took.append(took_ms)
                cpu.append(1000 * (time.thread_time() - used_s))
            longest = max(took)
            well = well and longest <= LIMIT_MS
            middle, used = statistics.median(took), statistics.median(cpu)
            print(
                f"| {name} | {middle:.0f} | {longest:.0f} | {used:.1f} | {size / 1000:.1f} |",
                flush=True,
            )
        print(f"\n{await kept_round(server.url, rounds):.1f} ms of CPU for a round of kept pages")
        if chromium:
            well &= await asyncio.to_thread(draw, server.url, ledger_id, rounds)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"\nThe server, with the metadata, took {peak_mb:.0f} MiB at most")
    return well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--bookies", type=int, default=100)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--chromium", action="store_true", help="also measure in the browser")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve_bookies(given.bookies))
        return 0
    if asyncio.run(measure(given.bookies, given.ledgers, given.rounds, given.chromium)):
        return 0
    print(f"\na page took longer than {LIMIT_MS:.0f} ms", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
