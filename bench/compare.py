#!/usr/bin/env python3
"""Compare Quire and Apache BookKeeper on the same machine, in alternating rounds of one run.

    bench/compare.py                    everything (about half an hour)
    bench/compare.py --quick            small numbers and some rows, as a first look (a few minutes)
    bench/compare.py --rows add-1k read --rounds 5
    bench/compare.py --list             the rows

How it is measured:

- In every round of a row, each side is measured once. The order changes from round to round.
- Both clusters run during a row, but only one works. Before each measurement, dirty pages are
  written back, and all servers must have been idle for half a second.
- Both sides are warmed up: the servers by a load before the first row, the clients by a first
  round of every command, which does not count.
- Each side has its own client and its own defaults. Apache's journal syncs every write, and its
  client throttle of 5,000 adds/s is off. The digest is CRC32C, and acknowledged groups are synced.

The results are results.md, results.json and results.png in bench/out (`--out`).
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import FrameType

from harness import procfs, rows
from harness.ending import status_of
from harness.facts import machine_facts, warnings_about
from harness.measure import take, take_disk
from harness.model import BenchmarkError, Measure, Outcome, Row, Sample, Side, Work
from harness.report import write_results
from harness.sides import ApacheCluster, Cluster, QuireCluster, require_tools

OUT = Path(__file__).resolve().parent / "out"

STORAGES = {
    "sorted": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
    "db": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
}

WARM_UP_ENTRIES = 60_000
"""The number of entries that are added twice to a cluster that has just started."""
SETTLE_LIMIT_S = 30.0
USED_SPACE_LIMIT_BYTES = 16 << 30
"""Deleted ledgers free their space late. Above this, both clusters are recreated."""
FREE_SPACE_MIN_BYTES = 8 << 30
HALF_LOAD_OUTSTANDING = tuple(2**k for k in range(2, 10))
"""The numbers of outstanding adds that are tried to find half load."""


@dataclass(slots=True)
class Run:
    options: argparse.Namespace
    work_directory: Path
    clusters: dict[Side, Cluster] = field(default_factory=dict)
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    """The outcome of each measure, by row."""
    notes: list[str] = field(default_factory=list)

    # -- clusters -----------------------------------------------------------------------------

    def use_clusters(self, bookies: int, zookeeper: bool) -> None:
        """Keep each running cluster that fits, because it is warm, and start the others."""
        logs = self.log("cluster").parent
        wanted: dict[Side, Cluster] = {}
        if "quire" in self.options.sides:
            wanted["quire"] = QuireCluster(
                bookies, self.work_directory / "quire", logs, zookeeper=zookeeper
            )
        if "apache" in self.options.sides:
            storage = STORAGES[self.options.apache_storage]
            directory = self.work_directory / "apache"
            wanted["apache"] = ApacheCluster(bookies, directory, logs, storage=storage)
        for side, cluster in wanted.items():
            present = self.clusters.get(side)
            if present is None or present.kind != cluster.kind:
                self.replace_cluster(side, cluster)

    def replace_cluster(self, side: Side, cluster: Cluster) -> None:
        if present := self.clusters.pop(side, None):
            present.stop()
        say(f"starting {cluster.kind}")
        # Before it starts, so that a half-started cluster is stopped, too.
        self.clusters[side] = cluster
        cluster.start()
        found = len(cluster.bookie_pids())
        if found != cluster.bookies:
            self.note(f"{cluster.kind}: only {found} bookie processes were found")
        say(f"warming up {cluster.kind}")
        entries = WARM_UP_ENTRIES // (rows.QUICK_DIVISOR if self.options.quick else 1)
        warm_up = Measure("warm-up", side, Work("add", entries=entries))
        take(warm_up, cluster, 1, self.log("warm-up", cluster.kind))

    def stop_clusters(self) -> None:
        for cluster in self.clusters.values():
            cluster.stop()
        self.clusters.clear()

    def make_room(self, row: Row) -> None:
        used = sum(f.stat().st_blocks * 512 for f in self.work_directory.rglob("*") if f.is_file())
        free = shutil.disk_usage(self.work_directory).free
        if used > USED_SPACE_LIMIT_BYTES or (free < FREE_SPACE_MIN_BYTES and used > 1 << 30):
            say("recreating both clusters to free disk space")
            self.stop_clusters()
            self.use_clusters(row.bookies, row.zookeeper)
            free = shutil.disk_usage(self.work_directory).free
        if free < FREE_SPACE_MIN_BYTES:
            raise BenchmarkError(
                f"{self.work_directory} has {free >> 30} GiB free, but "
                f"{FREE_SPACE_MIN_BYTES >> 30} GiB are needed. Choose another directory with --dir."
            )

    # -- rows ---------------------------------------------------------------------------------

    def measure_row(self, row: Row) -> None:
        self.make_room(row)
        measures = [m for m in row.measures if m.side in ("disk", *self.clusters)]
        outcomes = {m.name: Outcome(m, row.bookies) for m in measures}
        self.outcomes[row.key] = outcomes
        if row.half_load:
            measures = [
                found for m in measures if (found := self.at_half_load(m, outcomes[m.name]))
            ]
        for number in range(self.options.rounds):
            turned = measures[number % len(measures) :] + measures[: number % len(measures)]
            for measure in turned:
                outcome = outcomes[measure.name]
                try:
                    taken = self.take(measure, f"{row.key}-{number}")
                except BenchmarkError as error:
                    outcome.failures.append(str(error))
                    say(f"  {row.key}: {error}")
                    continue
                outcome.samples += taken
                say(f"  {row.key} round {number + 1}: {measure.name}: {in_words(taken)}")

    def take(self, measure: Measure, name: str, rounds: int | None = None) -> list[Sample]:
        self.settle()
        if measure.side == "disk":
            return [take_disk(self.work_directory, (64 if self.options.quick else 256) << 20)]
        cluster = self.clusters[measure.side]
        log = self.log(name, measure.name)
        return take(measure, cluster, rounds or self.options.samples, log)

    def settle(self) -> None:
        pids = [pid for cluster in self.clusters.values() for pid in cluster.server_pids()]
        if not procfs.wait_until_quiet(pids, SETTLE_LIMIT_S):
            self.note(f"servers were still busy {SETTLE_LIMIT_S:.0f} s after their load")

    def at_half_load(self, measure: Measure, outcome: Outcome) -> Measure | None:
        try:
            outcome.measure = self.find_half_load(measure)
        except BenchmarkError as error:
            outcome.failures.append(str(error))
            say(f"  {measure.name}: {error}")
            return None
        return outcome.measure

    def find_half_load(self, measure: Measure) -> Measure:
        """Return the same work with the number of outstanding adds that gives half of the highest
        rate.

        Both rates come from the same client and the same closed loop.
        """
        full = self.rate(measure, measure.work.outstanding)
        low, high = 0, len(HALF_LOAD_OUTSTANDING) - 1
        tried: dict[int, float] = {}
        while low <= high:
            middle = (low + high) // 2
            outstanding = HALF_LOAD_OUTSTANDING[middle]
            tried[outstanding] = self.rate(measure, outstanding)
            if tried[outstanding] < full / 2:
                low = middle + 1
            else:
                high = middle - 1
        best = min(tried, key=lambda outstanding: abs(tried[outstanding] - full / 2))
        self.note(
            f"half load of {measure.side}: {best} outstanding adds give {tried[best]:,.0f}/s of "
            f"{full:,.0f}/s with {measure.work.outstanding:,}"
        )
        return replace(measure, work=replace(measure.work, outstanding=best))

    def rate(self, measure: Measure, outstanding: int) -> float:
        probe = replace(measure, work=replace(measure.work, outstanding=outstanding))
        (sample,) = self.take(probe, f"half-load-{outstanding}", 1)
        if sample.rate_per_s is None:
            raise BenchmarkError(f"{measure.name}: the result contains no rate")
        return sample.rate_per_s

    def log(self, *names: str) -> Path:
        directory: Path = self.options.out / "logs"
        directory.mkdir(parents=True, exist_ok=True)
        return directory / ("-".join(names).replace(" ", "-") + ".log")

    def note(self, text: str) -> None:
        say(f"  note: {text}")
        if text not in self.notes:
            self.notes.append(text)


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def in_words(samples: Sequence[Sample]) -> str:
    def one(sample: Sample) -> str:
        if sample.kind == "disk":
            return f"{sample.mb_per_s:,.0f} MB/s"
        parts = [f"{sample.rate_per_s:,.0f}/s"] if sample.rate_per_s is not None else []
        if sample.p50_ms is not None:
            parts.append(f"p50 {sample.p50_ms:.2f} ms")
        return " ".join(parts)

    return "; ".join(one(sample) for sample in samples)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    keys = [row.key for row in rows.all_rows()]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=keys, default=[], metavar="ROW")
    parser.add_argument("--list", action="store_true", help="list the rows")
    parser.add_argument(
        "--quick", action="store_true", help="run some rows once, with small numbers"
    )
    parser.add_argument(
        "--rounds", type=int, help="the number of alternating rounds (3, or 1 with --quick)"
    )
    parser.add_argument(
        "--samples", type=int, default=2, help="the number of samples per side and round (2)"
    )
    parser.add_argument("--sides", nargs="+", choices=["quire", "apache"], metavar="SIDE")
    parser.add_argument("--apache-storage", choices=sorted(STORAGES), default="sorted")
    parser.add_argument(
        "--out", type=Path, default=OUT, help="the directory for results (bench/out)"
    )
    parser.add_argument(
        "--dir", type=Path, help="the directory for data, whose disk is measured (OUT/work)"
    )
    options = parser.parse_args(arguments)
    options.sides = options.sides or ["quire", "apache"]
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.out = options.out.resolve()
    if options.rounds < 1 or options.samples < 1:
        parser.error("--rounds and --samples must be at least 1")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    if options.list:
        for row in rows.all_rows():
            titles = "; ".join(row.title(c) for c in row.comparisons)
            print(f"{row.key:13} {row.bookies} bookies  {titles}")
        return 0
    return status_of(lambda: run(options), BenchmarkError)


def run(options: argparse.Namespace) -> int:
    require_tools(apache="apache" in options.sides)
    chosen = rows.choose(options.rows, is_quick=options.quick)
    benchmark = Run(options, (options.dir or options.out / "work").resolve() / "quire-bench")
    benchmark.work_directory.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _stop)
    facts = machine_facts(benchmark.work_directory)
    for warning in warnings_about(facts):
        benchmark.note(warning)
    started = time.monotonic()
    try:
        for (bookies, zookeeper), group in groupby(chosen, lambda r: (r.bookies, r.zookeeper)):
            benchmark.use_clusters(bookies, zookeeper)
            for row in group:
                benchmark.measure_row(row)
                # Write the results after every row, so that an interrupted run keeps what it has.
                write_results(options, facts, chosen, benchmark.outcomes, benchmark.notes)
    finally:
        benchmark.stop_clusters()
        shutil.rmtree(benchmark.work_directory, ignore_errors=True)
        with suppress(OSError):
            benchmark.work_directory.parent.rmdir()  # Only if it is empty now.
    failures = [f for o in benchmark.outcomes.values() for m in o.values() for f in m.failures]
    say(f"done in {(time.monotonic() - started) / 60:.0f} minutes: {options.out / 'results.md'}")
    return 1 if failures else 0


def _stop(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
