"""What a client logs: one line for each event, with its fields beside the text.

An event has a name and fields (`ledger`, `entry`, `bookie`, `outcome` and others). The text of the
record has them as `name key=value ...`; the record itself has them as attributes, as `extra` makes
them, so that any formatter for JSON finds them. `JsonFormatter` is one. The events are listed in
docs/guides/client-observability.md. Nothing is logged for each entry.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

logger = logging.getLogger("quire.client")

Field = str | int | float | list[str]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has."""


def log_event(level: int, event: str, **fields: Field) -> None:
    """One line, if anybody listens to that level."""
    if logger.isEnabledFor(level):
        text = " ".join(f"{name}={_text(value)}" for name, value in fields.items())
        logger.log(level, "%s %s", event, text, extra={"event": event, **fields})


def _text(value: Field) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    text = ",".join(value) if isinstance(value, list) else str(value)
    plain = text.isprintable() and not any(mark in text for mark in ' "=')
    return text if text and plain else json.dumps(text)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: `time` (RFC 3339, UTC), `level`, `logger`, `message`, then
    what the record was given as `extra`, and `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD:
                line.setdefault(name, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
