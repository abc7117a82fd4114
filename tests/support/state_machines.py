"""State machines for tests."""

from __future__ import annotations


class Counter:
    """A state machine that counts its commands. Each command returns the count."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, command: bytes) -> int:
        self.count += 1
        return self.count

    def snapshot(self) -> bytes:
        return b"%d" % self.count

    def restore(self, state: bytes) -> None:
        self.count = int(state)
