"""The typed options for reading streams and tables. This module needs no Spark and does no I/O."""

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
    parse_count,
    parse_name,
    parse_partitions,
    parse_positive,
    parse_stream,
)
from quire.streams import EARLIEST
from quire.streams.namespace.binding import namespace_path
from quire.streams.namespace.names import check_subscription_name
from quire.streams.read.arrow import COLUMNS, KEYED_COLUMNS, PARTITION_COLUMN
from quire.streams.read.positions import PLACES, Start, check_order, parse_start
from quire.streams.topics.topic_metadata import PARTITIONS_MAX

STREAMS_MAX = 10_000
"""The largest number of streams of one read."""
MAX_TRIGGER_DELAY_S = 15 * 60.0
"""The default number of seconds for which `minRecordsPerTrigger` may hold records back."""
TABLES = ("ledgers", "fragments", "bookies", "streams", "segments", "subscriptions", "lag")
WITHOUT_NAMESPACE = TABLES[:3]
"""The tables that list the whole cluster, and cannot be limited to a namespace."""


@dataclass(frozen=True, slots=True)
class StreamPlaces:
    """The places at which to begin, or to end, in each stream."""

    default: Start | None
    """The place for streams without one of their own. None means that there is no end: everything
    that is acknowledged is read."""
    by_stream: tuple[tuple[str, Start], ...] = ()
    """The places for streams that have one of their own, with the names of the streams."""

    def of(self, stream: str) -> Start | None:
        """Return the place in one stream, or `default` if it has none of its own."""
        return dict(self.by_stream).get(stream, self.default)


@dataclass(frozen=True, slots=True)
class StreamReadOptions:
    """The options for reading streams.

    `stream`, `streams`, `streamPattern` or `topic` selects which.
    """

    metadata: str
    """The metadata URI of the cluster, by default from QUIRE_METADATA of the driver."""
    namespace: str = DEFAULT_NAMESPACE
    """The namespace, by default from QUIRE_NAMESPACE of the driver, or else /streams."""
    streams: tuple[str, ...] = ()
    """The names of the streams, from the option `stream` or `streams`."""
    pattern: str | None = None
    """A shell pattern of the names of streams, in which `*` also matches `/`."""
    topic: str | None = None
    """The topic whose partitions are read."""
    partitions: tuple[int, ...] | None = None
    """The partitions of the topic to read, or None for all."""
    password: bytes = field(default=b"", repr=False)
    """The password of the ledgers. The default is QUIRE_PASSWORD of the driver's environment."""
    start: StreamPlaces = StreamPlaces(EARLIEST)
    """The place at which to begin in each stream."""
    end: StreamPlaces = StreamPlaces(None)
    """The place before which to end. The default is the end of what is acknowledged now."""
    columns: tuple[str, ...] = COLUMNS
    """The columns to read. The option `envelope` adds the key, the headers and the event time."""
    pushdown: bool = False
    """Whether comparisons with constants reduce what is read."""
    partition_bytes: int = PARTITION_BYTES
    """The approximate largest size of one task in bytes."""
    min_partitions: int = 1
    """The smallest number of tasks."""
    fail_on_data_loss: bool = True
    """Whether records that no longer exist are an error. Otherwise they are skipped."""
    tls: TlsClientConfig | None = None
    """The TLS settings of connections to bookies. Every machine that runs tasks needs the files."""

    # Only for streaming queries:
    records_max: int | None = None
    """The largest number of records of a micro-batch.

    If `bytes_max` is set too, the limit that is reached first applies.
    """
    bytes_max: int | None = None
    """The largest number of stored bytes of a micro-batch."""
    records_min: int = 0
    """The number of records that a micro-batch waits for, at most for `trigger_delay_s`."""
    trigger_delay_s: float = MAX_TRIGGER_DELAY_S
    """The longest time in seconds for which a micro-batch waits for `records_min` records."""
    subscription: str | None = None
    """The subscription under which the query stores its positions with each stream."""

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        *,
        pushdown: bool = False,
        streaming: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> StreamReadOptions:
        """Parse the options that a user gave.

        Raises UsageError for an unknown option, an invalid value, or options that do not fit
        together. `pushdown` is the default of the option with this name.
        """
        given = GivenOptions(options, STREAM_READING, "reading streams", (*READING, *WRITING))
        pattern = given.take("streamPattern", parse_name, None)
        one = given.take("stream", parse_stream, None)
        several = given.take("streams", _names, None)
        topic = given.take("topic", parse_stream, None)
        if sum(found is not None for found in (pattern, one, several, topic)) != 1:
            raise UsageError(
                "options 'stream', 'streams', 'streamPattern' and 'topic' exclude each other: set "
                "one of them"
            )
        partitions = given.take("partitions", _partitions, None)
        if partitions is not None and topic is None:
            raise UsageError("option 'partitions' requires the option 'topic'")
        streams = several or ((one,) if one else ())
        columns = COLUMNS if topic is None else (COLUMNS[0], PARTITION_COLUMN, *COLUMNS[1:])
        start = given.take("start", _places(streams, EARLIEST), StreamPlaces(EARLIEST))
        end = given.take("end", _places(streams, None, end=True), StreamPlaces(None))
        if streaming and end != StreamPlaces(None):
            raise UsageError(
                "option 'end' cannot be used for a streaming query",
                remedy="Read the stream as a batch, or use the trigger availableNow",
            )
        _check_order(start, end)
        return cls(
            metadata=given.metadata(environ),
            namespace=given.namespace(environ),
            streams=streams,
            pattern=pattern,
            topic=None if topic is None else topic.removeprefix("/"),
            partitions=partitions,
            password=given.password(environ),
            start=start,
            end=end,
            columns=given.columns(
                columns, KEYED_COLUMNS, given.take("envelope", parse_boolean, False)
            ),
            pushdown=given.take("pushdown", parse_boolean, pushdown),
            partition_bytes=given.take("partitionBytes", parse_size, PARTITION_BYTES),
            min_partitions=given.take("minPartitions", parse_partitions, 1),
            fail_on_data_loss=given.take("failOnDataLoss", parse_boolean, True),
            tls=given.tls(environ),
            records_max=given.take("maxRecordsPerTrigger", parse_positive, None),
            bytes_max=given.take("maxBytesPerTrigger", parse_size, None),
            records_min=given.take("minRecordsPerTrigger", parse_count, 0),
            trigger_delay_s=given.take("maxTriggerDelay", parse_duration, MAX_TRIGGER_DELAY_S),
            subscription=given.take("subscription", check_subscription_name, None),
        )


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options for reading a table of metadata."""

    table: str
    """The name of the table, one of `TABLES`."""
    metadata: str
    """The metadata URI of the cluster, by default from QUIRE_METADATA of the driver."""
    namespace: str | None = None
    """The namespace to list, or None for all namespaces of the metadata store."""
    password: bytes = field(default=b"", repr=False)
    """The password of the ledgers. The default is QUIRE_PASSWORD of the driver's environment."""
    tls: TlsClientConfig | None = None
    """The TLS settings of connections to bookies. Every machine that runs tasks needs the files."""

    @classmethod
    def parse(
        cls, options: Mapping[str, str], *, environ: Mapping[str, str] = os.environ
    ) -> TableOptions:
        """Parse the options that a user gave.

        Raises UsageError for an unknown option, an invalid value, or options that do not fit
        together.
        """
        others = (*STREAM_READING, *READING, *WRITING)
        given = GivenOptions(options, TABLE_READING, "reading tables", others)
        table = given.take("table", str.lower, "")
        if table not in TABLES:
            raise UsageError(
                f"option 'table': {table!r} is not a table. The tables are {', '.join(TABLES)}"
            )
        namespace = given.take("namespace", namespace_path, None)
        if namespace is not None and table in WITHOUT_NAMESPACE:
            raise UsageError(
                f"option 'namespace' does not apply to table {table!r}, which lists the whole "
                "cluster",
                remedy="Leave it out, or read one of the tables "
                f"{', '.join(name for name in TABLES if name not in WITHOUT_NAMESPACE)}",
            )
        return cls(
            table,
            given.metadata(environ),
            namespace,
            given.password(environ),
            given.tls(environ),
        )


