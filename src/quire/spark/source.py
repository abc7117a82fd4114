"""The data source `quire`: `spark.read.format("quire")`, `df.write.format("quire")`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from quire.client.datasets.schema import DatasetSchema
from quire.errors import UsageError
from quire.spark.ledgers.reader import QuirePushdownReader, QuireReader, spark_schema
from quire.spark.ledgers.typed_reader import TypedPushdownReader, TypedReader, read_schema
from quire.spark.ledgers.writer import QuireWriter
from quire.spark.options import ReadOptions, WriteOptions, reading_kind, writes_streams
from quire.spark.streams.options import StreamReadOptions, TableOptions
from quire.spark.streams.reader import QuireStreamBatchReader, QuireStreamPushdownReader
from quire.spark.streams.reader import spark_schema as stream_schema
from quire.spark.streams.source import QuireStreamSource, RefusedStreamSource
from quire.spark.streams.write_options import StreamWriteOptions
from quire.spark.streams.writer import StreamBatchWriter, StreamQueryWriter
from quire.spark.tables import TableReader, table_schema
from quire.spark.worker import client, plainly


class QuireDataSource(DataSource):  # type: ignore[misc]
    """The data source `quire`, which provides streams, ledgers, datasets and tables of metadata.

    See `quire.spark` for the options.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "quire"

    @plainly
    def schema(self) -> StructType:
        """Return the columns that the options select.

        Raises UsageError for an invalid option, and MetadataError if the schema of a dataset cannot
        be read.
        """
        match reading_kind(self.options):
            case "table":
                return table_schema(TableOptions.parse(self.options).table)
            case "streams":
                return stream_schema(StreamReadOptions.parse(self.options).columns)
        known = self._dataset_schema()
        options = ReadOptions.parse(self.options, typed=known is not None)
        return spark_schema(options.columns) if known is None else read_schema(options, known)

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for a batch query. Raises the errors of `schema`."""
        match reading_kind(self.options):
            case "table":
                return TableReader(TableOptions.parse(self.options), schema)
            case "streams":
                wanted = StreamReadOptions.parse(self.options)
                if wanted.pushdown:
                    return QuireStreamPushdownReader(wanted, schema)
                return QuireStreamBatchReader(wanted, schema)
        known = self._dataset_schema()
        options = ReadOptions.parse(self.options, typed=known is not None)
        if known is not None:
            typed = TypedPushdownReader if options.pushdown else TypedReader
            return typed(options, schema, known)
        kind = QuirePushdownReader if options.pushdown else QuireReader
        return kind(options, schema)

    def _dataset_schema(self) -> DatasetSchema | None:
        """Return the schema of the dataset, or None if its entries, or ledgers, are read."""
        options = ReadOptions.parse(self.options, typed=True)
        if options.dataset is None:
            return None
        with client(options.metadata, options.tls) as connected:
            return connected.datasets.read_schema(options.dataset)

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for a streaming query.

        If an option is not valid, the reader raises the UsageError at its first call.
        """
        try:
            if reading_kind(self.options) != "streams":
                raise UsageError(
                    "a streaming query can read only streams",
                    remedy="Set one of the options 'stream', 'streams', 'streamPattern' and "
                    "'topic'",
                )
            return QuireStreamSource(StreamReadOptions.parse(self.options, streaming=True), schema)
        except UsageError as error:
            return RefusedStreamSource(error)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> QuireWriter | StreamBatchWriter:
        """Return the writer for a batch job.

        Raises UsageError for an invalid option or column. For streams, the writer plans the batch
        in the metadata store here, which also raises the errors of opening the namespace and of
        `quire.streams.publish.publishing.begin`.
        """
        if writes_streams(self.options):
            streams = StreamWriteOptions.parse(self.options, streaming=False)
            return StreamBatchWriter(streams, schema, overwrite)
        return QuireWriter(WriteOptions.parse(self.options), schema, overwrite)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamQueryWriter:
        """Return the writer for a streaming query.

        Raises UsageError for an invalid option or column, NoSuchNamespaceError, and
        NoSuchStreamError.
        """
        options = StreamWriteOptions.parse(self.options, streaming=True)
        return StreamQueryWriter(options, schema, overwrite)
