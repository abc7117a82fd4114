"""The log of a client: one line for each event, with its fields next to the text.

An event has a name and fields (`ledger`, `entry`, `bookie`, `outcome` and others). The message of
the log record is `name key=value ...`. The record also has the name and the fields as attributes
(`extra`), for JSON formatters such as `JsonFormatter`.
docs/guides/programs/client-observability.md lists the events. Nothing is logged for single entries.
"""

from __future__ import annotations

import json
import logging

from quire._runtime.event_log import extra_fields, key_values, timestamp

logger = logging.getLogger("quire.client")

Field = str | int | float | list[str]


def log_event(level: int, event: str, **fields: Field) -> None:
    """Log one event with its fields, if the level is enabled."""
    if logger.isEnabledFor(level):
        text = key_values(fields)
        logger.log(level, "%s %s", event, text, extra={"event": event, **fields})


class JsonFormatter(logging.Formatter):
    """A formatter that writes a record as one line of JSON.

    The line has `time` (RFC 3339, UTC), `level`, `logger` and `message`, then the record's `extra`
    fields, and `exception` if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in extra_fields(record).items():
            line.setdefault(name, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
