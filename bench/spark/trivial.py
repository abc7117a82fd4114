"""The yardstick: a source that generates rows, and a sink that only records when rows arrive.

Their rates are what Spark allows a data source in Python.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

ROWS_PER_BATCH = 4_096
NS_PER_MS = 1_000_000


class TrivialSource(DataSource):  # type: ignore[misc]
    """A source of `rows` values of `size` bytes in `tasks` partitions.

    As a stream, it produces `rate` values per second, each with the time in ns at which it was due.
    """

    @classmethod
    def name(cls) -> str:
        return "trivial"

    def schema(self) -> str:
        return "id bigint, value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        rows, size, tasks = (int(self.options[name]) for name in ("rows", "size", "tasks"))
        return TrivialReader(rows, size, tasks)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TrivialStream(int(self.options["rate"]))


def batch_of(first: int, values: list[bytes]) -> pa.RecordBatch:
    ids = pa.array(range(first, first + len(values)), pa.int64())
    return pa.RecordBatch.from_arrays([ids, pa.array(values, pa.binary())], ["id", "value"])


class TrivialReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, rows: int, size: int, tasks: int) -> None:
        self._rows, self._size, self._tasks = rows, size, tasks

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // self._tasks) for _ in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        batch = batch_of(0, [os.urandom(self._size)] * ROWS_PER_BATCH)
        while left > 0:
            yield batch.slice(0, min(left, ROWS_PER_BATCH))
            left -= ROWS_PER_BATCH


class TrivialStream(DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, rate: int) -> None:
        self._each_ns = 10**9 // rate

    def initialOffset(self) -> dict[str, int]:
        return {"ns": time.time_ns()}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        due = (time.time_ns() - start["ns"]) // self._each_ns
        return {"ns": start["ns"] + due * self._each_ns}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["ns"], end["ns"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        start, end = partition.value
        due = range(start + self._each_ns, end + 1, self._each_ns)
        yield batch_of(0, [b"%d" % ns for ns in due])


class ArrivalSink(DataSource):  # type: ignore[misc]
    """A sink that writes the latency of each row in ns to files in `directory`."""

    @classmethod
    def name(cls) -> str:
        return "arrivals"

    def schema(self) -> str:
        return "value binary"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return ArrivalWriter(self.options["directory"])


class ArrivalWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    def __init__(self, directory: str) -> None:
        self._directory = directory

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        took: list[int] = []
        for batch in iterator:
            now = time.time_ns()
            took += [now - int(value) for value in batch.column("value").to_pylist()]
        if took:
            name = f"{time.time_ns()}-{os.getpid()}.json"
            Path(self._directory, name).write_text(json.dumps(took))
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass
