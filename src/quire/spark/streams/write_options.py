"""The typed options for writing streams. This module needs no Spark and does no I/O."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from quire.config import TlsClientConfig
from quire.errors import UsageError
from quire.spark.options import (
    BATCH_ONLY,
    QUERY_ONLY,
    READING,
    STREAM_READING,
    STREAM_WRITING,
    WRITING,
    GivenOptions,
    parse_boolean,
    parse_name,
    parse_stream,
)
from quire.streams.namespace.names import check_key_name, check_token

WILDCARDS = frozenset("*?[")
"""The characters that turn a name into a pattern."""
OF_SPARK = ("checkpointLocation", "queryName")
"""Options that Spark itself passes to the sink of a streaming query."""


@dataclass(frozen=True, slots=True)
class StreamWriteOptions:
    """The options for writing streams."""

    metadata: str
    """The metadata URI of the cluster, by default from QUIRE_METADATA of the driver."""
    namespace: str
    """The namespace, by default from QUIRE_NAMESPACE of the driver, or else /streams."""
    streams: tuple[str, ...]
    """The names of streams, or patterns (`orders-*`) of streams that exist."""
    stream_column: str | None = None
    """The column with the name of the stream of each row, if there are several."""
    topic: str | None = None
    """The topic whose partitions are written, instead of `streams`."""
    password: bytes = field(default=b"", repr=False)
    """The password of the ledgers, by default from QUIRE_PASSWORD of the driver."""
    value_column: str | None = None
    """The column that becomes the records. By default it is `value`, or the only other column."""
    txid_column: str | None = None
    """The column with the transaction ids, for streams whose setting `txids` is "given"."""
    key_column: str | None = None
    """The column with the keys of the records. A null is a record without a key."""
    headers_column: str | None = None
    """The column with the headers of the records: a map, or an array of structs (key, value)."""
    time_column: str | None = None
    """The column with the event times of the records. A null is a record without one."""
    order_by: str | None = None
    """The column by which the sink sorts the rows of each partition."""
    create_stream: bool = False
    """Whether to create streams that do not exist."""
    token: str = field(default="", repr=False)
    """The fencing token of the streams."""
    txn_id: str | None = None
    """An id that makes a batch write idempotent.

    What was published under this id is not published again.
    """
    writer: str = ""
    """The name under which streams remember the batches of a streaming query.

    It is "" for a batch write.
    """
    takeover: bool = False
    """Whether this query may continue after the batches of another query of the same writer."""
    fence_writers: bool = False
    """Whether the commit may fence a writer that opened a stream after the batch was planned."""
    placement: str = ""
    """The bookies to use, as in `WriteOptions`."""
    tls: TlsClientConfig | None = None
    """The TLS settings of connections to bookies. Every machine that runs tasks needs the files."""

    @property
    def divides_rows(self) -> bool:
        """Whether rows go to several streams. Some of the streams may then get no rows."""
        return self.stream_column is not None or self.topic is not None

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        *,
        streaming: bool,
        environ: Mapping[str, str] = os.environ,
    ) -> StreamWriteOptions:
        """Parse the options that a user gave.

        Raises UsageError for an unknown option, an invalid value, or options that do not fit
        together.
        """
        mine, others = (QUERY_ONLY, BATCH_ONLY) if streaming else (BATCH_ONLY, QUERY_ONLY)
        known = (*STREAM_WRITING, *mine, *(OF_SPARK if streaming else ()))
        doing = f"writing streams {'from a query' if streaming else 'in a batch'}"
        given = GivenOptions(options, known, doing, (*others, *WRITING, *READING, *STREAM_READING))
        column = given.take("streamColumn", parse_name, None)
        topic = given.take("topic", parse_stream, None)
        return cls(
            metadata=given.metadata(environ),
            namespace=given.namespace(environ),
            streams=_streams(given, column, topic),
            stream_column=column,
            topic=None if topic is None else topic.removeprefix("/"),
            password=given.password(environ),
            value_column=given.take("valueColumn", parse_name, None),
            txid_column=given.take("txidColumn", parse_name, None),
            key_column=given.take("keyColumn", parse_name, None),
            headers_column=given.take("headersColumn", parse_name, None),
            time_column=given.take("timeColumn", parse_name, None),
            order_by=given.take("orderBy", parse_name, None),
            create_stream=given.take("createStream", parse_boolean, False),
            token=given.take("token", check_token, ""),
            txn_id=None if streaming else given.take("txnId", _job, None),
            writer=_writer(given) if streaming else "",
            takeover=streaming and given.take("takeover", parse_boolean, False),
            fence_writers=given.take("fenceWriters", parse_boolean, False),
            placement=given.placement(environ),
            tls=given.tls(environ),
        )


def _streams(given: GivenOptions, column: str | None, topic: str | None) -> tuple[str, ...]:
    one = given.take("stream", parse_stream, None)
    several = given.take("streams", parse_streams, None)
    if topic is not None:
        if any(given_too is not None for given_too in (one, several, column)):
            raise UsageError(
                "option 'topic' and the options 'stream', 'streams' and 'streamColumn' exclude "
                "each other"
            )
        if given.take("createStream", parse_boolean, False):
            raise UsageError(
                "option 'createStream' cannot create a topic",
                remedy="Create it with `quire stream create NAME --partitions N`, and leave out "
                "the option",
            )
        return ()
    if (one is None) == (several is None):
        raise UsageError(
            "no option selects the stream to write"
            if one is None
            else "options 'stream' and 'streams' exclude each other",
            remedy="Set 'stream', 'topic', or 'streams' with 'streamColumn'",
        )
    if (several is None) != (column is None):
        raise UsageError(
            "options 'streams' (the streams that may be written) and 'streamColumn' (the column "
            "with the stream of each row) must be set together"
        )
    return several or (one or "",)


def _job(text: str) -> str:
    return check_key_name(text, "a job")


def _writer_name(text: str) -> str:
    return check_key_name(text, "a writer")


def parse_streams(text: str) -> tuple[str, ...]:
    """Return the names and patterns of a list with commas.

    Raises UsageError if a name is empty or not valid.
    """
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise UsageError(
            f"a name in the list of streams {text!r} is empty", remedy="Leave out the comma"
        )
    for name in names:
        if not set(name) & WILDCARDS:
            parse_stream(name)
    return tuple(dict.fromkeys(names))


def _writer(given: GivenOptions) -> str:
    """Return a name that stays the same when a query is started again.

    It is the option `writerId`, or comes from the query's name, or from the location of its
    checkpoint.
    """
    if (chosen := given.take("writerId", _writer_name, None)) is not None:
        return chosen
    if (query := given.take("queryName", parse_name, None)) is not None:
        return _writer_name(f"query:{query}")
    place = given.take("checkpointLocation", parse_name, None)
    if place is None:
        raise UsageError(
            "the query has no name by which the stream could recognise batches that it has already",
            remedy="Set the option 'writerId', or name the query",
        )
    return f"checkpoint:{hashlib.sha256(place.rstrip('/').encode()).hexdigest()[:32]}"
