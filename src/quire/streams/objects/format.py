"""What is stored of an object: a head value beside its ledger. Pure.

The head of `jobs/42/checkpoint-7` in the bucket `default` is the value at

    ("objects", "default", "jobs", "42", "=checkpoint-7")

one part for each part of the name, percent-encoded; the last one begins with '=', which no other
part does, so that a listing can tell objects from what they lie below. It is JSON in UTF-8:

    {"format": 1, "ledger": 7, "bytes": 2500000, "chunk_bytes": 262144, "sha256": "9f...",
     "ctime_ms": 1793700000000, "metadata": {"step": "7"}}

The ledger is closed before the head is written, and holds the bytes of the object and nothing
else: entry k has the bytes from k * chunk_bytes on, chunk_bytes of them (the last one: what is
left). An empty object has no entries. The ledger's custom metadata names bucket and object, by
which ledgers are found that no head names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from quire.errors import MetadataError, UsageError, check_type

FORMAT = 1
HEADS = "objects"
LEAF = "="

BUCKET_KEY = "quire.object.bucket"
NAME_KEY = "quire.object.name"
"""Custom metadata of a ledger: what it was written for. Only ledgers that carry both are ever
deleted as those of objects."""
CONDEMNED_KEY = "quire.object.condemned"
"""Custom metadata of a ledger that is being deleted: it cannot be published any more."""

NAME_BYTES_MAX = 512
BUCKET_BYTES_MAX = 64
METADATA_BYTES_MAX = 64 * 1024
"""Of the metadata of one object, as JSON."""
CHUNK_BYTES_MAX = 4 * 1024 * 1024
"""Fits into an entry with every digest."""
CHUNK_BYTES_DEFAULT = 256 * 1024
"""Larger ones are written no faster, and a range has to read more than it asked for."""
_SHA256_DIGITS = 64


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What is known of an object without reading it."""

    name: str
    ledger_id: int
    """The ledger that holds it: another one for each `put`, so it tells versions apart."""
    size_bytes: int
    chunk_bytes: int
    """Bytes of each entry of the ledger but the last."""
    sha256: str
    """Of all its bytes, in hexadecimal digits."""
    ctime_ms: int
    """When its ledger was created."""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ledger_id < 0 or self.size_bytes < 0:
            raise UsageError(f"object {self.name!r}: ledger and size cannot be negative")
        check_chunk_bytes(self.chunk_bytes)
        if len(self.sha256) != _SHA256_DIGITS or not set(self.sha256) <= set("0123456789abcdef"):
            raise UsageError(f"object {self.name!r}: {self.sha256!r} is no SHA-256")

    @property
    def chunks(self) -> int:
        """Entries of the ledger."""
        return -(-self.size_bytes // self.chunk_bytes)

    def bytes_of_chunk(self, chunk: int) -> int:
        return min(self.chunk_bytes, self.size_bytes - chunk * self.chunk_bytes)


# -- arguments --------------------------------------------------------------------------------


def check_bucket(bucket: str) -> str:
    """`bucket`; UsageError if it cannot be one."""
    check_type("the name of a bucket", bucket, str)
    if "/" in bucket:
        raise UsageError(f"the bucket {bucket!r} cannot have a '/' in its name")
    return _check("the bucket", bucket, BUCKET_BYTES_MAX)


def check_name(name: str) -> str:
    """`name`; UsageError if it cannot be that of an object."""
    check_type("the name of an object", name, str)
    return _check("the object", name, NAME_BYTES_MAX)


def _check(what: str, name: str, bytes_max: int) -> str:
    if not name.isprintable():
        raise UsageError(f"{what} {name!r} has characters in its name that cannot be printed")
    if not 1 <= len(name.encode()) <= bytes_max:
        raise UsageError(
            f"{what} {name[:40]!r} cannot have a name of {len(name.encode())} bytes: 1 to "
            f"{bytes_max} are allowed"
        )
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise UsageError(
            f"{what} {name!r} cannot have this name: no part between '/' may be empty, '.' or '..'",
            remedy="Use a name as jobs/42/checkpoint-7",
        )
    return name


def check_chunk_bytes(chunk_bytes: int) -> None:
    check_type("chunk_bytes", chunk_bytes, int)
    if not 1 <= chunk_bytes <= CHUNK_BYTES_MAX:
        raise UsageError(f"a chunk has 1 to {CHUNK_BYTES_MAX} bytes, not {chunk_bytes}")


def check_metadata(name: str, metadata: Mapping[str, str]) -> None:
    """UsageError unless it is text of a size that can be kept."""
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str) or not key:
            raise UsageError(f"object {name!r}: metadata {key!r}={value!r} is not text")
    try:
        size = len(_dump(dict(metadata)))
    except UnicodeEncodeError as error:
        raise UsageError(f"object {name!r}: the metadata is no Unicode text: {error}") from error
    if size > METADATA_BYTES_MAX:
        raise UsageError(
            f"object {name!r}: {size} bytes of metadata are too many: {METADATA_BYTES_MAX} are "
            "allowed",
            remedy="Keep them in an object of their own",
        )


# -- keys -------------------------------------------------------------------------------------


def head_key(bucket: str, name: str) -> tuple[str, ...]:
    *above, last = name.split("/")
    return (*folder_key(bucket, above), LEAF + _encode(last))


def folder_key(bucket: str, parts: list[str]) -> tuple[str, ...]:
    """Below it lie the heads of all objects whose names begin with these parts."""
    return (HEADS, _encode(bucket), *map(_encode, parts))


def listed_names(parts: list[str], found: list[str]) -> list[str]:
    """What lies directly below a folder, in the order of names: objects by their names, folders by
    theirs with '/' at the end, in whose place their objects stand."""
    above = "".join(f"{part}/" for part in parts)
    return sorted(
        above + (unquote(name[1:]) if name.startswith(LEAF) else f"{unquote(name)}/")
        for name in found
    )


def _encode(part: str) -> str:
    return quote(part, safe="")


# -- bytes ------------------------------------------------------------------------------------


def encode_head(info: ObjectInfo) -> bytes:
    return _dump(
        {
            "format": FORMAT,
            "ledger": info.ledger_id,
            "bytes": info.size_bytes,
            "chunk_bytes": info.chunk_bytes,
            "sha256": info.sha256,
            "ctime_ms": info.ctime_ms,
            "metadata": dict(info.metadata),
        }
    )


def decode_head(name: str, data: bytes) -> ObjectInfo:
    """MetadataError where it cannot be understood."""
    try:
        value = json.loads(data)
        if not isinstance(value, dict):
            raise TypeError("it is no JSON object")
        if value.get("format") != FORMAT:
            raise MetadataError(
                f"object {name!r} is stored in format {value.get('format')}, this version reads "
                f"format {FORMAT}",
                remedy="Use a newer version of Quire",
            )
        return ObjectInfo(
            name,
            ledger_id=int(value["ledger"]),
            size_bytes=int(value["bytes"]),
            chunk_bytes=int(value["chunk_bytes"]),
            sha256=str(value["sha256"]),
            ctime_ms=int(value["ctime_ms"]),
            metadata={str(k): str(v) for k, v in value["metadata"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise MetadataError(f"object {name!r} cannot be understood: {error}") from error


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
