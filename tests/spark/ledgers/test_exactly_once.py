"""Exactly once under hard conditions.

Tasks fail and are repeated, and executors, bookies and the driver are killed at every step. At the
end each number exists once, in order. `make pipelines` runs these tests, on drivers that are their
own executors and on a standalone cluster, whose executors die too. QUIRE_SPARK_BATCHES is the
number of micro-batches. With 36 or more, the driver is killed between every pair of steps, more
often with more batches.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
import pytest

from quire import blocking
from quire.testing._process import free_ports
from quire.testing.cluster import LocalCluster
from tests.support.sessions import kill_session
from tests.support.spark.faults import Faults
from tests.support.spark.leftovers import check_only_published_ledgers_stay

pytestmark = [pytest.mark.spark, pytest.mark.long]

NAMESPACE = "/tests/once"
BATCHES = int(os.environ.get("QUIRE_SPARK_BATCHES", "12"))
BATCHES_SHORT = 12
PER_BATCH = 300
PER_ENTRY = 50
PARTITIONS = 3
LIFE_S = 400.0
"""The longest that a driver may take until it ends or is killed."""
LOCAL = "local[2,4]"
HOSTS = ("127.0.0.1", "127.0.0.2")
"""The hosts of executors. Spark repeats a slow task only on another host."""
DRIVER = Path(__file__).parents[2] / "support" / "spark" / "driver.py"
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that does little and soon ends."""

KILLED_AT = (
    "before-claim", "after-claim", "before-commit", "before-merge", "after-merge",
    "before-transaction", "after-transaction", "after-publication", "after-sweep", "after-commit",
)  # fmt: skip
"""Every step of the driver, one after the other."""
ABORTED = (
    ("before-transaction", "after-abort"), ("after-transaction", "before-abort"),
    ("before-transaction", "before-abort"), ("after-transaction", "after-abort"),
)  # fmt: skip
"""The place where the commit fails, and the place where the driver is killed afterwards."""


