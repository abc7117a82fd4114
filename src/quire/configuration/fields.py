"""The keys of the configuration: the type, unit, default and meaning of each.

A key is a field of the dataclass that receives its value, and the field's docstring is its
documentation. `scripts/config-docs` writes the tables of docs/reference/configuration.md from them.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal

from quire._runtime.limits import FieldRule, Limits, rules_of
from quire.config import BookieConfig, ClientConfig
from quire.replication.autorecovery.settings import AutorecoverySettings

ENVIRONMENT_PREFIX = "QUIRE_"
PROCESSES_MAX = 256
"""The largest number of bookies that run as one service."""


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The keys before the first table of the file."""

    metadata: str = ""
    """The URI of the metadata store, which identifies the cluster: `sqlite:///FILE` or
    `zk+hierarchical://HOST:PORT/ledgers`. If it is empty, commands need the option `--metadata`."""


@dataclass(frozen=True, slots=True)
class BookieProcessConfig:
    """The keys of `[bookie]` that describe the process. The limits are in `BookieConfig`."""

    directories: tuple[str, ...] = ()
    """The data directories of the bookie, one for each disk (`--dir`)."""
    port: Annotated[int, Limits(0, 65_535)] = 3181
    """The TCP port on which the bookie listens (`--port`). 0: any free port."""
    advertise: str = "127.0.0.1"
    """The host name or address under which clients reach the bookie (`--advertise`)."""
    bind: str = ""
    """The address on which the bookie listens (`--bind`). If it is empty, the bookie listens on the
    address of `advertise`."""
    bookie_id: str = ""
    """The permanent name of the bookie in the metadata of ledgers (`--bookie-id`). If it is empty,
    the bookie keeps the id with which its directory was first started. A new directory gets
    ADVERTISE:PORT."""
    processes: Annotated[int, Limits(1, PROCESSES_MAX)] = 1
    """The number of bookies that run as one service (`--processes`), each in a process of its own.
    They share this table: bookie K, counted from 0, has the directory `bookie-K` in one or more of
    `directories`, the port `port` + K, and the id `bookie_id`-K if `bookie_id` is set. Use one for
    each processor core that you want to use."""
    autorecovery: bool = False
    """Whether the bookie's process also runs autorecovery: it stands for election as auditor, and
    repairs ledgers (`--autorecovery`). Of several `processes`, only the first one does."""


@dataclass(frozen=True, slots=True)
class HttpSideConfig:
    """The HTTP server inside the process of a bookie or of autorecovery."""

    http: str = ""
    """HOST:PORT for the HTTP API, the health probes and `/metrics` (`--http`). If it is empty,
    nothing is served over HTTP. Any other address than loopback needs a token and TLS."""
    http_token_file: str | None = None
    """A file with the token that requests must contain (`--http-token-file`). Without it, nothing
    can be changed over HTTP."""
    http_reads: Literal["auto", "open", "token"] = "auto"
    """Whether requests that only read need the token (`--http-reads`): `token` (yes) or `open` (no;
    on loopback only). With `auto` they need it if there is a token file."""
    http_read_only: bool = False
    """Whether every request that would change something is refused (`--http-read-only`)."""
    http_bookies_token_file: str | None = None
    """A file with the token that this server sends to bookies when it reads their metrics and
    reports over HTTP, or forwards a change to them (`--http-bookies-token-file`)."""
    http_tls_cert: str | None = None
    """A PEM file with the certificate for HTTPS (`--http-tls-cert`). If it is not set, HTTP is
    served without TLS."""
    http_tls_key: str | None = None
    """A PEM file with the private key of that certificate (`--http-tls-key`). If it is not set, the
    key is read from the certificate's file."""
    http_no_payloads: bool = False
    """Whether every request for the content of entries and records is refused
    (`--http-no-payloads`). If it is false, such requests need the token."""
    http_name: tuple[str, ...] = ()
    """Further host names that requests may be addressed to (`--http-name`). Requests to any other
    name are refused."""

    def options(self) -> dict[str, object]:
        """Return the values by the names of the command-line options."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class HttpServerConfig:
    """The HTTP server that `quire http` and `quire ui` run."""

    address: str = "127.0.0.1:8080"
    """HOST:PORT on which `quire http` and `quire ui` listen (`--http`). Any other address
    than loopback needs a token and TLS."""
    token_file: str | None = None
    """A file with the token that requests must contain (`--http-token-file`). Without it, a token
    is generated at each start in a terminal, and otherwise nothing can be changed over HTTP."""
    reads: Literal["auto", "open", "token"] = "auto"
    """Whether requests that only read need the token (`--http-reads`): `token` (yes) or `open` (no;
    on loopback only). With `auto` they need it if there is a token file."""
    read_only: bool = False
    """Whether every request that would change something is refused (`--http-read-only`)."""
    bookies_token_file: str | None = None
    """A file with the token that this server sends to bookies when it reads their metrics and
    reports over HTTP, or forwards a change to them (`--http-bookies-token-file`)."""
    tls_cert: str | None = None
    """A PEM file with the certificate for HTTPS (`--http-tls-cert`). If it is not set, HTTP is
    served without TLS."""
    tls_key: str | None = None
    """A PEM file with the private key of that certificate (`--http-tls-key`). If it is not set, the
    key is read from the certificate's file."""
    no_payloads: bool = False
    """Whether every request for the content of entries and records is refused
    (`--http-no-payloads`). If it is false, such requests need the token."""
    name: tuple[str, ...] = ()
    """Further host names that requests may be addressed to (`--http-name`). Requests to any other
    name are refused."""
    prometheus: str | None = None
    """The URL of a Prometheus server that scrapes the bookies (`--prometheus`). Charts of more than
    an hour are read from it."""
    prometheus_label: tuple[str, ...] = ()
    """Labels, each as NAME=VALUE, that all metrics of this cluster have in Prometheus
    (`--prometheus-label`)."""

    def options(self) -> dict[str, object]:
        """Return the values by the names of the command's parameters, such as `http_token_file`."""
        others = {f"http_{name}": value for name, value in asdict(self).items()}
        return {"http": others.pop("http_address"), **others}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The log that servers and commands write to standard error."""

    level: Literal["debug", "info", "warning", "error"] | None = None
    """The lowest level that is written (`--log-level`). If it is not set, servers write from `info`
    on, and other commands from `warning` on."""
    format: Literal["json", "console"] | None = None
    """`json` writes one JSON object a line, `console` text for people (`--log-format`). If it is
    not set, servers write JSON, and other commands text."""


TABLES: dict[str, tuple[type, ...]] = {
    "": (ClusterConfig,),
    "bookie": (BookieProcessConfig, HttpSideConfig, BookieConfig),
    "client": (ClientConfig,),
    "autorecovery": (AutorecoverySettings, HttpSideConfig),
    "http": (HttpServerConfig,),
    "log": (LogConfig,),
}
"""The dataclasses that hold the keys of each table of the file, by the table's name."""

