"""Every key of the configuration: what `quire.toml` may hold, its type, unit, default and meaning.

The keys are the fields of the dataclasses that take them; a field's docstring is its documentation.
`docs/reference/configuration.md` is made from this (`configuration_page`).
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from quire.codec.log.state_records import BLOCK_BYTES
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
    port: int = 3181
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

UNITS = (
    ("bytes_per_s", "bytes/s"),
    ("_bytes", "bytes"),
    ("_s", "seconds"),
    ("_percent", "percent"),
    ("_ratio", "share (0 to 1)"),
)
"""The unit of a key, by the ending of its name."""

CHOICES: Mapping[str, tuple[object, ...]] = {"client.ledger_metadata_version": (2, 3)}
MOST: Mapping[str, float] = {
    "bookie.max_frame_bytes": 2**30,
    "bookie.port": 65_535,
    "bookie.session_timeout_s": 3_600,
    "autorecovery.ledger_check_percent": 100,
    "bookie.compact_minor_ratio": 1,
    "bookie.compact_major_ratio": 1,
}
LEAST: Mapping[str, float] = {
    "autorecovery.bytes_per_s": 1,
    "autorecovery.ledgers_at_once": 1,
    "autorecovery.poll_s": 0.001,
    "bookie.check_space_s": 0.001,
    "bookie.gc_full_interval_s": 0.001,
    "bookie.gc_interval_s": 0.001,
    "bookie.index_cache_segments": 1,
    "bookie.max_answer_bytes": 1,
    "bookie.max_batch_read_bytes": 1,
    "bookie.metadata_mark_interval_s": 0.001,
    "bookie.max_connections": 1,
    "bookie.max_frame_bytes": 4 * BLOCK_BYTES,
    "bookie.max_partial_bytes": 1,
    "bookie.max_queued_bytes": 1,
    "bookie.max_unsent_bytes": 1,
    "bookie.seal_idle_s": 0.001,
    "bookie.segment_bytes": 4 * BLOCK_BYTES,
    "bookie.session_timeout_s": 0.1,
    "bookie.stop_timeout_s": 0.001,
    "bookie.tls.max_handshakes": 1,
    "client.add_timeout_s": 0.001,
    "client.connect_timeout_s": 0.001,
    "client.max_turn_bytes": 1,
    "client.max_unacked_bytes": 1,
    "client.probe_timeout_s": 0.001,
    "client.read_timeout_s": 0.001,
    "client.read_window_bytes": 1,
    "client.read_windows": 1,
    "client.recovery_timeout_s": 0.001,
    "client.single_reads_in_flight": 1,
}
"""The least value of keys that cannot be 0. All other numbers may be 0."""
INTEGER_MAX = 2**63 - 1
_MOST_OF = {"seconds": 1e9}
"""The longest time: about thirty years. Much longer timers overflow."""
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
OR_ZERO = frozenset({"bookie.segment_bytes"})
"""Keys for which 0 has a meaning of its own, which their documentation gives."""


def environment_name(key: str) -> str:
    """Return the name of the environment variable for a key."""
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")


@dataclass(frozen=True, slots=True)
class ConfigKey:
    name: str
    """With its tables: `bookie.tls.ca`."""
    kind: str
    """boolean, integer, number, string, strings, mapping, or location (a string or a mapping)."""
    default: Any
    """`MISSING`: it has to be given where its table is."""
    owner: type
    """The dataclass whose field it is."""
    choices: tuple[object, ...] = ()
    may_be_none: bool = False

    @property
    def meaning(self) -> str:
        return docstrings(self.owner).get(self.name.rpartition(".")[2], "")

    @property
    def unit(self) -> str:
        if self.kind not in ("integer", "number"):
            return ""
        last = self.name.rpartition(".")[2]
        return next((unit for ending, unit in UNITS if last.endswith(ending)), "")

    @property
    def least(self) -> float:
        return LEAST.get(self.name, 0)

    @property
    def or_zero(self) -> bool:
        """Whether it may be 0 beside that."""
        return self.name in OR_ZERO

    @property
    def most(self) -> float:
        return MOST.get(self.name, _MOST_OF.get(self.unit, INTEGER_MAX))

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
    hints = get_type_hints(kind)
    plain: list[ConfigKey | ConfigTable] = []
    nested: list[ConfigKey | ConfigTable] = []
    for item in fields(kind):
        name = prefix + item.name
        inner, optional = _without_none(hints[item.name])
        if is_dataclass(inner):
            assert isinstance(inner, type)
            nested.append(ConfigTable(name, inner, optional, kind))
            nested += _walk(inner, f"{name}.")
            continue
        default = item.default
        if item.default_factory is not MISSING:
            default = item.default_factory()
        kind_name, choices = _kind_of(inner)
        choices = choices or CHOICES.get(name, ())
        plain.append(ConfigKey(name, kind_name, default, kind, choices, optional))
    return plain + nested


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        others = [one for one in get_args(hint) if one is not type(None)]
        if len(others) == 1:
            return others[0], True
    return hint, False


def _kind_of(hint: Any) -> tuple[str, tuple[object, ...]]:
    if get_origin(hint) is Literal:
        return "string", get_args(hint)
    simple = {bool: "boolean", int: "integer", float: "number", str: "string"}
    if hint in simple:
        return simple[hint], ()
    if hint == tuple[str, ...]:
        return "strings", ()
    if hint == Mapping[str, str]:
        return "mapping", ()
    if hint == str | Mapping[str, str]:
        return "location", ()
    raise TypeError(f"a configuration cannot hold {hint}")


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