# -- inside -----------------------------------------------------------------------------------


def _names(text: str) -> tuple[str, ...]:
    names = tuple(parse_stream(part.strip()) for part in text.split(","))
    if len(set(names)) != len(names):
        raise ValueError(f"a stream is named twice in {text}")
    if len(names) > STREAMS_MAX:
        raise ValueError(f"at most {STREAMS_MAX} streams can be read at once, not {len(names)}")
    return names


def _partitions(text: str) -> tuple[int, ...]:
    """Return the numbers in a list with commas, such as "0,2,5-7".

    Raises ValueError if the text is not such a list, has a number that no partition can have, or
    has a number twice.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{text!r} is not a list of partitions, such as 0,2,5-7")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] >= PARTITIONS_MAX:
            raise ValueError(
                f"{part.strip()!r} is not a range of partitions from 0 to {PARTITIONS_MAX - 1}"
            )
        found += numbers
    if len(set(found)) != len(found):
        raise ValueError(f"a partition is named twice in {text}")
    return tuple(sorted(found))


def _places(
    streams: tuple[str, ...], default: Start | None, *, end: bool = False
) -> Callable[[str], StreamPlaces]:
    """Return a parser of one place for all streams, or of a JSON object with a place for each.

    Set `end` for the places at which reading ends.
    """

    def parsed(text: str) -> StreamPlaces:
        if not text.startswith("{"):
            return StreamPlaces(_place(text, end))
        try:
            found = json.loads(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a JSON object") from None
        for name, place in found.items():
            if streams and name not in streams:
                raise ValueError(f"{name!r} is not one of the streams that the query reads")
            if not isinstance(place, str):
                raise ValueError(f"the place in stream {name!r} is not a text. Use {PLACES}")
        return StreamPlaces(
            default, tuple((name, _place(place, end)) for name, place in found.items())
        )

    return parsed


def _check_order(start: StreamPlaces, end: StreamPlaces) -> None:
    """Raise UsageError if a stream has an end before its start."""
    own = dict.fromkeys(name for places in (start, end) for name, _ in places.by_stream)
    for name in own:
        try:
            check_order(start.of(name) or EARLIEST, end.of(name))
        except UsageError as error:
            raise UsageError(f"stream {name}: {error.args[0]}", remedy=error.remedy) from None
    check_order(start.default or EARLIEST, end.default)


def _place(text: str, end: bool) -> Start:
    try:
        return parse_start(text, end=end)
    except UsageError as error:
        raise ValueError(str(error)) from None


__all__ = ["ENV_METADATA", "TABLES", "StreamPlaces", "StreamReadOptions", "TableOptions"]
