"""The options of writing to streams, typed. Pure, without Spark."""

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
"""Spark hands its own options of a streaming query to the sink."""


@dataclass(frozen=True, slots=True)
class StreamWriteOptions:
    metadata: str
    namespace: str
    streams: tuple[str, ...]
    """The names, or patterns (`orders-*`) of existing streams."""
    stream_column: str | None = None
    """The column with the name of the stream that a row goes to."""
    password: bytes = field(default=b"", repr=False)
    value_column: str | None = None
    txid_column: str | None = None
    order_by: str | None = None
    create_stream: bool = False
    token: str = field(default="", repr=False)
    """The fencing token of the streams."""
    txn_id: str | None = None
    """The id of a batch job. A job that was published under this id is not published again."""
    writer: str = ""
    """The identity of a streaming query's writer."""
    takeover: bool = False
    placement: str = ""
    """The placement of new ledgers, as in `WriteOptions`."""
    tls: TlsClientConfig | None = None

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        *,
        streaming: bool,
        environ: Mapping[str, str] = os.environ,
    ) -> StreamWriteOptions:
        mine, others = (QUERY_ONLY, BATCH_ONLY) if streaming else (BATCH_ONLY, QUERY_ONLY)
        known = (*STREAM_WRITING, *mine, *(OF_SPARK if streaming else ()))
        doing = f"writing streams {'from a query' if streaming else 'in a batch'}"
        given = GivenOptions(options, known, doing, (*others, *WRITING, *READING, *STREAM_READING))
        column = given.take("streamColumn", parse_name, None)
        return cls(
            metadata=given.metadata(environ),
            namespace=given.namespace(environ),
            streams=_streams(given, column),
            stream_column=column,
            password=given.password(environ),
            value_column=given.take("valueColumn", parse_name, None),
            txid_column=given.take("txidColumn", parse_name, None),
            order_by=given.take("orderBy", parse_name, None),
            create_stream=given.take("createStream", parse_boolean, False),
            token=given.take("token", check_token, ""),
            txn_id=None if streaming else given.take("txnId", _job, None),
            writer=_writer(given) if streaming else "",
            takeover=streaming and given.take("takeover", parse_boolean, False),
            placement=given.placement(environ),
            tls=given.tls(environ),
        )


def _streams(given: GivenOptions, column: str | None) -> tuple[str, ...]:
    one = given.take("stream", parse_stream, None)
    several = given.take("streams", parse_streams, None)
    if (one is None) == (several is None):
        raise UsageError(
            "nothing says which stream to write"
            if one is None
            else "options 'stream' and 'streams' exclude each other",
            remedy="Set 'stream', or 'streams' with 'streamColumn'",
        )
    if (several is None) != (column is None):
        raise UsageError(
            "options 'streams' and 'streamColumn' go together: the streams that may be written, "
            "and the column that says which of them a row goes to"
        )
    return several or (one or "",)


def _job(text: str) -> str:
    return check_key_name(text, "a job")


def _writer_name(text: str) -> str:
    return check_key_name(text, "a writer")


def parse_streams(text: str) -> tuple[str, ...]:
    """Return the names and patterns of a list with commas. Raises UsageError."""
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise UsageError(f"a name is empty: {text!r}")
    for name in names:
        if not set(name) & WILDCARDS:
            parse_stream(name)
    return tuple(dict.fromkeys(names))


def _writer(given: GivenOptions) -> str:
    """What stays the same when a query is started again: its name, or where its checkpoint is."""
    if (chosen := given.take("writerId", _writer_name, None)) is not None:
        return chosen
    if (query := given.take("queryName", parse_name, None)) is not None:
        return _writer_name(f"query:{query}")
    place = given.take("checkpointLocation", parse_name, None)
    if place is None:
        raise UsageError(
            "nothing names the writer, so that its batches could be told from those of others",
            remedy="Set the option 'writerId' (or name the query)",
        )
    return f"checkpoint:{hashlib.sha256(place.rstrip('/').encode()).hexdigest()[:32]}"
