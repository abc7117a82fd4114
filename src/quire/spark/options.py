"""The options of the data source, typed. Pure, without Spark.

Options are case-insensitive (Spark hands them over in lower case); one that is unknown or cannot be
is a `UsageError` that names it. The password never shows in a `repr`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from quire import DigestType
from quire._runtime.suggest import nearest
from quire._runtime.units import parse_size
from quire.client.cluster.placement import parse_placement
from quire.client.datasets.format import check_dataset_name, check_transaction_key
from quire.client.read.arrow import COLUMNS
from quire.config import TlsClientConfig
from quire.errors import UsageError
from quire.streams.namespace.names import check_stream_name
from quire.streams.namespace.namespace import namespace_path

T = TypeVar("T")
D = TypeVar("D")

ENV_METADATA = "QUIRE_METADATA"
ENV_NAMESPACE = "QUIRE_NAMESPACE"
ENV_PASSWORD = "QUIRE_PASSWORD"
ENV_PLACEMENT = "QUIRE_PLACEMENT"
ENV_TLS = ("QUIRE_TLS_CA", "QUIRE_TLS_CERT", "QUIRE_TLS_KEY")
DEFAULT_NAMESPACE = "/streams"
PARTITION_BYTES = 64 * 1024 * 1024
"""Of one task: enough that its fixed cost (some 10 ms) does not count."""
MIN_PARTITIONS_MAX = 10_000

SHARED = ("metadata", "dataset", "password", "tlsCa", "tlsCert", "tlsKey")
READING = (
    *SHARED, "ledger", "ledgers", "recover", "columns", "value", "pushdown", "partitionEntries",
    "partitionBytes", "minPartitions",
)  # fmt: skip
STREAM_SHARED = ("metadata", "namespace", "password", "tlsCa", "tlsCert", "tlsKey")
STREAM_READING = (
    *STREAM_SHARED, "stream", "streams", "streamPattern", "start", "end", "columns", "value",
    "pushdown", "partitionBytes", "minPartitions", "failOnDataLoss", "maxRecordsPerTrigger",
    "maxBytesPerTrigger", "minRecordsPerTrigger", "maxTriggerDelay", "subscription",
)  # fmt: skip
TABLE_READING = (*STREAM_SHARED, "table")
WRITING = (
    *SHARED, "ensemble", "writeQuorum", "ackQuorum", "digest", "placement", "valueColumn", "txnId",
)  # fmt: skip

STREAM_WRITING = (
    *STREAM_SHARED, "stream", "streams", "streamColumn", "createStream", "valueColumn",
    "txidColumn", "orderBy", "token", "placement",
)  # fmt: skip
BATCH_ONLY = ("txnId",)
QUERY_ONLY = ("writerId", "takeover")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """`ledger` or `ledgers` or `dataset` says what is read."""

    metadata: str
    """The cluster's metadata URI. The default is QUIRE_METADATA of the driver's environment."""
    ledgers: tuple[int, ...] = ()
    dataset: str | None = None
    password: bytes = field(default=b"", repr=False)
    recover: bool = False
    """Whether open ledgers are fenced and closed first. Otherwise the entries that are acknowledged
    now are read."""
    columns: tuple[str, ...] = COLUMNS
    pushdown: bool = False
    partition_entries: int | None = None
    """The largest number of entries that one task reads."""
    partition_bytes: int = PARTITION_BYTES
    """The approximate number of bytes that one task reads. All entries of a ledger count as equally
    large."""
    min_partitions: int = 1
    tls: TlsClientConfig | None = None
    """The TLS settings. The files must exist on every machine that runs tasks."""

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        *,
        pushdown: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> ReadOptions:
        """`pushdown` is the default of that option."""
        given = GivenOptions(options, READING, "reading", (*WRITING, *STREAM_READING))
        ledgers: tuple[int, ...] | None = given.take("ledgers", _ledger_ids, None)
        if (ledger := given.take("ledger", _ledger_id, None)) is not None:
            if ledgers is not None:
                raise UsageError("options 'ledger' and 'ledgers' exclude each other")
            ledgers = (ledger,)
        dataset = given.take("dataset", parse_dataset, None)
        if (dataset is None) == (ledgers is None):
            raise UsageError(
                "nothing says what to read"
                if dataset is None
                else "options 'dataset' and 'ledgers' exclude each other",
                remedy="Set one of the options 'stream', 'streams', 'streamPattern', 'dataset', "
                "'ledger', 'ledgers' and 'table'",
            )
        return cls(
            metadata=given.metadata(environ),
            ledgers=ledgers or (),
            dataset=dataset,
            password=given.password(environ),
            recover=given.take("recover", parse_boolean, False),
            columns=given.columns(),
            pushdown=given.take("pushdown", parse_boolean, pushdown),
            partition_entries=given.take("partitionEntries", parse_positive, None),
            partition_bytes=given.take("partitionBytes", parse_size, PARTITION_BYTES),
            min_partitions=given.take("minPartitions", parse_partitions, 1),
            tls=given.tls(environ),
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    metadata: str
    dataset: str
    password: bytes = field(default=b"", repr=False)
    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest: DigestType = DigestType.CRC32C
    value_column: str | None = None
    txn_id: str | None = None
    """The id of the job. A job that was published under this id is not published again."""
    placement: str = ""
    """The placement of new ledgers, in the form of `parse_placement`. Files that it names must
    exist on every machine that runs tasks. Empty: any bookies."""
    tls: TlsClientConfig | None = None

    @classmethod
    def parse(
        cls, options: Mapping[str, str], *, environ: Mapping[str, str] = os.environ
    ) -> WriteOptions:
        given = GivenOptions(options, WRITING, "writing", (*READING, *STREAM_WRITING, *QUERY_ONLY))
        dataset = given.take("dataset", parse_dataset, None)
        if dataset is None:
            raise UsageError(
                "nothing says where to write",
                remedy="Set one of the options 'stream', 'streams' and 'dataset'",
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
        )
        if not parsed.ensemble >= parsed.write_quorum >= parsed.ack_quorum:
            raise UsageError(
                f"ensemble {parsed.ensemble} >= writeQuorum {parsed.write_quorum} >= ackQuorum "
                f"{parsed.ack_quorum} does not hold"
            )
        return parsed


def reading_kind(options: Mapping[str, str]) -> str:
    """ "table", "streams" or "ledgers" (datasets too): what the options ask for."""
    given = {name.lower() for name in options}
    if "table" in given:
        return "table"
    return "streams" if given & {"stream", "streams", "streampattern"} else "ledgers"


def writes_streams(options: Mapping[str, str]) -> bool:
    """Whether streams are asked for; otherwise a dataset."""
    given = {name.lower() for name in options}
    return bool(given & {"stream", "streams", "streamcolumn", "namespace"})


# -- inside -----------------------------------------------------------------------------------


class GivenOptions:
    """What the user set, by lower-case name."""

    def __init__(
        self,
        options: Mapping[str, str],
        known: Sequence[str],
        doing: str,
        other: Sequence[str],
    ) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        if "provider" in self._values:
            # CREATE TABLE gets what the table will have as properties, the options among them under
            # `option.`; whoever reads or writes it then gets nothing.
            raise UsageError(
                "Spark does not hand the options of a table to Python data sources",
                remedy="Use CREATE TEMPORARY VIEW instead of CREATE TABLE",
            )
        names = {name.lower(): name for name in known}
        others = {name.lower(): name for name in other}
        for name in self._values:
            if name in names:
                continue
            if name in others:
                raise UsageError(f"option '{others[name]}' is of no use for {doing}")
            if name == "path":
                raise UsageError(
                    "the quire data source has no paths", remedy="Use .option('dataset', NAME)"
                )
            near = nearest(name, names) or nearest(name, others)
            raise UsageError(
                f"unknown option '{name}' for {doing}",
                remedy=f"Did you mean '{(others | names)[near]}'?"
                if near
                else f"Known are: {', '.join(known)}",
            )

    def take(self, name: str, parse: Callable[[str], T], default: D) -> T | D:
        text = self._values.get(name.lower())
        if text is None:
            return default
        try:
            return parse(text.strip())
        except UsageError as error:
            raise UsageError(f"option '{name}': {error.args[0]}", remedy=error.remedy) from None
        except ValueError as error:
            raise UsageError(f"option '{name}': {error}") from None

    def metadata(self, environ: Mapping[str, str]) -> str:
        uri = self.take("metadata", str, None) or environ.get(ENV_METADATA)
        if not uri:
            raise UsageError(
                "nothing says which cluster is meant",
                remedy=f"Set the option 'metadata', or {ENV_METADATA} before Spark starts, to the "
                "metadata URI",
            )
        return uri

    def namespace(self, environ: Mapping[str, str]) -> str:
        """Return the namespace that the options name, else the environment, else the default."""
        default = environ.get(ENV_NAMESPACE) or DEFAULT_NAMESPACE
        return self.take("namespace", namespace_path, None) or namespace_path(default)

    def placement(self, environ: Mapping[str, str]) -> str:
        text = self.take("placement", parse_name, None) or environ.get(ENV_PLACEMENT, "")
        if text:
            parse_placement(text)
        return text

    def tls(self, environ: Mapping[str, str]) -> TlsClientConfig | None:
        names = ("tlsCa", "tlsCert", "tlsKey")
        authorities, certificate, key = (
            self.take(name, parse_name, None) or environ.get(variable) or None
            for name, variable in zip(names, ENV_TLS)
        )
        if authorities is None:
            if certificate is not None or key is not None:
                raise UsageError("options 'tlsCert' and 'tlsKey' need 'tlsCa'")
            return None
        return TlsClientConfig(
            ca=None if authorities == "system" else authorities,
            certificate=certificate,
            private_key=key,
        )

    def password(self, environ: Mapping[str, str]) -> bytes:
        """Of the driver's environment, where it stands in no statement of SQL and in no script."""
        return self._values.get("password", environ.get(ENV_PASSWORD, "")).encode()

    def columns(self, every: tuple[str, ...] = COLUMNS) -> tuple[str, ...]:
        value = self.take("value", parse_boolean, None)
        columns = self.take("columns", lambda text: _columns(text, every), None)
        if columns is None:
            return every if value is not False else tuple(c for c in every if c != "value")
        if value is not None and value != ("value" in columns):
            raise UsageError(f"options 'columns' and 'value' contradict each other: {columns}")
        return columns


