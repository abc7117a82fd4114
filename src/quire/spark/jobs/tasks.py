"""Work that Spark's tasks do in pieces, without passing payloads through the JVM.

A piece says what to do (ledger, first, last, bookie), and its task answers with a few numbers.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from quire import blocking
from quire.client.cluster.placement import parse_placement
from quire.config import ClientConfig, TlsClientConfig

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

Piece = Mapping[str, Any]
"""The description of the work of one task, as values that JSON can represent.

The answer of the task has the same form.
"""

PIECES_MAX = 20_000
"""The largest number of pieces in one Spark job. Larger work is divided into several jobs.

Planning more pieces costs more than it gains.
"""
POLL_S = 0.2


class ProgressCallback(Protocol):
    """A function that receives the progress of a job, from any thread."""

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Report the progress.

        Args:
            what: What is being done.
            done: The number of units that are done.
            total: The number of units in total, or None if it is unknown.
        """
        ...


def silent(what: str, done: int, total: int | None) -> None:
    """Ignore the progress of a job."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A cluster, as the driver and its tasks reach it. The password does not appear in a `repr`."""

    metadata: str
    """The metadata URI of the cluster."""
    password: bytes = field(default=b"", repr=False)
    """The password of the ledgers."""
    tls: TlsClientConfig | None = None
    """The TLS settings of connections to bookies. Every machine that runs tasks needs the files."""
    placement: str = ""
    """The placement of new ledgers and new copies, in the form of `--placement` and
    QUIRE_PLACEMENT, or "" for any bookies. Every machine that runs tasks needs the files that it
    names."""

    def options(self, *, writing: bool = False) -> dict[str, str]:
        """Return the options of the data source for reading or writing this cluster.

        Raises UnicodeDecodeError if the password is not UTF-8, because an option is text.
        """
        given = {"metadata": self.metadata}
        if self.password:
            given["password"] = self.password.decode()
        if writing and self.placement:
            given["placement"] = self.placement
        if self.tls is not None:
            given["tlsCa"] = self.tls.ca or "system"
            files = {
                "tlsCert": self.tls.certificate,
                "tlsKey": self.tls.private_key,
                "tlsKeyPasswordFile": self.tls.key_password_file,
            }
            given |= {name: str(file) for name, file in files.items() if file is not None}
            if not self.tls.verify_host_name:
                given["tlsAnyHostName"] = "true"
        return given

    @contextmanager
    def client(self) -> Iterator[blocking.Client]:
        """Yield the client of this process for the cluster, which all tasks and calls share."""
        from quire.spark import worker

        with worker.client(self.metadata, self.tls, self.placement) as client:
            yield client

    def config(self) -> ClientConfig:
        """Return the configuration of a client for this cluster.

        Raises UsageError if the placement is not valid.
        """
        config = ClientConfig(tls=self.tls)
        if self.placement:
            config = replace(config, placement=parse_placement(self.placement))
        return config


def run_pieces(
    spark: SparkSession,
    pieces: Sequence[Piece],
    do: Callable[[Piece], Piece],
    *,
    what: str,
    progress: ProgressCallback = silent,
) -> list[Piece]:
    """Run one task for each piece, and return the answers in the order of the pieces.

    `do` runs in a Python worker. It may run twice (a retry, or speculation), even at the same time,
    so its effects must be the same then. An error that it raises fails the job once Spark's retries
    are used up.
    """
    answers: list[Piece] = []
    for at in range(0, len(pieces), PIECES_MAX):
        turn = [json.dumps(piece) for piece in pieces[at : at + PIECES_MAX]]
        with watched(spark, what, progress, before=at, total=len(pieces)):
            answers += _run(spark, turn, do)
        progress(what, at + len(turn), len(pieces))
    return answers


def _run(spark: SparkSession, pieces: list[str], do: Callable[[Piece], Piece]) -> list[Piece]:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from quire.spark.worker import prepare

        prepare()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                answer = json.dumps(do(json.loads(pieces[number])))
                yield pa.RecordBatch.from_pydict({"piece": [number], "answer": [answer]})

    numbers = spark.range(0, len(pieces), 1, numPartitions=len(pieces))
    rows = numbers.mapInArrow(task, "piece bigint, answer string").collect()
    # Even with speculation there is one answer for each piece: Spark uses one attempt of a task.
    return [json.loads(row.answer) for row in sorted(rows, key=lambda row: int(row.piece))]


@contextmanager
def watched(
    spark: SparkSession,
    what: str,
    progress: ProgressCallback,
    *,
    before: int = 0,
    total: int | None = None,
) -> Iterator[None]:
    """Report the finished tasks of what this thread does in the block, as progress of `what`.

    `before` tasks of it were finished earlier, and count too. `total` is None for the number of
    tasks that Spark has planned so far. Spark Connect has no tracker, so nothing is reported there.
    """
    if progress is silent or not hasattr(spark, "_jsc"):
        yield
        return
    context = spark.sparkContext
    group, stop = f"quire-{uuid.uuid4()}", threading.Event()
    context.setJobGroup(group, what)

    def watch() -> None:
        tracker = context.statusTracker()
        while not stop.wait(POLL_S):
            try:
                done, planned = _far(tracker, group)
            except Exception:  # noqa: BLE001 - Java has ended, and the job fails with the reason
                return
            progress(what, before + done, planned if total is None else total)

    watcher = threading.Thread(target=watch, name="quire-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", None)


def _far(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """Return how many tasks of a job group are done, and how many are planned."""
    done = planned = 0
    for job in tracker.getJobIdsForGroup(group):
        for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
            info = tracker.getStageInfo(stage)
            done += getattr(info, "numCompletedTasks", 0)
            planned += getattr(info, "numTasks", 0)
    return done, planned
