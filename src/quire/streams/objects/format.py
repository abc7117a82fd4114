"""The stored form of an object: a head value, and a ledger with its bytes. This module does no I/O.

The head of `jobs/42/checkpoint-7` in the bucket `default` is the value at

    ("objects", "default", "jobs", "42", "=checkpoint-7")

Each part of the name is one part of the key, percent-encoded. Only the last part begins with '=',
so that a listing can tell objects from folders. The value is JSON in UTF-8:

    {"format": 1, "ledger": 7, "bytes": 2500000, "chunk_bytes": 262144, "sha256": "9f...",
     "ctime_ms": 1793700000000, "metadata": {"step": "7"}}

The ledger is closed before the head is written. It holds the bytes of the object and nothing else:
entry k has the `chunk_bytes` bytes from k * `chunk_bytes` on, and the last entry has the rest. An
empty object has no entries. The ledger's custom metadata names the bucket and the object, so that
ledgers can be found that no head names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from quire._runtime.units import counted
from quire.codec.metadata.stored_json import stored_json
from quire.errors import (
    DAMAGED_JSON,
    ArgumentTypeError,
    LaterMetadataError,
    MetadataError,
    UsageError,
    check_type,
    later_json,
    whole_number,
)

FORMAT = 1
_NAMES = ("ledger", "bytes", "chunk_bytes", "sha256", "ctime_ms", "metadata")
HEADS = "objects"
LEAF = "="

BUCKET_KEY = "quire.object.bucket"
NAME_KEY = "quire.object.name"
"""The keys in a ledger's custom metadata for the bucket and the object that it was written for.

Only a ledger that has both keys is ever deleted as the ledger of an object.
"""
CONDEMNED_KEY = "quire.object.condemned"
"""The key in a ledger's custom metadata that says that the ledger is being deleted.

Such a ledger can no longer be published as an object.
"""

NAME_BYTES_MAX = 512
BUCKET_BYTES_MAX = 64
METADATA_BYTES_MAX = 64 * 1024
"""The largest size in bytes of the metadata of one object, encoded as JSON."""
CHUNK_BYTES_MAX = 4 * 1024 * 1024
"""The largest size of a chunk in bytes. A chunk of this size fits into an entry with any digest."""
CHUNK_BYTES_DEFAULT = 256 * 1024
"""The default size of a chunk in bytes.

Larger chunks are not written faster, and a read of a range has to read more than it needs.
"""
_SHA256_DIGITS = 64


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The name, size, digest and metadata of one version of an object."""

    name: str
    """The name of the object."""
    ledger_id: int
    """The id of the ledger that holds the object. Each `put` uses a new one, so it identifies the
    version.
    """
    size_bytes: int
    """The number of bytes of the object."""
    chunk_bytes: int
    """The number of bytes in each entry of the ledger except the last."""
    sha256: str
    """The SHA-256 of all bytes, in lower-case hexadecimal digits."""
    ctime_ms: int
    """The time at which the ledger was created, in milliseconds since 1970."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The text that the application stored with the object, by key."""

    def __post_init__(self) -> None:
        if self.ledger_id < 0 or self.size_bytes < 0:
            raise UsageError(
                f"object {self.name!r} has a negative ledger id or size: ledger {self.ledger_id}, "
                f"{counted(self.size_bytes, 'byte')}"
            )
        checked_chunk_bytes(self.chunk_bytes)
        if len(self.sha256) != _SHA256_DIGITS or not set(self.sha256) <= set("0123456789abcdef"):
            raise UsageError(
                f"object {self.name!r} has the checksum {self.sha256!r}, which is not a SHA-256 "
                f"of {_SHA256_DIGITS} lower-case hexadecimal digits"
            )

    @property
    def chunks(self) -> int:
        """The number of entries in the ledger."""
        return -(-self.size_bytes // self.chunk_bytes)

    def bytes_of_chunk(self, chunk: int) -> int:
        """Return the number of bytes in a chunk.

        Args:
            chunk: The number of the chunk, from 0 on.
        """
        return min(self.chunk_bytes, self.size_bytes - chunk * self.chunk_bytes)


# -- arguments --------------------------------------------------------------------------------


def check_bucket(bucket: str) -> str:
    """Check the name of a bucket, and return it.

    Args:
        bucket: The name.

    Raises:
        UsageError: The name is not valid.
    """
    check_type("the name of a bucket", bucket, str)
    if "/" in bucket:
        raise UsageError(f"the name of a bucket must not contain '/', but {bucket!r} does")
    return _check("the bucket", bucket, BUCKET_BYTES_MAX)


def check_name(name: str) -> str:
    """Check the name of an object, and return it.

    Args:
        name: The name.

    Raises:
        UsageError: The name is not valid.
    """
    check_type("the name of an object", name, str)
    return _check("the object", name, NAME_BYTES_MAX)


def _check(what: str, name: str, bytes_max: int) -> str:
    if not name.isprintable():
        raise UsageError(f"the name of {what} {name!r} contains characters that cannot be printed")
    if not 1 <= len(name.encode()) <= bytes_max:
        raise UsageError(
            f"the name of {what} {name[:40]!r} has {len(name.encode())} bytes, but 1 to "
            f"{bytes_max} are allowed"
        )
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise UsageError(
            f"the name of {what} {name!r} is not valid: no part between '/' may be empty, '.' or "
            "'..'",
            remedy="Use a name such as jobs/42/checkpoint-7",
        )
    return name


def checked_chunk_bytes(chunk_bytes: int) -> int:
    """Return the size of a chunk as an int of Python.

    Args:
        chunk_bytes: The size in bytes.

    Returns:
        The size.

    Raises:
        UsageError: The size is not valid.
    """
    chunk_bytes = whole_number("chunk_bytes", chunk_bytes)
    if not 1 <= chunk_bytes <= CHUNK_BYTES_MAX:
        raise UsageError(
            "chunk_bytes, the size of the pieces of an object, must be from 1 to "
            f"{CHUNK_BYTES_MAX} bytes, not {chunk_bytes}"
        )
    return chunk_bytes


def check_metadata(name: str, metadata: Mapping[str, str]) -> None:
    """Check the metadata that is to be stored with an object.

    Args:
        name: The name of the object, for the error message.
        metadata: The metadata.

    Raises:
        UsageError: The metadata is not text, or is too large.
    """
    if not isinstance(metadata, Mapping):
        raise ArgumentTypeError(
            f"the metadata given for object {name!r} must be a mapping of text to text, not "
            f"{type(metadata).__name__}"
        )
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str) or not key:
            raise UsageError(
                f"the metadata given for object {name!r} has {key!r}: {value!r}, but a key must be "
                "text that is not empty, and a value must be text"
            )
    try:
        size = len(_dump(dict(metadata)))
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the metadata given for object {name!r} is not valid Unicode text: {error}"
        ) from error
    if size > METADATA_BYTES_MAX:
        raise UsageError(
            f"the metadata given for object {name!r} has {size} bytes, but at most "
            f"{METADATA_BYTES_MAX} are allowed",
            remedy="Store large metadata in an object of its own",
        )


