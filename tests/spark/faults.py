"""A data source that fails where it is told to."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

from pyspark.sql.types import StructType

from quire.spark.options import WriteOptions
from quire.spark.source import QuireDataSource
from quire.spark.writer import QuireWriter, task


class FaultyWriter(QuireWriter):
    fault = ""

    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(self._with_trouble(iterator))

    def _with_trouble(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """In the first attempt of every second partition, after some rows were written."""
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
    """As `quire`; the option `fault` names the trouble."""

    @classmethod
    def name(cls) -> str:
        return "quire_faulty"

    def writer(self, schema: StructType, overwrite: bool) -> FaultyWriter:
        options = dict(self.options)
        fault = options.pop("fault")
        writer = FaultyWriter(WriteOptions.parse(options), schema, overwrite)
        writer.fault = fault
        return writer
