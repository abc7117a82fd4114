"""Offloading a stream that is being written, by drivers that are killed.

QUIRE_OFFLOAD_RECORDS is the number of records (50,000).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from quire import blocking
from quire.errors import JobError
from quire.spark import worker
from quire.spark.jobs import ClusterOptions, history, offload
from quire.testing.cluster import LocalCluster
from tests.support.sessions import kill_session
from tests.support.spark.offloads import NAMESPACE, counted_files, data_files
from tests.support.spark.streams import append, numbered

pytestmark = [pytest.mark.spark, pytest.mark.long]

RECORDS = int(os.environ.get("QUIRE_OFFLOAD_RECORDS", "50000"))
DRIVER = Path(__file__).parents[2] / "support" / "spark" / "offload_driver.py"
LIFE_S = 120.0 + RECORDS / 5_000
"""The longest that a driver may take."""


def test_an_offload_survives_kills_during_writes(
    spark: SparkSession, cluster: LocalCluster, client: blocking.Client, name: str, tmp_path: Path
) -> None:
    """A writer writes and rolls; two drivers are killed with -9, one between copying and the
    manifest, one between the manifest and the truncation; a third ends. History and tail are what
    was written, and the ledgers of what was offloaded are gone."""
    target, options = tmp_path / "history", ClusterOptions(cluster.uri)
    streams = client.namespace(NAMESPACE, create=True)
    streams.create_stream(name, settings={"entry_bytes": 16_384})
    hurry, written, close = threading.Event(), threading.Event(), threading.Event()
    expected = [b"%012d" % number for number in range(RECORDS)]

    def write() -> None:
        """Half of it at once, a quarter while drivers live, and the last into an open segment."""
        with streams.open_writer(name) as writer:
            share = max(RECORDS // 40, 1)
            for at in range(0, RECORDS, share):
                for first in range(at, min(at + share, RECORDS), 5_000):
                    writer.append_many(expected[first : min(first + 5_000, at + share)])
                if at < RECORDS * 3 // 4:
                    writer.roll()
                    if at > RECORDS // 2:
                        hurry.wait(0.5)
            written.set()
            close.wait()

    before = set(client.list_ledgers())
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for step in ("copied", "committed"):
            driver(cluster, name, target, tmp_path, step)
        hurry.set()
        assert written.wait(LIFE_S)
        result = offload(spark, options, NAMESPACE, name, str(target), truncate=True)
        frame = history(spark, options, NAMESPACE, name, str(target))
        rows = frame.select("sequence", "value").orderBy("sequence").toArrow()
    finally:
        hurry.set()
        close.set()
        writer.join()
    assert rows.column("sequence").to_pylist() == list(range(RECORDS))
    assert rows.column("value").to_pylist() == expected
    segments = streams.segments(name)
    # The newest offloaded segment, the one being written, and perhaps one more node or ledger.
    assert len(segments) <= 3
    assert len(set(client.list_ledgers()) - before) <= 3
    assert data_files(target, name) == counted_files(target, name)
    total = result.streams[0].total_records
    assert RECORDS * 3 // 4 <= total < RECORDS
    print(
        f"\n{RECORDS:,} records offloaded while they were written: 2 drivers killed, {total:,} in "
        f"{len(counted_files(target, name))} files, {RECORDS - total:,} live, "
        f"{len(segments)} of 32 segments left"
    )


def test_an_offload_without_bookies_is_one_error(spark: SparkSession, tmp_path: Path) -> None:
    """One error that names what is missing, in bounded time; nothing is lost by it."""
    target = str(tmp_path / "history")
    with LocalCluster(bookies=3) as cluster, blocking.connect(cluster.uri) as client:
        streams, options = client.namespace(NAMESPACE, create=True), ClusterOptions(cluster.uri)
        for name in "abc":
            append(streams, name, numbered(0, 300), segments=3)
        offload(spark, options, NAMESPACE, "a", target)
        for bookie in cluster.bookies:
            bookie.kill()
        with pytest.raises(JobError, match="could not be read from any replica"):
            offload(spark, options, NAMESPACE, "b", target, truncate=True)
        for bookie in cluster.bookies:
            bookie.start()
        result = offload(spark, options, NAMESPACE, "*", target, truncate=True)
        assert {one.stream: one.total_records for one in result.streams} == dict.fromkeys(
            "abc", 300
        )
        assert history(spark, options, NAMESPACE, "c", target).count() == 300
        worker.close_clients()


def driver(cluster: LocalCluster, name: str, target: Path, scratch: Path, step: str) -> None:
    """A driver that kills itself there."""
    given = {
        "uri": cluster.uri, "namespace": NAMESPACE, "stream": name, "directory": str(target),
        "step": step, "scratch": str(scratch), "turn_bytes": 1 + RECORDS * 10,
    }  # fmt: skip
    log = scratch / f"{step}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(given)],
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(LIFE_S)
        finally:
            kill_session(process.pid)
            process.wait()
    assert status == -signal.SIGKILL, log.read_text()[-3_000:]
