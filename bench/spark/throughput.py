#!/usr/bin/env python3
"""Measure what Spark reads from and writes to Quire, beside its limits, in rounds of one run.

    make bench-spark
    make bench-spark ARGS="--quick"
    make bench-spark ARGS="--rows read-1k write --rounds 5"
    make bench-spark ARGS="--no-apache"        # without Apache, Maven and its jars

Prints a table in Markdown with medians, the lowest and highest round in parentheses, and each
figure as a share of the row's yardstick. CPU is the user and system time of Spark (driver, JVM and
Python workers) or of the client, without the bookies. A first round warms everything up and does
not count.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trivial
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from harness import procfs
from harness.facts import machine_facts, warnings_about
from harness.measure import take
from harness.model import MIB, BenchmarkError, Measure, Spread, Work
from harness.sides import ApacheCluster
from quire import blocking
from quire.spark import local_session
from quire.testing.cluster import LocalCluster

NAMESPACE = "/bench/throughput"
STORAGE = "org.apache.bookkeeper.bookie.SortedLedgerStorage"
"""The default storage of Apache's bookies."""
KB = 1024
BYTES = 512 * MIB
"""Payload bytes that a round moves. Small records have less."""
SMALL_RECORDS = 2_000_000
QUICK_DIVISOR = 16
LEDGERS = 4
APPEND_ENTRIES = 4_096
TASKS = (1, 2, 4)
BOOKIES = (1, 3, 5)
TASKS_DEFAULT, BOOKIES_DEFAULT = 2, 3
JAVA_ENTRIES = 500_000
"""The entries of one round of Java's benchmark, which writes them first."""


@dataclass(frozen=True, slots=True)
class Sample:
    rows: int
    size_bytes: int
    seconds: float
    cpu_s: float | None


@dataclass(slots=True)
class Cell:
    """One line of the table."""

    name: str
    run: Callable[[], Sample]
    yardstick: bool = False
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bench:
    spark: SparkSession
    options: argparse.Namespace

    def timed(self, rows: int, size: int, work: Callable[[], object]) -> Sample:
        cpu, began = procfs.tree_cpu_s(os.getpid()), time.monotonic()
        work()
        seconds = time.monotonic() - began
        return Sample(rows, rows * size, seconds, procfs.tree_cpu_s(os.getpid()) - cpu)

    def count(self, size: int) -> int:
        whole = BYTES // size if size >= KB else SMALL_RECORDS
        return whole // (QUICK_DIVISOR if self.options.quick else 1)

    def noop(self, rows: DataFrame) -> None:
        rows.write.format("noop").mode("overwrite").save()

    def trivial(self, size: int, tasks: int) -> Sample:
        rows = self.spark.read.format("trivial").options(rows=self.count(size), size=size)
        return self.timed(
            self.count(size), size, lambda: self.noop(rows.option("tasks", tasks).load())
        )


# -- clusters ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Filled:
    """A cluster that contains the data to be read."""

    uri: str
    bookies: int
    client: blocking.Client
    servers: list[int]

    @property
    def quorums(self) -> dict[str, int]:
        ensemble = min(3, self.bookies)
        return {
            "ensemble_size": ensemble,
            "write_quorum": ensemble,
            "ack_quorum": min(2, ensemble),
        }

    def create_ledger(self) -> blocking.LedgerWriter:
        ensemble = min(3, self.bookies)
        return self.client.create_ledger(
            ensemble_size=ensemble, write_quorum=ensemble, ack_quorum=min(2, ensemble)
        )


@contextmanager
def cluster(bookies: int) -> Iterator[Filled]:
    with LocalCluster(bookies=bookies) as made, blocking.connect(made.uri) as client:
        yield Filled(made.uri, bookies, client, [process.pid for process in made.processes])


def ledgers(filled: Filled, count: int, size: int) -> str:
    """Fill some ledgers, and return their ids as the value of an option."""
    made = []
    for _ in range(LEDGERS):
        with filled.create_ledger() as ledger:
            left = count // LEDGERS
            while left > 0:
                ledger.append_many([os.urandom(size)] * min(left, APPEND_ENTRIES))
                left -= APPEND_ENTRIES
            made.append(ledger.ledger_id)
    return ",".join(map(str, made))


