"""The settings of streams, and how they are stored.

A stream inherits each setting from the defaults, then its tenant, then its namespace, and can
override it. A node stores only the settings that were given to it, as JSON. Java does not read
these nodes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from quire._runtime.names.former_names import in_seconds_now, was_in_milliseconds
from quire._runtime.names.suggest import did_you_mean
from quire._runtime.units import parse_duration, parse_size
from quire.codec.entry.digest import DigestType
from quire.codec.metadata.stored_json import stored_json
from quire.core.placement.values import ENSEMBLE_MAX
from quire.errors import (
    ArgumentTypeError,
    LaterMetadataError,
    MetadataError,
    UsageError,
    later_json,
)

FORMAT_KEY = "quire"
FORMAT = 1
DIGESTS = tuple(digest.name.lower() for digest in DigestType)
COMPRESSIONS = ("none", "lz4")
TXIDS = ("time", "given")
ENTRY_BYTES_MIN = 1 << 10
ENTRY_BYTES_MAX = 1_000_000
AT_LEAST_1 = ("ensemble_size", "write_quorum", "ack_quorum", "entries_in_flight", "roll_bytes")
SIZES = ("entry_bytes", "roll_bytes", "retention_bytes", "bytes_max")
"""Settings that are sizes in bytes."""
NOT_NEGATIVE = ("retention_s", "retention_bytes", "bytes_max", "streams_max")
IN_MILLISECONDS = {"roll_interval_ms": "roll_interval_s", "retention_ms": "retention_s"}
"""The stored names of settings that are times, and the names that programs and users give.

Stored settings keep the old names, with whole milliseconds as values. Programs and users may give
the old names for one more release.
"""
_STORED = {name: stored for stored, name in IN_MILLISECONDS.items()}
TIME_MIN_S = 0.001
"""The shortest time in seconds that a setting can have, because whole milliseconds are stored."""
TIME_MAX_S = 1e300
"""The longest time in seconds that a setting can have. A much longer time is not a finite
number of milliseconds. The limit is not smaller, because stored settings must stay readable."""


@was_in_milliseconds("roll_interval", "retention")
@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings of a stream.

    Where a setting is a limit that can be left out, 0 means that there is no limit.

    Raises:
        UsageError: A value has the wrong type or is out of range, or values contradict each other.
    """

    ensemble_size: int = 3
    """The number of bookies over which the entries of a new ledger are spread."""
    write_quorum: int = 3
    """The number of bookies that store each entry."""
    ack_quorum: int = 2
    """The number of bookies that must have fsynced an entry before its records are acknowledged."""
    digest: str = "crc32c"
    """The digest of new ledgers: "crc32c", "crc32", "hmac" or "dummy". Java's readers detect it."""
    compression: str = "none"
    """The compression of entries: "none" or "lz4"."""
    txids: str = "time"
    """The source of the transaction ids: "time" or "given".

    With "time", the writer assigns the current time in milliseconds, and never less than the txid
    of the record before. With "given", the application passes a txid with each record, and entries
    store the time separately.
    """
    entry_bytes: int = 64 * 1024
    """The size in bytes up to which records are gathered into one entry while other entries are in
    flight.
    """
    entries_in_flight: int = 4
    """The number of entries in flight below which a record is sent at once, in an entry of its own
    if necessary.
    """
    roll_bytes: int = 256 * 1024 * 1024
    """The size in bytes at which a segment is completed and the next one begins."""
    roll_interval_s: float = 7_200.0
    """The age in seconds at which a segment is completed and the next one begins."""
    retention_s: float = 0.0
    """Seconds to keep a segment after its completion. 0 keeps segments of any age."""
    retention_bytes: int = 0
    """The number of bytes to keep: the oldest segments are deleted while at least this much remains
    in completed segments. 0 keeps any amount.
    """
    explicit_truncation: bool = False
    """Whether retention deletes only what was truncated explicitly."""
    bytes_max: int = 0
    """The quota of a stream in bytes: an append that would exceed it is refused. 0 means none."""
    streams_max: int = 0
    """The quota of a namespace: the largest number of streams in it. 0 means no quota."""

    def __post_init__(self) -> None:
        check_values(self.as_dict())
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise UsageError(
                "the settings of a stream must satisfy ensemble_size >= write_quorum >= "
                f"ack_quorum >= 1, but ensemble_size is {self.ensemble_size}, write_quorum is "
                f"{self.write_quorum} and ack_quorum is {self.ack_quorum}"
            )
        for name, value in self.as_dict().items():
            check_value(name, value)

    def with_values(self, values: Mapping[str, Any]) -> StreamSettings:
        """Return a copy of these settings with some of them replaced.

        Args:
            values: The new values by name.

        Returns:
            The new settings.

        Raises:
            UsageError: A name is unknown, or a value is not valid.
        """
        values = current_names(values)
        check_values(values)
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return asdict(self)

    def as_json(self) -> dict[str, Any]:
        """Return the settings as commands and the HTTP API print them.

        Times are listed twice: in seconds, and under their old names in milliseconds.
        """
        return with_stored_names(self.as_dict())


