#!/usr/bin/env python3
"""Measure what a cluster costs by its size: many ledgers, many streams, many entries.

    make bench-size                                     everything, for about half an hour
    make bench-size ARGS=--quick                        small numbers, to see that it works
    make bench-size ARGS="--parts ledgers --ledgers 10000000 --at-once 256"
    make bench-size ARGS="--parts ledgers --zookeeper"  the metadata in ZooKeeper

The parts:

- `ledgers`: Ledgers of one entry of 100 B are created, written and closed. Then each operation that
  passes over all ledgers is measured: a start after kill -9, `quire explain`, a complete list, an
  auditor's search for lost bookies, the dashboard's page of ledgers, and a garbage collection after
  a tenth of the ledgers was deleted.
- `streams`: Streams of one record are created in one namespace, listed and read.
- `entries`: Entries of 100 B are appended to one ledger, then read in order and at random.

Every line has a bound, which was written down before it was measured. A bound of growth compares
the last tenth of the work with the first one, so it shows what gets slower with size. A line that
breaks its bound is marked, and the exit status is 1, except with --quick, whose numbers are too
small for the bounds.

The results are results.md and results.json in bench/out/size (`--out`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import shutil
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import quire
from harness.ending import status_of
from harness.facts import machine_facts, warnings_about
from quire._runtime.opening import Opening
from quire.cli.common.options import run_async
from quire.client import LedgerWriter
from quire.errors import QuireError
from quire.replication.autorecovery.autorecovery import Autorecovery
from quire.streams import Namespace
from quire.testing.cluster import BookieProcess, LocalCluster

ROOT = Path(__file__).resolve().parent
PARTS = ("ledgers", "streams", "entries")
PAYLOAD = b"x" * 100
AT_ONCE = 64
"""The number of ledgers or streams that are created at the same time, by default."""
TENTHS = 10
QUICK_DIVISOR = 200
SAMPLES = 200
START_LIMIT_S = 600.0
PASS_LIMIT_S = 3_600.0
PIECE_ENTRIES = 10_000
READER = "127.0.0.1:1"
"""The name of the process that audits."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit that a figure must not exceed, or must not fall below."""

    value: float
    least: bool = False

    def holds(self, figure: float) -> bool:
        return figure >= self.value if self.least else figure <= self.value

    def __str__(self) -> str:
        return f"{'at least' if self.least else 'at most'} {self.value:,g}"


FLAT = Bound(0.7, least=True)
"""The bound of the rate of the last tenth, as a share of that of the first."""
BOUNDS = {
    "rate of creating, the last tenth by the first": FLAT,
    "creating, appending to and closing a ledger, per second": Bound(2_000, least=True),
    "growth of the largest bookie's memory, bytes per ledger": Bound(600),
    "resident memory of the largest bookie, GB": Bound(5),
    "seconds from a start after kill -9 to the first read": Bound(5),
    "seconds from a start after kill -9 to a writable bookie": Bound(60),
    "`quire explain`, seconds": Bound(5),
    "rate of listing, the last tenth by the first": FLAT,
    "listing, growth of this process's memory, MB": Bound(100),
    "auditor's search, microseconds per ledger": Bound(500),
    "auditor's search, growth of this process's memory, MB": Bound(200),
    "page of ledgers in the dashboard, seconds": Bound(0.3),
    "garbage collection after a tenth was deleted, microseconds per ledger": Bound(500),
    "rate of creating streams, the last tenth by the first": FLAT,
    "listing streams, microseconds per stream": Bound(500),
    "opening a stream and reading its record, p99 in ms": Bound(50),
    "rate of appending, the last tenth by the first": FLAT,
    "rate of reading in order, the last tenth by the first": FLAT,
    "reading an entry at random, p99 in ms": Bound(50),
    "resident memory of the largest bookie after the entries, MB": Bound(500),
}


@dataclass(frozen=True, slots=True)
class Line:
    part: str
    what: str
    figure: float
    bound: str
    met: bool


