#!/usr/bin/env python3
"""Measure how the loss of a bookie slows a writer down, and how much its repair copies.

    make bench-heal
    make bench-heal ARGS="--rate 5000 --ledgers 60"

In each round a writer appends at a steady rate, first undisturbed. Then a bookie is killed, and
`quire autorecovery` with its default byte rate replicates the bookie's entries while the writer
continues. Prints a table in Markdown: the writer's percentiles in both phases, the time until no
ledger named the bookie, and the number of copied and lost entries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import quire
from quire.cli.bench.core import Load, RoundResult, Shape, add_paced, create
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.testing.cluster import LocalCluster

BOOKIES = 5
SHAPE = Shape()
ENTRY_BYTES = 1_024
WARM_UP_S = 3.0
HEAL_LIMIT_S = 600.0
LOOK_S = 30.0
"""Seconds between two scans of all ledgers if the repair does not report progress."""
P99_RATIO_MAX = 2.0
COPIED_MAX = 1.05


class Healer:
    """A `quire autorecovery start` process and its log."""

    def __init__(self, uri: str) -> None:
        command = [sys.executable, "-m", "quire", "autorecovery", "start", "--metadata", uri]
        self._process = subprocess.Popen(
            [*command, "--set", "poll_s=0.5", "--set", "open_grace_s=600"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.entries = 0
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            said = json.loads(line)
            if said["event"] == "ledger_replicated":
                self.entries += said["entries"]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


async def held(client: quire.Client, bookie: str) -> int:
    """Return how many entries this bookie should have in closed segments."""
    found = 0
    async for ledger_id in client.list_ledgers():
        found += of((await client.metadata.read_ledger(ledger_id)).value, bookie)
    return found


def of(metadata: LedgerMetadata, bookie: str) -> int:
    ends = [segment.first_entry_id for segment in metadata.segments[1:]]
    if metadata.closed:
        ends.append((metadata.last_entry_id or 0) + 1)
    return sum(
        end - segment.first_entry_id
        for segment, end in zip(metadata.segments, ends)
        if bookie in segment.ensemble
    )


async def paced(writer: quire.LedgerWriter, rate: int, stop: asyncio.Event) -> RoundResult:
    """Append in pieces of one second until `stop`. The first `WARM_UP_S` do not count."""
    result, began = RoundResult(), time.monotonic()
    while not stop.is_set():
        latencies = await add_paced(writer, Load(rate, ENTRY_BYTES, 1), rate)
        if time.monotonic() - began > WARM_UP_S:
            result.latencies += latencies
    return result


async def healed(client: quire.Client, bookie: str, healer: Healer, lost: int) -> None:
    """Wait until no ledger names the bookie.

    A scan of all ledgers takes time of the measured process and of the metadata store. So it waits
    until as many entries were copied as were lost, or for `LOOK_S`.
    """
    async with asyncio.timeout(HEAL_LIMIT_S):
        while True:
            looked_at = time.monotonic()
            while healer.entries < lost and time.monotonic() < looked_at + LOOK_S:
                await asyncio.sleep(0.1)
            if not await held(client, bookie):
                return
            await asyncio.sleep(0.5)


async def one_round(cluster: LocalCluster, victim: int, options: argparse.Namespace) -> list[float]:
    async with quire.connect(cluster.uri) as client, quire.connect(cluster.uri) as other:
        for _ in range(options.ledgers):
            async with await create(client, SHAPE) as writer:
                for _ in range(10):
                    await writer.append_many([bytes(ENTRY_BYTES)] * (options.entries // 10))
        stop = asyncio.Event()
        async with await create(client, SHAPE) as writer:
            quiet = asyncio.ensure_future(paced(writer, options.rate, stop))
            await asyncio.sleep(options.seconds)
            stop.set()
            undisturbed = await quiet
        bookie = cluster.bookies[victim]
        healer = Healer(cluster.uri)
        try:
            stop = asyncio.Event()
            async with await create(client, SHAPE) as writer:
                beside = asyncio.ensure_future(paced(writer, options.rate, stop))
                await asyncio.sleep(WARM_UP_S)
                lost = await held(other, bookie.id)
                if bookie.id in writer.metadata.last_segment.ensemble:
                    lost += writer.last_add_confirmed + 1
                bookie.kill()
                began = time.monotonic()
                await healed(other, bookie.id, healer, lost)
                took = time.monotonic() - began
                stop.set()
                disturbed = await beside
        finally:
            healer.stop()
    figures = [one.percentile_ms(p) or 0.0 for one in (undisturbed, disturbed) for p in (50, 99)]
    return [*figures, took, float(lost), float(healer.entries)]


def of_a_cluster(number: int, options: argparse.Namespace) -> list[float]:
    """Run a round in a new cluster, because it ends with one bookie too few for some ensembles."""
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(bookies=BOOKIES, directory=Path(directory)) as cluster,
    ):
        return asyncio.run(one_round(cluster, number % BOOKIES, options))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=int, default=2_000, help="appends of 1 KB per second")
    parser.add_argument(
        "--ledgers", type=int, default=100, help="the number of existing ledgers in each round"
    )
    parser.add_argument("--entries", type=int, default=4_000, help="the entries of each ledger")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="the length of the undisturbed phase"
    )
    parser.add_argument(
        "--rounds", type=int, default=2, help="the number of rounds, each with a new cluster"
    )
    options = parser.parse_args()
    print(
        "| round | p50 / p99 undisturbed | p50 / p99 beside | ratio of p99 | healed in | copied |"
    )
    print("|---|---|---|---|---|---|")
    ok = True
    for number in range(options.rounds):
        p50, p99, p50_beside, p99_beside, took, lost, copied = of_a_cluster(number, options)
        ok = ok and p99_beside <= P99_RATIO_MAX * p99 and copied <= COPIED_MAX * lost
        rate = copied * ENTRY_BYTES / took / (1 << 20)
        print(
            f"| {number + 1} | {p50:.2f} / {p99:.2f} ms "
            f"| {p50_beside:.2f} / {p99_beside:.2f} ms "
            f"| {p99_beside / p99:.2f} | {took:.0f} s, {rate:.1f} MB/s "
            f"| {copied:.0f} of {lost:.0f} entries, {copied / lost:.3f} |",
            flush=True,
        )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
