"""What streams may be told: defaults, then the tenant's, the namespace's, the stream's own.

Stored as JSON with the keys that were given; what is not given is inherited. Java's tools never see
them (`layout`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from quire._runtime.former_names import in_seconds_now, was_in_milliseconds
from quire._runtime.suggest import did_you_mean
from quire._runtime.units import parse_duration, parse_size
from quire.codec.entry.digest import DigestType
from quire.errors import ArgumentTypeError, MetadataError, UsageError

FORMAT_KEY = "quire"
FORMAT = 1
DIGESTS = tuple(digest.name.lower() for digest in DigestType)
COMPRESSIONS = ("none", "lz4")
TXIDS = ("time", "given")
ENTRY_BYTES_MIN = 1 << 10
ENTRY_BYTES_MAX = 1_000_000
AT_LEAST_1 = ("ensemble_size", "write_quorum", "ack_quorum", "entries_in_flight", "roll_bytes")
SIZES = ("entry_bytes", "roll_bytes", "retention_bytes", "bytes_max")
NOT_NEGATIVE = ("retention_s", "retention_bytes", "bytes_max", "streams_max")
IN_MILLISECONDS = {"roll_interval_ms": "roll_interval_s", "retention_ms": "retention_s"}
"""Names that stored settings have for ever, with whole milliseconds as values, and the names that
programs and users give. For one more release these may give the stored names too."""
_STORED = {name: stored for stored, name in IN_MILLISECONDS.items()}
TIME_MIN_S = 0.001
"""The shortest time that can be stored."""


@was_in_milliseconds("roll_interval", "retention")
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
    roll_interval_s: float = 7_200.0
    """A segment that is so old is followed by the next."""
    retention_s: float = 0.0
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
        check_values(self.as_dict())
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise UsageError(
                f"ensemble_size {self.ensemble_size} >= write_quorum {self.write_quorum} >= "
                f"ack_quorum {self.ack_quorum} >= 1 does not hold"
            )
        for name, value in self.as_dict().items():
            check_value(name, value)

    def with_values(self, values: Mapping[str, Any]) -> StreamSettings:
        """With these in the place of its own. UsageError for an unknown name or a wrong type."""
        values = current_names(values)
        check_values(values)
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_json(self) -> dict[str, Any]:
        """Return what commands and the HTTP API print: each setting, and the milliseconds that
        they have always printed."""
        return with_stored_names(self.as_dict())


def check_value(name: str, value: Any) -> None:
    """Raise UsageError for a value that is invalid whatever the other settings are."""
    allowed = {"digest": DIGESTS, "compression": COMPRESSIONS, "txids": TXIDS}.get(name)
    if allowed is not None and value not in allowed:
        raise UsageError(f"{name} {value!r} is none of {', '.join(allowed)}")
    if name == "entry_bytes" and not ENTRY_BYTES_MIN <= value <= ENTRY_BYTES_MAX:
        raise UsageError(f"entry_bytes {value} is not within {ENTRY_BYTES_MIN}..{ENTRY_BYTES_MAX}")
    if name in _STORED and 0 < value < TIME_MIN_S:
        raise UsageError(f"{name} {value:g} is less than {TIME_MIN_S:g}")
    if name == "roll_interval_s" and value <= 0:
        raise UsageError(f"{name} must be at least {TIME_MIN_S:g}")
    if name in AT_LEAST_1 and value < 1:
        raise UsageError(f"{name} must be at least 1")
    if name in NOT_NEGATIVE and value < 0:
        raise UsageError(f"{name} must not be negative")


def check_values(values: Mapping[str, Any]) -> None:
    """UsageError for an unknown name or a wrong type. Whether values go together shows only where
    all of them are known: some are inherited."""
    known: dict[str, type] = {field.name: type(field.default) for field in fields(StreamSettings)}
    for name, value in values.items():
        kind = known.get(name)
        if kind is None:
            raise UsageError(f"streams have no setting {name!r}", remedy=did_you_mean(name, known))
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise UsageError(f"setting {name} must be of type {kind.__name__}: {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"setting {name} must be a finite number: {value!r}")


DEFAULTS = StreamSettings()


def current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings under their present names. A former name is a DeprecationWarning."""
    if not isinstance(values, Mapping):
        raise ArgumentTypeError(f"settings are a mapping, not {type(values).__name__}")
    for name in values.keys() & IN_MILLISECONDS.keys():
        in_seconds_now(name, IN_MILLISECONDS[name])
    return _in_seconds(values)


def _in_seconds(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in IN_MILLISECONDS and value is not None:
            if type(value) is not int:
                raise UsageError(f"setting {name} must be of type int: {value!r}")
            value = value / 1_000
        found[IN_MILLISECONDS.get(name, name)] = value
    return found


def with_stored_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with each time also under its stored name, in milliseconds."""
    return {
        **values,
        **{_STORED[name]: round(1_000 * values[name]) for name in _STORED if name in values},
    }


def parse_setting(name: str, text: str) -> tuple[str, int | float | bool | str]:
    """Return the present name and the value of a setting as typed by a user. UsageError."""
    present = IN_MILLISECONDS.get(name, name)
    value = _parsed(present, text, "ms" if present != name else "s")
    check_value(present, value)
    return present, value


def _parsed(name: str, text: str, plain: Literal["s", "ms"]) -> int | float | bool | str:
    kind = type(getattr(DEFAULTS, name, None))
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind in (int, float):
        try:
            return _number(name, text, plain)
        except ValueError as error:
            raise UsageError(f"setting {name}: {error}") from None
    check_values({name: text})
    return text


def _number(name: str, text: str, plain: Literal["s", "ms"]) -> int | float:
    if name in SIZES:
        return parse_size(text, least=-math.inf)
    if name in _STORED:
        return parse_duration(text, plain, least=-math.inf)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def encode_settings(values: Mapping[str, Any]) -> bytes:
    """Return what a node holds: only what was given, times in milliseconds."""
    values = current_names(values)
    check_values(values)
    stored = {
        _STORED.get(name, name): round(1_000 * value) if name in _STORED else value
        for name, value in values.items()
    }
    return json.dumps({FORMAT_KEY: FORMAT, **stored}, sort_keys=True).encode()


def decode_settings(data: bytes, where: str) -> dict[str, Any]:
    """MetadataError for what this version cannot understand."""
    if not data:
        return {}
    try:
        values = json.loads(data)
        if values.pop(FORMAT_KEY) != FORMAT:
            raise ValueError("a later format")
        values = _in_seconds(values)
        check_values(values)
    except (ValueError, KeyError, AttributeError, UsageError) as error:
        raise MetadataError(f"the settings at {where} cannot be understood: {error}") from None
    return dict(values)
