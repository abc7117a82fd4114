"""The keys of the configuration: the type, unit, default and meaning of each.

A key is a field of the dataclass that receives its value, and the field's docstring is its
documentation. `scripts/config-docs` writes the tables of docs/reference/configuration.md from them.
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
    """The keys before the first table of the file."""

    metadata: str = ""
    """The URI of the metadata store, which identifies the cluster: `sqlite:///FILE` or
    `zk+hierarchical://HOST:PORT/ledgers`. If it is empty, commands need the option `--metadata`."""


@dataclass(frozen=True, slots=True)
class BookieProcessConfig:
    """The keys of `[bookie]` that describe the process. The limits are in `BookieConfig`."""

    directories: tuple[str, ...] = ()
    """The data directories of the bookie, one for each disk (`--dir`)."""
    port: int = 3181
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
    autorecovery: bool = False
    """Whether the bookie's process also runs autorecovery: it stands for election as auditor, and
    repairs ledgers (`--autorecovery`)."""


@dataclass(frozen=True, slots=True)
class HttpSideConfig:
    """The HTTP server inside the process of a bookie or of autorecovery."""

    http: str = ""
    """HOST:PORT for the HTTP API, the health probes and `/metrics` (`--http`). If it is empty,
    nothing is served over HTTP. Any other address than loopback needs a token and TLS."""
    http_token_file: str | None = None
    """A file with the token that requests must contain (`--http-token-file`)."""
    http_bookies_token_file: str | None = None
    """A file with the token that the dashboard sends to bookies when it reads their metrics
    (`--http-bookies-token-file`)."""
    http_tls_cert: str | None = None
    """A PEM file with the certificate for HTTPS (`--http-tls-cert`). If it is not set, HTTP is
    served without TLS."""
    http_tls_key: str | None = None
    """A PEM file with the private key of that certificate (`--http-tls-key`). If it is not set, the
    key is read from the certificate's file."""
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
    """HOST:PORT on which these commands listen (`--http`). Any other address than loopback needs a
    token and TLS."""
    token_file: str | None = None
    """A file with the token that requests must contain (`--http-token-file`)."""
    bookies_token_file: str | None = None
    """A file with the token that the dashboard sends to bookies when it reads their metrics
    (`--http-bookies-token-file`)."""
    tls_cert: str | None = None
    """A PEM file with the certificate for HTTPS (`--http-tls-cert`). If it is not set, HTTP is
    served without TLS."""
    tls_key: str | None = None
    """A PEM file with the private key of that certificate (`--http-tls-key`). If it is not set, the
    key is read from the certificate's file."""
    name: tuple[str, ...] = ()
    """Further host names that requests may be addressed to (`--http-name`). Requests to any other
    name are refused."""

    def options(self) -> dict[str, object]:
        """Return the values by the names of the command-line options."""
        others = {f"http_{name}": value for name, value in asdict(self).items()}
        return {"http": others.pop("http_address"), **others}


TABLES: dict[str, tuple[type, ...]] = {
    "": (ClusterConfig,),
    "bookie": (BookieProcessConfig, HttpSideConfig, BookieConfig),
    "client": (ClientConfig,),
    "autorecovery": (AutorecoverySettings, HttpSideConfig),
    "http": (HttpServerConfig,),
}
"""The dataclasses that hold the keys of each table of the file, by the table's name."""

UNITS = (
    ("bytes_per_s", "bytes/s"),
    ("_bytes", "bytes"),
    ("_s", "seconds"),
    ("_percent", "percent"),
    ("_ratio", "share (0 to 1)"),
)
"""The unit of a key by the ending of its name. The first ending that matches counts."""

CHOICES: Mapping[str, tuple[object, ...]] = {"client.ledger_metadata_version": (2, 3)}
"""The values that a key may have, beyond what its type says."""
MOST: Mapping[str, float] = {
    "bookie.max_frame_bytes": 2**30,
    "bookie.port": 65_535,
    "bookie.session_timeout_s": 3_600,
    "autorecovery.ledger_check_percent": 100,
    "bookie.compact_minor_ratio": 1,
    "bookie.compact_major_ratio": 1,
}
"""The largest value of a key. Other keys are bounded by `INTEGER_MAX` or by their unit."""
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
"""The least value of a key that cannot be 0. All other numbers may be 0."""
INTEGER_MAX = 2**63 - 1
_MOST_OF = {"seconds": 1e9}
"""The largest value by unit: times of more than about thirty years would overflow timers."""
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
OR_ZERO = frozenset({"bookie.segment_bytes"})
"""The keys that may be 0 although `LEAST` is larger: their documentation says what 0 means."""


def environment_name(key: str) -> str:
    """Return the name of the environment variable for a key."""
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of the configuration."""

    name: str
    """The full name of the key, with its tables: `bookie.tls.ca`."""
    kind: str
    """The type: boolean, integer, number, string, strings, mapping, or location (a string or a
    mapping)."""
    default: Any
    """The default value, or `MISSING` if the key must be given whenever its table is present."""
    owner: type
    """The dataclass that has the key as a field."""
    choices: tuple[object, ...] = ()
    may_be_none: bool = False

    @property
    def meaning(self) -> str:
        """The documentation of the key, on one line."""
        return docstrings(self.owner).get(self.name.rpartition(".")[2], "")

    @property
    def unit(self) -> str:
        """The unit of a number, from the key's name; empty if it has none."""
        if self.kind not in ("integer", "number"):
            return ""
        last = self.name.rpartition(".")[2]
        return next((unit for ending, unit in UNITS if last.endswith(ending)), "")

    @property
    def least(self) -> float:
        return LEAST.get(self.name, 0)

    @property
    def or_zero(self) -> bool:
        """Whether 0 is allowed although `least` is larger."""
        return self.name in OR_ZERO

    @property
    def most(self) -> float:
        return MOST.get(self.name, _MOST_OF.get(self.unit, INTEGER_MAX))

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
    """Whether a missing table differs from an empty one, as for TLS: a missing table means no TLS.
    """
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
