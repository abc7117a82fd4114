"""The type of a server's event log, through which its parts log events."""

from __future__ import annotations

from typing import Protocol


class EventLog(Protocol):
    """A function that writes one event with its fields."""

    def __call__(self, event: str, **fields: object) -> None: ...
