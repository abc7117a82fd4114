"""A seeded event loop that runs the whole world in one thread, with simulated time.

Everything runs as on asyncio's own loop, with four differences:

- `time()` stands still while anything can run, and then jumps to the next timer.
- Callbacks belong to *nodes*, which represent processes. Within a node they run in the order in
  which they became ready, as asyncio users expect. Between nodes the seed decides who is next.
- There is no selector, and no thread runs while the loop does (see `stepped_thread`). There are
  no real sockets.
- An exception that escapes a callback, or a task that nobody awaits, ends the run with an error.

A callback belongs to the node that is `current_node` in its context. So tasks and callbacks inherit
their node, and waking a task of another node runs that task in its own node. A node can be stopped
and continued (as with SIGSTOP) or killed. Nothing of a killed node runs again, not even a `finally`
block.

The same seed gives the same run in any process. Besides seeded choices, this requires two things
that asyncio does not provide. Tasks and futures must not be hashed by their addresses, because a
`TaskGroup` cancels its tasks in set order. The garbage collector must run at fixed steps, because
the effects of finalizers are visible. Code that runs here must not iterate over sets of strings or
objects.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import heapq
import random
import sys
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Sized,
)
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from pathlib import PurePath
from types import FrameType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

START_TIME_S = 1_000.0
"""Not 0, so that code that uses 0.0 for "never" behaves as on a machine that has been running."""
MAX_TIME_S = 7 * 24 * 3600.0
MAX_STEPS = 20_000_000
GC_INTERVAL_STEPS = 1 << 18
EXECUTOR_DELAY_S = (0.000_1, 0.005)
MIN_CANCELLED_TIMERS = 64
"""The smallest number of cancelled timers that is worth a rebuild of the heap."""
MAX_TASKS_LISTED = 40
MAX_CLOSE_ATTEMPTS = 32
"""A coroutine needs one more `close()` for each await in its `finally` blocks."""


class SimulationError(RuntimeError):
    """The run cannot continue: an exception escaped from a callback or from an unawaited task."""


class DeadlockError(SimulationError):
    """Nothing can ever run again, but the main task is not done."""


class LimitError(SimulationError):
    """The run exceeded its limit of steps or simulated time."""


def _nothing() -> None:
    """Do nothing. Replaces the callback of a cancelled handle, so that it holds no references."""


class SimHandle(asyncio.TimerHandle):
    """A smaller version of asyncio's handle for both callbacks and timers.

    Only handles in the heap of timers have `_when` and `_loop`.
    """

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
    """A future that is hashed by its number, so that sets have the same order in every run."""

    __slots__ = ("sequence",)

    def __init__(self, loop: SimulatedLoop, sequence: int) -> None:
        self.sequence = sequence
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.sequence


class SimTask(asyncio.Task[T]):
    """A task that is hashed by its number and knows its node."""

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
    """A simulated process, created by `SimulatedLoop.node`. A killed node is never used again."""

    __slots__ = ("_loop", "_tasks", "context", "dead", "name", "queued", "ready", "stopped")

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self._loop = loop
        self.name = name
        self.ready: deque[SimHandle] = deque()
        self.queued = False
        """Whether the loop knows about this node's callbacks already, or must not run them."""
        self.stopped = False
        self.dead = False
        self._tasks: set[SimTask[Any]] = set()
        self.context = copy_context()
        self.context.run(current_node.set, self)

    def __repr__(self) -> str:
        return f"<Node {self.name}{' dead' if self.dead else ' stopped' if self.stopped else ''}>"

    def create_task(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> SimTask[T]:
        """Create a task of this node and keep it alive, as `asyncio.run` does with its main task.

        If this node dies, another node that awaits the task waits forever.
        """
        task = self._loop.create_task(coro, name=name, context=self.context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._loop.call_soon(callback, *args, context=self.context)

    def stop(self) -> None:
        """Run nothing of this node until `cont`. Callbacks and due timers accumulate."""
        if not self.stopped and not self.dead:
            self.stopped = True
            self._loop._hold(self)

    def cont(self) -> None:
        if self.stopped and not self.dead:
            self.stopped = False
            self._loop._release(self)

    def kill(self) -> None:
        """Run nothing of this node ever again. A new node may use its name."""
        if not self.dead:
            self.dead = True
            self._loop._bury(self)


current_node: ContextVar[Node] = ContextVar("current_node")


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop that the module describes.

    `steps` is the number of callbacks that ran, and `main` is the node of `run`.
    """

    _stopping: bool

    def __init__(
        self, seed: int, *, max_time_s: float = MAX_TIME_S, max_steps: int = MAX_STEPS
    ) -> None:
        super().__init__()
        self.seed = seed
        self.steps = 0
        self._random = self.derive("loop")
        self._now = START_TIME_S
        self._time_limit = START_TIME_S + max_time_s
        self._step_limit = max_steps
        self._checkpoint = min(max_steps, GC_INTERVAL_STEPS)
        self._runnable: list[Node] = []
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._timer_count = 0
        self._cancelled_timers = 0
        self._sequence = 0
        self._failure: dict[str, Any] | None = None
        self._dead_tasks: list[SimTask[Any]] = []
        self._generators: WeakKeyDictionary[AsyncGenerator[Any, Any], Node] = WeakKeyDictionary()
        self._nodes: dict[str, Node] = {}
        self.main = self.node("main")

    # -- the world ----------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        """Return the living node with this name, and create it if there is none."""
        node = self._nodes.get(name)
        if node is None or node.dead:
            node = self._nodes[name] = Node(self, name)
        return node

    def derive(self, label: str) -> random.Random:
        """Return a separate random generator for one part.

        An additional draw in one part does not change the others. The seed is text, which `random`
        hashes with SHA-512 instead of `hash`.
        """
        return random.Random(f"{self.seed}/{label}")

    def fingerprint(self) -> str:
        """Return a digest that almost certainly differs between runs with different schedules."""
        state = f"{self.steps} {self._now!r} {self._timer_count} {self._random.getstate()}"
        return hashlib.blake2b(state.encode(), digest_size=16).hexdigest()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` in the node "main" to its end, cancel what is left, and close the loop.

        Raises what `main` raises, and `SimulationError` for deadlocks, exceeded limits and escaped
        exceptions.
        """
        with _collector_off():
            try:
                result = self.run_until_complete(self.main.create_task(main, name="main"))
                self._cancel_rest()
                return result
            finally:
                rest = [*self._dead_tasks, *self._tasks()]
                self._dead_tasks.clear()
                self.close()
                _discard(self, rest, self._generators)

    # -- asyncio's interface ------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = copy_context()
        handle = SimHandle(callback, args, context)
        node = context.get(current_node) or self.main
        node.ready.append(handle)
        if not node.queued:
            node.queued = True
            self._runnable.append(node)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if context is None:
            context = copy_context()
        handle = SimHandle(callback, args, context)
        handle._when = when
        if when <= self._now:
            # Time stands still while anything is ready, so in the heap this could wait forever.
            self._make_ready(handle)
        else:
            handle._scheduled = True
            handle._loop = self
            self._timer_count += 1
            heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def create_task(  # type: ignore[override]
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> SimTask[T]:
        if self.is_closed():
            coro.close()
            raise RuntimeError("the simulated loop is closed")
        self._sequence += 1
        return SimTask(coro, self, name, context or copy_context(), self._sequence)

    def create_future(self) -> SimFuture[Any]:
        self._sequence += 1
        return SimFuture(self, self._sequence)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run `func` on this loop a little later."""
        future: asyncio.Future[T] = self.create_future()
        self.call_later(self._random.uniform(*EXECUTOR_DELAY_S), _run_inline, future, func, args)
        return future

    def run_forever(self) -> None:
        with _collector_off():
            super().run_forever()

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """End the run at the first exception. `set_exception_handler` can be more lenient."""
        task = context.get("task") or context.get("future")
        if isinstance(task, SimTask) and task.node.dead:
            return
        if self._failure is None:
            self._failure = context
            self.stop()

    def __del__(self) -> None:
        """Do nothing: there is nothing to close."""

    # -- the steps ----------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Run all iterations until `stop`, not just one as in the base class."""
        runnable, draw = self._runnable, self._random.random
        while not self._stopping:
            count = len(runnable)
            if count == 0:
                self._advance()
                continue
            index = int(draw() * count) if count > 1 else 0
            node = runnable[index]
            if not node.ready:
                node.queued = False
                runnable[index] = runnable[-1]
                runnable.pop()
                continue
            handle = node.ready.popleft()
            if handle._cancelled:
                continue
            self.steps += 1
            if self.steps >= self._checkpoint:
                self._check_steps()
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio's handles do
                if not node.dead:
                    message = f"exception in {handle!r} of node {node.name}"
                    self.call_exception_handler({"message": message, "exception": error})
        self._raise_failure()

    def _advance(self) -> None:
        """Advance the time to the next timer, and make everything due then ready."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
            self._cancelled_timers -= 1
        if not timers:
            raise DeadlockError(f"nothing can run any more at {self._now:.6f} s{self._waiting()}")
        now = timers[0][0]
        if now > self._time_limit:
            raise LimitError(f"the run exceeded {self._time_limit:.0f} s{self._waiting()}")
        self._now = now
        while timers and timers[0][0] <= now:
            handle = heapq.heappop(timers)[2]
            handle._scheduled = False
            if handle._cancelled:
                self._cancelled_timers -= 1
            else:
                self._make_ready(handle)

    def _make_ready(self, handle: SimHandle) -> None:
        node = handle._context.get(current_node) or self.main
        node.ready.append(handle)
        if not node.queued:
            node.queued = True
            self._runnable.append(node)

    def _timer_cancelled(self) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > max(MIN_CANCELLED_TIMERS, len(self._timers) // 2):
            self._keep_timers(lambda handle: not handle._cancelled)

    def _keep_timers(self, wanted: Callable[[SimHandle], bool]) -> None:
        self._timers[:] = [timer for timer in self._timers if wanted(timer[2])]
        heapq.heapify(self._timers)
        self._cancelled_timers = sum(timer[2]._cancelled for timer in self._timers)

    def _check_steps(self) -> None:
        if self.steps >= self._step_limit:
            raise LimitError(f"the run exceeded {self.steps} steps{self._waiting()}")
        gc.collect()
        self._checkpoint = min(self._step_limit, self.steps + GC_INTERVAL_STEPS)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            error = self._failure.get("exception")
            task = self._failure.get("task") or self._failure.get("future")
            where = f" ({describe(task)})" if isinstance(task, SimTask) else ""
            text = f"{self._failure.get('message')}{where}: {error!r}"
            raise SimulationError(f"at {self._now:.6f} s: {text}") from error

    # -- nodes --------------------------------------------------------------------------------

    def _hold(self, node: Node) -> None:
        if node in self._runnable:
            self._runnable.remove(node)
        node.queued = True

    def _release(self, node: Node) -> None:
        self._runnable.append(node)

    def _bury(self, node: Node) -> None:
        assert node is not self.main, "the node that drives the simulation cannot die"
        self._hold(node)
        node.ready = deque(maxlen=0)
        self._keep_timers(lambda handle: handle._context.get(current_node) is not node)
        # Dropped coroutines would run their `finally` blocks, so they are kept until the run is
        # over.
        self._dead_tasks += [task for task in self._tasks() if task.node is node]

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc]
        self._generators[agen] = current_node.get()

    def tasks_inside(self, node: Node, kinds: tuple[type, ...]) -> list[SimTask[Any]]:
        """Return the suspended tasks of this node that are in a method of one of these classes."""
        return [
            task
            for task in self._tasks()
            if task.node is node
            and any(isinstance(frame.f_locals.get("self"), kinds) for frame in _frames(task))
        ]

    # -- the end ------------------------------------------------------------------------------

    def _tasks(self) -> list[SimTask[Any]]:
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]
        return sorted(tasks, key=lambda task: task.sequence)

    def _cancel_rest(self) -> None:
        for node in self._nodes.values():
            if node.stopped:
                node.kill()
        rest = [task for task in self._tasks() if not task.node.dead]
        for task in rest:
            task.cancel()
        if rest:
            self.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        for task in rest:
            if not task.cancelled() and task.exception() is not None:
                message = "exception in a task that was cancelled at the end"
                self.call_exception_handler(
                    {"message": message, "exception": task.exception(), "task": task}
                )
        # Generators of dead nodes would run their `finally` blocks, or are held by a dead task.
        for generator in [one for one, node in self._generators.items() if node.dead]:
            self._asyncgens.discard(generator)  # type: ignore[attr-defined]
        self.run_until_complete(self.shutdown_asyncgens())
        self._raise_failure()

    def _waiting(self) -> str:
        """Describe for an error message which tasks wait, and where."""
        tasks = [task for task in self._tasks() if not task.node.dead]
        lines = [f"\n  {describe(task)}" for task in tasks[:MAX_TASKS_LISTED]]
        if len(tasks) > MAX_TASKS_LISTED:
            lines.append(f"\n  and {len(tasks) - MAX_TASKS_LISTED} more")
        stopped = [node.name for node in self._nodes.values() if node.stopped and not node.dead]
        if stopped:
            lines.append(f"\n  stopped nodes: {', '.join(stopped)}")
        return f" (seed {self.seed}); pending tasks:" + "".join(lines or [" none"])


@contextmanager
def _collector_off() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _run_inline(future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
    if not future.cancelled():
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - passed to the awaiting caller
            future.set_exception(error)


def describe(task: SimTask[Any]) -> str:
    """Return the task's name, its node, and the innermost line at which it is suspended."""
    where = "done"
    for frame in _frames(task):
        code = frame.f_code
        where = f"{PurePath(code.co_filename).name}:{frame.f_lineno} in {code.co_qualname}"
    return f"{task.get_name()} of {task.node.name}: {where}"


def _frames(task: SimTask[Any]) -> Iterator[FrameType]:
    """Yield the frames of a suspended task, from the outermost to the innermost."""
    inner: Any = task.get_coro()
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "ag_frame", None)
        if frame is not None:
            yield frame
        inner = getattr(inner, "cr_await", None) or getattr(inner, "ag_await", None)


def _discard(loop: SimulatedLoop, tasks: list[SimTask[Any]], generators: Sized) -> None:
    """Close the coroutines of a finished world, and remove them from `tasks`.

    Their `finally` blocks run now, on the closed loop, where they have no visible effects. Without
    this, `asyncio.gather` would create its own loop and leave it open.
    """
    said, sys.unraisablehook = sys.unraisablehook, lambda _: None
    asyncio._set_running_loop(loop)
    try:
        while tasks:
            _close(tasks.pop())
        if len(generators):
            gc.collect()  # A generator that a dead task awaits can be dropped but not closed.
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
        except BaseException:  # noqa: BLE001 - raised by code of a dead node
            continue
