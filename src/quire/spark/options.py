"""The typed options of the data source. This module needs no Spark and does no I/O.

Option names are case-insensitive, because Spark passes them in lower case. An unknown or invalid
option is a `UsageError` that names it. Passwords do not appear in a `repr`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from quire import DigestType
from quire._runtime.names.suggest import nearest
from quire._runtime.units import counted, parse_size
from quire.client.cluster.placement import parse_placement
from quire.client.datasets.format import check_dataset_name, check_transaction_key
from quire.client.datasets.rows import check_compression
from quire.client.read.arrow import COLUMNS
from quire.config import TlsClientConfig
from quire.errors import UsageError
from quire.spark.from_kafka import kafka_advice, kafka_option
from quire.streams.namespace.binding import namespace_path
from quire.streams.namespace.names import check_stream_name

T = TypeVar("T")
D = TypeVar("D")

ENV_METADATA = "QUIRE_METADATA"
ENV_NAMESPACE = "QUIRE_NAMESPACE"
ENV_PASSWORD = "QUIRE_PASSWORD"
ENV_PLACEMENT = "QUIRE_PLACEMENT"
ENV_TLS = (
    "QUIRE_TLS_CA", "QUIRE_TLS_CERT", "QUIRE_TLS_KEY", "QUIRE_TLS_KEY_PASSWORD_FILE",
)  # fmt: skip
ENV_ANY_HOST_NAME = "QUIRE_TLS_ANY_HOST_NAME"
DEFAULT_NAMESPACE = "/streams"
PARTITION_BYTES = 64 * 1024 * 1024
"""The default largest size of a task in bytes.