def stream(filled: Filled, count: int, size: int) -> str:
    name = f"of-{size}"
    settings = filled.quorums | {"roll_bytes": max(MIB, count * size // LEDGERS)}
    with filled.client.namespace(NAMESPACE, create=True) as streams:
        streams.create_stream(name, settings=settings)
        with streams.open_writer(name) as writer:
            left = count
            while left > 0:
                writer.append_many([os.urandom(size)] * min(left, APPEND_ENTRIES))
                left -= APPEND_ENTRIES
    return name


# -- rows -------------------------------------------------------------------------------------


def read_ledgers(bench: Bench, filled: Filled, ids: str, tasks: int) -> Sample:
    rows = bench.spark.read.format("quire").options(
        metadata=filled.uri, ledgers=ids, columns="entry_id,value", minPartitions=tasks,
        partitionBytes="100g",
    )  # fmt: skip
    return bench.timed(bench.count(KB), KB, lambda: bench.noop(rows.load()))


def read_stream(bench: Bench, filled: Filled, name: str, size: int, tasks: int) -> Sample:
    rows = bench.spark.read.format("quire").options(
        metadata=filled.uri, namespace=NAMESPACE, stream=name, columns="sequence,value",
        minPartitions=tasks, partitionBytes="100g",
    )  # fmt: skip
    return bench.timed(bench.count(size), size, lambda: bench.noop(rows.load()))


def read_client(bench: Bench, filled: Filled, ids: str) -> Sample:
    def read() -> None:
        for ledger_id in ids.split(","):
            with filled.client.open_ledger(int(ledger_id)) as reader:
                for run in reader.read_runs():
                    run.payloads()

    return bench.timed(bench.count(KB), KB, read)


def write_dataset(bench: Bench, filled: Filled, tasks: int) -> Sample:
    count = bench.count(KB)
    value = os.urandom(KB // 2).hex()
    rows = bench.spark.range(0, count, 1, tasks).selectExpr(f"CAST('{value}' AS BINARY) AS value")
    writer = rows.write.format("quire").mode("overwrite").options(
        metadata=filled.uri, dataset="bench", ensemble=filled.quorums["ensemble_size"],
        writeQuorum=filled.quorums["write_quorum"], ackQuorum=filled.quorums["ack_quorum"],
    )  # fmt: skip
    try:
        return bench.timed(count, KB, writer.save)
    finally:
        filled.client.datasets.drop("bench", delete_ledgers=True)


def write_client(bench: Bench, filled: Filled) -> Sample:
    count = bench.count(KB)
    values = [os.urandom(KB)] * APPEND_ENTRIES
    with filled.create_ledger() as ledger:

        def write() -> None:
            left = count
            while left > 0:
                ledger.append_many(values[:left])
                left -= APPEND_ENTRIES
            ledger.close()

        try:
            return bench.timed(count, KB, write)
        finally:
            filled.client.delete_ledger(ledger.ledger_id)


def read_java(bench: Bench, apache: ApacheCluster, logs: Path) -> Sample:
    """Measure how fast one process of Apache's client reads in batches from its own bookies."""
    entries = min(bench.count(KB), JAVA_ENTRIES)
    work = Work("read", entries=entries, size_bytes=KB)
    [sample] = take(Measure("java", "apache", work, "batch"), apache, 1, logs / "java.log")
    if not sample.rate_per_s:
        raise BenchmarkError("Apache's client printed no rate")
    return Sample(entries, entries * KB, entries / sample.rate_per_s, None)


def cells_of_reading(
    bench: Bench, filled: Filled, apache: ApacheCluster | None, logs: Path
) -> dict[str, list[Cell]]:
    ids, names = ledgers(filled, bench.count(KB), KB), {}
    for size in (KB, 100):
        names[size] = stream(filled, bench.count(size), size)
    two, p = TASKS_DEFAULT, functools.partial
    found = {
        "read-1k": [
            Cell("Spark reads ledgers", p(read_ledgers, bench, filled, ids, two)),
            Cell("Quire's client alone", p(read_client, bench, filled, ids)),
            Cell("trivial Arrow source", p(bench.trivial, KB, two), yardstick=True),
        ]
    }
    if apache is not None:
        found["read-1k"].append(
            Cell("Java's client, batch read", p(read_java, bench, apache, logs))
        )
    for key, size in (("stream-1k", KB), ("stream-100", 100)):
        found[key] = [
            Cell("Spark reads a stream", p(read_stream, bench, filled, names[size], size, two)),
            Cell("trivial Arrow source", p(bench.trivial, size, two), yardstick=True),
        ]
    found["tasks"] = [
        Cell(f"Spark reads ledgers, {n} tasks", p(read_ledgers, bench, filled, ids, n))
        for n in TASKS
    ] + [Cell(f"Spark writes, {n} tasks", p(write_dataset, bench, filled, n)) for n in TASKS]
    return found


def cells_of_writing(bench: Bench, filled: Filled) -> dict[str, list[Cell]]:
    p = functools.partial
    return {
        "write": [
            Cell(f"Spark writes, {TASKS_DEFAULT} tasks",
                 p(write_dataset, bench, filled, TASKS_DEFAULT)),
            Cell("Quire's client alone", p(write_client, bench, filled), yardstick=True),
        ]
    }  # fmt: skip


def cells_of_bookies(bench: Bench, stack: ExitStack) -> dict[str, list[Cell]]:
    cells = []
    for bookies in BOOKIES:
        filled = stack.enter_context(cluster(bookies))
        ids = ledgers(filled, bench.count(KB), KB)
        cells += [
            Cell(f"Spark reads ledgers, {bookies} bookies",
                 functools.partial(read_ledgers, bench, filled, ids, TASKS_DEFAULT)),
            Cell(f"Spark writes, {bookies} bookies (E={filled.quorums['ensemble_size']})",
                 functools.partial(write_dataset, bench, filled, TASKS_DEFAULT)),
        ]  # fmt: skip
    return {"bookies": cells}


KEYS = {
    "read-1k": "1 KB entries",
    "stream-1k": "records of 1 KB",
    "stream-100": "records of 100 B",
    "write": "1 KB entries written, E=3 Wq=3 Aq=2",
    "tasks": "1 KB entries, by tasks",
    "bookies": "1 KB entries, by bookies",
}
READING = ("read-1k", "stream-1k", "stream-100", "tasks")


# -- the run ----------------------------------------------------------------------------------


def measure(cells: Sequence[Cell], rounds: int) -> None:
    for number in range(rounds + 1):
        turned = [*cells[number % len(cells) :], *cells[: number % len(cells)]]
        for cell in turned:
            os.sync()
            sample = cell.run()
            if number:
                cell.samples.append(sample)


def spread_text(values: Sequence[float], unit: str) -> str:
    spread = Spread.of(values)
    if spread is None:
        return ""
    return f"{spread.median:,.0f}{unit} ({spread.minimum:,.0f}-{spread.maximum:,.0f})"


def show(key: str, cells: Sequence[Cell]) -> None:
    of = [cell for cell in cells if cell.yardstick]
    whole = Spread.of([s.size_bytes / s.seconds for s in of[0].samples]) if of else None
    for cell in cells:
        rates = [s.rows / s.seconds for s in cell.samples]
        megabytes = [s.size_bytes / s.seconds / 1e6 for s in cell.samples]
        cpu = [1e6 * s.cpu_s / s.rows for s in cell.samples if s.cpu_s is not None]
        mine = Spread.of(megabytes)
        share = f"{mine.median * 1e6 / whole.median:.0%}" if mine and whole else ""
        shown = f"{Spread.of(cpu).median:.2f} us" if cpu else ""  # type: ignore[union-attr]
        print(
            f"| {KEYS[key]} | {cell.name} | {spread_text(rates, '/s')} | "
            f"{spread_text(megabytes, ' MB/s')} | {share} | {shown} |",
            flush=True,
        )


def run(options: argparse.Namespace) -> None:
    wanted = options.rows or list(KEYS)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.dir)))
        facts = machine_facts(scratch)
        print(", ".join(f"{name}: {value}" for name, value in facts.items()))
        for warning in warnings_about(facts):
            print(f"Note: {warning}")
        spark = local_session(
            "throughput",
            master=f"local[{max(TASKS)}]",
            settings={"spark.local.dir": str(scratch), "spark.driver.extraJavaOptions": ""},
        )
        stack.callback(spark.stop)
        spark.dataSource.register(trivial.TrivialSource)
        bench = Bench(spark, options)
        print(
            "\n| what | | rows | bytes | share | CPU a row |\n| --- | --- | --- | --- | --- | --- |"
        )

        def table(found: dict[str, list[Cell]]) -> None:
            for key, cells in found.items():
                if key in wanted:
                    measure(cells, options.rounds)
                    show(key, cells)

        with ExitStack() as inner:
            if set(wanted) & {*READING, "write"}:
                filled = inner.enter_context(cluster(BOOKIES_DEFAULT))
                if set(wanted) & set(READING):
                    apache = None
                    if options.apache and "read-1k" in wanted:
                        apache = ApacheCluster(
                            BOOKIES_DEFAULT, scratch / "apache", scratch, storage=STORAGE
                        )
                        inner.callback(apache.stop)
                        apache.start()
                    table(cells_of_reading(bench, filled, apache, scratch))
                table(cells_of_writing(bench, filled))
        if "bookies" in wanted:
            table(cells_of_bookies(bench, stack))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=list(KEYS), metavar="ROW")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="use a sixteenth of the data and one round"
    )
    parser.add_argument("--no-apache", dest="apache", action="store_false")
    parser.add_argument("--dir", type=Path, help="the directory for Spark's and Apache's data")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    cloudpickle.register_pickle_by_value(trivial)  # The workers cannot import it.
    try:
        run(options)
    except BenchmarkError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
