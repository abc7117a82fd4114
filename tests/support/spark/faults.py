"""Data sources that fail where the test decides."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from quire.errors import QuireError
from quire.spark.ledgers.writer import QuireWriter, task
from quire.spark.options import WriteOptions
from quire.spark.source import QuireDataSource
from quire.spark.streams.sink import Committer
from quire.spark.streams.write_options import StreamWriteOptions
from quire.spark.streams.writer import StreamBatchWriter, StreamQueryWriter, query_and_batch
from quire.streams.publish import publishing
from quire.streams.publish.publishing import StreamBatch


class FaultyWriter(QuireWriter):
    fault = ""

    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(self._with_trouble(iterator))

    def _with_trouble(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Yield the rows of a task, but fail after some of them as `fault` demands.

        Most faults are in the first attempt of every second partition. With "all tasks raise",
        every attempt of partition 1 fails.
        """
        partition, attempt = task()
        hit = partition % 2 == 1 and attempt == 0
        for batch in iterator:
            yield batch
            if hit and self.fault == "task raises":
                raise RuntimeError("injected: the task raises")
            if hit and self.fault == "worker dies":
                os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "all tasks raise" and partition == 1:
            raise RuntimeError("injected: every attempt of the task raises")

    def publish(self, *arguments: Any) -> Any:
        if self.fault == "before publication":
            raise RuntimeError("injected: before publication")
        published = super().publish(*arguments)
        if self.fault == "after publication":
            raise RuntimeError("injected: after publication")
        if self.fault == "lost answer":
            published = super().publish(*arguments)
        return published


class FaultyDataSource(QuireDataSource):
    """A data source like `quire`, whose option `fault` names a fault."""

    @classmethod
    def name(cls) -> str:
        return "quire_faulty"

    def writer(self, schema: StructType, overwrite: bool) -> FaultyWriter:
        options = dict(self.options)
        fault = options.pop("fault")
        writer = FaultyWriter(WriteOptions.parse(options), schema, overwrite)
        writer.fault = fault
        return writer


# -- streams ----------------------------------------------------------------------------------


WAIT_S = 120.0
PAUSE_S = 1_200.0
"""Seconds for which a process pauses that is to outlive its driver. The test ends it before."""


