"""The trace of a simulated run: its events as lines, and a digest to compare runs."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

KEPT_EVENTS = 20_000
HASHED_AT_ONCE = 1_024

Field = int | float | str | bool | None
Event = tuple[float, str, str, dict[str, Field]]
"""The simulated time, the node, what happened, and more details."""


class Trace:
    """The last `keep` events of a run. The digest covers all that were ever recorded."""

    def __init__(self, time: Callable[[], float], *, keep: int = KEPT_EVENTS) -> None:
        self._time = time
        self._kept: deque[Event] = deque(maxlen=keep)
        self._unhashed: list[Event] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self.count = 0

    def record(self, node: str, event: str, **fields: Field) -> None:
        """Record an event.

        Fields are formatted later, so their values must be immutable and contain no addresses.
        """
        self.count += 1
        self._unhashed.append((self._time(), node, event, fields))
        if len(self._unhashed) >= HASHED_AT_ONCE:
            self._settle()

    def _settle(self) -> None:
        self._kept.extend(self._unhashed)
        self._hash.update("".join(map(repr, self._unhashed)).encode())
        self._unhashed.clear()

    def keep(self, events: int) -> None:
        """Keep this number of events from now on."""
        self._settle()
        self._kept = deque(self._kept, maxlen=events)

    def events(self) -> tuple[int, list[Event]]:
        """Return the number of earlier events, and the events that are kept."""
        self._settle()
        return self.count - len(self._kept), list(self._kept)

    def lines(self) -> list[str]:
        return [
            " ".join((f"{time:.9f}", node, event, *(f"{k}={v!r}" for k, v in fields.items())))
            for time, node, event, fields in self.events()[1]
        ]

    def hexdigest(self) -> str:
        """Return the digest, which is equal for two runs exactly if all their events were equal."""
        self._settle()
        return self._hash.hexdigest()
