"""What runs on a simulated loop: callbacks, futures and tasks, each of a node, and what happens to
them when the world is over."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sized
from contextvars import Context, ContextVar, copy_context
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from quire_simulator.machine.loop import SimulatedLoop

T = TypeVar("T")

MAX_CLOSE_ATTEMPTS = 32
"""A coroutine that awaits in its `finally` needs one more `close()` for each such await."""


def _nothing() -> None:
    """Stands in for the callback of a cancelled handle, which then holds no references."""


class Handle(asyncio.TimerHandle):
    """asyncio's handle without what costs time and is not used here. For callbacks and timers
    alike: only those in the heap of timers have `_when` and `_loop`."""

    __slots__ = ()
    _callback: Callable[..., object]
    _context: Context
    _loop: SimulatedLoop
    _scheduled: bool
    _when: float

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._scheduled = False

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback, self._args = _nothing, ()
            if self._scheduled:
                self._loop._timer_cancelled()

    def __repr__(self) -> str:
        return f"<callback {self._callback!r}{' cancelled' if self._cancelled else ''}>"


class SimFuture(asyncio.Future[T]):
    """A future that hashes by its number, so that a set of them has the same order in every run."""

    __slots__ = ("sequence",)

    def __init__(self, loop: SimulatedLoop, sequence: int) -> None:
        self.sequence = sequence
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.sequence


class SimTask(asyncio.Task[T]):
    """A task that hashes by its number, and knows its node."""

    def __init__(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        loop: SimulatedLoop,
        name: str | None,
        context: Context,
        sequence: int,
    ) -> None:
        self.sequence = sequence
        self.node = context.get(current_node) or loop.main
        super().__init__(coro, loop=loop, name=name or f"Task-{sequence}", context=context)

    def __hash__(self) -> int:
        return self.sequence


class Node:
    """One simulated process. Made by `SimulatedLoop.node`; a killed one is never used again."""

    __slots__ = ("_loop", "_tasks", "context", "dead", "name", "queued", "ready", "stopped")

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self._loop = loop
        self.name = name
        self.ready: deque[Handle] = deque()
        self.queued = False
        """The loop need not be told of a new callback: it knows, or must not run it."""
        self.stopped = False
        self.dead = False
        self._tasks: set[SimTask[Any]] = set()
        self.context = copy_context()
        self.context.run(current_node.set, self)

    def __repr__(self) -> str:
        return f"<Node {self.name}{' dead' if self.dead else ' stopped' if self.stopped else ''}>"

    def create_task(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> SimTask[T]:
        """A task of this node, which keeps it alive, as `asyncio.run` does with its main task.
        Awaiting it from another node waits for ever if this one dies."""
        task = self._loop.create_task(coro, name=name, context=self.context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._loop.call_soon(callback, *args, context=self.context)

    def stop(self) -> None:
        """Run nothing of this node until `cont`: callbacks and timers that come due pile up."""
        if not self.stopped and not self.dead:
            self.stopped = True
            self._loop._hold(self)

    def cont(self) -> None:
        if self.stopped and not self.dead:
            self.stopped = False
            self._loop._release(self)

    def kill(self) -> None:
        """Run nothing of this node ever again. Its name is free for a new node."""
        if not self.dead:
            self.dead = True
            self._loop._bury(self)


current_node: ContextVar[Node] = ContextVar("current_node")


# -- the end --------------------------------------------------------------------------------------


def describe(task: SimTask[Any]) -> str:
    """Name, node, and the innermost line that the task stands at."""
    where = "done"
    inner: Any = task.get_coro()
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "ag_frame", None)
        if frame is not None:
            code = frame.f_code
            where = f"{PurePath(code.co_filename).name}:{frame.f_lineno} in {code.co_qualname}"
        inner = getattr(inner, "cr_await", None) or getattr(inner, "ag_await", None)
    return f"{task.get_name()} of {task.node.name}: {where}"


def discard(loop: SimulatedLoop, tasks: list[SimTask[Any]], generators: Sized) -> None:
    """Close the coroutines of a world that is over, and take them out of `tasks`. Their `finally`
    blocks run now, on the closed loop, where nothing they do can be seen any more. (Without it
    `asyncio.gather` would make a loop of its own, and leave it open.)"""
    said, sys.unraisablehook = sys.unraisablehook, lambda _: None
    asyncio._set_running_loop(loop)
    try:
        while tasks:
            _close(tasks.pop())
        if len(generators):
            gc.collect()  # one that a dead task waits for cannot be closed, but dropped
    finally:
        asyncio._set_running_loop(None)
        sys.unraisablehook = said


def _close(task: SimTask[Any]) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coro = task.get_coro()
    for _ in range(MAX_CLOSE_ATTEMPTS):
        try:
            if coro is not None:
                coro.close()
            break
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException:  # noqa: BLE001 - of code that is no longer there
            continue