A task of this size takes much longer than its fixed cost of about 10 ms.
"""
MIN_PARTITIONS_MAX = 10_000

TLS_FILES = ("tlsCa", "tlsCert", "tlsKey", "tlsKeyPasswordFile")
"""The options that name files, in the order of `ENV_TLS`."""
TLS = (*TLS_FILES, "tlsAnyHostName")
SHARED = ("metadata", "dataset", "password", *TLS)
READING = (
    *SHARED, "ledger", "ledgers", "recover", "columns", "value", "pushdown", "partitionEntries",
    "partitionBytes", "minPartitions",
)  # fmt: skip
STREAM_SHARED = ("metadata", "namespace", "password", *TLS)
STREAM_READING = (
    *STREAM_SHARED, "stream", "streams", "streamPattern", "topic", "partitions", "start", "end",
    "columns", "value", "envelope", "pushdown", "partitionBytes", "minPartitions",
    "failOnDataLoss", "maxRecordsPerTrigger",
    "maxBytesPerTrigger", "minRecordsPerTrigger", "maxTriggerDelay", "subscription",
)  # fmt: skip
TABLE_READING = (*STREAM_SHARED, "table")
WRITING = (
    *SHARED, "ensemble", "writeQuorum", "ackQuorum", "digest", "placement", "valueColumn", "txnId",
    "typed", "partitionColumns", "compression",
)  # fmt: skip

STREAM_WRITING = (
    *STREAM_SHARED, "stream", "streams", "streamColumn", "topic", "createStream", "valueColumn",
    "txidColumn", "keyColumn", "headersColumn", "timeColumn", "orderBy", "token", "fenceWriters",
    "placement",
)  # fmt: skip
SELECTING = (
    "stream", "streams", "streamPattern", "streamColumn", "topic", "dataset", "ledger", "ledgers",
    "table",
)  # fmt: skip
"""The options that select what is read or written, and thereby which other options there are."""
BATCH_ONLY = ("txnId",)
QUERY_ONLY = ("writerId", "takeover")


TABLE = "Spark does not pass the options of a table to Python data sources"
INSTEAD_OF_TABLES = (
    "Write with .save(), or use CREATE TEMPORARY VIEW ... USING quire OPTIONS (...) and INSERT "
    "INTO instead of CREATE TABLE"
)
NO_TABLES = f". If this is a table: {TABLE}. {INSTEAD_OF_TABLES}"
"""The text of the error if not a single option was given, as for a table of Spark's catalog."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options for reading ledgers or a dataset.

    The option `ledger`, `ledgers` or `dataset` selects what is read.
    """

    metadata: str
    """The metadata URI of the cluster, by default from QUIRE_METADATA of the driver."""
    ledgers: tuple[int, ...] = ()
    """The ids of the ledgers to read, from the option `ledger` or `ledgers`."""
    dataset: str | None = None
    """The dataset to read, as it is when the query is planned."""
    password: bytes = field(default=b"", repr=False)
    """The password of the ledgers. The default is QUIRE_PASSWORD of the driver's environment."""
    recover: bool = False
    """Whether to fence and close open ledgers, instead of reading what is acknowledged now."""
    columns: tuple[str, ...] = COLUMNS
    """The columns to read, if each entry is a row."""
    typed_columns: tuple[str, ...] | None = None
    """The columns to read of a dataset with typed rows, or None for all."""
    pushdown: bool = False
    """Whether comparisons of `ledger_id` and `entry_id` with constants reduce what is read."""
    partition_entries: int | None = None
    """The largest number of entries of one task, or None for no limit."""
    partition_bytes: int = PARTITION_BYTES
    """The approximate largest size of one task in bytes.

    All entries of a ledger count as equally large.
    """
    min_partitions: int = 1
    """The smallest number of tasks."""
    tls: TlsClientConfig | None = None
    """The TLS settings of connections to bookies. Every machine that runs tasks needs the files."""

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        *,
        pushdown: bool = False,
        typed: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> ReadOptions:
        """Parse the options that a user gave.

        Raises UsageError for an unknown option, an invalid value, or options that do not fit
        together. `pushdown` is the default of the option with this name. `typed` says that the
        dataset has typed rows, so that the columns are its own.
        """
        given = GivenOptions(
            options, READING, "reading", (*WRITING, *STREAM_READING, *TABLE_READING)
        )
        ledgers: tuple[int, ...] | None = given.take("ledgers", _ledger_ids, None)
        if (ledger := given.take("ledger", _ledger_id, None)) is not None:
            if ledgers is not None:
                raise UsageError(
                    "options 'ledger' and 'ledgers' exclude each other: set one of them"
                )
            ledgers = (ledger,)
        dataset = given.take("dataset", parse_dataset, None)
        if (dataset is None) == (ledgers is None):
            raise UsageError(
                "no option selects what to read"
                if dataset is None
                else "options 'dataset' and 'ledgers' exclude each other",
                remedy="Set one of the options 'stream', 'streams', 'streamPattern', 'topic', "
                "'dataset', 'ledger', 'ledgers' and 'table'" + NO_TABLES * (not options),
            )
        if typed:
            given.take("value", parse_boolean, None)  # it has no effect, but must be a boolean
        return cls(
            metadata=given.metadata(environ),
            ledgers=ledgers or (),
            dataset=dataset,
            password=given.password(environ),
            recover=given.take("recover", parse_boolean, False),
            columns=COLUMNS if typed else given.columns(),
            typed_columns=given.take("columns", parse_names, None) if typed else None,
            pushdown=given.take("pushdown", parse_boolean, pushdown),
            partition_entries=given.take("partitionEntries", parse_positive, None),
            partition_bytes=given.take("partitionBytes", parse_size, PARTITION_BYTES),
            min_partitions=given.take("minPartitions", parse_partitions, 1),
            tls=given.tls(environ),
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options for writing a dataset."""

    metadata: str
    """The metadata URI of the cluster, by default from QUIRE_METADATA of the driver."""
    dataset: str
    """The dataset that the ledgers are published to."""
    password: bytes = field(default=b"", repr=False)
    """The password of the ledgers. The default is QUIRE_PASSWORD of the driver's environment."""
    ensemble: int = 3
    """The number of bookies over which the entries of a ledger are spread."""
    write_quorum: int = 3
    """The number of bookies that store each entry."""
    ack_quorum: int = 2
    """The number of bookies that must have fsynced an entry."""
    digest: DigestType = DigestType.CRC32C
    """The digest of the entries."""
    value_column: str | None = None
    """The column that becomes the entries. By default it is `value`, or the only column."""
    txn_id: str | None = None
    """An id that makes the write idempotent: what was published under it is not published again."""
    placement: str = ""
    """The bookies to use, in the form of `parse_placement`, or "" for any bookies.

    Every machine that runs tasks needs the files that it names.
    """
    tls: TlsClientConfig | None = None
    """The TLS settings of connections to bookies. Every machine that runs tasks needs the files."""
    typed: bool | None = None
    """Whether all columns are written, with their schema. None means that the dataset decides, and
    the columns if the dataset is new."""
    partition_columns: tuple[str, ...] | None = None
    """The columns by whose values the rows are divided, or None to use those of the dataset."""
    compression: str = "lz4"
    """The compression of typed rows."""

    @classmethod
    def parse(
        cls, options: Mapping[str, str], *, environ: Mapping[str, str] = os.environ
    ) -> WriteOptions:
        """Parse the options that a user gave.

        Raises UsageError for an unknown option, an invalid value, or options that do not fit
        together.
        """
        given = GivenOptions(options, WRITING, "writing", (*READING, *STREAM_WRITING, *QUERY_ONLY))
        dataset = given.take("dataset", parse_dataset, None)
        if dataset is None:
            raise UsageError(
                "no option selects where to write",
                remedy="Set one of the options 'stream', 'streams', 'topic' and 'dataset'"
                + NO_TABLES * (not options),
            )
        parsed = cls(
            metadata=given.metadata(environ),
            dataset=dataset,
            password=given.password(environ),
            ensemble=given.take("ensemble", parse_positive, 3),
            write_quorum=given.take("writeQuorum", parse_positive, 3),
            ack_quorum=given.take("ackQuorum", parse_positive, 2),
            digest=given.take("digest", DigestType.parse, DigestType.CRC32C),
            value_column=given.take("valueColumn", parse_name, None),
            txn_id=given.take("txnId", check_transaction_key, None),
            placement=given.placement(environ),
            tls=given.tls(environ),
            typed=given.take("typed", parse_boolean, None),
            partition_columns=given.take("partitionColumns", parse_names, None),
            compression=given.take("compression", check_compression, "lz4"),
        )
        if parsed.typed is False and parsed.partition_columns:
            raise UsageError(
                "option 'typed' is false, but only typed rows can have 'partitionColumns'",
                remedy="Leave out one of the two options",
            )
        if parsed.value_column is not None and (parsed.typed or parsed.partition_columns):
            raise UsageError(
                "option 'valueColumn' and the options 'typed' and 'partitionColumns' exclude each "
                "other: typed rows have all columns",
                remedy="Leave out 'valueColumn', or the two others",
            )
        if not parsed.ensemble >= parsed.write_quorum >= parsed.ack_quorum:
            raise UsageError(
                "the options must satisfy ensemble >= writeQuorum >= ackQuorum, but ensemble is "
                f"{parsed.ensemble}, writeQuorum is {parsed.write_quorum} and ackQuorum is "
                f"{parsed.ack_quorum}"
            )
        return parsed


def reading_kind(options: Mapping[str, str]) -> str:
    """Return what the options select: "table", "streams", or "ledgers" (also for datasets)."""
    given = {name.lower() for name in options}
    if "table" in given:
        return "table"
    kinds = {"stream", "streams", "streampattern", "topic"}
    return "streams" if given & kinds else "ledgers"


def writes_streams(options: Mapping[str, str]) -> bool:
    """Return whether the options select streams, and not a dataset."""
    given = {name.lower() for name in options}
    return bool(given & {"stream", "streams", "streamcolumn", "topic", "namespace"})


def check_written_names(options: Mapping[str, str]) -> None:
    """Check the name of the dataset or stream that options name.

    Raises UsageError, which names the option, if the name is not valid. All other options are
    checked when the writer is made.
    """
    given = {name.lower(): text.strip() for name, text in options.items()}
    kinds = (
        ("dataset", parse_dataset),
        ("stream", check_stream_name),
        ("topic", check_stream_name),
    )
    for name, parse in kinds:
        if (text := given.get(name)) is not None:
            _parsed(name, text, parse)


# -- inside -----------------------------------------------------------------------------------


def _parsed(name: str, text: str, parse: Callable[[str], T]) -> T:
    """Return the parsed value of an option.

    Raises UsageError, which names the option, if `parse` raises UsageError or ValueError.
    """
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"option '{name}': {error.args[0]}", remedy=error.remedy) from None
    except ValueError as error:
        raise UsageError(f"option '{name}': {error}") from None


