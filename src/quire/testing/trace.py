"""What happened in a simulated run, as lines, with a hash to compare runs by."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

KEPT_LINES = 20_000
HASHED_AT_ONCE = 1_024
"""Events that are formatted and hashed together."""

Field = int | float | str | bool | None


class Trace:
    """Keeps the last `keep` events; the hash covers all that were ever recorded."""

    def __init__(self, time: Callable[[], float], *, keep: int = KEPT_LINES) -> None:
        self._time = time
        self._fresh: list[tuple[float, str, str, dict[str, Field]]] = []
        self._kept: deque[str] = deque(maxlen=keep)
        self._hash = hashlib.blake2b(digest_size=16)
        self.count = 0

    def record(self, node: str, event: str, **fields: Field) -> None:
        """Fields are formatted later: values that cannot change, nothing with an address in it."""
        self.count += 1
        self._fresh.append((self._time(), node, event, fields))
        if len(self._fresh) >= HASHED_AT_ONCE:
            self._settle()

    def _settle(self) -> None:
        lines = [
            " ".join((f"{time:.9f}", node, event, *(f"{k}={v!r}" for k, v in fields.items())))
            for time, node, event, fields in self._fresh
        ]
        self._fresh.clear()
        self._kept.extend(lines)
        self._hash.update("".join(line + "\n" for line in lines).encode())

    def lines(self) -> list[str]:
        self._settle()
        return list(self._kept)

    def hexdigest(self) -> str:
        """The same for two runs exactly when all their lines were the same."""
        self._settle()
        return self._hash.hexdigest()
