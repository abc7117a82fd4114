"""The result of a factory can be awaited, entered or given to a task, and does nothing before."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from types import TracebackType

import pytest

from quire._runtime.opening import Opening, Ready, opening


class Handle:
    """Notes what happens to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.left_with: BaseException | None = None
        self.left = False

    async def __aenter__(self) -> Handle:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.left, self.left_with = True, error


class Factory:
    def __init__(self) -> None:
        self.opened: list[str] = []
        self.gate: asyncio.Event | None = None

    @opening
    async def open(self, name: str, *, wrong: bool = False) -> Handle:
        """Open it."""
        if self.gate is not None:
            await self.gate.wait()
        if wrong:
            raise ValueError(name)
        self.opened.append(name)
        return Handle(name)


async def test_an_opening_can_be_awaited() -> None:
    assert (await Factory().open("a")).name == "a"


async def test_an_opening_can_be_entered_as_a_context_manager() -> None:
    async with Factory().open("a") as handle:
        assert handle.name == "a"
        assert not handle.left
    assert handle.left


async def test_awaiting_and_then_entering_the_handle_still_works() -> None:
    async with await Factory().open("a") as handle:
        pass
    assert handle.left


async def test_an_error_in_the_block_reaches_the_handle() -> None:
    error = RuntimeError("in the block")
    with pytest.raises(RuntimeError, match="in the block"):
        async with Factory().open("a") as handle:
            raise error
    assert handle.left_with is error


async def test_an_error_while_opening_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="a"):
        await Factory().open("a", wrong=True)
    with pytest.raises(ValueError, match="a"):
        async with Factory().open("a", wrong=True):
            pytest.fail("the block was entered")


async def test_an_opening_that_is_dropped_opens_nothing_and_warns() -> None:
    factory = Factory()
    with pytest.warns(RuntimeWarning, match=r"^open\(\) was never awaited\. Use") as warned:
        factory.open("a")
    assert factory.opened == []
    assert [one.filename for one in warned] == [__file__]


async def test_an_opening_that_was_used_or_closed_is_dropped_without_a_warning() -> None:
    factory = Factory()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        factory.open("a").close()
        await factory.open("b")
        async with factory.open("c"):
            pass
        await asyncio.wait_for(factory.open("d"), 1)
        task = asyncio.create_task(factory.open("e"))
        task.cancel()  # before it has begun
        await asyncio.wait([task])
        del task
        with pytest.raises(TypeError):
            Opening()  # type: ignore[call-arg]
        gc.collect()
    assert warned == []
    assert factory.opened == ["b", "c", "d"]


async def test_tasks_timeouts_and_gather_accept_an_opening() -> None:
    factory = Factory()
    task = asyncio.create_task(factory.open("task"))
    assert (await task).name == "task"
    assert (await asyncio.wait_for(factory.open("timeout"), 1)).name == "timeout"
    both = await asyncio.gather(factory.open("one"), factory.open("two"))
    assert [handle.name for handle in both] == ["one", "two"]


async def test_run_coroutine_threadsafe_accepts_an_opening() -> None:
    loop = asyncio.get_running_loop()
    future = await asyncio.to_thread(
        asyncio.run_coroutine_threadsafe, Factory().open("thread"), loop
    )
    assert (await asyncio.wrap_future(future)).name == "thread"


async def test_an_opening_is_cancelled_like_a_coroutine() -> None:
    factory = Factory()
    factory.gate = asyncio.Event()

    async def enter() -> None:
        async with factory.open("a"):
            pytest.fail("the block was entered")

    for work in (factory.open("a"), enter()):
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert factory.opened == []


async def test_an_opening_used_like_its_handle_explains_the_missing_await() -> None:
    opened = Factory().open("a")
    with pytest.raises(AttributeError, match=r"open\(\) returns a handle.*not open yet.*await"):
        opened.name  # type: ignore[attr-defined]  # noqa: B018
    opened.close()


async def test_an_opening_can_be_used_only_once() -> None:
    opened = Factory().open("a")
    await opened
    with pytest.raises(RuntimeError):
        await opened


def test_the_factory_keeps_its_name_signature_and_docstring() -> None:
    assert Factory.open.__name__ == "open"
    assert Factory.open.__doc__ == "Open it."
    assert list(inspect.signature(Factory.open).parameters) == ["self", "name", "wrong"]
    opened = Factory().open("a")
    assert isinstance(opened, Opening)
    assert "open()" in repr(opened)
    opened.close()


async def test_a_handle_that_needs_no_opening_is_awaited_and_entered_too() -> None:
    class Small(Ready):
        pass

    small = Small()
    assert await small is small
    async with small as entered:
        assert entered is small