def check_value(name: str, value: Any) -> None:
    """Check one value, independently of the other settings.

    Args:
        name: The name of a setting.
        value: A value of the right type.

    Raises:
        UsageError: The value is not valid.
    """
    allowed = {"digest": DIGESTS, "compression": COMPRESSIONS, "txids": TXIDS}.get(name)
    if allowed is not None and value not in allowed:
        raise UsageError(f"setting {name} must be one of {', '.join(allowed)}, not {value!r}")
    if name == "entry_bytes" and not ENTRY_BYTES_MIN <= value <= ENTRY_BYTES_MAX:
        raise UsageError(
            f"setting entry_bytes must be from {ENTRY_BYTES_MIN} to {ENTRY_BYTES_MAX} bytes, not "
            f"{value}"
        )
    if name in _STORED:
        _check_long(name, value, TIME_MAX_S, "seconds")
    if name == "roll_interval_s" and value < TIME_MIN_S:
        raise UsageError(f"setting {name} must be at least {TIME_MIN_S:g} seconds, not {value:g}")
    if name in _STORED and 0 < value < TIME_MIN_S:
        raise UsageError(
            f"setting {name} must be 0 or at least {TIME_MIN_S:g} seconds, not {value:g}"
        )
    if name == "ensemble_size" and value > ENSEMBLE_MAX:
        raise UsageError(f"setting {name} must be at most {ENSEMBLE_MAX:,} bookies, not {value}")
    if name in AT_LEAST_1 and value < 1:
        raise UsageError(f"setting {name} must be at least 1, not {value}")
    if name in NOT_NEGATIVE and value < 0:
        raise UsageError(f"setting {name} must not be negative, but it is {value}")


def _check_long(name: str, value: float, most: float, unit: str) -> None:
    if value > most:
        raise UsageError(f"setting {name} is too large: it must be at most {most:g} {unit}")


def check_values(values: Mapping[str, Any]) -> None:
    """Check the names of settings and the types of their values.

    Whether values fit together can be checked only when all of them are known, because some are
    inherited.

    Args:
        values: The values by name.

    Raises:
        UsageError: A name is unknown, or a value has the wrong type or is too long a time.
    """
    known: dict[str, type] = {field.name: type(field.default) for field in fields(StreamSettings)}
    for name, value in values.items():
        kind = known.get(name)
        if kind is None:
            raise UsageError(
                f"{name!r} is not a setting of a stream", remedy=did_you_mean(str(name), known)
            )
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise UsageError(f"setting {name} must be of type {kind.__name__}, not {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"setting {name} must be a finite number, not {value!r}")
        if name in _STORED:
            _check_long(name, values[name], TIME_MAX_S, "seconds")


DEFAULTS = StreamSettings()


def current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under their current names. A former name emits a DeprecationWarning.

    Args:
        values: The values by current or former name.

    Returns:
        The values by current name.

    Raises:
        ArgumentTypeError: `values` is not a mapping.
        UsageError: The value of a former name is not a whole number.
    """
    if not isinstance(values, Mapping):
        raise ArgumentTypeError(
            "the settings of a stream must be a mapping of names to values, not "
            f"{type(values).__name__}"
        )
    for name in values.keys() & IN_MILLISECONDS.keys():
        in_seconds_now(name, IN_MILLISECONDS[name])
    return _in_seconds(values)


def _in_seconds(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in IN_MILLISECONDS and value is not None:
            if type(value) is not int:
                raise UsageError(f"setting {name} must be of type int, not {value!r}")
            _check_long(name, value, 1_000 * TIME_MAX_S, "milliseconds")
            value = value / 1_000
        found[IN_MILLISECONDS.get(name, name)] = value
    return found


def with_stored_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with each time also under its stored name, in milliseconds.

    Args:
        values: The values by current name.

    Returns:
        The values by current name and, for times, by stored name as well.
    """
    return {
        **values,
        **{_STORED[name]: round(1_000 * values[name]) for name in _STORED if name in values},
    }


def parse_setting(name: str, text: str) -> tuple[str, int | float | bool | str]:
    """Parse a setting that a user typed.

    Args:
        name: The current or former name of the setting.
        text: The value as text. A plain number is in the unit that belongs to the name.

    Returns:
        The current name and the value.

    Raises:
        UsageError: The name is unknown, or the value is not valid.
    """
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
    """Return the stored form of settings: only those that were given, with times in milliseconds.

    Args:
        values: The values by name.

    Returns:
        The value of the node.

    Raises:
        UsageError: A name is unknown, or a value has the wrong type.
    """
    values = current_names(values)
    check_values(values)
    stored = {
        _STORED.get(name, name): round(1_000 * value) if name in _STORED else value
        for name, value in values.items()
    }
    return json.dumps({FORMAT_KEY: FORMAT, **stored}, sort_keys=True).encode()


def _stored_names() -> list[str]:
    """Return the names under which settings are stored."""
    return [_STORED.get(one.name, one.name) for one in fields(StreamSettings)]


def decode_settings(data: bytes, where: str) -> dict[str, Any]:
    """Decode the stored form of settings.

    Args:
        data: The value of the node.
        where: The path of the node, for the error message.

    Returns:
        The settings that were given, by their current names.

    Raises:
        LaterMetadataError: A later version of Quire wrote the value.
        MetadataError: The value is damaged.
    """
    if not data:
        return {}
    try:
        values = stored_json(data, large_numbers=True)
        what = f"the settings at {where}"
        if message := later_json(what, values, _stored_names(), FORMAT, key=FORMAT_KEY):
            raise LaterMetadataError(message)
        if values.pop(FORMAT_KEY) != FORMAT:
            raise ValueError("their format is not known")
        values = _in_seconds(values)
        check_values(values)
    except (ValueError, KeyError, AttributeError, UsageError) as error:
        raise MetadataError(
            f"the settings at {where} cannot be decoded: {error}",
            remedy="Restore the node from a backup of the metadata store",
        ) from None
    return dict(values)
