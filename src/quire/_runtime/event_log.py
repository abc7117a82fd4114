"""The log of a server, as its parts write to it: one event with its fields."""

from __future__ import annotations

from typing import Protocol


class EventLog(Protocol):
    """A function that writes one event with its fields."""

    def __call__(self, event: str, **fields: object) -> None: ...
