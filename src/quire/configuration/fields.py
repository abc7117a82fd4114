"""Every key of the configuration: what `quire.toml` may hold, its type, unit, default and meaning.

The keys are the fields of the dataclasses that take them; a field's docstring is its documentation.
`docs/reference/configuration.md` is made from this (`configuration_page`).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from typing import Annotated, Any

from quire._runtime.limits import FieldRule, Limits, rules_of
from quire.config import BookieConfig, ClientConfig
from quire.replication.autorecovery.settings import AutorecoverySettings

ENVIRONMENT_PREFIX = "QUIRE_"


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Keys that stand before the first table."""

    metadata: str = ""
    """The URI of the metadata store, which names the cluster: `sqlite:///FILE` or
    `zk+hierarchical://HOST:PORT/ledgers`. '': none, so that commands need `--metadata`."""


@dataclass(frozen=True, slots=True)
class BookieProcessConfig:
    """Of `quire bookie start`, beside the limits in `BookieConfig`."""

    directories: tuple[str, ...] = ()
    """Where it keeps its entries, one for each disk (`--dir`)."""
    port: Annotated[int, Limits(0, 65_535)] = 3181
    """Where it listens (`--port`). 0: any free one."""
    advertise: str = "127.0.0.1"
    """The host under which clients reach it (`--advertise`)."""
    bind: str = ""
    """The address to listen on (`--bind`). '': that of `advertise`."""
    bookie_id: str = ""
    """What ledgers call it, for good (`--bookie-id`). '': the id that its directory was first
    started with; of a new one ADVERTISE:PORT."""
    autorecovery: bool = False
    """Stand for auditor and repair ledgers in the same process (`--autorecovery`)."""


@dataclass(frozen=True, slots=True)
class HttpSideConfig:
    """What a bookie, and a process of autorecovery, serve over HTTP besides."""

    http: str = ""
    """HOST:PORT of the HTTP API, the probes and `/metrics` (`--http`). '': none. Elsewhere than on
    loopback it needs a token and TLS."""
    http_token_file: str | None = None
    """Holds the token that requests must show (`--http-token-file`)."""
    http_bookies_token_file: str | None = None
    """Holds the token that is shown to bookies whose metrics its dashboard reads
    (`--http-bookies-token-file`)."""
    http_tls_cert: str | None = None
    """Serve HTTPS with this certificate (`--http-tls-cert`)."""
    http_tls_key: str | None = None
    """Its private key (`--http-tls-key`); not set: it stands in the file of the certificate."""
    http_name: tuple[str, ...] = ()
    """Further host names that requests may be sent to (`--http-name`)."""

    def options(self) -> dict[str, object]:
        """By the name of the option."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class HttpServerConfig:
    """Of `quire http` and `quire ui`."""

    address: str = "127.0.0.1:8080"
    """HOST:PORT where they listen (`--http`). Elsewhere than on loopback they need a token and
    TLS."""
    token_file: str | None = None
    """Holds the token that requests must show (`--http-token-file`)."""
    bookies_token_file: str | None = None
    """Holds the token that is shown to bookies whose metrics the dashboard reads
    (`--http-bookies-token-file`)."""
    tls_cert: str | None = None
    """Serve HTTPS with this certificate (`--http-tls-cert`)."""
    tls_key: str | None = None
    """Its private key (`--http-tls-key`); not set: it stands in the file of the certificate."""
    name: tuple[str, ...] = ()
    """Further host names that requests may be sent to (`--http-name`)."""

    def options(self) -> dict[str, object]:
        """By the name of the option."""
        others = {f"http_{name}": value for name, value in asdict(self).items()}
        return {"http": others.pop("http_address"), **others}


TABLES: dict[str, tuple[type, ...]] = {
    "": (ClusterConfig,),
    "bookie": (BookieProcessConfig, HttpSideConfig, BookieConfig),
    "client": (ClientConfig,),
    "autorecovery": (AutorecoverySettings, HttpSideConfig),
    "http": (HttpServerConfig,),
}
"""By the name of the table."""

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
"""Former names of keys, whose numbers are milliseconds, and the keys that replace them. They work
for one more release, with a warning."""


def environment_name(key: str) -> str:
    """Return the name of the environment variable for a key."""
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")


@dataclass(frozen=True, slots=True)
class ConfigKey:
    name: str
    """With its tables: `bookie.tls.ca`."""
    rule: FieldRule
    """The values that it may have."""
    default: Any
    """`MISSING`: it has to be given where its table is."""
    owner: type
    """The dataclass whose field it is."""

    @property
    def meaning(self) -> str:
        return docstrings(self.owner).get(self.rule.name, "")

    @property
    def kind(self) -> str:
        """See `FieldRule.kind`."""
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
    """A table of tables: what one dataclass within another stands for."""

    name: str
    kind: type
    optional: bool
    """Left out it means something else than empty: no TLS."""
    owner: type

    @property
    def meaning(self) -> str:
        return docstrings(self.owner).get(self.name.rpartition(".")[2], "")


@cache
def keys() -> dict[str, ConfigKey]:
    """All, by name, in the order of the page."""
    return {one.name: one for one in _everything() if isinstance(one, ConfigKey)}


@cache
def inner_tables() -> dict[str, ConfigTable]:
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
    """The strings below the fields of a dataclass, on one line each."""
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
