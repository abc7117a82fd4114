"""The event log of a server: its type, the level of each event, and the two formats of its lines.

An event has a name and fields. Code that logs events receives an `EventLog` as an argument, and
does not know where the lines go. docs/guides/cluster/logging.md describes the formats and lists the
events that are warnings or errors.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Protocol, TextIO

LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
"""The number of each level in Python's `logging`, by name. The most verbose level comes first."""
FORMATS = ("json", "console")
"""The formats of a line: one JSON object, or text for people."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes that every `logging.LogRecord` has, even without `extra`."""

_ERRORS = frozenset(
    {
        "directory_failed",  # A disk is broken.
        "metadata_went_back",  # The metadata store was restored from an older copy.
        "stop_failed",
        "stop_timeout",
        "storage_failed",  # No data directory is left.
    }
)
_WARNINGS = frozenset(
    {
        "advertise_unresolved",  # The advertised host has no address here.
        "auditor_failed",
        "beside_failed",
        "bookie_ended",
        "bookie_not_answering",
        "bookie_not_restarted",
        "bookies_lost",
        "clear_text_refused",
        "connection_refused",
        "connections_limited",
        "cookie_not_checked",
        "damage_found",
        "damage_not_noted",
        "damage_report_failed",
        "delay_unreadable",
        "directory_read_only",
        "directory_went_back",
        "election_failed",
        "entry_refused",
        "garbage_collection_off",
        "garbage_collection_skipped",
        "garbage_unnamed",
        "garbage_unnamed_unknown",
        "garbage_waits",
        "http_change_refused",
        "http_failed",
        "http_refusals_left_out",
        "incarnation_not_written",
        "last_known_failed",
        "ledger_failed",
        "ledgers_misplaced",
        "ledgers_unreadable",
        "list_of_entries_too_long",
        "log_interrupted",  # Earlier events could not be written.
        "log_position_not_mine",
        "log_position_not_reported",
        "mark_malformed",
        "metadata_mark_not_raised",
        "order_not_understood",
        "over_replicated_off",
        "over_replicated_skipped",
        "over_replicated_unreadable",
        "read_failed",
        "read_only",
        "registration_failed",
        "registration_lost",
        "replicas_lacking",
        "replicas_not_compared",
        "retired",
        "role_refused",
        "rolling_restart_stopped",
        "series_failed",
        "session_lost",
        "tls_handshake_failed",
        "tls_reload_failed",
        "withdraw_failed",
        "worker_failed",
    }
)


_WARNINGS_WITH = {"tls_reloaded": "expired"}
"""Events that are warnings only if one of their fields is there and not empty."""


class EventLog(Protocol):
    """A function that writes one event with its fields."""

    def __call__(self, event: str, **fields: object) -> None: ...


def level_of(event: str, fields: Mapping[str, object] | None = None) -> str:
    """Return the level of the event with this name: "error", "warning", or by default "info".

    The level of a few events depends on their fields.
    """
    if event in _ERRORS:
        return "error"
    if event in _WARNINGS:
        return "warning"
    worse = fields is not None and bool(fields.get(_WARNINGS_WITH.get(event, "")))
    return "warning" if worse else "info"


class EventWriter:
    """An event log that writes one line for each event.

    An event that cannot be written, because the disk is full or nobody reads the pipe any more, is
    only counted. The server must go on: an error here would end whatever wanted to log, such as the
    garbage collection that frees the disk. The next event that is written is followed by
    `log_interrupted` with their number.

    Args:
        level: The lowest level that is written: a key of `LEVELS`.
        format: `json` (one JSON object a line), or `console` (text for people).
        to: The stream to write to. The default is standard error at the time of each event.
        labels: Fields that every event has, before its own.
    """

    def __init__(
        self,
        level: str = "info",
        format: str = "json",
        to: TextIO | None = None,
        labels: Mapping[str, object] | None = None,
    ) -> None:
        self._least = LEVELS[level]
        self._format = format
        self._to = to
        self._labels = labels or {}
        self.unwritten = 0
        """The number of events in a row that could not be written."""

    def __call__(self, event: str, **fields: object) -> None:
        self.write(level_of(event, fields), event, fields)

    def write(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        """Write one event, unless its level is below the lowest level of this writer."""
        if LEVELS[level] < self._least:
            return
        now = timestamp(time.time())
        fields = {**self._labels, **fields}
        if self._format == "json":
            line = json.dumps({"time": now, "level": level, "event": event, **fields}, default=str)
        else:
            line = f"{now} {level.upper():7} {event} {key_values(fields)}".rstrip()
        to: TextIO | None = self._to or sys.stderr
        if to is None:
            return  # the process was started without standard error
        try:
            to.write(line + "\n")
            to.flush()
        except (OSError, ValueError):  # a ValueError means that the stream is closed
            self.unwritten += 1
            return
        if self.unwritten:
            count, self.unwritten = self.unwritten, 0
            self.write(level_of("log_interrupted"), "log_interrupted", {"count": count})


def timestamp(seconds: float) -> str:
    """Return a Unix time in seconds as text in RFC 3339, in UTC and with milliseconds."""
    milliseconds = int(seconds * 1000)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return f"{text}.{milliseconds % 1000:03d}Z"


def key_values(fields: Mapping[str, object]) -> str:
    """Return fields as `name=value` pairs with spaces between them.

    A value is written as a JSON string if it is empty or contains a space, a quote, "=" or a
    character that cannot be printed.
    """
    return " ".join(f"{name}={_value_text(value)}" for name, value in fields.items())


def _value_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return json.dumps(value, default=str)
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    plain = text.isprintable() and not any(mark in text for mark in ' "=')
    return text if text and plain else json.dumps(text)


def extra_fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that a program added to a log record with `extra`, by name."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
