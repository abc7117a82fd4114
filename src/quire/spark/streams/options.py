"""The options for reading streams, typed. Pure, without Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quire._runtime.units import parse_duration, parse_size
from quire.config import TlsClientConfig
from quire.errors import UsageError
from quire.spark.options import (
    DEFAULT_NAMESPACE,
    ENV_METADATA,
    PARTITION_BYTES,
    READING,
    STREAM_READING,
    TABLE_READING,
    WRITING,
    GivenOptions,
    parse_boolean,
    parse_name,
    parse_partitions,
    parse_positive,
    parse_stream,
)
from quire.streams import EARLIEST
from quire.streams.namespace.names import check_subscription_name
from quire.streams.namespace.namespace import namespace_path
from quire.streams.read.arrow import COLUMNS
from quire.streams.read.positions import PLACES, Start, parse_start

STREAMS_MAX = 10_000
"""Of one read."""
MAX_TRIGGER_DELAY_S = 15 * 60.0
"""How long `minRecordsPerTrigger` may hold records back."""
TABLES = ("ledgers", "fragments", "bookies", "streams", "segments", "subscriptions", "lag")


@dataclass(frozen=True, slots=True)
class StreamPlaces:
    """Where to begin, or to end, in each stream."""

    default: Start | None
    by_stream: tuple[tuple[str, Start], ...] = ()

    def of(self, stream: str) -> Start | None:
        return dict(self.by_stream).get(stream, self.default)


@dataclass(frozen=True, slots=True)
class StreamReadOptions:
    """`stream`, `streams` or `streamPattern` says what is read."""

    metadata: str
    """The cluster's metadata URI. The default is QUIRE_METADATA of the driver's environment."""
    namespace: str = DEFAULT_NAMESPACE
    """The namespace. The default is QUIRE_NAMESPACE of the driver's environment, and then
    /streams."""
    streams: tuple[str, ...] = ()
    pattern: str | None = None
    """A pattern of names, as in a shell. `*` matches `/` too."""
    password: bytes = field(default=b"", repr=False)
    start: StreamPlaces = StreamPlaces(EARLIEST)
    end: StreamPlaces = StreamPlaces(None)
    """The place before which reading ends. None: everything that is acknowledged when the query is
    planned."""
    columns: tuple[str, ...] = COLUMNS
    pushdown: bool = False
    partition_bytes: int = PARTITION_BYTES
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    """Whether records that are gone are an error. Otherwise they are skipped."""
    tls: TlsClientConfig | None = None

    # Of a streaming query:
    records_max: int | None = None
    """The largest number of records of a micro-batch. If `bytes_max` is given too, the limit that
    is reached first counts."""
    bytes_max: int | None = None
    """The largest number of stored bytes of a micro-batch."""
    records_min: int = 0
    trigger_delay_s: float = MAX_TRIGGER_DELAY_S
    subscription: str | None = None
    """The name under which the positions of the query are stored with each stream, for
    monitoring."""

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        *,
        pushdown: bool = False,
        streaming: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> StreamReadOptions:
        """`pushdown` is the default of that option."""
        given = GivenOptions(options, STREAM_READING, "reading streams", (*READING, *WRITING))
        pattern = given.take("streamPattern", parse_name, None)
        one = given.take("stream", parse_stream, None)
        several = given.take("streams", _names, None)
        if sum(found is not None for found in (pattern, one, several)) != 1:
            raise UsageError("options 'stream', 'streams' and 'streamPattern' exclude each other")
        streams = several or ((one,) if one else ())
        end = given.take("end", _places(streams, None), StreamPlaces(None))
        if streaming and end != StreamPlaces(None):
            raise UsageError(
                "option 'end' is of no use for a streaming query",
                remedy="Read it as a batch, or stop the query, or use the trigger availableNow",
            )
        return cls(
            metadata=given.metadata(environ),
            namespace=given.namespace(environ),
            streams=streams,
            pattern=pattern,
            password=given.password(environ),
            start=given.take("start", _places(streams, EARLIEST), StreamPlaces(EARLIEST)),
            end=end,
            columns=given.columns(COLUMNS),
            pushdown=given.take("pushdown", parse_boolean, pushdown),
            partition_bytes=given.take("partitionBytes", parse_size, PARTITION_BYTES),
            min_partitions=given.take("minPartitions", parse_partitions, 1),
            fail_on_data_loss=given.take("failOnDataLoss", parse_boolean, True),
            tls=given.tls(environ),
            records_max=given.take("maxRecordsPerTrigger", parse_positive, None),
            bytes_max=given.take("maxBytesPerTrigger", parse_size, None),
            records_min=given.take("minRecordsPerTrigger", parse_positive, 0),
            trigger_delay_s=given.take("maxTriggerDelay", parse_duration, MAX_TRIGGER_DELAY_S),
            subscription=given.take("subscription", check_subscription_name, None),
        )


@dataclass(frozen=True, slots=True)
class TableOptions:
    table: str
    metadata: str
    namespace: str | None = None
    """The namespace. None: all namespaces of the store."""
    password: bytes = field(default=b"", repr=False)
    tls: TlsClientConfig | None = None

    @classmethod
    def parse(
        cls, options: Mapping[str, str], *, environ: Mapping[str, str] = os.environ
    ) -> TableOptions:
        others = (*STREAM_READING, *READING, *WRITING)
        given = GivenOptions(options, TABLE_READING, "reading tables", others)
        table = given.take("table", str.lower, "")
        if table not in TABLES:
            raise UsageError(f"there is no table {table!r}, only {', '.join(TABLES)}")
        return cls(
            table,
            given.metadata(environ),
            given.take("namespace", namespace_path, None),
            given.password(environ),
            given.tls(environ),
        )


# -- inside -----------------------------------------------------------------------------------


def _names(text: str) -> tuple[str, ...]:
    names = tuple(parse_stream(part.strip()) for part in text.split(","))
    if len(set(names)) != len(names):
        raise ValueError(f"a stream is given twice: {text}")
    if len(names) > STREAMS_MAX:
        raise ValueError(f"{len(names)} streams are more than {STREAMS_MAX}")
    return names


def _places(streams: tuple[str, ...], default: Start | None) -> Callable[[str], StreamPlaces]:
    """A parser of one place for all streams, or of a JSON object with one for each."""

    def parsed(text: str) -> StreamPlaces:
        if not text.startswith("{"):
            return StreamPlaces(_place(text))
        try:
            found = json.loads(text)
        except ValueError:
            raise ValueError(f"{text!r} is no JSON object") from None
        for name, place in found.items():
            if streams and name not in streams:
                raise ValueError(f"{name!r} is none of the streams that are read")
            if not isinstance(place, str):
                raise ValueError(f"the place in stream {name!r} is no text: give {PLACES}")
        return StreamPlaces(default, tuple((name, _place(place)) for name, place in found.items()))

    return parsed


def _place(text: str) -> Start:
    try:
        return parse_start(text)
    except UsageError as error:
        raise ValueError(str(error)) from None


__all__ = ["ENV_METADATA", "TABLES", "StreamPlaces", "StreamReadOptions", "TableOptions"]