class Report:
    """The lines so far. They are written after each, so that an interrupted run keeps them."""

    def __init__(self, out: Path, facts: dict[str, str]) -> None:
        self._out = out
        self._facts = facts
        self.lines: list[Line] = []

    def add(self, part: str, what: str, figure: float) -> None:
        bound = BOUNDS[what]
        line = Line(part, what, figure, str(bound), bound.holds(figure))
        self.lines.append(line)
        say(f"{part}: {what}: {figure:,.4g} ({bound}{'' if line.met else ', BROKEN'})")
        rows = [
            f"| {one.part} | {one.what} | {one.figure:,.4g} | {one.bound} | "
            f"{'yes' if one.met else '**no**'} |"
            for one in self.lines
        ]
        head = ["| part | what | figure | bound | met |", "|---|---|---|---|---|"]
        facts = [f"- {name}: {value}" for name, value in self._facts.items()]
        (self._out / "results.md").write_text("\n".join([*head, *rows, "", *facts, ""]))
        found = {"facts": self._facts, "lines": [asdict(one) for one in self.lines]}
        (self._out / "results.json").write_text(json.dumps(found, indent=2))


# -- helpers ----------------------------------------------------------------------------------


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def memory_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def resident_bytes(cluster: LocalCluster) -> int:
    """Return the resident memory of the largest bookie."""
    return max(bookie.rss_bytes() for bookie in cluster.bookies)


def new_ledger(client: quire.Client, copies: int) -> Opening[LedgerWriter]:
    return client.create_ledger(
        ensemble_size=copies, write_quorum=copies, ack_quorum=copies // 2 + 1
    )


def percentile(took: Sequence[float], share: float) -> float:
    return sorted(took)[min(len(took) - 1, int(len(took) * share))]


async def in_tenths(
    count: int, work: Callable[[int], Awaitable[None]], what: str, at_once: int
) -> tuple[float, float]:
    """Do `work` for each number below `count`. Return the whole rate, and last by first tenth."""
    rates: list[float] = []
    numbers = iter(range(count))
    began = time.perf_counter()
    for tenth in range(TENTHS):
        size = count // TENTHS + (tenth < count % TENTHS)
        piece = iter([next(numbers) for _ in range(size)])

        async def worker(piece: object = piece) -> None:
            for number in piece:  # type: ignore[attr-defined]
                await work(number)

        at = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker())
        rates.append(size / (time.perf_counter() - at))
        say(f"  {what}: {(tenth + 1) * 10} %, {rates[-1]:,.0f}/s")
    return count / (time.perf_counter() - began), rates[-1] / rates[0]


class Http:
    """The HTTP API of a bookie, which also serves the cluster's pages."""

    def __init__(self, bookie: BookieProcess, token: str) -> None:
        events = [json.loads(line) for line in bookie.log_path.read_text().splitlines()]
        self._at = [event["url"] for event in events if event["event"] == "http_serving"][-1]
        self._token = token

    def ask(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(self._at + path, method=method)
        request.add_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=PASS_LIMIT_S) as answer:
            found: bytes = answer.read()
            return found


# -- ledgers ----------------------------------------------------------------------------------


