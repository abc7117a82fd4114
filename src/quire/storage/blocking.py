"""Where reads that have to wait for the device run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from quire.codec.log_parts import Buffer


class BlockingReader(Protocol):
    """Where reads that wait for the device run: `worker.ThreadReader`."""

    def run(self, call: Callable[[], Buffer | None]) -> Awaitable[Buffer | None]: ...

    def start(self, call: Callable[[], Buffer | None], done: Callable[[], None]) -> None:
        """Run it soon, for what it leaves in the system's cache; then `done`, on the event loop. It
        may also not be run. An `OSError` is nobody's."""
        ...


class InlineReader:
    """Waits on the event loop: for disks that never make one wait, as the simulator's."""

    async def run(self, call: Callable[[], Buffer | None]) -> Buffer | None:
        return call()

    def start(self, call: Callable[[], Buffer | None], done: Callable[[], None]) -> None:
        done()
