"""The log of a bookie, as the parts of a bookie write to it."""

from __future__ import annotations

from typing import Protocol


class EventLog(Protocol):
    """A function that writes one event with its fields."""

    def __call__(self, event: str, **fields: object) -> None: ...
