"""The streams and records of tests of the jobs `offload` and `history`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from quire.blocking import Namespace
from quire.spark.jobs import ClusterOptions, offload
from quire.spark.jobs.archive.manifest import DATA, OffloadHistory
from quire.spark.jobs.archive.parquet_files import read_file
from quire.spark.jobs.offload import OffloadResult
from quire.streams import DLSN

NAMESPACE = "/spark/offload"

Fact = tuple[DLSN, int, int, bytes]
"""The position, txid, sequence id and payload of a record."""
Run = Callable[..., OffloadResult]
"""A function that offloads to the directory of a test, with these options."""


def offloader(spark: SparkSession, uri: str, name: str, target: Path, **always: Any) -> Run:
    """Return a function that offloads a stream, or those in its option `streams`.

    `always` are options of every run. None waits for another job.
    """

    def done(**options: Any) -> OffloadResult:
        given: dict[str, Any] = {"wait_s": 0.0, **always, **options}
        names = given.pop("streams", name)
        return offload(spark, ClusterOptions(uri), NAMESPACE, names, str(target), **given)

    return done


def facts(streams: Namespace, name: str, **how: Any) -> list[Fact]:
    """Return the records of a stream as its reader delivers them."""
    return [(r.position, r.txid, r.sequence, r.payload) for r in streams.open_reader(name, **how)]


def facts_of_rows(rows: Any) -> list[Fact]:
    return [
        (DLSN(row["segment"], row["entry"], row["slot"]), row["txid"], row["sequence"],
         bytes(row["value"]))
        for row in rows
    ]  # fmt: skip


def offloaded(directory: Path, name: str) -> list[Fact]:
    """Return the records in the files that the newest manifest names, in order."""
    history = OffloadHistory(str(directory), name)
    manifest = history.newest()
    files = manifest.files if manifest else ()
    return facts_of_rows(
        row for f in files for b in read_file(history, f.name) for row in b.to_pylist()
    )


def data_files(directory: Path, name: str) -> set[str]:
    return set(OffloadHistory(str(directory), name).store.files(DATA, recursive=True))


def counted_files(directory: Path, name: str) -> set[str]:
    manifest = OffloadHistory(str(directory), name).newest()
    return {file.name for file in manifest.files} if manifest else set()


def cluster_options(uri: str) -> ClusterOptions:
    return ClusterOptions(uri)


def growing(
    streams: Namespace, name: str, total: int, per_segment: int, **settings: Any
) -> Iterator[int]:
    """Append `total` records in segments of `per_segment`, one more segment at each step.

    Yields the number of records before the segment that was just written. The last segment stays in
    progress until the end.
    """
    streams.create_stream(name, settings=settings)
    with streams.open_writer(name) as writer:
        for at in range(0, total, per_segment):
            writer.append_many([b"%08d" % n for n in range(at, min(at + per_segment, total))])
            if at + per_segment < total:
                writer.roll()
            yield at