def _flag(variable: str, environ: Mapping[str, str]) -> bool:
    """Return whether an environment variable is set to a word for yes.

    Raises UsageError if it is set, but neither to a word for yes nor to one for no.
    """
    text = environ.get(variable, "").strip().lower()
    if text in ("1", "true", "t", "yes", "y", "on"):
        return True
    if text in ("", "0", "false", "f", "no", "n", "off"):
        return False
    raise UsageError(f"{variable} is {text!r}: set it to true or false")


class GivenOptions:
    """The options that the user set, by lower-case name.

    The constructor raises UsageError for an option that is not in `known`. The message says that it
    cannot be used for `doing` if it is in `other`.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        known: Sequence[str],
        doing: str,
        other: Sequence[str],
    ) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        if "provider" in self._values:
            # CREATE TABLE passes the table's properties, with the options under `option.`. Reading
            # or writing the table later passes none of them.
            raise UsageError(TABLE, remedy=INSTEAD_OF_TABLES)
        names = {name.lower(): name for name in known}
        others = {name.lower(): name for name in other}
        # Those of another kind are suggested only if nothing was selected: the misspelt option may
        # be the one that selects.
        selecting = {name.lower() for name in SELECTING} & {*names, *others}
        strange = [name for name in self._values if name not in names and name not in others]
        if of_kafka := [name for name in strange if kafka_option(name)]:
            # All at once: a program that comes from Kafka has several.
            raise UsageError(
                f"{counted(len(of_kafka), 'option')} of Kafka's connector cannot be used for "
                f"{doing}",
                remedy=kafka_advice(of_kafka),
            )
        for name in self._values:
            if name in names:
                continue
            if name in others:
                raise UsageError(
                    f"option '{others[name]}' cannot be used for {doing}: leave it out"
                )
            if name == "path":
                raise UsageError(
                    "the data source 'quire' takes no path, neither in load() nor in save()",
                    remedy=(
                        "Name what to read or write with an option, such as "
                        ".option('dataset', NAME)"
                    ),
                )
            near = nearest(name, names)
            if near is None and not selecting & self._values.keys():
                near = nearest(name, selecting)
            raise UsageError(
                f"unknown option '{name}' for {doing}",
                remedy=f"Did you mean '{(others | names)[near]}'?"
                if near
                else f"The options are: {', '.join(known)}",
            )

    def take(self, name: str, parse: Callable[[str], T], default: D) -> T | D:
        """Return the parsed value of an option, or the default if it was not given.

        Raises UsageError, which names the option, if `parse` raises an error.
        """
        text = self._values.get(name.lower())
        if text is None:
            return default
        return _parsed(name, text.strip(), parse)

    def metadata(self, environ: Mapping[str, str]) -> str:
        """Return the metadata URI from the options or the environment.

        It is not checked here. Raises UsageError if there is none.
        """
        uri = self.take("metadata", str, None) or environ.get(ENV_METADATA)
        if not uri:
            raise UsageError(
                "no option selects the cluster",
                remedy=f"Set the option 'metadata', or {ENV_METADATA} before Spark starts, to the "
                "metadata URI",
            )
        return uri

    def namespace(self, environ: Mapping[str, str]) -> str:
        """Return the namespace that the options name, else the environment, else the default.

        Raises UsageError if it is not a valid path.
        """
        default = environ.get(ENV_NAMESPACE) or DEFAULT_NAMESPACE
        return self.take("namespace", namespace_path, None) or namespace_path(default)

    def placement(self, environ: Mapping[str, str]) -> str:
        """Return the placement from the options or the environment, or "".

        Raises UsageError if it is not valid.
        """
        text = self.take("placement", parse_name, None) or environ.get(ENV_PLACEMENT, "")
        if text:
            parse_placement(text)
        return text

    def tls(self, environ: Mapping[str, str]) -> TlsClientConfig | None:
        """Return the TLS settings from the options or the environment, or None without any.

        Raises UsageError if an option is not valid, or requires another one that is missing.
        """
        authorities, certificate, key, password_file = (
            self.take(name, parse_name, None) or environ.get(variable) or None
            for name, variable in zip(TLS_FILES, ENV_TLS, strict=True)
        )
        any_host = self.take("tlsAnyHostName", parse_boolean, None)
        if authorities is None:
            if certificate is not None or key is not None:
                raise UsageError(
                    "options 'tlsCert' and 'tlsKey' require the option 'tlsCa', also if they come "
                    f"from the environment ({ENV_TLS[1]} and {ENV_TLS[2]})",
                    remedy=f"Set 'tlsCa' or {ENV_TLS[0]} to the file of the authorities, or to "
                    "system",
                )
            for name in TLS[3:]:
                if name.lower() in self._values:
                    raise UsageError(f"option '{name}' requires the option 'tlsCa'")
            return None
        if any_host is None:
            any_host = _flag(ENV_ANY_HOST_NAME, environ)
        return TlsClientConfig(
            ca=None if authorities == "system" else authorities,
            certificate=certificate,
            private_key=key,
            key_password_file=password_file,
            verify_host_name=not any_host,
        )

    def password(self, environ: Mapping[str, str]) -> bytes:
        """Return the password from the options or the driver's environment, or b"" without any.

        A password in the environment appears in no SQL statement and in no script.
        """
        return self._values.get("password", environ.get(ENV_PASSWORD, "")).encode()

    def columns(
        self, every: tuple[str, ...] = COLUMNS, more: tuple[str, ...] = (), added: bool = False
    ) -> tuple[str, ...]:
        """Return the columns that the options `columns` and `value` select.

        `more` are columns that are returned only if they are named, or if `added` is set. Raises
        UsageError if the options are not valid or contradict each other.
        """
        value = self.take("value", parse_boolean, None)
        columns = self.take("columns", lambda text: _columns(text, (*every, *more)), None)
        if columns is not None and added and (left := [c for c in more if c not in columns]):
            raise UsageError(
                "options 'columns' and 'envelope' contradict each other: the columns do not "
                f"include {', '.join(left)}",
                remedy="Name them in 'columns', or leave out 'envelope'",
            )
        if columns is None:
            every = (*every, *more) if added else every
            return every if value is not False else tuple(c for c in every if c != "value")
        if value is not None and value != ("value" in columns):
            names = "does not name" if value else "names"
            raise UsageError(
                "options 'columns' and 'value' contradict each other: 'value' is "
                f"{str(value).lower()}, but 'columns' {names} the column value",
                remedy="Leave out the option 'value', because 'columns' decides",
            )
        return columns


def parse_integer(text: str) -> int:
    """Return the whole number that a text stands for. Raises ValueError if it is none."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def parse_positive(text: str) -> int:
    """Return a whole number. Raises ValueError if the text is not one, or is less than 1."""
    return _at_least(1, text)


