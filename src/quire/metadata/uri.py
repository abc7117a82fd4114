"""Metadata URIs, which name a store and its place.

| URI                                             | store                                        |
|-------------------------------------------------|----------------------------------------------|
| `sqlite:////absolute/file.db`, `sqlite:///file` | one file, for the processes of one machine   |
| `zk://HOST:PORT;HOST:PORT/ledgers`, `zk+null:`  | ZooKeeper; LAYOUT names the ledger manager   |
| `zk+hierarchical://HOST:PORT,HOST:PORT/ledgers` | ZooKeeper; LAYOUT must name this manager     |
| `zk+longhierarchical:`, `zk+flat:`              | likewise                                     |
| `memory://NAME`                                 | this process alone, for tests; the driver is |
|                                                 | in the package quire-simulator               |
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from quire._runtime.uris import has_credentials, without_credentials
from quire.codec.metadata import layout
from quire.errors import MetadataURIError, check_type

DEFAULT_ZOOKEEPER_PORT = 2181
VALUES_ROOT = "/quire"
"""The node of ZooKeeper below which Quire keeps its own values. A ledgers root must not be below
it."""

_RESERVED_ROOTS = ("zookeeper", VALUES_ROOT[1:])
_SERVER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:@\[\]]+)(?::(?P<port>\d{1,5}))?")
_PORT_MAX = 65535
_MEMORY_REMEDY = "Use memory://NAME"


class Driver(enum.Enum):
    """The kind of a store."""

    MEMORY = "memory"
    SQLITE = "sqlite"
    ZOOKEEPER = "zookeeper"


@dataclass(frozen=True, slots=True)
class MetadataURI:
    """The parts of a metadata URI. The driver decides which of them are set."""

    text: str
    """The URI as it was written, for messages."""
    driver: Driver
    name: str = ""
    """The name of the cluster in memory."""
    path: str = ""
    """The path of the SQLite file. It may be relative to the working directory."""
    servers: tuple[str, ...] = ()
    """The ZooKeeper servers, each as HOST:PORT."""
    root: str = ""
    """The path of the ledgers root in ZooKeeper, such as '/ledgers'."""
    factory: str | None = None
    """The Java class of the ledger manager that LAYOUT must name, or None to accept any."""


def parse_uri(uri: str) -> MetadataURI:
    """Parse a metadata URI.

    Raises:
        MetadataURIError: The URI is malformed or names no known store.
        ArgumentTypeError: The URI is not text.
    """
    check_type("a metadata URI", uri, str)
    scheme, separator, rest = uri.strip().partition("://")
    scheme = scheme.lower()
    if not separator:
        raise MetadataURIError(f"{uri!r} is not a metadata URI: it has no '://'")
    if scheme != "memory" and has_credentials(uri.strip()):
        raise MetadataURIError(
            f"the metadata URI {without_credentials(uri.strip())!r} was given with a user or a "
            "password, which it cannot have",
            remedy="Leave them out. For ZooKeeper, put the line user:password into a file, and "
            "name it in QUIRE_ZOOKEEPER_AUTH_FILE",
        )
    if scheme == "sqlite":
        return _parse_sqlite(uri, rest)
    if scheme == "memory":
        if not rest or "/" in rest:
            raise MetadataURIError(
                f"the metadata URI {uri!r} does not name an in-memory cluster",
                remedy=_MEMORY_REMEDY,
            )
        return MetadataURI(uri, Driver.MEMORY, name=rest)
    if scheme == "zk" or scheme.startswith("zk+"):
        return _parse_zookeeper(uri, scheme, rest)
    raise MetadataURIError(
        f"the metadata URI {uri!r} has the scheme {scheme!r}, which Quire does not know"
    )


def _parse_sqlite(uri: str, rest: str) -> MetadataURI:
    if not rest.startswith("/"):
        raise MetadataURIError(
            f"the metadata URI {uri!r} names a host, but a SQLite file is local",
            remedy="Write three slashes before a relative path, and four before an absolute one",
        )
    path = rest[1:]
    if not path or path.endswith("/") or "\0" in path:
        raise MetadataURIError(
            f"the metadata URI {uri!r} does not end with the path of a file",
            remedy="Use sqlite:////absolute/file.db",
        )
    return MetadataURI(uri, Driver.SQLITE, path=path)


def _parse_zookeeper(uri: str, scheme: str, rest: str) -> MetadataURI:
    manager = scheme.partition("+")[2] if "+" in scheme else "null"
    if manager != "null" and manager not in layout.FACTORIES:
        raise MetadataURIError(
            f"the metadata URI {uri!r} names the ledger manager {manager!r}, which Quire does "
            "not know",
            remedy="Use zk:// for the manager that the cluster has, or name one: "
            + ", ".join(f"zk+{name}://" for name in layout.FACTORIES),
        )
    authority, slash, path = rest.partition("/")
    servers = tuple(
        _server(uri, part) for part in re.split("[;,]", authority) if part.strip() != ""
    )
    if not servers:
        raise MetadataURIError(f"the metadata URI {uri!r} names no ZooKeeper server")
    root = slash + path
    parts = path.split("/")
    if not root or any(part in ("", ".", "..") for part in parts):
        raise MetadataURIError(
            f"the metadata URI {uri!r} has no usable ledgers root: its path is {root!r}",
            remedy="End it with /ledgers, or with the root of the cluster, without a final '/'",
        )
    if parts[0] in _RESERVED_ROOTS:
        raise MetadataURIError(
            f"the metadata URI {uri!r} has the ledgers root {root}, but /{parts[0]} is reserved",
            remedy="Use another root, such as /ledgers",
        )
    return MetadataURI(
        uri, Driver.ZOOKEEPER, servers=servers, root=root, factory=layout.FACTORIES.get(manager)
    )


def _server(uri: str, text: str) -> str:
    match = _SERVER.fullmatch(text.strip())
    port = DEFAULT_ZOOKEEPER_PORT if match is None or match["port"] is None else int(match["port"])
    if match is None or not 0 < port <= _PORT_MAX:
        raise MetadataURIError(
            f"the metadata URI {uri!r} names the server {text!r}, which is not HOST:PORT"
        )
    return f"{match['host']}:{port}"


def replication_root(uri: str) -> str:
    """Return the path of a store's under-replication tree, which is a node of `store.tree`.

    In ZooKeeper this is Apache's own tree, below the ledgers root. In the other stores it is below
    `VALUES_ROOT`.
    """
    where = parse_uri(uri)
    top = where.root if where.driver is Driver.ZOOKEEPER else VALUES_ROOT
    return f"{top}/underreplication"
