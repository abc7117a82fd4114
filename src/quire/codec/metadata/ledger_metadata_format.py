"""The encoding of ledger metadata, as Apache's `LedgerMetadataSerDe` writes it.

    "BookieMetadataFormatVersion" TAB <version, at most 9 decimal digits> LF <body>

| version | body                                                                             |
|---------|----------------------------------------------------------------------------------|
| 1       | lines of text separated by TAB, without digest, password or custom metadata      |
| 2       | `LedgerMetadataFormat` in protobuf's text format                                 |
| 3       | the length in bytes as a varint, then `LedgerMetadataFormat` as binary protobuf; |
|         | bytes after it are ignored                                                       |

A higher version, another state and another digest are from a later version of BookKeeper or of
Quire. Such metadata is not read. A field of version 3 that is not known is ignored, as by Apache's
clients, but it is kept when the metadata is written again.

A ledger keeps the version with which it was created. Where Apache 4.17 and 4.18 differ, Quire reads
what 4.17 reads, and writes what both read.
"""

from __future__ import annotations

import re

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from quire.codec.entry.digest import DigestType
from quire.codec.metadata.formats_pb2 import LedgerMetadataFormat
from quire.codec.metadata.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.protobuf_text import UnknownFieldError, parse_text, write_text
from quire.codec.protobuf_wire import decode_varint, encode_varint
from quire.errors import (
    LaterMetadataError,
    UnreadableMetadataError,
    UsageError,
    written_later,
)

_HEADER = b"BookieMetadataFormatVersion\t"
_VERSION_DIGITS_MAX = 9
CURRENT_VERSION = 3
_REQUIRED = ("quorumSize", "ensembleSize", "length", "state")
_WHAT, _BY = "ledger metadata", "Quire or BookKeeper"
_NAMED_VALUE = re.compile(rb"^(state|digestType): ([A-Z][A-Z0-9_]*)$", re.MULTILINE)
_KNOWN_NAMES = {
    b"state": {one.name for one in LedgerState},
    b"digestType": {one.name for one in DigestType},
}
_V1_CLOSED = "CLOSED"
_V1_IN_RECOVERY = -102


def encode(metadata: LedgerMetadata) -> bytes:
    """Return the stored bytes, in `metadata.format_version`.

    Raises:
        UsageError: The format cannot store this metadata.
    """
    version = metadata.format_version
    if version not in (1, 2, 3):
        raise UsageError(f"the format of ledger metadata cannot be {version}: use 1, 2 or 3")
    if version > 1 and metadata.password is not None and metadata.digest is None:
        raise UsageError("ledger metadata with a password cannot be stored without a digest type")
    if metadata.ctime_stored and metadata.ctime_ms < 0:
        raise UsageError(
            f"ledger metadata of format {version} is to store the creation time of the ledger, but "
            "none is known"
        )
    if version == 1:
        body = _encode_v1(metadata)
    elif version == 2:
        message = _message_of(metadata)
        message.ClearField("cToken")
        body = write_text(message)
    else:
        body = _message_of(metadata).SerializeToString() + metadata.unknown_fields
        body = encode_varint(len(body)) + body
    return _HEADER + b"%d\n" % version + body


def decode(data: bytes, node_ctime_ms: int = -1) -> LedgerMetadata:
    """Decode stored bytes.

    Args:
        data: The stored bytes.
        node_ctime_ms: The creation time of the store's node, in milliseconds since 1970. It is used
            if the bytes contain none, except in format 1, whose ledgers have no creation time.

    Raises:
        LaterMetadataError: A later version of Quire or of BookKeeper wrote the bytes.
        UnreadableMetadataError: The bytes are damaged.
    """
    version, body = _split_header(data)
    try:
        if version == 1:
            return _decode_v1(body)
        if version == 2:
            _refuse_later_names(body)
            message = parse_text(body, LedgerMetadataFormat(), required=_REQUIRED)
        else:
            # Java 4.17 accepts a message that ends early, if it ends between two fields.
            size, offset = decode_varint(body, 0) if body else (0, 0)
            message = LedgerMetadataFormat.FromString(body[offset : offset + size])
        return _metadata_of(message, version, node_ctime_ms)
    except UnknownFieldError as error:
        raise LaterMetadataError(
            written_later(_WHAT, f"an unknown field ({error})", "the fields of format 2", by=_BY)
        ) from None
    except (DecodeError, ValueError) as error:
        raise UnreadableMetadataError(
            f"its bytes, in format {version}, are damaged: {error}"
        ) from None


def _split_header(data: bytes) -> tuple[int, bytes]:
    if not data.startswith(_HEADER):
        raise UnreadableMetadataError(f"its bytes are damaged: they do not begin with {_HEADER!r}")
    end = data.find(b"\n", len(_HEADER), len(_HEADER) + _VERSION_DIGITS_MAX + 1)
    if end < 0 and len(data) <= len(_HEADER) + _VERSION_DIGITS_MAX:
        raise UnreadableMetadataError("its bytes are damaged: they end within the first line")
    if end < 0:
        raise UnreadableMetadataError(
            f"its bytes are damaged: the format version is longer than {_VERSION_DIGITS_MAX} digits"
        )
    digits = data[len(_HEADER) : end]
    if not digits.isdigit():
        raise UnreadableMetadataError(
            f"its bytes are damaged: the format version is {digits!r}, which is not a number"
        )
    version = int(digits)
    if version > CURRENT_VERSION:
        raise LaterMetadataError(
            written_later(_WHAT, f"format {version}", f"the formats 1 to {CURRENT_VERSION}", by=_BY)
        )
    if version < 1:
        raise UnreadableMetadataError(f"its bytes are damaged: they have format {version}")
    return version, data[end + 1 :]


