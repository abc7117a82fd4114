"""The data source `quire`: `spark.read.format("quire")`, `df.write.format("quire")`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from quire.spark.options import ReadOptions, WriteOptions
from quire.spark.reader import QuirePushdownReader, QuireReader, spark_schema
from quire.spark.worker import plainly
from quire.spark.writer import QuireWriter


class QuireDataSource(DataSource):  # type: ignore[misc]
    """Ledgers and datasets as DataFrames; see `quire.spark`."""

    pushdown = False
    """Default of the option of that name."""

    @classmethod
    def name(cls) -> str:
        return "quire"

    @plainly
    def schema(self) -> StructType:
        return spark_schema(ReadOptions.parse(self.options).columns)

    @plainly
    def reader(self, schema: StructType) -> QuireReader:
        options = ReadOptions.parse(self.options, pushdown=self.pushdown)
        kind = QuirePushdownReader if options.pushdown else QuireReader
        return kind(options, schema)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> QuireWriter:
        return QuireWriter(WriteOptions.parse(self.options), schema, overwrite)


class QuirePushdownDataSource(QuireDataSource):
    """What `register` takes in a session where filters are pushed down."""

    pushdown = True