IN_MILLISECONDS: Mapping[str, str] = {
    f"{name}_ms": f"{name}_s"
    for name in (
        "bookie.max_long_poll",
        "bookie.seal_idle",
        "bookie.session_timeout",
        "client.explicit_lac_interval",
        "client.long_poll",
    )
}
"""The former names of keys in milliseconds, and the keys in seconds that replace them. The former
names work for one more release, with a warning."""


def environment_name(key: str) -> str:
    """Return the name of the environment variable for a key."""
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of the configuration."""

    name: str
    """The full name of the key, with its tables: `bookie.tls.ca`."""
    rule: FieldRule
    """The values that the key may have."""
    default: Any
    """The default value, or `MISSING` if the key must be given whenever its table is present."""
    owner: type
    """The dataclass that has the key as a field."""

    @property
    def meaning(self) -> str:
        """The documentation of the key, on one line."""
        return docstrings(self.owner).get(self.rule.name, "")

    @property
    def kind(self) -> str:
        """The type of the value: see `FieldRule.kind`."""
        return self.rule.kind

    @property
    def unit(self) -> str:
        return self.rule.unit

    @property
    def choices(self) -> tuple[object, ...]:
        return self.rule.limits.choices

    @property
    def may_be_none(self) -> bool:
        return self.rule.may_be_none

    @property
    def environment(self) -> str:
        return environment_name(self.name)


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """A table inside a table, which is a dataclass inside a dataclass."""

    name: str
    kind: type
    """The dataclass of its keys."""
    optional: bool
    """Whether a missing table differs from an empty one, as for TLS: a missing table means no
    TLS."""
    owner: type
    """The dataclass that has the table as a field."""

    @property
    def meaning(self) -> str:
        return docstrings(self.owner).get(self.name.rpartition(".")[2], "")


@cache
def keys() -> dict[str, ConfigKey]:
    """Return all keys by name, in the order of the reference page."""
    return {one.name: one for one in _everything() if isinstance(one, ConfigKey)}


@cache
def inner_tables() -> dict[str, ConfigTable]:
    """Return the tables inside tables by name."""
    return {one.name: one for one in _everything() if isinstance(one, ConfigTable)}


@cache
def _everything() -> tuple[ConfigKey | ConfigTable, ...]:
    found: list[ConfigKey | ConfigTable] = []
    for name, kinds in TABLES.items():
        for kind in kinds:
            found += _walk(kind, f"{name}." if name else "")
    return tuple(found)


def _walk(kind: type, prefix: str) -> list[ConfigKey | ConfigTable]:
    plain: list[ConfigKey | ConfigTable] = []
    nested: list[ConfigKey | ConfigTable] = []
    for item in fields(kind):
        name, rule = prefix + item.name, rules_of(kind)[item.name]
        if rule.kind == "table":
            nested.append(ConfigTable(name, rule.inner, rule.may_be_none, kind))
            nested += _walk(rule.inner, f"{name}.")
            continue
        default = item.default
        if item.default_factory is not MISSING:
            default = item.default_factory()
        plain.append(ConfigKey(name, rule, default, kind))
    return plain + nested


@cache
def docstrings(kind: type) -> dict[str, str]:
    """Return the docstring of each field of a dataclass, on one line."""
    tree = ast.parse(inspect.cleandoc(inspect.getsource(kind)))
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, below in zip(body.body, body.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[statement.target.id] = " ".join(str(below.value.value).split())
    return found
