"""The node that makes a path a namespace, namespace URIs, and access rights.

The node's data is text in three lines, without a newline after the last:

    1
    BKDL
    {"1":{"str":"..."}, ...}        a Thrift struct as TJSON, written without blanks

| id | type | field                                         | if it is missing               |
|----|------|-----------------------------------------------|--------------------------------|
| 1  | str  | ZooKeeper of the bookies, for writers         | an error                       |
| 2  | str  | ledgers root                                  | an error                       |
| 3  | tf   | check txids; no program reads it              | 1                              |
| 4  | tf   | segments contain a region                     | 0                              |
| 5  | str  | ZooKeeper of the bookies, for readers         | field 1                        |
| 6  | str  | ZooKeeper of the streams, for writers         | the host of the namespace URI  |
| 7  | str  | ZooKeeper of the streams, for readers         | field 6                        |
| 8  | str  | root of the access rights                     | none: everything is allowed    |
| 9  | i64  | number of a stream's first segment            | 1                              |
| 10 | tf   | federated                                     | 0                              |

The struct is that of DistributedLog's class `BKDLConfig`. The types are str (text), tf (a boolean
as 0 or 1) and i64 (a signed number). The access rights of a stream are a struct of tf fields, each
of which denies something: 1 write, 2 truncate, 3 delete, 4 acquire, 5 release. Without data, or
without the field, it is allowed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from quire._runtime.uris import without_credentials
from quire.codec.distributedlog.limits import BY, FIRST_LSSN
from quire.codec.distributedlog.thrift_json import BOOL, I64, TEXT, Value, read_struct, write_struct
from quire.errors import LaterMetadataError, MetadataError, MetadataURIError, written_later

_VERSION = "1"
_VERSION_DIGITS_MAX = 9
"""The largest number of digits that is read. Python refuses to read numbers of more than 4,300."""
_TYPE = "BKDL"
_KINDS = {
    1: TEXT, 2: TEXT, 3: BOOL, 4: BOOL, 5: TEXT, 6: TEXT, 7: TEXT, 8: TEXT, 9: I64, 10: BOOL,
}  # fmt: skip
_LINE_END = re.compile(r"\r\n|\r|\n")

_START = re.compile(rb"\d{1,9}(\r\n|\r|\n)BKDL(\r\n|\r|\n|\Z)")

SCHEME = "distributedlog"
_BACKEND_SCHEMES = (SCHEME, f"{SCHEME}-bk")


@dataclass(frozen=True, slots=True)
class NamespaceBinding:
    """The BookKeeper cluster that a namespace uses, and the settings that its streams share."""

    bookies_zookeeper: str
    """The ZooKeeper servers of the bookies for writers, as `host:port,host:port`."""
    ledgers_root: str
    bookies_zookeeper_for_readers: str
    streams_zookeeper: str
    streams_zookeeper_for_readers: str
    check_txids: bool = True
    encode_region: bool = False
    access_root: str | None = None
    """The root of the access rights, relative to the namespace. It begins with `.` or `<`. None
    means that there are no access rights."""
    first_lssn: int = FIRST_LSSN
    federated: bool = False

    @classmethod
    def of_one(cls, zookeeper: str, ledgers_root: str) -> NamespaceBinding:
        """Return a binding with streams and ledgers in one ZooKeeper, which is the usual case."""
        return cls(zookeeper, ledgers_root, zookeeper, zookeeper, zookeeper)

    def to_bytes(self) -> bytes:
        """Return the data of the node that binds the namespace."""
        fields: list[tuple[int, str, Value]] = [
            (1, TEXT, self.bookies_zookeeper),
            (2, TEXT, self.ledgers_root),
            (3, BOOL, self.check_txids),
            (4, BOOL, self.encode_region),
            (5, TEXT, self.bookies_zookeeper_for_readers),
            (6, TEXT, self.streams_zookeeper),
            (7, TEXT, self.streams_zookeeper_for_readers),
        ]
        if self.access_root is not None:
            fields.append((8, TEXT, self.access_root))
        if self.first_lssn != FIRST_LSSN:
            fields.append((9, I64, self.first_lssn))
        if self.federated:
            fields.append((10, BOOL, True))
        return f"{_VERSION}\n{_TYPE}\n{write_struct(fields)}".encode()

    @classmethod
    def from_bytes(cls, data: bytes, zookeeper: str) -> NamespaceBinding:
        """Decode the data of a node, which must not be empty.

        Everything that a Java client refuses is an error.

        Args:
            data: The data of the node.
            zookeeper: The servers in the namespace URI. They are the servers of the streams if the
                data names none.

        Raises:
            LaterMetadataError: A later version of Quire or of DistributedLog wrote the binding.
            MetadataError: The binding is missing, damaged or of an unknown form.
        """
        if not data:
            raise MetadataError(
                "the node of the namespace is empty, so the namespace is not bound to a cluster"
            )
        try:
            version, kind, *rest = _LINE_END.split(data.decode())
        except ValueError:
            raise MetadataError(
                f"the node of the namespace is damaged: it begins with {data[:80]!r}"
            ) from None
        if version.isdecimal() and (
            len(version) > _VERSION_DIGITS_MAX or int(version) > int(_VERSION)
        ):
            raise LaterMetadataError(
                written_later(
                    "the binding of a namespace", f"version {version[:20]}", f"version {_VERSION}",
                    by=BY,
                )
            )  # fmt: skip
        if version != _VERSION:
            raise MetadataError(
                f"the node of the namespace has the binding version {version[:20]!r}, but this "
                f"version of Quire reads only {_VERSION!r}"
            )
        if kind != _TYPE:
            raise MetadataError(
                f"the node of the namespace has a binding of type {kind[:20]!r}, but Quire reads "
                f"only {_TYPE}"
            )
        try:
            fields = read_struct("".join(rest), _KINDS)
            bookies, root = _text(fields, 1), _text(fields, 2)
            if bookies is None or root is None:
                raise ValueError("field 1 (servers of the bookies) or 2 (ledgers root) is missing")
        except ValueError as error:
            raise MetadataError(
                f"the node of the namespace has a damaged binding: {error}"
            ) from None
        streams = _text(fields, 6) or zookeeper
        return cls(
            bookies,
            root,
            _text(fields, 5) or bookies,
            streams,
            _text(fields, 7) or streams,
            bool(fields.get(3, 1)),
            bool(fields.get(4, 0)),
            _text(fields, 8),
            int(fields.get(9, FIRST_LSSN)),
            bool(fields.get(10, 0)),
        )


def _text(fields: dict[int, Value], number: int) -> str | None:
    value = fields.get(number)
    return None if value is None else str(value)


def is_binding(data: bytes) -> bool:
    """Return whether the data of a node is the binding of a namespace, in any version."""
    return _START.match(data) is not None


@dataclass(frozen=True, slots=True)
class NamespaceURI:
    """A namespace URI, such as `distributedlog://h1:2181;h2:2181/path`."""

    servers: str
    """The servers in the form that ZooKeeper clients need: `h1:2181,h2:2181`."""
    path: str
    """The absolute path of the namespace."""

    def __str__(self) -> str:
        return f"{SCHEME}://{self.servers.replace(',', ';')}{self.path}"

    @classmethod
    def parse(cls, text: str) -> NamespaceURI:
        """Parse a namespace URI.

        Raises:
            MetadataURIError: The text is not a namespace URI.
        """
        remedy = f"Use {SCHEME}://HOST:PORT;HOST:PORT/path"
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise MetadataURIError(
                f"{text!r} is not a namespace URI: {error}", remedy=remedy
            ) from None
        if parts.scheme not in _BACKEND_SCHEMES:
            raise MetadataURIError(
                f"{text!r} is not a namespace URI: its scheme is wrong", remedy=remedy
            )
        if "@" in parts.netloc:
            raise MetadataURIError(
                f"the namespace URI {without_credentials(text)!r} was given with a user or a "
                "password, which it cannot have",
                remedy=remedy,
            )
        servers = parts.netloc.replace(";", ",")
        if not all(servers.split(",")) or parts.query or parts.fragment:
            raise MetadataURIError(
                f"the namespace URI {text!r} has an empty server name, a query or a fragment",
                remedy=remedy,
            )
        path = parts.path.rstrip("/")
        if not path or any(part in ("", ".", "..") for part in path.split("/")[1:]):
            raise MetadataURIError(
                f"the namespace URI {text!r} has no path, or a path with an empty part, '.' or "
                "'..'",
                remedy=remedy,
            )
        return cls(servers, path)


@dataclass(frozen=True, slots=True)
class AccessRights:
    """The actions that the access node of a stream denies.

    Java's library stores the node, and no program enforces it.
    """

    deny_write: bool = False
    deny_truncate: bool = False
    deny_delete: bool = False
    deny_acquire: bool = False
    deny_release: bool = False

    @classmethod
    def from_bytes(cls, data: bytes, stream: str) -> AccessRights:
        """Decode the data of the access node of a stream. Empty data denies nothing.

        Args:
            data: The data of the node.
            stream: The path of the stream, for the error.

        Raises:
            MetadataError: The data is damaged.
        """
        if not data:
            return cls()
        try:
            fields = read_struct(data.decode(), dict.fromkeys(range(1, 6), BOOL))
        except ValueError as error:
            raise MetadataError(
                f"the access rights of stream {stream} cannot be decoded: {error}",
                remedy="Restore the stream's access node from a backup of the metadata store",
            ) from None
        return cls(*(bool(fields.get(number, 0)) for number in range(1, 6)))
