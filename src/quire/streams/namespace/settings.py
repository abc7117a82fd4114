"""What streams may be told: defaults, then the tenant's, the namespace's, the stream's own.

Stored as JSON with the keys that were given; what is not given is inherited. Java's tools never see
them (`layout`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from quire._runtime.suggest import did_you_mean
from quire._runtime.units import parse_duration, parse_size
from quire.codec.entry.digest import DigestType
from quire.errors import MetadataError, UsageError

FORMAT_KEY = "quire"
FORMAT = 1
DIGESTS = tuple(digest.name.lower() for digest in DigestType)
COMPRESSIONS = ("none", "lz4")
TXIDS = ("time", "given")
ENTRY_BYTES_MIN = 1 << 10
ENTRY_BYTES_MAX = 1_000_000
AT_LEAST_1 = (
    "ensemble_size", "write_quorum", "ack_quorum", "entries_in_flight", "roll_bytes",
    "roll_interval_ms",
)  # fmt: skip
SIZES = ("entry_bytes", "roll_bytes", "retention_bytes", "bytes_max")
TIMES = ("roll_interval_ms", "retention_ms")
NOT_NEGATIVE = ("retention_ms", "retention_bytes", "bytes_max", "streams_max")


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """All settings of a stream, with units. 0 means "no limit" where a limit can be left out."""

    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest: str = "crc32c"
    """Of new ledgers. Java finds out by itself."""
    compression: str = "none"
    """Of entries: none or lz4."""
    txids: str = "time"
    """time: the writer gives each record the time in ms, never less than the one before; given: the
    caller does, and entries carry the time beside."""
    entry_bytes: int = 64 * 1024
    """Records are gathered into entries of about this size while entries are under way."""
    entries_in_flight: int = 4
    """With fewer under way a record is sent at once, alone if need be."""
    roll_bytes: int = 256 * 1024 * 1024
    """A segment that has grown to this is followed by the next."""
    roll_interval_ms: int = 2 * 3600 * 1000
    retention_ms: int = 0
    """Segments that were completed longer ago are deleted; 0: kept."""
    retention_bytes: int = 0
    """The oldest segments are deleted as long as so much is left in completed ones; 0: kept."""
    explicit_truncation: bool = False
    """Retention deletes only what was truncated."""
    bytes_max: int = 0
    """Quota: appends are refused while the stream holds more; 0: none."""
    streams_max: int = 0
    """Quota of a namespace: so many streams; 0: none."""

    def __post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise UsageError(
                f"ensemble_size {self.ensemble_size} >= write_quorum {self.write_quorum} >= "
                f"ack_quorum {self.ack_quorum} >= 1 does not hold"
            )
        for name, value in self.as_dict().items():
            check_value(name, value)

    def with_values(self, values: Mapping[str, Any]) -> StreamSettings:
        """With these in the place of its own. UsageError for an unknown name or a wrong type."""
        check_values(values)
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_value(name: str, value: Any) -> None:
    """Raise UsageError for a value that is invalid whatever the other settings are."""
    allowed = {"digest": DIGESTS, "compression": COMPRESSIONS, "txids": TXIDS}.get(name)
    if allowed is not None and value not in allowed:
        raise UsageError(f"{name} {value!r} is none of {', '.join(allowed)}")
    if name == "entry_bytes" and not ENTRY_BYTES_MIN <= value <= ENTRY_BYTES_MAX:
        raise UsageError(f"entry_bytes {value} is not within {ENTRY_BYTES_MIN}..{ENTRY_BYTES_MAX}")
    if name in AT_LEAST_1 and value < 1:
        raise UsageError(f"{name} must be at least 1")
    if name in NOT_NEGATIVE and value < 0:
        raise UsageError(f"{name} must not be negative")


DEFAULTS = StreamSettings()


def check_values(values: Mapping[str, Any]) -> None:
    """UsageError for an unknown name or a wrong type. Whether values go together shows only where
    all of them are known: some are inherited."""
    known = {field.name: type(getattr(DEFAULTS, field.name)) for field in fields(DEFAULTS)}
    for name, value in values.items():
        kind = known.get(name)
        if kind is None:
            raise UsageError(f"streams have no setting {name!r}", remedy=did_you_mean(name, known))
        if type(value) is not kind:
            raise UsageError(f"setting {name} must be of type {kind.__name__}: {value!r}")


def parse_value(name: str, text: str) -> int | bool | str:
    """A setting as typed by a user. UsageError."""
    value = _parsed(name, text)
    check_value(name, value)
    return value


def _parsed(name: str, text: str) -> int | bool | str:
    kind = type(getattr(DEFAULTS, name, None))
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is int:
        try:
            return _number(name, text)
        except ValueError as error:
            raise UsageError(f"setting {name}: {error}") from None
    check_values({name: text})
    return text


def _number(name: str, text: str) -> int:
    if name in SIZES:
        return parse_size(text, least=-math.inf)
    if name in TIMES:
        return round(1_000 * parse_duration(text, "ms", least=-math.inf))
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def encode_settings(values: Mapping[str, Any]) -> bytes:
    """For a node: only what was given."""
    check_values(values)
    return json.dumps({FORMAT_KEY: FORMAT, **values}, sort_keys=True).encode()


def decode_settings(data: bytes, where: str) -> dict[str, Any]:
    """MetadataError for what this version cannot understand."""
    if not data:
        return {}
    try:
        values = json.loads(data)
        if values.pop(FORMAT_KEY) != FORMAT:
            raise ValueError("a later format")
        check_values(values)
    except (ValueError, KeyError, AttributeError, UsageError) as error:
        raise MetadataError(f"the settings at {where} cannot be understood: {error}") from None
    return dict(values)
