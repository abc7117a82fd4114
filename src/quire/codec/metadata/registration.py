"""What a bookie says about itself when it registers, and which bookie ids there can be
(metadata spec, 1.4 and 1.5).

`BookieServiceInfoFormat`, binary protobuf without a header:

| message                 | field      | no | type                    |
|-------------------------|------------|----|-------------------------|
| BookieServiceInfoFormat | endpoints  | 6  | repeated Endpoint       |
|                         | properties | 7  | map of string to string |
| Endpoint                | id         | 1  | required string         |
|                         | port       | 2  | required int32          |
|                         | host       | 3  | required string         |
|                         | protocol   | 4  | required string         |
|                         | auth       | 5  | repeated string         |
|                         | extensions | 6  | repeated string         |
| entry of properties     | key, value | 1,2| string                  |

An empty payload is a bookie of an old release: its id is `host:port`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from quire.codec.protobuf_wire import bytes_field, int32, int_field, read_fields, text_field
from quire.errors import MetadataError, UsageError

RPC_PROTOCOL = "bookie-rpc"
"""The protocol of the endpoint that clients connect to."""
RPC_ENDPOINT = "bookie"
TLS_EXTENSION = "tls"

_ENDPOINTS = 6
_PROPERTIES = 7
_ID = 1
_PORT = 2
_HOST = 3
_PROTOCOL = 4
_AUTH = 5
_EXTENSIONS = 6
_KEY = 1
_VALUE = 2
_PORT_MAX = 65535

# ':' to '_' is a range in Java's expression, so that ; < = > ? @ [ \ ] ^ are allowed as well.
_BOOKIE_ID = re.compile(r"[a-zA-Z0-9:-_.\-]+")
_RESERVED_ID = "readonly"
_NO_NAMES = (".", "..")
"""Java lets them pass; no node of ZooKeeper can have such a name."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    id: str
    host: str
    port: int
    protocol: str = RPC_PROTOCOL
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    endpoints: tuple[Endpoint, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def rpc_endpoint(self) -> Endpoint | None:
        """Where clients connect to; None: the bookie cannot be reached."""
        return next((e for e in self.endpoints if e.protocol == RPC_PROTOCOL), None)


def encode(info: BookieServiceInfo) -> bytes:
    """The registration's payload. Without endpoints it is empty, and reads as an old bookie."""
    parts = [bytes_field(_ENDPOINTS, _encode_endpoint(endpoint)) for endpoint in info.endpoints]
    for key, value in info.properties.items():
        parts.append(bytes_field(_PROPERTIES, text_field(_KEY, key) + text_field(_VALUE, value)))
    return b"".join(parts)


def _encode_endpoint(endpoint: Endpoint) -> bytes:
    parts = [
        text_field(_ID, endpoint.id),
        int_field(_PORT, endpoint.port),
        text_field(_HOST, endpoint.host),
        text_field(_PROTOCOL, endpoint.protocol),
    ]
    parts += [text_field(_AUTH, name) for name in endpoint.auth]
    parts += [text_field(_EXTENSIONS, name) for name in endpoint.extensions]
    return b"".join(parts)


def decode(data: bytes, bookie_id: str) -> BookieServiceInfo:
    """`MetadataError` if the payload is damaged, or empty while the id is not `host:port`."""
    if not data:
        return _legacy(bookie_id)
    endpoints: list[Endpoint] = []
    properties: dict[str, str] = {}
    try:
        for number, value in read_fields(data):
            if not isinstance(value, bytes):
                continue
            if number == _ENDPOINTS:
                endpoints.append(_decode_endpoint(value))
            elif number == _PROPERTIES:
                key, text = _decode_property(value)
                properties[key] = text
    except ValueError as error:
        raise MetadataError(f"the registration of bookie {bookie_id} is damaged: {error}") from None
    return BookieServiceInfo(tuple(endpoints), properties)


def _decode_endpoint(data: bytes) -> Endpoint:
    texts: dict[int, str] = {}
    auth: list[str] = []
    extensions: list[str] = []
    port: int | None = None
    for number, value in read_fields(data):
        if isinstance(value, int):
            if number == _PORT:
                port = int32(value)
        elif number == _AUTH:
            auth.append(value.decode())
        elif number == _EXTENSIONS:
            extensions.append(value.decode())
        elif number in (_ID, _HOST, _PROTOCOL):
            texts[number] = value.decode()
    if port is None or len(texts) < 3:
        raise ValueError("an endpoint lacks its id, port, host or protocol")
    return Endpoint(
        texts[_ID], texts[_HOST], port, texts[_PROTOCOL], tuple(auth), tuple(extensions)
    )


def _decode_property(data: bytes) -> tuple[str, str]:
    key, text = "", ""
    for number, value in read_fields(data):
        if isinstance(value, bytes):
            if number == _KEY:
                key = value.decode()
            elif number == _VALUE:
                text = value.decode()
    return key, text


def _legacy(bookie_id: str) -> BookieServiceInfo:
    host, colon, rest = bookie_id.partition(":")
    port = rest.partition(":")[0]
    if not host or not colon or not port.isdecimal() or not int(port) <= _PORT_MAX:
        raise MetadataError(
            f"bookie {bookie_id} registered no address, and its id is not of the form host:port"
        )
    return BookieServiceInfo((Endpoint(bookie_id, host, int(port)),))


def default_bookie_id(host: str, port: int | str) -> str:
    """Return the default id of a bookie. The id is a name, not an address: an IPv6 address has no
    brackets in it, as in the ids of existing bookies."""
    return f"{host}:{port}"


def is_bookie_id(bookie_id: str) -> bool:
    """Whether a bookie can have this id."""
    if bookie_id.lower() == _RESERVED_ID or bookie_id in _NO_NAMES:
        return False
    return _BOOKIE_ID.fullmatch(bookie_id) is not None


def check_bookie_id(bookie_id: str) -> None:
    """`UsageError` if no bookie can have this id."""
    if not is_bookie_id(bookie_id):
        raise UsageError(
            f"{bookie_id!r} cannot be a bookie id",
            remedy="Use letters, digits, '.', '-', '_' and ':', and not the word 'readonly'",
        )