def parse_count(text: str) -> int:
    """Return a whole number. Raises ValueError if the text is not one, or is less than 0."""
    return _at_least(0, text)


def _at_least(smallest: int, text: str) -> int:
    number = parse_integer(text)
    if number < smallest:
        raise ValueError(f"{number} is too small: use {smallest} or more")
    return number


def parse_partitions(text: str) -> int:
    """Return a number of tasks. Raises ValueError if it is not from 1 to MIN_PARTITIONS_MAX."""
    number = parse_positive(text)
    if number > MIN_PARTITIONS_MAX:
        raise ValueError(f"{number} is too large: use at most {MIN_PARTITIONS_MAX}")
    return number


def parse_boolean(text: str) -> bool:
    """Return the boolean for "true" or "false", in any case of letters.

    Raises ValueError for another text.
    """
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def parse_name(text: str) -> str:
    """Return the text. Raises ValueError if it is empty."""
    if not text:
        raise ValueError("its value is empty")
    return text


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names in a list that is separated by commas.

    Raises ValueError if a name is empty, or occurs twice in any case of letters.
    """
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("a name in the list is empty")
    if len({name.lower() for name in names}) != len(names):
        raise ValueError("a name occurs twice in the list")
    return names


def parse_dataset(text: str) -> str:
    """Return the name of a dataset. Raises ValueError or UsageError if it is not valid."""
    return check_dataset_name(parse_name(text))


def parse_stream(text: str) -> str:
    """Return the name of a stream, exactly as it was given.

    A checkpoint refers to the stream by this name. Raises UsageError if the name is not valid.
    """
    return check_stream_name(text)


def _ledger_id(text: str) -> int:
    number = parse_integer(text)
    if not 0 <= number < 2**63:
        raise ValueError(f"{number} is not a ledger id: use 0 to 2**63-1")
    return number


def _ledger_ids(text: str) -> tuple[int, ...]:
    ledgers = tuple(_ledger_id(part.strip()) for part in text.split(","))
    if len(set(ledgers)) != len(ledgers):
        raise ValueError(f"a ledger is named twice in {text}")
    return ledgers


def _columns(text: str, every: tuple[str, ...]) -> tuple[str, ...]:
    columns = tuple(part.strip().lower() for part in text.split(","))
    for name in columns:
        if name not in every:
            raise ValueError(f"{name!r} is not a column. The columns are {', '.join(every)}")
    if len(set(columns)) != len(columns):
        raise ValueError(f"a column is named twice in {text}")
    return columns
