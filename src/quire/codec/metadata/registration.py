"""The registration of a bookie, and the rules for bookie ids (docs/reference/metadata.md).

A registration is the message `BookieServiceInfoFormat` as binary protobuf, without a header. An
empty payload belongs to a bookie of an old release, whose id is `host:port`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire.errors import MetadataError, UsageError

if TYPE_CHECKING:
    from quire.codec.metadata.formats_pb2 import BookieServiceInfoFormat

RPC_PROTOCOL = "bookie-rpc"
"""The protocol of the endpoint that clients connect to."""
RPC_ENDPOINT = "bookie"
TLS_EXTENSION = "tls"

_PORT_MAX = 65535
_PORT_DIGITS_MAX = 5

# ':' to '_' is a range in Java's expression, so that ; < = > ? @ [ \ ] ^ are allowed as well.
_BOOKIE_ID = re.compile(r"[a-zA-Z0-9:-_.\-]+")
_RESERVED_ID = "readonly"
_NO_NAMES = (".", "..")
"""Ids that Java accepts although no node of ZooKeeper can be named like that."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address at which a bookie serves one protocol."""

    id: str
    host: str
    port: int
    protocol: str = RPC_PROTOCOL
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """The content of a registration."""

    endpoints: tuple[Endpoint, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def rpc_endpoint(self) -> Endpoint | None:
        """Return the endpoint for clients, or None if the bookie cannot be reached."""
        return next((e for e in self.endpoints if e.protocol == RPC_PROTOCOL), None)


def encode(info: BookieServiceInfo) -> bytes:
    """Return the payload of a registration.

    The payload is empty if there are neither endpoints nor properties, like that of an old bookie.
    """
    # Imported here, because most commands that check a bookie id read no registration.
    from quire.codec.metadata.formats_pb2 import BookieServiceInfoFormat

    message = BookieServiceInfoFormat()
    for one in info.endpoints:
        message.endpoints.add(
            id=one.id,
            port=one.port,
            host=one.host,
            protocol=one.protocol,
            auth=one.auth,
            extensions=one.extensions,
        )
    for key, value in info.properties.items():
        message.properties.add(key=key, value=value)
    return message.SerializeToString()


def decode(data: bytes, bookie_id: str) -> BookieServiceInfo:
    """Decode the payload of a registration.

    Raises:
        MetadataError: The payload is damaged, or it is empty and the id is not of the form
            host:port.
    """
    if not data:
        return _legacy(bookie_id)
    from google.protobuf.message import DecodeError

    from quire.codec.metadata.formats_pb2 import BookieServiceInfoFormat

    try:
        message = BookieServiceInfoFormat.FromString(data)
        endpoints = tuple(_endpoint(one) for one in message.endpoints)
    except (DecodeError, ValueError) as error:
        raise MetadataError(
            f"the registration of bookie {bookie_id} in the metadata store cannot be decoded: "
            f"{error}",
            remedy="Restart the bookie, which registers it again. If the error returns, the "
            "bookie runs an incompatible version",
        ) from None
    return BookieServiceInfo(endpoints, {one.key: one.value for one in message.properties})


def _endpoint(one: BookieServiceInfoFormat.Endpoint) -> Endpoint:
    if not all(map(one.HasField, ("id", "port", "host", "protocol"))):
        raise ValueError("one of its endpoints lacks the id, port, host or protocol")
    return Endpoint(
        one.id, one.host, one.port, one.protocol, tuple(one.auth), tuple(one.extensions)
    )


def _legacy(bookie_id: str) -> BookieServiceInfo:
    host, colon, rest = bookie_id.partition(":")
    port = rest.partition(":")[0]
    if (
        not host
        or not colon
        or not port.isdecimal()
        or len(port) > _PORT_DIGITS_MAX
        or not int(port) <= _PORT_MAX
    ):
        raise MetadataError(
            f"bookie {bookie_id} cannot be reached: its registration has no address, and its id is "
            "not of the form host:port",
            remedy="Another program registered it. Upgrade that bookie to a version that "
            "registers its address, or give it an id of the form host:port",
        )
    return BookieServiceInfo((Endpoint(bookie_id, host, int(port)),))


def default_bookie_id(host: str, port: int | str) -> str:
    """Return the default id of a bookie.

    The id is a name and not an address. An IPv6 address has no brackets in it, as in the ids of
    existing bookies.
    """
    return f"{host}:{port}"


def is_bookie_id(bookie_id: str) -> bool:
    """Return whether a bookie can have this id."""
    if bookie_id.lower() == _RESERVED_ID or bookie_id in _NO_NAMES:
        return False
    return _BOOKIE_ID.fullmatch(bookie_id) is not None


def check_bookie_id(bookie_id: str) -> None:
    """Raise UsageError if no bookie can have this id."""
    if not is_bookie_id(bookie_id):
        raise UsageError(
            f"{bookie_id!r} cannot be a bookie id",
            remedy="Use letters, digits, '.', '-', '_' and ':', and not the word 'readonly'",
        )
