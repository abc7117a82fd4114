"""What `quire pipeline` prints when Spark fails in the session that the command has started.

The other tests of the jobs run commands in a session that continues, and never see Java end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quire.blocking import Namespace
from quire.testing.cluster import LocalCluster
from tests.support.spark.streams import append

pytestmark = pytest.mark.spark

NAMESPACE = "/spark/failures"
LIMIT_S = 300
CONF = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1")
DEBUG = {"QUIRE_DEBUG": "1"}


def compact(
    cluster: LocalCluster, stream: str, *arguments: str, **environment: str
) -> tuple[int, str]:
    """Run `quire pipeline compact` in its own process, and return its status and its errors."""
    command = [sys.executable, "-m", "quire", "pipeline", "compact", stream, *arguments]
    done = subprocess.run(
        [*command, "--namespace", NAMESPACE, "--metadata", cluster.uri, "--master=local[1]", *CONF],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.long
def test_an_error_of_a_task_names_the_record(
    cluster: LocalCluster, streams: Namespace, stream: str, tmp_path: Path
) -> None:
    append(streams, stream, [b'{"id": "a"}', b"no json"])
    log = tmp_path / "spark.log"
    to = ("--to", str(tmp_path / "out"), "--key", "id", "--spark-log", str(log))
    status, said = compact(cluster, stream, *to)
    assert status == 1
    starting, error = said.splitlines()
    assert starting == "starting Spark ..."
    assert error.startswith("error: compact failed: record 1:")
    assert "has no key" in error


def test_an_error_in_a_sql_expression_is_one_line(
    cluster: LocalCluster, streams: Namespace, stream: str, tmp_path: Path
) -> None:
    """PySpark logs this error as JSON, which belongs into the log of Spark."""
    append(streams, stream, [b"a"])
    log = tmp_path / "spark.log"
    arguments = ("--to", str(tmp_path / "out"), "--key-sql", "nosuch(value)")
    status, said = compact(cluster, stream, *arguments, "--spark-log", str(log), **DEBUG)
    assert status == 1
    (error,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: compact failed: [UNRESOLVED_ROUTINE]")
    assert "`nosuch`" in error
    assert str(log) in error
    assert "SQLQueryContextLogger" not in said
    assert "SQLQueryContextLogger" in log.read_text()
    # The traceback that QUIRE_DEBUG asks for has the text that Java can no longer tell.
    assert "\n[UNRESOLVED_ROUTINE]" in said
