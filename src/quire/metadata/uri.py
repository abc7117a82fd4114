"""Metadata URIs: which store, and where (metadata spec, section 4).

| URI                                             | store                                       |
|-------------------------------------------------|---------------------------------------------|
| `sqlite:////absolute/file.db`, `sqlite:///file` | one file, for the processes of one machine  |
| `zk://HOST:PORT;HOST:PORT/ledgers`, `zk+null:`  | ZooKeeper; its LAYOUT says how ledgers lie  |
| `zk+hierarchical://HOST:PORT,HOST:PORT/ledgers` | the same, and LAYOUT must name that manager |
| `zk+longhierarchical:`, `zk+flat:`              | likewise                                    |
| `memory://NAME`                                 | this process alone, for tests; its driver   |
|                                                 | is in the package quire-simulator           |
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from quire.codec.metadata import layout
from quire.errors import MetadataURIError, check_type

DEFAULT_ZOOKEEPER_PORT = 2181
VALUES_ROOT = "/quire"
"""Above what Quire keeps of its own in ZooKeeper; no ledgers root may lie there."""

_RESERVED_ROOTS = ("zookeeper", VALUES_ROOT[1:])
_SERVER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:@\[\]]+)(?::(?P<port>\d{1,5}))?")
_PORT_MAX = 65535
_MEMORY_REMEDY = "Use memory://NAME"


class Driver(enum.Enum):
    MEMORY = "memory"
    SQLITE = "sqlite"
    ZOOKEEPER = "zookeeper"


@dataclass(frozen=True, slots=True)
class MetadataURI:
    text: str
    """As it was written, for messages."""
    driver: Driver
    name: str = ""
    """memory: of the cluster."""
    path: str = ""
    """sqlite: of the file, perhaps relative to the working directory."""
    servers: tuple[str, ...] = ()
    """zookeeper: HOST:PORT of each."""
    root: str = ""
    """zookeeper: of the ledgers, as '/ledgers'."""
    factory: str | None = None
    """zookeeper: the ledger manager that LAYOUT must name; None: whichever it names."""


def parse_uri(uri: str) -> MetadataURI:
    """`MetadataURIError` if there is no such store."""
    check_type("a metadata URI", uri, str)
    scheme, separator, rest = uri.strip().partition("://")
    scheme = scheme.lower()
    if not separator:
        raise MetadataURIError(f"{uri!r} is not a metadata URI: it has no '://'")
    if scheme == "sqlite":
        return _parse_sqlite(uri, rest)
    if scheme == "memory":
        if not rest or "/" in rest:
            raise MetadataURIError(
                f"{uri!r} does not name an in-memory cluster", remedy=_MEMORY_REMEDY
            )
        return MetadataURI(uri, Driver.MEMORY, name=rest)
    if scheme == "zk" or scheme.startswith("zk+"):
        return _parse_zookeeper(uri, scheme, rest)
    raise MetadataURIError(f"{uri!r} names the unknown metadata store {scheme!r}")


def _parse_sqlite(uri: str, rest: str) -> MetadataURI:
    if not rest.startswith("/"):
        raise MetadataURIError(
            f"{uri!r} names a host, but a SQLite file is local",
            remedy="Use three slashes before a relative path, four before an absolute one",
        )
    path = rest[1:]
    if not path or path.endswith("/") or "\0" in path:
        raise MetadataURIError(f"{uri!r} names no file")
    return MetadataURI(uri, Driver.SQLITE, path=path)


def _parse_zookeeper(uri: str, scheme: str, rest: str) -> MetadataURI:
    manager = scheme.partition("+")[2] if "+" in scheme else "null"
    if manager != "null" and manager not in layout.FACTORIES:
        raise MetadataURIError(
            f"{uri!r} names the unknown ledger manager {manager!r}",
            remedy="Use zk:// for whichever the cluster has, or "
            + ", ".join(f"zk+{name}://" for name in layout.FACTORIES),
        )
    authority, slash, path = rest.partition("/")
    servers = tuple(
        _server(uri, part) for part in re.split("[;,]", authority) if part.strip() != ""
    )
    if not servers:
        raise MetadataURIError(f"{uri!r} names no ZooKeeper server")
    root = slash + path
    parts = path.split("/")
    if not root or any(part in ("", ".", "..") for part in parts):
        raise MetadataURIError(
            f"{uri!r} has no usable ledgers root (its path is {root!r})",
            remedy="End it in /ledgers, or in the cluster's own root, without a '/' behind",
        )
    if parts[0] in _RESERVED_ROOTS:
        raise MetadataURIError(f"{uri!r} has a ledgers root below /{parts[0]}, which is reserved")
    return MetadataURI(
        uri, Driver.ZOOKEEPER, servers=servers, root=root, factory=layout.FACTORIES.get(manager)
    )


def _server(uri: str, text: str) -> str:
    match = _SERVER.fullmatch(text.strip())
    port = DEFAULT_ZOOKEEPER_PORT if match is None or match["port"] is None else int(match["port"])
    if match is None or not 0 < port <= _PORT_MAX:
        raise MetadataURIError(f"{uri!r} names the server {text!r}, which is not HOST:PORT")
    return f"{match['host']}:{port}"


def replication_root(uri: str) -> str:
    """The node of a store's tree below which its under-replication tree lies: in ZooKeeper Apache's
    own, below the ledgers root; the other stores have one of their own."""
    where = parse_uri(uri)
    top = where.root if where.driver is Driver.ZOOKEEPER else VALUES_ROOT
    return f"{top}/underreplication"
