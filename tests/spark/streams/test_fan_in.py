"""Four streaming queries write one stream, and are killed inside of their commits.

At the end each number exists once, and the numbers of each query are in its order. These tests run
with `make pipelines`. In the longer one each query has a driver of its own. A kill ends either the
whole driver, or only its process that commits: then Spark aborts the micro-batch, and the driver
starts the query again. QUIRE_SPARK_FAN_IN_S is the least duration of the kills in seconds: 300
gives at least 100 kills. How often a commit goes behind another one is chance, and is printed.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from quire import blocking
from quire.blocking import Namespace
from quire.testing.cluster import LocalCluster
from tests.support.sessions import kill_session
from tests.support.spark.faults import Faults
from tests.support.spark.leftovers import check_only_published_ledgers_stay

pytestmark = [pytest.mark.spark, pytest.mark.long]

NAMESPACE = "/tests/fan-in"
QUERIES = ("a", "b", "c", "d")
PER_BATCH = 40
PARTITIONS = 2
STEPS = (
    "before-merge", "after-merge", "before-transaction", "in-retry", "after-transaction",
    "after-publication", "after-sweep",
)  # fmt: skip
"""Every step inside of a commit, in order. `in-retry` is before another attempt."""
DURATION_S = float(os.environ.get("QUIRE_SPARK_FAN_IN_S", "30"))
KILLS_PER_S = 1 / 3
"""The least number of kills that must hit a commit, for each second of the duration."""
SLOW_MACHINE = 8
"""The test takes this many times the duration, if it must, to reach the number of kills."""
WHOLE_DRIVER = 5
"""One kill in so many ends the whole driver."""
END_S = 240.0
DRIVER = Path(__file__).parents[2] / "support" / "spark" / "driver.py"


def names_at(directory: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in directory.glob(pattern))


def check(
    client: blocking.Client, streams: Namespace, stream: str, counts: dict[str, int] | None = None
) -> dict[str, int]:
    """Check that each number is there once and in order, and return the numbers by query."""
    records = list(streams.open_reader(stream))
    assert [record.sequence for record in records] == list(range(len(records)))
    assert [record.txid for record in records] == sorted(record.txid for record in records)
    found: dict[str, list[int]] = {name: [] for name in QUERIES}
    for record in records:
        name, _, number = bytes(record.payload).decode().partition(":")
        found[name].append(int(number))
    for name, numbers in found.items():
        assert numbers == list(range(len(numbers))), name
        assert counts is None or len(numbers) == counts[name], name
    check_only_published_ledgers_stay(client, streams, stream)
    return {name: len(numbers) for name, numbers in found.items()}


# -- in one driver ----------------------------------------------------------------------------


def test_queries_that_die_during_commits_publish_once(
    spark: SparkSession, cluster: LocalCluster, client: blocking.Client, streams: Namespace,
    stream: str, tmp_path: Path,
) -> None:  # fmt: skip
    batches = 3
    orders = dict(zip(QUERIES, ("after-merge", "after-transaction", "before-transaction", "")))

    def start(name: str) -> StreamingQuery:
        rows = spark.readStream.format("quire_numbers").options(
            total=batches * PER_BATCH, perBatch=PER_BATCH, partitions=PARTITIONS
        ).load().selectExpr(f"concat('{name}:', value) AS value")  # fmt: skip
        writer = rows.writeStream.format("quire_faulty_streams").options(
            metadata=cluster.uri, namespace=NAMESPACE, stream=stream, writerId=name,
            faults=str(tmp_path / f"faults-{name}"),
            checkpointLocation=str(tmp_path / f"checkpoint-{name}"),
        )  # fmt: skip
        return writer.trigger(availableNow=True).start()

    for name in QUERIES:
        (tmp_path / f"faults-{name}").mkdir()
        if orders[name]:
            Faults(str(tmp_path / f"faults-{name}")).make(f"die.{orders[name]}.1")
    running = {name: start(name) for name in QUERIES}
    errors: list[str] = []
    for name, query in running.items():
        try:
            assert query.awaitTermination(END_S)
        except PySparkException as error:
            errors.append(str(error))
            assert start(name).awaitTermination(END_S)
    killed = sum(len(names_at(tmp_path / f"faults-{name}", "taken.die.*")) for name in QUERIES)
    assert killed == len(errors) == 3, errors
    assert not any("StreamFenced" in error for error in errors)
    check(client, streams, stream, dict.fromkeys(QUERIES, batches * PER_BATCH))


# -- drivers of their own ---------------------------------------------------------------------


@dataclass
class KilledQuery:
    """A query whose driver is started again whenever it was killed."""

    name: str
    directory: Path
    arguments: dict[str, Any]
    random: random.Random
    ending: threading.Event
    killed: Counter[str] = field(default_factory=Counter)
    error: Exception | None = None
    sessions: list[int] = field(default_factory=list)

    @property
    def faults(self) -> Path:
        return self.directory / "faults"

    def run(self) -> None:
        try:
            while not self._live():
                pass
        except (AssertionError, OSError) as error:
            self.error = error

    def _live(self) -> bool:
        """Run one driver. Return whether it has ended by itself."""
        with (self.directory / "driver.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, str(DRIVER), json.dumps(self.arguments)],
                stdout=output, stderr=output, cwd=self.directory, start_new_session=True,
            )  # fmt: skip
        self.sessions.append(process.pid)
        deadline_s: float | None = None
        try:
            while process.poll() is None:
                if self._look():
                    return False
                if self.ending.is_set():
                    deadline_s = deadline_s or time.monotonic() + END_S
                    assert time.monotonic() < deadline_s, self.log()
                else:
                    self._order()
                time.sleep(0.02)
        finally:
            kill_session(process.pid)
            status = process.wait()
        self._look()
        assert status == 0, self.log()
        return True

    def log(self) -> str:
        return (self.directory / "driver.log").read_text()[-5_000:]

    def _order(self) -> None:
        """Order the next kill, unless one is still to come."""
        ordered = names_at(self.faults, "die.*") + names_at(self.faults, "kill.*")
        if any("in-retry" not in one for one in ordered):
            return
        kind = "kill" if self.random.random() < 1 / WHOLE_DRIVER else "die"
        # The step `in-retry` is rare, so an order for it does not delay others.
        steps = [step for step in STEPS if not (ordered and step == "in-retry")]
        Faults(str(self.faults)).make(f"{kind}.{self.random.choice(steps)}.any")

    def _look(self) -> bool:
        """Count the kills. Return whether the whole driver is to be killed now."""
        whole = False
        for path in self.faults.glob("taken.*"):
            _, kind, step, *_ = path.name.split(".")
            self.killed[f"{kind} {step}"] += 1
            whole = whole or kind == "kill"
            path.unlink()
        return whole

    def retries(self) -> int:
        """Return the number of attempts of commits behind what others had published."""
        return len(names_at(self.faults, "retried.*"))

    def end(self) -> None:
        for path in itertools.chain(self.faults.glob("die.*"), self.faults.glob("kill.*")):
            path.unlink(missing_ok=True)


@contextmanager
def killed_queries(
    cluster: LocalCluster, stream: str, directory: Path
) -> Iterator[tuple[list[KilledQuery], threading.Event]]:
    ending = threading.Event()
    queries = []
    for name in QUERIES:
        own = directory / name
        for part in ("faults", "scratch"):
            (own / part).mkdir(parents=True)
        arguments = {
            "mode": "numbers",
            "master": "local[1]",
            "scratch": str(own / "scratch"),
            "checkpoint": str(own / "checkpoint"),
            "reading": {
                "total": str(10**9), "perBatch": str(PER_BATCH), "partitions": str(PARTITIONS),
                "stopFile": str(directory / "stop"),
            },
            "writing": {
                "metadata": cluster.uri, "namespace": NAMESPACE, "stream": stream,
                "writerId": name, "faults": str(own / "faults"),
            },
        }  # fmt: skip
        queries.append(KilledQuery(name, own, arguments, random.Random(name), ending))
    try:
        yield queries, ending
    finally:
        for query in queries:
            for session in query.sessions:
                kill_session(session)


def test_drivers_killed_during_commits_publish_once(tmp_path: Path) -> None:
    with (
        LocalCluster(bookies=3) as cluster,
        blocking.connect(cluster.uri) as client,
        client.namespace(NAMESPACE, create=True) as streams,
        killed_queries(cluster, "numbers", tmp_path) as (queries, ending),
    ):
        streams.create_stream("numbers")
        threads = [threading.Thread(target=query.run) for query in queries]
        begun_s = time.monotonic()
        for thread in threads:
            thread.start()
        wanted = int(DURATION_S * KILLS_PER_S)
        while True:
            time.sleep(1)
            took_s = time.monotonic() - begun_s
            kills = sum(sum(query.killed.values()) for query in queries)
            if any(not thread.is_alive() for thread in threads):
                break
            if took_s > DURATION_S and kills >= wanted:
                break
            if took_s > DURATION_S * SLOW_MACHINE:
                break
        (tmp_path / "stop").touch()
        ending.set()
        for query in queries:
            query.end()
        for thread in threads:
            thread.join()
        for query in queries:
            if query.error is not None:
                raise query.error
        counts = check(client, streams, "numbers")
        killed = sum((query.killed for query in queries), Counter[str]())
        total, whole = killed.total(), sum(n for what, n in killed.items() if "kill" in what)
        records = sum(counts.values())
        print(
            f"\n{total} kills inside of commits in {took_s:.0f} s, {whole} of them of whole "
            f"drivers; {records} records, {records // PER_BATCH} batches, "
            f"{sum(query.retries() for query in queries)} attempts behind other sinks; "
            + ", ".join(f"{what} {count}" for what, count in sorted(killed.items()))
        )
        assert total >= wanted
        assert min(counts.values()) > 0
