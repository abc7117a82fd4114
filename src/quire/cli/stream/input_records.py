"""The records that `quire stream write` makes of the lines of its input.

A line is the value of a record, or its key and its value with a separator between them, or a JSON
object with the names that `quire stream read --json` prints.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from quire._runtime.units import counted
from quire.codec.distributedlog.record import MAX_PAYLOAD_BYTES
from quire.errors import UsageError

JSON_FIELDS = ("value", "key", "headers", "event_time")
"""The fields of a JSON line that become parts of the record."""
READ_FIELDS = ("partition", "position", "txid", "sequence")
"""The fields that `quire stream read --json` also prints. They are ignored."""


@dataclass(frozen=True, slots=True)
class LineFormat:
    """The format of the input's lines: which parts of a record a line contains."""

    json: bool = False
    """Whether a line is a JSON object."""
    base64: bool = False
    """Whether keys and values are in Base64, if lines are not JSON."""
    separator: bytes = b""
    """The bytes between a key and a value. Without them a line is a value."""
    key: str | None = None
    """The key of records whose line has none, or None for no key."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of every record. A line of JSON may replace them."""

    @property
    def keyed(self) -> bool:
        """Whether a record may have more than a value."""
        return bool(self.json or self.separator or self.key is not None or self.headers)


@dataclass(slots=True)
class InputRecords:
    """Records in columns, as `StreamWriter.submit_many` takes them."""

    values: list[bytes] = field(default_factory=list)
    keys: list[bytes | str | None] = field(default_factory=list)
    headers: list[Mapping[str, bytes | str] | None] = field(default_factory=list)
    event_times: list[datetime | None] = field(default_factory=list)

    def part(self, first: int, end: int) -> dict[str, Any]:
        """Return the arguments of `StreamWriter.submit_many` for the records from `first` to before
        `end`."""
        if not self.keys:
            return {"payloads": self.values[first:end]}
        return {
            "payloads": self.values[first:end],
            "keys": self.keys[first:end],
            "headers": self.headers[first:end],
            "event_times": self.event_times[first:end],
        }


class LineParser:
    """A parser that makes records of lines. It counts the lines for its error messages."""

    def __init__(self, form: LineFormat) -> None:
        self._form = form
        self._lines = 0
        fixed_bytes = len(form.key or "") + sum(len(n) + len(v) for n, v in form.headers.items())
        self._small_bytes = MAX_PAYLOAD_BYTES // 8 - fixed_bytes
        """The longest line, if it is not JSON, whose record is certainly small enough."""
        self.refused: UsageError | None = None
        """The error for the first line that cannot be a record, or None if there was none."""

    def records(self, lines: Sequence[bytes]) -> InputRecords:
        """Return the records of lines, up to the first line that cannot be a record.

        The error for that line is then in `refused`.
        """
        form, found = self._form, InputRecords()
        if not form.keyed and not form.base64:
            found.values = list(lines)
            return found
        for line in lines:
            self._lines += 1
            try:
                record = self._json(line) if form.json else self._plain(line)
                if form.json or self._lines == 1 or len(line) > self._small_bytes:
                    _check(record)
            except (ValueError, UsageError) as error:
                self.refused = UsageError(
                    f"line {self._lines} of the input {error}. It and the lines after it were not "
                    "appended"
                )
                break
            found.values.append(record.value)
            if form.keyed:
                found.keys.append(record.key)
                found.headers.append(record.headers)
                found.event_times.append(record.event_time)
        return found

    def _plain(self, line: bytes) -> _Record:
        form = self._form
        key: bytes | str | None = form.key
        if form.separator:
            before, separator, after = line.partition(form.separator)
            if separator:
                key, line = (_decoded(before) if form.base64 else before), after
        return _Record(_decoded(line) if form.base64 else line, key, form.headers, None)

    def _json(self, line: bytes) -> _Record:
        try:
            given = json.loads(line)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise ValueError("is not a JSON object")
        if "gap" in given and "value" not in given:
            raise ValueError("is not a record, but tells of a gap")
        for name in given:
            if name not in JSON_FIELDS and name not in READ_FIELDS:
                raise ValueError(
                    f"has the field {name!r}, which a record does not have. The fields are "
                    f"{', '.join(JSON_FIELDS)}"
                )
        if "value" not in given:
            raise ValueError("has no field 'value'")
        value = _text(given["value"], "value")
        key: bytes | str | None = self._form.key
        if given.get("key") is not None:
            key = _text(given["key"], "key")
        named: Mapping[str, bytes | str] = self._form.headers
        if given.get("headers") is not None:
            if not isinstance(given["headers"], dict):
                raise ValueError("has the field 'headers', but it is not a JSON object")
            own = {name: _text(one, f"headers.{name}") for name, one in given["headers"].items()}
            named = {**named, **own}
        time = None if given.get("event_time") is None else _time(given["event_time"])
        return _Record(value, key, named, time)


class _Record(NamedTuple):
    value: bytes
    key: bytes | str | None
    headers: Mapping[str, bytes | str]
    event_time: datetime | None


def _check(record: _Record) -> None:
    """Raise ValueError if a stream refuses the record.

    A stream refuses all records of a call, and it does not say which of them is the reason.
    """
    from quire.streams.write.envelopes import sealed

    value, key, headers, event_time = record
    try:
        (payload,), _ = sealed([value], [key], [headers], [event_time])
    except UsageError as error:
        raise ValueError(f"cannot be a record: {error.args[0]}") from None
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"makes a record of {counted(len(payload), 'byte')} with its key, headers and event "
            f"time, but at most {MAX_PAYLOAD_BYTES:,} are allowed"
        )


def _text(given: object, name: str) -> bytes:
    """Return the bytes that a field in Base64 stands for."""
    if not isinstance(given, str):
        raise ValueError(f"has the field {name!r}, but it is not a text in Base64")
    try:
        return b64decode(given, validate=True)
    except ValueError as error:
        raise ValueError(f"has the field {name!r}, but it is not Base64 ({error})") from None


def _decoded(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"is not Base64 ({error})") from None


def _time(given: object) -> datetime:
    try:
        time = datetime.fromisoformat(given) if isinstance(given, str) else None
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(
            f"has the event time {given!r}, but it must be a time with a zone such as "
            "'2026-01-31T12:00:00Z'"
        )
    return time
