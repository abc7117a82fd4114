"""Spark in separate processes: Spark Connect, executors without the package, spark-submit.

Secrets are not shown anywhere.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

import quire
from quire import blocking
from quire.testing.cluster import LocalCluster
from tests.support.spark.where import KEYS, RECORDS

pytestmark = [pytest.mark.spark, pytest.mark.long]

WHERE = Path(__file__).parents[2] / "support" / "spark" / "where.py"
SECRET = "hunter2-of-the-ledgers"
LIMIT_S = 300
"""The time limit of a process with its own Spark."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Run a cluster whose streams have a password, unlike that of the other tests."""
    with LocalCluster(bookies=3, zookeeper=False) as own:
        yield own


def in_its_own_process(
    mode: str, cluster: LocalCluster, scratch: Path, environment: dict[str, str]
) -> tuple[dict[str, Any], str]:
    """Run `where.py`, and return its result and all other output."""
    arguments = {
        "mode": mode, "metadata": cluster.uri, "password": SECRET, "scratch": str(scratch)
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(WHERE), json.dumps(arguments)],
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
    )
    stackless = [line for line in done.stderr.splitlines() if not line.startswith("\tat ")]
    assert done.returncode == 0, "\n".join([done.stdout, *stackless])
    *others, told = done.stdout.splitlines()
    return json.loads(told), "\n".join(others) + done.stderr


def check_everything(found: dict[str, Any]) -> None:
    assert found["written"] == RECORDS
    assert [json.loads(value)["number"] for value in found["values"]] == list(range(RECORDS))
    assert "where" in found["table"]
    assert found["pieces"] == [{"b": 0}, {"b": 2}, {"b": 4}]
    assert found["latest"] == {str(key): max(range(key, RECORDS, KEYS)) for key in range(KEYS)}
    assert found["ended"] is True
    assert found["copied"] == found["values"]
    assert found["told"].startswith("True stream wheer does not exist")
    assert SECRET not in json.dumps(found)


def test_spark_connect_reads_and_writes(
    cluster: LocalCluster, client: blocking.Client, tmp_path: Path
) -> None:
    for name in ("where", "copy"):
        forget(client, name)
    found, said = in_its_own_process(
        "connect", cluster, tmp_path, {"PYSPARK_PYTHON": sys.executable}
    )
    assert found["session"].startswith("pyspark.sql.connect")
    check_everything(found)
    assert SECRET not in said


def test_executors_run_with_a_package_sent_to_them(
    cluster: LocalCluster, client: blocking.Client, tmp_path: Path
) -> None:
    for name in ("where", "copy"):
        forget(client, name)
    bare = python_without_quire(tmp_path)
    # Processes that Spark starts on the driver have the package, like the driver itself.
    sources = str(Path(quire.__file__).parents[1])
    found, said = in_its_own_process(
        "executors", cluster, tmp_path, {"PYSPARK_PYTHON": str(bare), "PYTHONPATH": sources}
    )
    assert found["before"] == [""]  # Otherwise the following proves nothing.
    assert all("quire.zip" in where for where in found["after"]), found["after"]
    check_everything(found)
    # The password is in no plan, no log and no record of the session.
    assert SECRET not in said
    events = "".join(Path(name).read_text(errors="replace") for name in found["events"])
    assert "SparkListenerSQLExecutionStart" in events
    assert "WriteToDataSourceV2" in events
    assert SECRET not in events


def test_dynamic_executor_allocation_loses_nothing(
    cluster: LocalCluster, client: blocking.Client, tmp_path: Path
) -> None:
    """Dynamic allocation ends idle executors, and no row depends on them afterwards."""
    for name in ("where", "copy"):
        forget(client, name)
    found, _ = in_its_own_process("dynamic", cluster, tmp_path, {"PYSPARK_PYTHON": sys.executable})
    busy, idle = found["counts"][::2], found["counts"][1::2]
    assert all(busy), found["counts"]
    assert not any(idle), found["counts"]
    assert found["numbers"] == list(range(2 * RECORDS))


def forget(client: blocking.Client, stream: str) -> None:
    """Delete the stream of a former test that used the same name on this cluster."""
    with client.namespace("/streams", password=SECRET.encode(), create=True) as streams:
        if streams.exists(stream):
            streams.delete_stream(stream)


def python_without_quire(directory: Path) -> Path:
    """This Python with all that is installed, but for what .pth files add: our sources."""
    packages = Path(json.__file__).parents[1]
    site = next(path for path in sys.path if path.endswith("site-packages"))
    script = directory / "python-without-quire"
    script.write_text(
        "#!/bin/sh\n"
        f'PYTHONPATH="{packages}:{site}:$PYTHONPATH" exec "{os.path.realpath(sys.executable)}" '
        '-S "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def test_spark_submit_runs_a_command(
    cluster: LocalCluster, client: blocking.Client, tmp_path: Path
) -> None:
    """The command runs in the session of the spark-submit that started it."""
    forget(client, "submitted")
    (tmp_path / "rows.csv").write_text("id\n1\n2\n")
    (tmp_path / "run_quire.py").write_text("from quire.cli.main import main\n\nmain()\n")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [
        str(submit), "--master", "local[1]", "--conf", "spark.ui.enabled=false", "run_quire.py",
        "pipeline", "ingest", "rows.csv", "--stream", "submitted", "--create", "--json",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "QUIRE_METADATA": cluster.uri,
        "QUIRE_PASSWORD": SECRET,
    }
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["records"] == 2
    assert SECRET not in done.stdout + done.stderr
    other = subprocess.run(
        [*command, "--master", "local[2]"],
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, env=environment,
    )  # fmt: skip
    assert other.returncode == 2
    # spark-submit makes one of the two outputs of its program.
    assert "the master of Spark cannot be set" in other.stdout