class Ledgers:
    """The part `ledgers`."""

    name = "ledgers"

    def __init__(
        self, cluster: LocalCluster, count: int, at_once: int, token: str, report: Report
    ) -> None:
        self._cluster = cluster
        self._count = count
        self._at_once = at_once
        self._token = token
        self._report = report
        self._copies = len(cluster.bookies)

    def add(self, what: str, figure: float) -> None:
        self._report.add(self.name, what, figure)

    async def run(self) -> None:
        empty = resident_bytes(self._cluster)
        async with quire.connect(self._cluster.uri) as client:
            ids = await self._create(client)
        resident = resident_bytes(self._cluster)
        grown = (resident - empty) / self._count
        self.add("growth of the largest bookie's memory, bytes per ledger", grown)
        self.add("resident memory of the largest bookie, GB", resident / 1e9)
        await self._start_again(ids)
        began = time.perf_counter()
        await self._explain()
        self.add("`quire explain`, seconds", time.perf_counter() - began)
        async with quire.connect(self._cluster.uri) as client:
            await self._list(client)
            await self._audit(client)
            http = Http(self._cluster.bookies[0], self._token)
            await self._page(http)
            await self._collect(client, ids, http)

    async def _create(self, client: quire.Client) -> list[int]:
        ids = [-1] * self._count

        async def one(number: int) -> None:
            async with new_ledger(client, self._copies) as ledger:
                await ledger.append(PAYLOAD)
            ids[number] = ledger.ledger_id

        rate, growth = await in_tenths(self._count, one, "creating ledgers", self._at_once)
        self.add("creating, appending to and closing a ledger, per second", rate)
        self.add("rate of creating, the last tenth by the first", growth)
        return ids

    async def _start_again(self, ids: Sequence[int]) -> None:
        bookies = self._cluster.bookies
        for bookie in bookies:
            bookie.kill()
        began = time.monotonic()
        for bookie in bookies:
            bookie.launch()
        config = quire.ClientConfig(bookies_wait_s=1.0)
        readable = 0.0
        while not readable:
            try:
                async with quire.connect(self._cluster.uri, config=config) as client:
                    reader = await client.open_ledger(ids[len(ids) // 2])
                    await reader.read_entry(0)
                    readable = time.monotonic() - began
            except QuireError:
                if time.monotonic() - began > START_LIMIT_S:
                    raise
                await asyncio.sleep(0.05)
        self.add("seconds from a start after kill -9 to the first read", readable)
        await asyncio.to_thread(self._wait_ready, bookies, began + START_LIMIT_S)
        writable = time.monotonic() - began
        self.add("seconds from a start after kill -9 to a writable bookie", writable)

    @staticmethod
    def _wait_ready(bookies: Sequence[BookieProcess], deadline: float) -> None:
        for bookie in bookies:
            bookie.wait_ready(deadline)

    async def _explain(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "quire", "explain", "--metadata", self._cluster.uri,
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await process.wait()

    async def _list(self, client: quire.Client) -> None:
        before, seen = memory_bytes(), 0
        tenth = max(1, self._count // TENTHS)
        times = [time.perf_counter()]
        async for _ in client.list_ledgers():
            seen += 1
            if seen % tenth == 0:
                times.append(time.perf_counter())
        if seen < self._count:
            raise QuireError(f"the list has {seen:,} of {self._count:,} ledgers")
        pieces = [later - earlier for earlier, later in pairwise(times)]
        self.add("rate of listing, the last tenth by the first", pieces[0] / pieces[TENTHS - 1])
        self.add("listing, growth of this process's memory, MB", (memory_bytes() - before) / 1e6)

    async def _audit(self, client: quire.Client) -> None:
        before = memory_bytes()
        auditor = Autorecovery(client, READER, worker=False)
        began = time.perf_counter()
        task = asyncio.create_task(auditor.run())
        async with asyncio.timeout(PASS_LIMIT_S):
            while not auditor.stats.audits:
                await asyncio.sleep(0.01)
        took_s = time.perf_counter() - began
        task.cancel()
        await asyncio.wait([task])
        self.add("auditor's search, microseconds per ledger", took_s / self._count * 1e6)
        grown = (memory_bytes() - before) / 1e6
        self.add("auditor's search, growth of this process's memory, MB", grown)

    async def _page(self, http: Http) -> None:
        took = []
        for _ in range(5):
            began = time.perf_counter()
            await asyncio.to_thread(http.ask, "GET", "/api/v1/quire/ledgers")
            took.append(time.perf_counter() - began)
        self.add("page of ledgers in the dashboard, seconds", percentile(took, 0.5))

    async def _collect(self, client: quire.Client, ids: Sequence[int], http: Http) -> None:
        doomed = ids[::TENTHS]

        async def one(number: int) -> None:
            await client.delete_ledger(doomed[number])

        await in_tenths(len(doomed), one, "deleting ledgers", self._at_once)
        path = "/api/v1/bookie/gc"
        began = time.perf_counter()
        await asyncio.to_thread(http.ask, "PUT", path)
        while json.loads(await asyncio.to_thread(http.ask, "GET", path)) != {
            "is_in_force_gc": "false"
        }:
            await asyncio.sleep(0.02)
        took_s = time.perf_counter() - began
        what = "garbage collection after a tenth was deleted, microseconds per ledger"
        self.add(what, took_s / self._count * 1e6)


# -- streams ----------------------------------------------------------------------------------


async def streams(cluster: LocalCluster, count: int, at_once: int, report: Report) -> None:
    copies = len(cluster.bookies)
    settings = {
        "ensemble_size": copies, "write_quorum": copies, "ack_quorum": copies // 2 + 1,
    }  # fmt: skip
    async with quire.connect(cluster.uri) as client:
        namespace = await client.namespace("/size", create=True, settings=settings)

        async def one(number: int) -> None:
            async with namespace.open_writer(f"stream-{number:06}", create=True) as writer:
                await writer.append(PAYLOAD)

        _, growth = await in_tenths(count, one, "creating streams", at_once)
        report.add("streams", "rate of creating streams, the last tenth by the first", growth)
        began = time.perf_counter()
        names = await listed(namespace)
        took_s = time.perf_counter() - began
        if len(names) < count:
            raise QuireError(f"the list has {len(names):,} of {count:,} streams")
        report.add("streams", "listing streams, microseconds per stream", took_s / count * 1e6)
        took = []
        for name in random.Random(1).sample(names, min(SAMPLES, count)):
            began = time.perf_counter()
            async for _ in namespace.open_reader(name):
                break
            took.append(time.perf_counter() - began)
        what = "opening a stream and reading its record, p99 in ms"
        report.add("streams", what, percentile(took, 0.99) * 1e3)


async def listed(namespace: Namespace) -> list[str]:
    return await namespace.streams()


# -- entries ----------------------------------------------------------------------------------


async def entries(cluster: LocalCluster, count: int, report: Report) -> None:
    copies = len(cluster.bookies)
    piece = [PAYLOAD] * min(PIECE_ENTRIES, max(1, count // TENTHS))
    pieces = count // len(piece)
    async with quire.connect(cluster.uri) as client:
        ledger = await new_ledger(client, copies)

        async def append(_: int) -> None:
            await ledger.append_many(piece)

        _, growth = await in_tenths(pieces, append, "appending pieces", at_once=1)
        await ledger.close()
        report.add("entries", "rate of appending, the last tenth by the first", growth)
        reader = await client.open_ledger(ledger.ledger_id)

        async def read(number: int) -> None:
            first = number * len(piece)
            seen = 0
            async for _ in reader.read(first, first + len(piece) - 1):
                seen += 1
            if seen != len(piece):
                raise QuireError(f"{seen} of {len(piece)} entries from {first} on were read")

        _, growth = await in_tenths(pieces, read, "reading pieces", at_once=1)
        report.add("entries", "rate of reading in order, the last tenth by the first", growth)
        took = []
        chosen = random.Random(1)
        for _ in range(SAMPLES):
            began = time.perf_counter()
            await reader.read_entry(chosen.randrange(reader.last_add_confirmed + 1))
            took.append(time.perf_counter() - began)
        report.add("entries", "reading an entry at random, p99 in ms", percentile(took, 0.99) * 1e3)
    resident = resident_bytes(cluster)
    what = "resident memory of the largest bookie after the entries, MB"
    report.add("entries", what, resident / 1e6)


# -- the program ------------------------------------------------------------------------------


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--ledgers", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--entries", type=int, default=100_000_000)
    parser.add_argument("--bookies", type=int, default=1, help="all of them have each entry (1)")
    parser.add_argument(
        "--at-once", type=int, default=AT_ONCE,
        help=f"ledgers or streams that are created at the same time ({AT_ONCE})",
    )  # fmt: skip
    parser.add_argument("--zookeeper", action="store_true", help="instead of SQLite; needs Java")
    parser.add_argument("--quick", action="store_true", help=f"one part in {QUICK_DIVISOR}")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "size", help="results")
    parser.add_argument("--dir", type=Path, help="data, whose disk is measured (OUT/work)")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    divisor = QUICK_DIVISOR if options.quick else 1
    options.out.mkdir(parents=True, exist_ok=True)
    work = (options.dir or options.out / "work").resolve()
    work.mkdir(parents=True, exist_ok=True)
    facts = machine_facts(work)
    facts["bookies"] = str(options.bookies)
    facts["metadata"] = "ZooKeeper" if options.zookeeper else "SQLite"
    for warning in warnings_about(facts):
        say(f"note: {warning}")
    report = Report(options.out, facts)
    for part in options.parts:
        count = max(TENTHS * options.at_once, getattr(options, part) // divisor)
        facts[part] = f"{count:,}"
        directory = work / f"quire-size-{part}"
        shutil.rmtree(directory, ignore_errors=True)
        token = secrets.token_hex()
        cluster = LocalCluster(
            options.bookies, directory, options.zookeeper, http_token=token,
            bookie_args=["--http", "127.0.0.1:0", "--set", "segment_bytes=0"],
        )  # fmt: skip
        try:
            with cluster:
                if part == "ledgers":
                    run_async(Ledgers(cluster, count, options.at_once, token, report).run())
                elif part == "streams":
                    run_async(streams(cluster, count, options.at_once, report))
                else:
                    run_async(entries(cluster, count, report))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    say(f"done: {options.out / 'results.md'}")
    return 0 if options.quick or all(line.met for line in report.lines) else 1


def main(arguments: Sequence[str]) -> int:
    return status_of(lambda: run(parse_arguments(arguments)), QuireError)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
