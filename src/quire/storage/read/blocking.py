"""Where reads that have to wait for the device run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class BlockingReader(Protocol):
    """Where reads that wait for the device run: `worker.ThreadReader`. What goes ahead of a reader
    has threads of its own: nobody waits behind it."""

    def run(self, call: Callable[[], T]) -> Awaitable[T]: ...

    def read(self, call: Callable[[], T], done: Callable[[T | None], None]) -> None:
        """Run it soon; then `done` on the event loop with what it returned, or None where it was
        not run: this is being closed."""
        ...

    def ahead(self, call: Callable[[], None], done: Callable[[], None]) -> None:
        """Run it soon, for what it leaves in the system's cache; then `done`, on the event loop. It
        may also not be run. An `OSError` is nobody's."""
        ...


class InlineReader:
    """Waits on the event loop: for disks that never make one wait, as the simulator's."""

    async def run(self, call: Callable[[], T]) -> T:
        return call()

    def read(self, call: Callable[[], T], done: Callable[[T | None], None]) -> None:
        done(call())

    def ahead(self, call: Callable[[], None], done: Callable[[], None]) -> None:
        done()
