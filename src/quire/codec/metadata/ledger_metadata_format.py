"""Ledger metadata <-> bytes (metadata spec, section 2).

    "BookieMetadataFormatVersion" TAB <version, at most 9 digits> LF <body>

| version | body                                                              |
|---------|-------------------------------------------------------------------|
| 1       | lines of TAB-separated text; no digest, password, custom metadata |
| 2       | `LedgerMetadataFormat` in protobuf's text format                  |
| 3       | varint length, binary `LedgerMetadataFormat`; the rest is ignored |

A ledger keeps the version it was created with. Where Apache 4.17 and 4.18 differ, we read what
4.17 reads and write what both read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from quire.codec.entry.digest import DigestType
from quire.codec.metadata.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.protobuf_text import TextMessage, parse_text, quote
from quire.codec.protobuf_wire import (
    bytes_field,
    decode_varint,
    encode_varint,
    int32,
    int64,
    int_field,
    read_fields,
    text_field,
)
from quire.errors import UnreadableMetadataError, UsageError

_HEADER = b"BookieMetadataFormatVersion\t"
_VERSION_DIGITS_MAX = 9
_V1_CLOSED = "CLOSED"
_V1_IN_RECOVERY = -102

# Field numbers of LedgerMetadataFormat.
_QUORUM_SIZE = 1
_ENSEMBLE_SIZE = 2
_LENGTH = 3
_LAST_ENTRY_ID = 4
_STATE = 5
_SEGMENT = 6
_DIGEST_TYPE = 7
_PASSWORD = 8
_ACK_QUORUM_SIZE = 9
_CTIME = 10
_CUSTOM_METADATA = 11
_CTOKEN = 12
# Of Segment and of the entries of customMetadata.
_ENSEMBLE_MEMBER = 1
_FIRST_ENTRY_ID = 2
_KEY = 1
_VALUE = 2

_TEXT_FIELDS = (
    "quorumSize",
    "ensembleSize",
    "length",
    "lastEntryId",
    "state",
    "segment",
    "digestType",
    "password",
    "ackQuorumSize",
    "ctime",
    "customMetadata",
    "cToken",
)


def encode(metadata: LedgerMetadata) -> bytes:
    """The stored form, in `metadata.format_version`. `UsageError` if that form cannot hold it."""
    version = metadata.format_version
    if version not in (1, 2, 3):
        raise UsageError(f"ledger metadata has no format {version}: use 1, 2 or 3")
    if version > 1 and metadata.password is not None and metadata.digest is None:
        raise UsageError("ledger metadata with a password needs a digest type")
    if metadata.ctime_stored and metadata.ctime_ms < 0:
        raise UsageError("ledger metadata is to store its creation time, but has none")
    body = {1: _encode_v1, 2: _encode_v2, 3: _encode_v3}[version](metadata)
    return _HEADER + b"%d\n" % version + body


def decode(data: bytes, node_ctime_ms: int = -1) -> LedgerMetadata:
    """The value of stored bytes; `node_ctime_ms` is the creation time of the node they are from,
    used where they hold none. `UnreadableMetadataError` if they cannot be understood."""
    version, body = _split_header(data)
    try:
        if version == 1:
            return _decode_v1(body)
        raw = _parse_v2(body) if version == 2 else _parse_v3(body)
        return raw.to_metadata(version, node_ctime_ms)
    except ValueError as error:
        raise UnreadableMetadataError(
            f"ledger metadata (format {version}) is damaged: {error}"
        ) from None


def _split_header(data: bytes) -> tuple[int, bytes]:
    if not data.startswith(_HEADER):
        raise UnreadableMetadataError("ledger metadata is damaged: its header is missing")
    end = data.find(b"\n", len(_HEADER), len(_HEADER) + _VERSION_DIGITS_MAX + 1)
    if end < 0:
        raise UnreadableMetadataError("ledger metadata is damaged: its format version does not end")
    digits = data[len(_HEADER) : end]
    if not digits.isdigit():
        raise UnreadableMetadataError(
            f"ledger metadata is damaged: its format version is {digits!r}"
        )
    version = int(digits)
    if version not in (1, 2, 3):
        raise UnreadableMetadataError(f"ledger metadata has format {version}; known are 1, 2 and 3")
    return version, data[end + 1 :]


@dataclass(slots=True)
class _Raw:
    """`LedgerMetadataFormat` as it was read; None is an absent field."""

    quorum_size: int | None = None
    ensemble_size: int | None = None
    length: int | None = None
    last_entry_id: int | None = None
    state: int | None = None
    segments: list[Segment] = field(default_factory=list)
    digest_type: int | None = None
    password: bytes | None = None
    ack_quorum_size: int | None = None
    ctime: int | None = None
    custom: list[tuple[str, bytes]] = field(default_factory=list)
    ctoken: int | None = None

    def to_metadata(self, version: int, node_ctime_ms: int) -> LedgerMetadata:
        quorum = _required(self.quorum_size, "quorumSize")
        ensemble = _required(self.ensemble_size, "ensembleSize")
        length = _required(self.length, "length")
        state = LedgerState(_required(self.state, "state"))
        closed = state is LedgerState.CLOSED
        digest: DigestType | None = None
        if self.password is not None:
            # An absent digest type reads as the first of the enum; without a password the field
            # means nothing. A number that is not known raises: guessing would fail every read.
            digest = DigestType(DigestType.CRC32 if self.digest_type is None else self.digest_type)
        return LedgerMetadata(
            ensemble_size=ensemble,
            write_quorum=quorum,
            ack_quorum=quorum if self.ack_quorum_size is None else self.ack_quorum_size,
            segments=tuple(self.segments),
            state=state,
            last_entry_id=(self.last_entry_id or 0) if closed else NO_ENTRY,
            length=length if closed else 0,
            digest=digest,
            password=self.password,
            custom=_custom(self.custom),
            ctime_ms=node_ctime_ms if self.ctime is None else self.ctime,
            ctime_stored=self.ctime is not None,
            ctoken=self.ctoken or 0,
            format_version=version,
        )


def _required(value: int | None, name: str) -> int:
    if value is None:
        raise ValueError(f"the required field {name} is missing")
    return value


def _custom(entries: list[tuple[str, bytes]]) -> Mapping[str, bytes]:
    custom = dict(entries)
    if len(custom) != len(entries):
        raise ValueError("a key of the custom metadata occurs twice")
    return MappingProxyType(custom)


def _closed_values(metadata: LedgerMetadata) -> tuple[int, int]:
    """Last entry and length as stored: they mean something only once the ledger is closed."""
    return (metadata.last_entry_id, metadata.length) if metadata.closed else (NO_ENTRY, 0)


# -- version 3 --------------------------------------------------------------------------------


def _encode_v3(metadata: LedgerMetadata) -> bytes:
    last_entry_id, length = _closed_values(metadata)
    parts = [
        int_field(_QUORUM_SIZE, metadata.write_quorum),
        int_field(_ENSEMBLE_SIZE, metadata.ensemble_size),
        int_field(_LENGTH, length),
        int_field(_LAST_ENTRY_ID, last_entry_id),
        int_field(_STATE, metadata.state),
    ]
    for segment in metadata.segments:
        members = [text_field(_ENSEMBLE_MEMBER, member) for member in segment.ensemble]
        first = int_field(_FIRST_ENTRY_ID, segment.first_entry_id)
        parts.append(bytes_field(_SEGMENT, b"".join(members) + first))
    if metadata.digest is not None:
        parts.append(int_field(_DIGEST_TYPE, metadata.digest))
        parts.append(bytes_field(_PASSWORD, metadata.password or b""))
    parts.append(int_field(_ACK_QUORUM_SIZE, metadata.ack_quorum))
    if metadata.ctime_stored:
        parts.append(int_field(_CTIME, metadata.ctime_ms))
    for key, value in metadata.custom.items():
        entry = text_field(_KEY, key) + bytes_field(_VALUE, value)
        parts.append(bytes_field(_CUSTOM_METADATA, entry))
    parts.append(int_field(_CTOKEN, metadata.ctoken))
    message = b"".join(parts)
    return encode_varint(len(message)) + message


def _parse_v3(body: bytes) -> _Raw:
    raw = _Raw()
    if not body:
        return raw
    size, offset = decode_varint(body, 0)
    # Java 4.17 takes a message that ends early if it ends between two fields.
    for number, value in read_fields(body[offset : offset + size]):
        if isinstance(value, int):
            _set_number(raw, number, value)
        elif number == _SEGMENT:
            raw.segments.append(_parse_segment(value))
        elif number == _PASSWORD:
            raw.password = value
        elif number == _CUSTOM_METADATA:
            raw.custom.append(_parse_custom(value))
    return raw


def _set_number(raw: _Raw, number: int, value: int) -> None:
    if number == _QUORUM_SIZE:
        raw.quorum_size = int32(value)
    elif number == _ENSEMBLE_SIZE:
        raw.ensemble_size = int32(value)
    elif number == _LENGTH:
        raw.length = int64(value)
    elif number == _LAST_ENTRY_ID:
        raw.last_entry_id = int64(value)
    elif number == _STATE:
        raw.state = int32(value)
    elif number == _DIGEST_TYPE:
        raw.digest_type = int32(value)
    elif number == _ACK_QUORUM_SIZE:
        raw.ack_quorum_size = int32(value)
    elif number == _CTIME:
        raw.ctime = int64(value)
    elif number == _CTOKEN:
        raw.ctoken = int64(value)


def _parse_segment(data: bytes) -> Segment:
    members: list[str] = []
    first: int | None = None
    for number, value in read_fields(data):
        if number == _ENSEMBLE_MEMBER and isinstance(value, bytes):
            members.append(value.decode())
        elif number == _FIRST_ENTRY_ID and isinstance(value, int):
            first = int64(value)
    return Segment(_required(first, "firstEntryId"), tuple(members))


def _parse_custom(data: bytes) -> tuple[str, bytes]:
    key, content = "", b""
    for number, value in read_fields(data):
        if number == _KEY and isinstance(value, bytes):
            key = value.decode()
        elif number == _VALUE and isinstance(value, bytes):
            content = value
    return key, content


# -- version 2 --------------------------------------------------------------------------------


def _encode_v2(metadata: LedgerMetadata) -> bytes:
    last_entry_id, length = _closed_values(metadata)
    lines = [
        f"quorumSize: {metadata.write_quorum}",
        f"ensembleSize: {metadata.ensemble_size}",
        f"length: {length}",
        f"lastEntryId: {last_entry_id}",
        f"state: {metadata.state.name}",
    ]
    for segment in metadata.segments:
        lines.append("segment {")
        lines += [f"  ensembleMember: {quote(m.encode())}" for m in segment.ensemble]
        lines += [f"  firstEntryId: {segment.first_entry_id}", "}"]
    if metadata.digest is not None:
        lines.append(f"digestType: {metadata.digest.name}")
        lines.append(f"password: {quote(metadata.password or b'')}")
    lines.append(f"ackQuorumSize: {metadata.ack_quorum}")
    if metadata.ctime_stored:
        lines.append(f"ctime: {metadata.ctime_ms}")
    for key, value in metadata.custom.items():
        lines += ["customMetadata {", f"  key: {quote(key.encode())}"]
        lines += [f"  value: {quote(value)}", "}"]
    return ("\n".join(lines) + "\n").encode("ascii")


def _parse_v2(body: bytes) -> _Raw:
    message = parse_text(body)
    message.only(_TEXT_FIELDS)
    return _Raw(
        quorum_size=message.integer("quorumSize"),
        ensemble_size=message.integer("ensembleSize"),
        length=message.integer("length"),
        last_entry_id=message.integer("lastEntryId"),
        state=_enum(message, "state", {s.name: s.value for s in LedgerState}),
        segments=[_segment_of_text(segment) for segment in message.messages("segment")],
        digest_type=_enum(message, "digestType", {d.name: d.value for d in DigestType}),
        password=message.data("password"),
        ack_quorum_size=message.integer("ackQuorumSize"),
        ctime=message.integer("ctime"),
        custom=[_custom_of_text(entry) for entry in message.messages("customMetadata")],
        ctoken=message.integer("cToken"),
    )


def _enum(message: TextMessage, name: str, values: Mapping[str, int]) -> int | None:
    word = message.word(name)
    if isinstance(word, str):
        if word not in values:
            raise ValueError(f"{name} has the unknown value {word!r}")
        return values[word]
    if word is not None and word not in values.values():
        raise ValueError(f"{name} has the unknown value {word}")
    return word


def _segment_of_text(message: TextMessage) -> Segment:
    message.only(("ensembleMember", "firstEntryId"))
    first = _required(message.integer("firstEntryId"), "firstEntryId")
    return Segment(first, tuple(message.text_list("ensembleMember")))


def _custom_of_text(message: TextMessage) -> tuple[str, bytes]:
    message.only(("key", "value"))
    return message.text("key") or "", message.data("value") or b""


# -- version 1 --------------------------------------------------------------------------------


def _encode_v1(metadata: LedgerMetadata) -> bytes:
    if metadata.write_quorum != metadata.ack_quorum:
        raise UsageError("format 1 of ledger metadata cannot store an ack quorum of its own")
    if metadata.digest is not None or metadata.password is not None or metadata.custom:
        raise UsageError("format 1 of ledger metadata stores no digest, password or custom data")
    if metadata.ctime_stored:
        raise UsageError("format 1 of ledger metadata stores no creation time")
    last_entry_id, length = _closed_values(metadata)
    text = f"{metadata.write_quorum}\n{metadata.ensemble_size}\n{length}\n"
    for segment in metadata.segments:
        text += "\t".join((str(segment.first_entry_id), *segment.ensemble)) + "\n"
    if metadata.state is LedgerState.IN_RECOVERY:
        text += f"{_V1_IN_RECOVERY}\t{_V1_CLOSED}"
    elif metadata.closed:
        text += f"{last_entry_id}\t{_V1_CLOSED}"
    return text.encode()


def _decode_v1(body: bytes) -> LedgerMetadata:
    lines = body.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines[-1] == "":
        del lines[-1]
    if len(lines) < 3:
        raise ValueError("it ends before its segments")
    quorum, ensemble, length = (int(line) for line in lines[:3])
    segments: list[Segment] = []
    state, last_entry_id = LedgerState.OPEN, NO_ENTRY
    for line in lines[3:]:
        first, *members = line.split("\t")
        if members[:1] == [_V1_CLOSED]:
            if int(first) == _V1_IN_RECOVERY:
                state = LedgerState.IN_RECOVERY
            else:
                state, last_entry_id = LedgerState.CLOSED, int(first)
            break
        segments.append(Segment(int(first), tuple(members)))
    return LedgerMetadata(
        ensemble_size=ensemble,
        write_quorum=quorum,
        ack_quorum=quorum,
        segments=tuple(segments),
        state=state,
        last_entry_id=last_entry_id,
        length=length if state is LedgerState.CLOSED else 0,
        digest=None,
        password=None,
        format_version=1,
    )
