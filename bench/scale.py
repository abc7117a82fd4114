#!/usr/bin/env python3
"""Measure on the simulator's clock what a cluster costs by the number of its bookies.

    make bench-scale                                  100 and 300 bookies, for minutes
    make bench-scale ARGS="--bookies 100 --seed 7"
    make bench-scale ARGS="--bookies 1000"            up to 20 minutes, and 2 GB of memory

Each cluster has racks of 20 bookies, ledgers with E=3 Wq=3 Aq=2 and rack-aware placement, and a
process of autorecovery for each bookie. It is started, does nothing for a while, and then loses a
rack. At the end, a bookie is decommissioned. docs/internals/benchmarks.md says what is real and
what is modelled.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Sequence

from harness.scale.bookies import SCALE
from harness.scale.cluster import Cluster, seeded
from quire.client import Client
from quire.config import BookieConfig
from quire.metadata.interface import RangeStamp
from quire.replication import AutorecoverySettings, ReplicationLocks
from quire.replication.moves.decommission import decommission

STEPS_MAX = 10**9
START_S = 60.0
"""Seconds in which the processes start one after the other."""
CALM_S = 60.0
CALM_PER_S = 1.0
"""A cluster is calm when it sends at most this number of requests a second for each process."""
CALM_LIMIT_S = 1_800.0
"""Seconds after which a cluster that is not calm yet ends the run."""
HEAL_LIMIT_S = 3_600.0
LOOK_S = 1.0
"""The resolution of the times that are measured, in seconds."""

Figures = dict[str, float]


async def measure(cluster: Cluster) -> Figures:
    """Return the figures of one cluster, by what they are."""
    found: Figures = {}
    client, _, _ = cluster.client("placing client")
    await cluster.place(client)
    counts = [len(one.entries) for one in cluster.bookies.values()]
    sizes = [one.stored_bytes for one in cluster.bookies.values()]
    found["ledgers of a bookie, largest by mean"] = max(counts) * len(counts) / sum(counts)
    found["bytes of a bookie, largest by mean"] = max(sizes) * len(sizes) / sum(sizes)
    found["fewest racks of an ensemble"] = min(
        len({cluster.bookies[one].rack for one in ledger.last_segment.ensemble})
        for ledger in cluster.ledgers.values()
    )
    found |= await list_ledgers(cluster, client)
    began_s = cluster.loop.time()
    await cluster.start(AutorecoverySettings(), START_S)
    found["requests of the start"] = await until_calm(cluster)
    found["seconds until the start is over"] = cluster.loop.time() - began_s - CALM_S
    await asyncio.sleep(CALM_S)
    calm = cluster.server.take()
    found["requests/s of a calm cluster"] = calm.total / calm.seconds
    found["watches"] = cluster.server.watch_count
    found |= await lose_a_rack(cluster)
    return found | await empty_a_bookie(cluster)


async def list_ledgers(cluster: Cluster, client: Client) -> Figures:
    """List the ledgers as the search for deleted ledgers does, without deleting any.

    Each bookie lists them once in an interval: all of them first, and then again what has changed
    since, which is nothing here.
    """
    interval_s = BookieConfig().gc_interval_s
    known: dict[tuple[int, int], RangeStamp] = {}
    found: Figures = {}
    for which in ("first lists", "lists without a change"):
        cluster.server.take()
        for _ in cluster.bookies:
            next_s = cluster.loop.time() + interval_s / len(cluster.bookies)
            earlier = known if which != "first lists" else None
            async for span in client.metadata.list_ledgers(complete=True, known=earlier):
                if span.stamp is not None:
                    known[span.first, span.last] = span.stamp
            await asyncio.sleep(max(0.0, next_s - cluster.loop.time()))
        load = cluster.server.take()
        found[f"requests of all bookies' {which}"] = load.total
        found[f"MB of all bookies' {which}"] = load.sent_bytes / 1e6
        found[f"share of a server's core for the {which}"] = load.busy_s / interval_s
    return found


async def until_calm(cluster: Cluster) -> int:
    """Wait for a calm minute, and return the number of requests of the minutes before."""
    requests = cluster.server.take().total
    async with asyncio.timeout(CALM_LIMIT_S):
        while True:
            await asyncio.sleep(CALM_S)
            last = cluster.server.take()
            if last.total <= CALM_PER_S * CALM_S * len(cluster.bookies):
                return requests
            requests += last.total


async def lose_a_rack(cluster: Cluster) -> Figures:
    """Lose a rack without the auditor, and return the figures until all ledgers are repaired."""
    assert cluster.auditor is not None
    rack = 1 if cluster.auditor.bookie.rack == 0 else 0
    writer, _, _ = cluster.client("writer")
    await asyncio.sleep(LOOK_S)
    before = {one.bookie_id: one.read_bytes + one.written_bytes for one in cluster.bookies.values()}
    began_s, marked_s = cluster.loop.time(), 0.0
    lost = cluster.lose_rack(rack)
    names = {one.bookie_id for one in lost}
    writing = asyncio.ensure_future(cluster.replace_in_open_ledgers(writer, lost))
    async with asyncio.timeout(HEAL_LIMIT_S):
        while cluster.marks or cluster.named(names):
            marked_s = marked_s or (cluster.loop.time() - began_s if cluster.marks else 0.0)
            await asyncio.sleep(LOOK_S)
    await writing
    load = cluster.server.take()
    moved = [
        one.read_bytes + one.written_bytes - before[one.bookie_id]
        for one in cluster.bookies.values()
        if one.alive
    ]
    healed_s = cluster.loop.time() - began_s
    return {
        "seconds until the first mark": marked_s,
        "seconds until all is repaired": healed_s,
        "ledgers repaired": sum(one.stats.ledgers_done for one in cluster.processes),
        "locks that another process held": sum(one.stats.locks_missed for one in cluster.processes),
        "bytes of a repairing bookie, largest by mean": max(moved) * len(moved) / sum(moved),
        "requests of the repair": load.total,
        "writes of the repair": load.writes,
        "requests/s in the busiest 0.1 s": load.peak_per_s,
        "share of a server's core": load.busy_s / healed_s,
        "MB sent by ZooKeeper": load.sent_bytes / 1e6,
    }


async def empty_a_bookie(cluster: Cluster) -> Figures:
    """Decommission a bookie as the command does, and return the figures of that."""
    bookie = next(one for one in cluster.bookies.values() if one.alive and one.entries)
    ledgers = len(bookie.entries)
    operator, _, _ = cluster.client("operator")
    writer, _, _ = cluster.client("second writer")
    locks = ReplicationLocks(operator.metadata, "operator", cluster.clock)
    await asyncio.sleep(LOOK_S)
    cluster.server.take()
    began_s = cluster.loop.time()
    obeying = asyncio.ensure_future(cluster.obey(bookie.bookie_id, writer))
    done = await decommission(
        operator, locks, bookie.bookie_id, owner="operator", now_ms=cluster.clock.now_ms
    )
    assert done.ended, done
    await obeying
    load = cluster.server.take()
    return {
        "ledgers of a decommissioned bookie": ledgers,
        "GB that were copied from it": done.moved.bytes * SCALE / 1e9,
        "seconds of its decommissioning": cluster.loop.time() - began_s,
        "requests of its decommissioning": load.total,
    }


def run(bookies: int, options: argparse.Namespace) -> Figures:
    """Return the figures of a cluster with this many bookies."""
    began_s = time.perf_counter()
    loop = seeded(options.seed, STEPS_MAX)

    async def main() -> Figures:
        cluster = Cluster(
            loop, bookies=bookies, ledgers_per_bookie=options.ledgers,
            rack_bookies=options.rack, open_share=options.open,
        )  # fmt: skip
        return await measure(cluster)

    found = loop.run(main())
    found["real seconds of this run"] = time.perf_counter() - began_s
    found["MB of this process at most"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return found


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bookies", default="100,300", help="numbers, with commas (100,300)")
    parser.add_argument("--ledgers", type=int, default=20, help="ledgers for each bookie (20)")
    parser.add_argument("--rack", type=int, default=20, help="bookies in a rack (20)")
    parser.add_argument("--open", type=float, default=0.05, help="share of open ledgers (0.05)")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    sizes = [int(text) for text in options.bookies.split(",")]
    table: dict[str, list[str]] = {}
    for size in sizes:
        for what, figure in run(size, options).items():
            table.setdefault(what, []).append(
                f"{figure:,.4g}" if figure < 1e4 else f"{figure:,.0f}"
            )
        print(f"{size} bookies: done", file=sys.stderr, flush=True)
    print(f"| what | {' | '.join(f'{size:,} bookies' for size in sizes)} |")
    print("|---" * (len(sizes) + 1) + "|")
    for what, figures in table.items():
        print(f"| {what} | {' | '.join(figures)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