# -- versions 2 and 3 -------------------------------------------------------------------------


def _message_of(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    last_entry_id, length = _closed_values(metadata)
    digest = metadata.digest
    return LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=length,
        lastEntryId=last_entry_id,
        state=metadata.state.name,
        segment=[
            LedgerMetadataFormat.Segment(
                ensembleMember=segment.ensemble, firstEntryId=segment.first_entry_id
            )
            for segment in metadata.segments
        ],
        digestType=None if digest is None else digest.name,
        password=None if digest is None else metadata.password or b"",
        ackQuorumSize=metadata.ack_quorum,
        ctime=metadata.ctime_ms if metadata.ctime_stored else None,
        customMetadata=[
            LedgerMetadataFormat.CustomMetadata(key=key, value=value)
            for key, value in metadata.custom.items()
        ],
        cToken=metadata.ctoken,
    )


def _metadata_of(message: LedgerMetadataFormat, version: int, node_ctime_ms: int) -> LedgerMetadata:
    _refuse_later_values(message)
    _require(message, *_REQUIRED)
    for segment in message.segment:
        _require(segment, "firstEntryId")
    state = LedgerState(message.state)
    closed = state is LedgerState.CLOSED
    has_password, ctime_stored = message.HasField("password"), message.HasField("ctime")
    digest: DigestType | None = None
    if has_password:
        # A missing digest type means the first of the enumeration. Without a password the field
        # means nothing.
        digest = DigestType(message.digestType if message.HasField("digestType") else 1)
    custom = {entry.key: entry.value for entry in message.customMetadata}
    if len(custom) != len(message.customMetadata):
        raise ValueError("a key of the custom metadata occurs twice")
    return LedgerMetadata(
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize
        if message.HasField("ackQuorumSize")
        else message.quorumSize,
        segments=tuple(
            Segment(segment.firstEntryId, tuple(segment.ensembleMember))
            for segment in message.segment
        ),
        state=state,
        last_entry_id=message.lastEntryId if closed else NO_ENTRY,
        length=message.length if closed else 0,
        digest=digest,
        password=message.password if has_password else None,
        custom=custom,
        ctime_ms=message.ctime if ctime_stored else node_ctime_ms,
        ctime_stored=ctime_stored,
        ctoken=message.cToken,
        format_version=version,
        unknown_fields=_unknown_fields(message),
    )


def _refuse_later_names(body: bytes) -> None:
    """Raise LaterMetadataError if a text has a state or a digest that is not known."""
    for field, name in _NAMED_VALUE.findall(body):
        if name.decode() not in _KNOWN_NAMES[field]:
            raise _unknown_value(field.decode(), name.decode())


def _refuse_later_values(message: LedgerMetadataFormat) -> None:
    """Raise LaterMetadataError if a message has an unknown value that must not be ignored.

    These are states, digest types, and fields of segments and custom metadata. If the digest type
    were guessed, every read would fail.
    """
    if message.state > max(LedgerState):
        raise _unknown_value("state", str(message.state))
    if message.digestType > max(DigestType):
        raise _unknown_value("digestType", str(message.digestType))
    if any(len(UnknownFieldSet(part)) for part in (*message.segment, *message.customMetadata)):
        raise _unknown_value("segment", "with an unknown field")


def _unknown_value(field: str, value: str) -> LaterMetadataError:
    return LaterMetadataError(written_later(_WHAT, f"the {field} {value}", "other values", by=_BY))


def _unknown_fields(message: LedgerMetadataFormat) -> bytes:
    """Return the encoded fields of a message that this version does not know."""
    if not len(UnknownFieldSet(message)):
        return b""
    rest = LedgerMetadataFormat()
    rest.CopyFrom(message)
    for field, _ in message.ListFields():
        rest.ClearField(field.name)
    return rest.SerializeToString()


def _require(message: Message, *names: str) -> None:
    for name in names:
        if not message.HasField(name):
            raise ValueError(f"the required field {name} is missing")


def _closed_values(metadata: LedgerMetadata) -> tuple[int, int]:
    """Return the stored last entry and length, which mean something only in a closed ledger."""
    return (metadata.last_entry_id, metadata.length) if metadata.closed else (NO_ENTRY, 0)


# -- version 1 --------------------------------------------------------------------------------


def _encode_v1(metadata: LedgerMetadata) -> bytes:
    if metadata.write_quorum != metadata.ack_quorum:
        raise UsageError(
            "ledger metadata of format 1 cannot store an ack quorum that differs from the write "
            "quorum: use format 2 or 3"
        )
    if metadata.digest is not None or metadata.password is not None or metadata.custom:
        raise UsageError(
            "ledger metadata of format 1 cannot store a digest type, a password or custom "
            "metadata: use format 2 or 3"
        )
    if metadata.ctime_stored:
        raise UsageError(
            "ledger metadata of format 1 cannot store a creation time: use format 2 or 3"
        )
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
        raise ValueError("it ends before its first segment")
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
