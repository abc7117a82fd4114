"""The golden vectors of DistributedLog's format by name, and which of them have a test."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quire.codec.distributedlog.compression import Compression, compress
from quire.codec.distributedlog.limits import MAX_ENTRY_BYTES
from quire.codec.distributedlog.record_set import HEAD, LENGTH, VERSION
from quire.codec.wire.v2 import Buffer
from quire.errors import UsageError

VECTORS: dict[str, dict[str, Any]] = {
    vector["name"]: vector
    for vector in json.loads(
        (Path(__file__).parents[1] / "golden" / "distributedlog.json").read_text(encoding="utf-8")
    )["vectors"]
}
TESTED: set[str] = set()
"""The names of the golden vectors that have a test.

It is filled while the test modules are imported.
"""


def named(pattern: str) -> list[str]:
    names = [name for name in VECTORS if re.fullmatch(pattern, name)]
    assert names, pattern
    TESTED.update(names)
    return names


def data_of(vector: Mapping[str, Any]) -> bytes:
    if "hex" in vector:
        return bytes.fromhex(vector["hex"])
    return str(vector["text"]).encode()


def encode_record_set(
    payloads: Sequence[Buffer], compression: Compression = Compression.NONE
) -> bytes:
    """Return the payload of a record with the flag RECORD_SET.

    Raises:
        UsageError: The payload would have more than MAX_ENTRY_BYTES.
    """
    sizes = list(map(len, payloads))
    parts: list[Buffer] = [b""] * (2 * len(sizes))
    parts[::2] = list(map(LENGTH.pack, sizes))
    parts[1::2] = payloads
    body = b"".join(parts)
    if HEAD.size + len(body) > MAX_ENTRY_BYTES:
        raise UsageError(f"{len(body)} bytes of members are too many for a record set")
    used, stored = compress(compression, body)
    return HEAD.pack(VERSION | used, len(sizes), len(body), len(stored)) + stored
