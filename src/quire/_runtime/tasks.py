"""Background work in an event loop. Every task has an owner that ends it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
)
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

EACH_AT_ONCE = 16
"""The default for the number of items that `each` works on at the same time."""


class TaskGroup(asyncio.TaskGroup):
    """An `asyncio.TaskGroup` without a bug that Python has before 3.13.

    If a task fails while the group waits for its tasks, the group cancels its parent task, and
    before 3.13 it never withdraws that. The caller gets the right errors, but from then on every
    `asyncio.timeout` in the parent task ends in CancelledError instead of TimeoutError. Use this
    class wherever Quire needs a group.
    """

    if sys.version_info < (3, 13):
        _parent_cancel_requested: bool

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None:
            taken_back = self._parent_cancel_requested
            try:
                await super().__aexit__(kind, error, trace)
            finally:
                if self._parent_cancel_requested and not taken_back:
                    parent = asyncio.current_task()
                    assert parent is not None
                    parent.uncancel()


class TaskSet:
    """A set of background tasks, which run until they end or `close` cancels them.

    A coroutine given to `start` must handle the errors that it expects. Any other error goes to the
    exception handler of the event loop.
    """

    def __init__(self, parent: TaskSet | None = None) -> None:
        """Create a set without tasks.

        Args:
            parent: A set that holds the tasks as well while they run, and cancels them when it is
                closed.
        """
        self._parent = parent
        # A dictionary serves as an ordered set, so that the same seed gives the same run.
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._hold(task)
        task.add_done_callback(self._ended)
        return task

    def _hold(self, task: asyncio.Task[None]) -> None:
        self._tasks[task] = None
        if self._parent is not None:
            self._parent._hold(task)

    def _drop(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if self._parent is not None:
            self._parent._drop(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._drop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler(
                {"message": "unexpected error in background work", "exception": error, "task": task}
            )

    async def close(self) -> None:
        """Cancel all running tasks but the calling one, and wait until they have ended."""
        await cancelled(task for task in self._tasks if task is not asyncio.current_task())


class UnexpectedErrors:
    """The unexpected errors of work that is repeated, and that goes on after them.

    The first error of each kind goes to the exception handler of the event loop, which logs it with
    its traceback. An error of the same type in the same work is of the same kind.
    """

    def __init__(self) -> None:
        self.count = 0
        """The number of errors so far, of all kinds."""
        self._kinds: set[tuple[str, type[Exception]]] = set()

    def note(self, what: str, error: Exception, message: str = "") -> None:
        """Count an error of the work that is called `what`, and report the first of its kind.

        The report is `message`, or a sentence that names the work.
        """
        self.count += 1
        kind = what, type(error)
        if kind not in self._kinds:
            self._kinds.add(kind)
            message = message or (
                f"unexpected error in repeated background work ({what}), which goes on"
            )
            asyncio.get_running_loop().call_exception_handler(
                {"message": message, "exception": error}
            )

    async def repeat(self, period_s: float, work: Callable[[], Awaitable[object]]) -> None:
        """Call `work` every `period_s`, until cancelled. An error ends only the call that it is in.

        The first call is after `period_s`.
        """
        what = getattr(work, "__qualname__", repr(work))
        while True:
            await asyncio.sleep(period_s)
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - otherwise the work would end for good
                self.note(what, error)


class AtOnce:
    """A limit on the operations of one kind that are under way. Further ones wait in order.

        limit = AtOnce(128)

        async with limit:
            ...

    Begin the time-out of an operation inside, so that it does not count the waiting. Cancel-safe.
    """

    def __init__(self, most: int) -> None:
        self._places = asyncio.Semaphore(most)
        self.waiting = 0
        """The number of operations that wait for their turn."""

    async def __aenter__(self) -> None:
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._places.release()


async def cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel all given tasks that have not ended, and wait until they have ended.

    Errors of the tasks are dropped.
    """
    running = []
    for task in list(tasks):
        task.cancel()
        if not task.done():
            running.append(task)
        elif not task.cancelled():
            task.exception()  # Python reports errors that nobody has looked at.
    # If all are done, `gather` waits for two iterations of the loop on Python 3.11, and for none
    # from 3.12 on. Without done tasks, a seed of the simulator gives the same run on all versions.
    if running:
        await asyncio.gather(*running, return_exceptions=True)


async def each(
    items: Iterable[T], work: Callable[[T], Awaitable[R]], at_once: int = EACH_AT_ONCE
) -> list[R]:
    """Run `work` on every item, and return the results in the order of the items.

    Args:
        items: The items.
        work: The function to run on each of them.
        at_once: The number of items in progress at a time.

    Raises:
        Exception: The first error. The work in progress is then cancelled.
    """
    todo = list(enumerate(items))
    results: dict[int, R] = {}
    upcoming = iter(todo)

    async def some() -> None:
        for at, item in upcoming:
            results[at] = await work(item)

    try:
        async with TaskGroup() as group:
            for _ in range(min(at_once, len(todo))):
                group.create_task(some())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[at] for at, _ in todo]


async def came(event: asyncio.Event, within: asyncio.Timeout) -> bool:
    """Wait for an event, and return whether it was set in time.

    Pass a new time-out object: `await came(event, asyncio.timeout(3))`. Cancel-safe.
    """
    try:
        async with within:
            await event.wait()
    except TimeoutError:
        return False
    return True


async def pages(items: AsyncIterable[T], size: int) -> AsyncGenerator[list[T], None]:
    """Yield the items in lists of `size`. The last list may be shorter.

    If `items` is an asynchronous generator, it is closed at the end, even if the caller closes this
    generator early.
    """
    page: list[T] = []
    try:
        async for item in items:
            page.append(item)
            if len(page) == size:
                yield page
                page = []
        if page:
            yield page
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()