@pytest.fixture(scope="module")
def bookies() -> Iterator[LocalCluster]:
    """One more than an ensemble has, so that one may be dead."""
    with LocalCluster(bookies=4) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def executors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a small standalone cluster: a master, and a worker on each host."""
    directory = tmp_path_factory.mktemp("standalone")
    port = free_ports(1)[0]
    url = f"spark://{HOSTS[0]}:{port}"
    worker = ("worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(directory))
    servers = [
        spark_server(directory / "master.log", HOSTS[0], "master.Master", "--port", str(port)),
        *[spark_server(directory / f"worker-{host}.log", host, *worker, url) for host in HOSTS],
    ]
    try:
        yield url
    finally:
        for server in servers:
            kill_session(server.pid)
            server.wait()


@pytest.fixture(params=[pytest.param(LOCAL, id="local"), pytest.param("", id="executors")])
def master(request: pytest.FixtureRequest) -> str:
    """Return the master on which the first driver runs its tasks."""
    return str(request.param or request.getfixturevalue("executors"))


def spark_server(log: Path, host: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = Path(pyspark.__file__).parent / "bin" / "spark-class"
    shown = ("--host", host, "--webui-port", "0")
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(command), f"org.apache.spark.deploy.{kind}", *shown, *arguments],
            stdout=output, stderr=output, start_new_session=True,
            env={
                **os.environ, "SPARK_LOCAL_IP": host, "SPARK_HOME": str(command.parent.parent),
                "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
            },
        )  # fmt: skip


@dataclass
class Lives:
    """Drivers, one after the other, and what happens to them."""

    cluster: LocalCluster
    directory: Path
    arguments: dict[str, Any]
    injected: Counter[str] = field(default_factory=Counter)
    dead: int = -1
    """The bookie that is not running."""
    spared: int = 0
    """The process that outlives its driver."""
    sessions: list[int] = field(default_factory=list)
    planned: int = 0

    @property
    def faults(self) -> Path:
        return self.directory / "faults"

    def plan(self, *names: str) -> None:
        for name in names:
            Faults(str(self.faults)).make(name)
        self.planned += len(names)

    def killed(self, *names: str, master: str = LOCAL) -> None:
        """A driver that is killed at the last of these faults."""
        self.plan(*names)
        assert self.live(master) == -signal.SIGKILL, (names, self.log())

    def log(self) -> str:
        return (self.directory / "driver.log").read_text()[-5_000:]

    def live(self, master: str = LOCAL) -> int:
        """One driver: its exit status, or -9 if it was killed."""
        given = {**self.arguments, "master": master, "scratch": str(self.directory / "scratch")}
        with (self.directory / "driver.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, str(DRIVER), json.dumps(given)],
                stdout=output, stderr=output, cwd=self.directory, start_new_session=True,
            )  # fmt: skip
        self.sessions.append(process.pid)
        deadline = time.monotonic() + LIFE_S
        try:
            while process.poll() is None:
                assert time.monotonic() < deadline, self.log()
                if self.look():
                    kill_session(process.pid, self.spared)
                time.sleep(0.02)
        finally:
            kill_session(process.pid, self.spared)
            status = process.wait()
        self.look()
        return status

    def until_done(self, tries: int) -> None:
        for _ in range(tries):
            if self.live() == 0:
                return
        raise AssertionError(f"not done after {tries} drivers: {self.log()}")

    def look(self) -> int:
        """Count what has happened, do what is asked for; the process that waits for the end of its
        driver, or 0."""
        waiting = 0
        for file in sorted(self.faults.glob("taken.*")):
            kind, place, pid = split_name(file.name)
            if kind in ("kill", "pause"):
                waiting = int(pid)
            if kind == "pause":
                self.spared = waiting
            if kind == "bookie-dies":
                self.replace_dead()
                Faults(str(self.faults)).make(f"bookie-dead.{place}")
            self.injected[f"{kind} {place}" if kind in ("kill", "pause") else kind] += 1
            file.rename(self.faults / f"counted.{file.name}")
        return waiting

    def replace_dead(self) -> None:
        """Kill a bookie, and start the one that was killed before."""
        if self.dead >= 0:
            self.cluster.bookies[self.dead].start()
        self.dead = (self.dead + 1) % len(self.cluster.bookies)
        self.cluster.bookies[self.dead].kill()

    def wait_for(self, pattern: str) -> None:
        deadline = time.monotonic() + LIFE_S
        while not list(self.faults.glob(pattern)):
            assert time.monotonic() < deadline, sorted(p.name for p in self.faults.iterdir())
            time.sleep(0.02)

    def close(self) -> None:
        for session in self.sessions:
            kill_session(session)
        self.sessions.clear()
        if self.dead >= 0:
            self.cluster.bookies[self.dead].start()
            self.dead = -1


def split_name(name: str) -> tuple[str, str, str]:
    """'taken.KIND.PLACE.PID', where a place may have dots."""
    _, kind, rest = name.split(".", 2)
    place, _, pid = rest.rpartition(".")
    return kind, place, pid


@pytest.fixture
def lives(bookies: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lives]:
    stream = re.sub(r"\W", "-", request.node.name)
    source = f"{stream}/source"
    with (
        blocking.connect(bookies.uri) as client,
        client.namespace(NAMESPACE, create=True) as streams,
    ):
        streams.create_stream(stream)
        with streams.open_writer(source, create=True) as writer:
            for first in range(0, BATCHES * PER_BATCH, PER_ENTRY):
                writer.append_many([b"%d" % n for n in range(first, first + PER_ENTRY)])
    for name in ("faults", "scratch"):
        (tmp_path / name).mkdir()
    arguments = {
        "mode": "query",
        "checkpoint": str(tmp_path / "checkpoint"),
        "reading": {
            "metadata": bookies.uri, "namespace": NAMESPACE, "stream": source,
            "maxRecordsPerTrigger": str(PER_BATCH), "minPartitions": str(PARTITIONS),
        },
        "writing": {
            "metadata": bookies.uri, "namespace": NAMESPACE, "stream": stream, "writerId": "w",
            "faults": str(tmp_path / "faults"),
        },
    }  # fmt: skip
    running = Lives(bookies, tmp_path, arguments)
    try:
        yield running
    finally:
        running.close()


def check(lives: Lives, total: int) -> None:
    """Check that each number exists once and in order, and that nothing is left over."""
    stream = lives.arguments["writing"]["stream"]
    lives.close()
    assert sum(lives.injected.values()) == lives.planned, lives.injected
    with (
        blocking.connect(lives.cluster.uri) as client,
        client.namespace(NAMESPACE) as streams,
    ):
        found = [int(record.payload) for record in streams.open_reader(stream)]
        assert found == list(range(total))
        sequences = [record.sequence for record in streams.open_reader(stream)]
        assert sequences == list(range(total))
        check_only_published_ledgers_stay(client, streams, stream)
    print(f"\n{stream}: {total} numbers, {sum(lives.injected.values())} faults: ", end="")
    print(", ".join(f"{name} {count}" for name, count in sorted(lives.injected.items())))


def test_micro_batches_are_published_exactly_once_under_faults(lives: Lives, master: str) -> None:
    rounds = max(1, BATCHES // BATCHES_SHORT)
    for turn in range(rounds):
        at = turn * BATCHES_SHORT
        of_executors = [f"executor-dies.{at + 1}.0", f"task-slow.{at + 2}.2"]
        lives.killed(
            f"task-raises.{at}.1", *(of_executors if master != LOCAL else []),
            f"bookie-dies.{at + 3}.1", f"worker-dies.{at + 3}.0", f"kill.after-merge.{at + 4}",
            master=master,
        )  # fmt: skip
        # A committer that is thought dead sleeps until others have done its work.
        lives.killed(f"bookie-dies.{at + 4}.0", f"pause.before-transaction.{at + 4}")
        if rounds == 1:
            steps: tuple[str, ...] = ("after-transaction",)
            aborts = ABORTED[:0]  # the batch job has one
        else:
            steps = tuple(KILLED_AT[k % len(KILLED_AT)] for k in range(4 * turn, 4 * turn + 4))
            aborts = (ABORTED[turn % len(ABORTED)],)
        for step in steps:
            lives.killed(f"kill.{step}.any")
        if turn == 0:
            Faults(str(lives.faults)).make("go-on")
            lives.wait_for(f"refused.StreamFencedError.{at + 4}.*")
        for failed, step in aborts:
            lives.killed(f"raise.{failed}.any", f"kill.{step}.any")
    lives.until_done(3)
    check(lives, BATCHES * PER_BATCH)


def test_a_batch_job_is_published_exactly_once_under_faults(lives: Lives, master: str) -> None:
    lives.arguments["mode"] = "job"
    lives.arguments["reading"] = {"total": "60000", "partitions": "6"}
    del lives.arguments["writing"]["writerId"]
    of_executors = ["executor-dies.job.0", "task-slow.job.5"]
    lives.killed(
        "task-raises.job.1", *(of_executors if master != LOCAL else []), "bookie-dies.job.2",
        "kill.after-merge.job", master=master,
    )  # fmt: skip
    if BATCHES > BATCHES_SHORT:
        for step in ("before-claim", "after-claim", "before-merge", "before-transaction"):
            lives.killed(f"kill.{step}.job")
        lives.killed("raise.before-transaction.job", "kill.before-abort.any")
    lives.killed("raise.after-transaction.job", "kill.before-abort.any")
    lives.until_done(1)  # it is done already, and its driver does not know
    check(lives, 60_000)