# -- keys -------------------------------------------------------------------------------------


def head_key(bucket: str, name: str) -> tuple[str, ...]:
    """Return the key in the metadata store of an object's head, which has its metadata.

    Args:
        bucket: The bucket.
        name: The name of the object.
    """
    *above, last = name.split("/")
    return (*folder_key(bucket, above), LEAF + _encode(last))


def folder_key(bucket: str, parts: list[str]) -> tuple[str, ...]:
    """Return the key below which the heads of all objects in a folder are stored.

    Args:
        bucket: The bucket.
        parts: The parts of the folder's name.
    """
    return (HEADS, _encode(bucket), *map(_encode, parts))


def listed_names(parts: list[str], found: list[str]) -> list[str]:
    """Return the names of the objects and folders in a folder, sorted.

    The name of a folder ends with '/', so that the folder sorts where its objects belong.

    Args:
        parts: The parts of the folder's name.
        found: The last parts of the keys that were found.
    """
    above = "".join(f"{part}/" for part in parts)
    return sorted(
        above + (unquote(name[1:]) if name.startswith(LEAF) else f"{unquote(name)}/")
        for name in found
    )


def _encode(part: str) -> str:
    return quote(part, safe="")


# -- bytes ------------------------------------------------------------------------------------


def encode_head(info: ObjectInfo) -> bytes:
    """Return the stored form of the head of an object.

    Args:
        info: The object.
    """
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
    """Decode the head of an object.

    Args:
        name: The name of the object.
        data: The stored value.

    Returns:
        The object.

    Raises:
        LaterMetadataError: A later version of Quire wrote the value.
        MetadataError: The value is damaged.
    """
    try:
        value = stored_json(data)
        if not isinstance(value, dict):
            raise TypeError("it is not a JSON object")
        if message := later_json(f"object {name!r}", value, _NAMES, FORMAT):
            raise LaterMetadataError(message)
        if value.get("format") != FORMAT:
            raise ValueError(f"it has format {value.get('format')!r}")
        return ObjectInfo(
            name,
            ledger_id=int(value["ledger"]),
            size_bytes=int(value["bytes"]),
            chunk_bytes=int(value["chunk_bytes"]),
            sha256=str(value["sha256"]),
            ctime_ms=int(value["ctime_ms"]),
            metadata={str(k): str(v) for k, v in value["metadata"].items()},
        )
    except DAMAGED_JSON as error:
        raise MetadataError(
            f"the head of object {name!r}, its node in the metadata store, cannot be decoded: "
            f"{error}",
            remedy="Put the object again with replace=True (`quire object put --replace`), or "
            "restore the node from a backup of the metadata store",
        ) from error


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
