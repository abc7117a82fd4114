"""However `quire pipeline` ends, no process stays. `tests/unit/spark/test_java.py` has more cases.

Each test starts Java once. It finds the processes by a variable that they all inherit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from quire.testing.cluster import LocalCluster
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc"),
]

LIMIT_S = 300
QUICK = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1")
VARIABLE = "QUIRE_TEST_RUN"


def start(cluster: LocalCluster, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start a command, as a shell with job control does, and return it and the mark of its run."""
    mark = f"{VARIABLE}={uuid.uuid4()}"
    environment = dict([mark.split("=")], PYSPARK_PYTHON=sys.executable)
    command = subprocess.Popen(
        [sys.executable, "-m", "quire", "pipeline", *arguments, "--metadata", cluster.uri, *QUICK],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    return command, mark


def running(mark: str, program: str = "") -> list[int]:
    """Return the processes of a run whose command line has `program`, without zombies."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            environment = (directory / "environ").read_bytes()
            line = (directory / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if mark.encode() in environment.split(b"\0") and program.encode() in line:
            found.append(int(directory.name))
    return found


def test_ctrl_c_during_the_start_of_java_leaves_no_process(cluster: LocalCluster) -> None:
    """PySpark has not seen the port of Java yet. Such a Java process stayed forever."""
    command, mark = start(cluster, "audit")
    wait_for(lambda: running(mark, "org.apache.spark.deploy.SparkSubmit"), limit_s=LIMIT_S)
    os.killpg(command.pid, signal.SIGINT)
    said, errors = command.communicate(timeout=LIMIT_S)
    assert (command.returncode, said) == (130, "")
    assert errors.splitlines()[-1] == "interrupted: run the same command again"
    assert running(mark) == []


def test_a_killed_driver_leaves_no_java_process(cluster: LocalCluster, tmp_path: Path) -> None:
    """Java and its Python workers notice the end of their standard input."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.csv").write_text("id\n1\n2\n")
    target = ("--stream", "killed", "--create", "--checkpoint", str(tmp_path / "checkpoint"))
    command, mark = start(cluster, "ingest", str(tmp_path / "in"), "--follow", *target)

    workers = lambda: running(mark, "pyspark.daemon") or command.poll() is not None  # noqa: E731
    wait_for(workers, limit_s=LIMIT_S)
    assert command.poll() is None, command.communicate()
    command.kill()
    command.communicate()
    wait_for(lambda: not running(mark), limit_s=LIMIT_S)