def parse_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no whole number") from None


def parse_positive(text: str) -> int:
    number = parse_integer(text)
    if number < 1:
        raise ValueError(f"{number} is less than 1")
    return number


def parse_partitions(text: str) -> int:
    number = parse_positive(text)
    if number > MIN_PARTITIONS_MAX:
        raise ValueError(f"{number} is more than {MIN_PARTITIONS_MAX}")
    return number


def parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def parse_name(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


def parse_dataset(text: str) -> str:
    return check_dataset_name(parse_name(text))


def parse_stream(text: str) -> str:
    """Return the name as it was given, because a checkpoint refers to the stream by it. Raises
    UsageError."""
    return check_stream_name(text)


def _ledger_id(text: str) -> int:
    number = parse_integer(text)
    if not 0 <= number < 2**63:
        raise ValueError(f"{number} is not a ledger id: use 0 to 2**63-1")
    return number


def _ledger_ids(text: str) -> tuple[int, ...]:
    ledgers = tuple(_ledger_id(part.strip()) for part in text.split(","))
    if len(set(ledgers)) != len(ledgers):
        raise ValueError(f"a ledger is given twice: {text}")
    return ledgers


def _columns(text: str, every: tuple[str, ...]) -> tuple[str, ...]:
    columns = tuple(part.strip().lower() for part in text.split(","))
    for name in columns:
        if name not in every:
            raise ValueError(f"there is no column {name!r}, only {', '.join(every)}")
    if len(set(columns)) != len(columns):
        raise ValueError(f"a column is given twice: {text}")
    return columns