class Faults:
    """The faults that a test has ordered, each of which happens once.

    A fault is a file in a directory, named after the fault, the step and the batch. The process
    that reaches the step renames the file before it fails.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def take(self, name: str) -> bool:
        try:
            os.rename(f"{self.directory}/{name}", f"{self.directory}/taken.{name}.{os.getpid()}")
        except FileNotFoundError:
            return False
        return True

    def wait(self, name: str, at_most_s: float = WAIT_S) -> None:
        """Wait until the test has created the file `name`, or raise TimeoutError."""
        deadline = time.monotonic() + at_most_s
        while not os.path.exists(f"{self.directory}/{name}"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the test did not create {name}")
            time.sleep(0.02)

    def make(self, name: str) -> None:
        with open(f"{self.directory}/{name}", "w"):
            pass

    def step(self, step: str, batch: int | str = "any") -> None:
        """Cause the fault that the test has ordered for this step of the driver, if there is one.

        For the fault `kill` the driver only waits. The test kills it when it finds the file
        `taken.kill...`. For the fault `die` only the process dies that plans or commits.
        """
        for number in (batch, "any"):
            if self.take(f"die.{step}.{number}"):
                os.kill(os.getpid(), signal.SIGKILL)
            if self.take(f"kill.{step}.{number}"):
                self.wait("never")
            if self.take(f"pause.{step}.{number}"):
                self.wait("go-on", PAUSE_S)
            if self.take(f"raise.{step}.{number}"):
                raise RuntimeError(f"injected: {step}")

    def rows(self, batch: int | str, rows: Iterator[Any]) -> Iterator[Any]:
        """Yield the rows of a task, and cause the faults that are ordered after its first rows."""
        partition, attempt = task()
        place = f"{batch}.{partition}"
        if attempt:
            self.make(f"tried-again.{place}")
        for some in rows:
            yield some
            if self.take(f"task-slow.{place}"):
                self.wait(f"tried-again.{place}")  # By speculation, on another executor.
            if self.take(f"task-raises.{place}"):
                raise RuntimeError("injected: the task raises")
            if self.take(f"worker-dies.{place}"):
                os.kill(os.getpid(), signal.SIGKILL)
            if self.take(f"executor-dies.{place}"):
                os.kill(java_above(os.getpid()), signal.SIGKILL)
            if self.take(f"bookie-dies.{place}"):
                self.wait(f"bookie-dead.{place}")


def java_above(pid: int) -> int:
    """Return the process id of the JVM to which a Python worker belongs."""
    while True:
        with open(f"/proc/{pid}/stat") as stat:
            name, rest = stat.read().split("(", 1)[1].rsplit(")", 1)
        if name == "java":
            return pid
        pid = int(rest.split()[1])


class FaultyCommitter(Committer):
    def __init__(self, committer: Committer, faults: Faults) -> None:
        super().__init__(committer._options)
        self.faults = faults

    async def publish(self, streams: Any, name: str, batch: StreamBatch, built: Any) -> None:
        faults, number = self.faults, number_of(batch)
        merge, commit = publishing.merge, publishing._commit

        async def faulty_merge(*arguments: Any) -> Any:
            faults.step("before-merge", number)
            merged = await merge(*arguments)
            faults.step("after-merge", number)
            return merged

        counters = streams.client.counters
        begun = counters.stream_commits_retried

        async def faulty_commit(*arguments: Any) -> Any:
            attempts = counters.stream_commits_retried - begun
            if attempts:
                faults.make(f"retried.{number}.{attempts}.{os.getpid()}")
                faults.step("in-retry", number)
            faults.step("before-transaction", number)
            try:
                await commit(*arguments)
            except QuireError as error:
                faults.make(f"refused.{type(error).__name__}.{number}.{os.getpid()}")
                raise
            faults.step("after-transaction", number)

        publishing.merge, publishing._commit = faulty_merge, faulty_commit  # type: ignore[assignment]
        try:
            await super().publish(streams, name, batch, built)
        finally:
            publishing.merge, publishing._commit = merge, commit
        faults.step("after-publication", number)

    async def clean_up(self, streams: Any, name: str, batch: StreamBatch, built: Any) -> None:
        await super().clean_up(streams, name, batch, built)
        self.faults.step("after-sweep", number_of(batch))

    def abort(self, messages: Any, *planned: Any) -> None:
        self.faults.step("before-abort")
        super().abort(messages, *planned)
        self.faults.step("after-abort")


def number_of(batch: StreamBatch) -> int | str:
    return batch.key.number if batch.key.writer else "job"


class FaultyBatchWriter(StreamBatchWriter):
    def __init__(self, faults: Faults, *arguments: Any) -> None:
        faults.step("before-claim", "job")
        super().__init__(*arguments)
        faults.step("after-claim", "job")
        self.faults = faults
        self.committer = FaultyCommitter(self.committer, faults)

    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(self.faults.rows("job", iterator))


class FaultyQueryWriter(StreamQueryWriter):
    def __init__(self, faults: Faults, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.faults = faults
        self.committer = FaultyCommitter(self.committer, faults)

    async def make_plan(self, client: Any) -> Any:
        self.faults.step("before-claim")
        plan = await super().make_plan(client)
        self.faults.step("after-claim")
        return plan

    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(self.faults.rows(query_and_batch()[1], iterator))

    def commit(self, messages: Any, batchId: int) -> None:
        self.faults.step("before-commit", batchId)
        super().commit(messages, batchId)
        self.faults.step("after-commit", batchId)


class FaultyStreams(QuireDataSource):
    """A data source like `quire` for streams, whose option `faults` is a directory of `Faults`."""

    @classmethod
    def name(cls) -> str:
        return "quire_faulty_streams"

    def _parsed(self, streaming: bool) -> tuple[Faults, StreamWriteOptions]:
        options = dict(self.options)
        faults = Faults(options.pop("faults"))
        return faults, StreamWriteOptions.parse(options, streaming=streaming)

    def writer(self, schema: StructType, overwrite: bool) -> StreamBatchWriter:
        return FaultyBatchWriter(*self._parsed(False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamQueryWriter:
        return FaultyQueryWriter(*self._parsed(True), schema, overwrite)


class Numbers(DataSource):
    """A data source with the rows 0, 1, 2, ... in `value`, up to the option `total`.

    Each micro-batch has `perBatch` rows, in `partitions` consecutive parts. No more rows come once
    the file `stopFile` exists.
    """

    @classmethod
    def name(cls) -> str:
        return "quire_numbers"

    def schema(self) -> str:
        return "value string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        total, per_batch, partitions = (
            int(self.options[name]) for name in ("total", "perBatch", "partitions")
        )
        return NumbersReader(total, per_batch, partitions, self.options.get("stopFile", ""))


class NumbersReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    PIECE = 50

    def __init__(self, total: int, per_batch: int, partitions: int, stop_file: str) -> None:
        self.stop_file = stop_file
        self.total = total
        self.per_batch = per_batch
        self.count = partitions

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        if self.stop_file and os.path.exists(self.stop_file):
            return start
        return {"next": min(self.total, start["next"] + self.per_batch)}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        ends = [
            start["next"] + (end["next"] - start["next"]) * k // self.count
            for k in range(self.count + 1)
        ]
        return [InputPartition((first, behind)) for first, behind in pairwise(ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        first, behind = partition.value
        for at in range(first, behind, self.PIECE):
            numbers = range(at, min(behind, at + self.PIECE))
            yield pa.RecordBatch.from_pydict({"value": pa.array(map(str, numbers))})
