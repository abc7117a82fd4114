"""The result of a factory, which is awaited for the handle or entered with `async with`.

    ledger = await client.create_ledger()

    async with client.create_ledger() as ledger:
        ...

Nothing happens before the result is awaited or entered. If it is dropped without either, it warns,
as a coroutine does. This module also has the `repr` of handles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar

from quire._runtime.names.caller_warnings import warn_caller

P = ParamSpec("P")


class AsyncHandle(Protocol):
    """A handle that an `Opening` can open: an asynchronous context manager."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> bool | None: ...


T_co = TypeVar("T_co", bound=AsyncHandle, covariant=True)
H = TypeVar("H", bound=AsyncHandle)


class Opening(Coroutine[Any, Any, T_co], Generic[T_co]):
    """A handle that is opened when it is awaited or entered.

    It is a coroutine as well, so tasks and timeouts accept it. It can be used once.
    """

    _used = True
    """Whether the object was awaited, entered or closed, so that `__del__` must not warn. It is
    true until the constructor has run."""

    def __init__(self, open_it: Callable[[], Coroutine[Any, Any, T_co]], name: str) -> None:
        self.__qualname__ = self.__name__ = name
        self._open = open_it
        self._work: Coroutine[Any, Any, T_co] | None = None
        self._handle: T_co | None = None
        self._used = False

    def __del__(self) -> None:
        if not self._used:
            name = self.__name__
            warn_caller(
                f"{name}() was never awaited. Use `await {name}(...)` or `async with {name}(...)`",
                RuntimeWarning,
            )

    def _begun(self) -> Coroutine[Any, Any, T_co]:
        if self._work is None:
            self._used = True
            self._work = self._open()
        return self._work

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._begun().__await__()

    def send(self, value: Any, /) -> Any:
        return self._begun().send(value)

    def throw(self, *error: Any) -> Any:
        return self._begun().throw(*error)

    def close(self) -> None:
        self._used = True
        if self._work is not None:
            self._work.close()

    async def __aenter__(self) -> T_co:
        handle = await self._begun()
        self._handle = handle
        await handle.__aenter__()
        return handle

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        handle = self._handle
        assert handle is not None
        return await handle.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"{self.__dict__.get('__name__')}() returns a handle that is not open yet, so it "
                f"has no {name!r}. Use `await` or `async with` first",
                name=name,
                obj=self,
            )

    def __repr__(self) -> str:
        return f"<{self.__name__}() to be awaited or entered>"


def opening(function: Callable[P, Coroutine[Any, Any, H]]) -> Callable[P, Opening[H]]:
    """Decorate a coroutine function that returns a handle, so that it returns an `Opening`."""

    @functools.wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> Opening[H]:
        return Opening(functools.partial(function, *args, **kwargs), function.__name__)

    return opened


class Ready:
    """A handle that needs no opening. `await` and `async with` return the handle itself.

    Callers can therefore use every factory in the same way, whether or not it has to wait.
    """

    def __await__(self) -> Generator[Any, Any, Self]:
        yield from ()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


def represented(handle: object, *words: str, **facts: object) -> str:
    """Return the `repr` of a handle, such as `<LedgerWriter ledger=7 open>`.

    Args:
        handle: The handle.
        words: Words for the state of the handle, which come last.
        facts: Values that identify the handle, by name.
    """
    named = (f"{name}={value}" for name, value in facts.items())
    return f"<{' '.join((type(handle).__name__, *named, *words))}>"


def open_or_closed(closed: bool) -> str:
    """Return "closed" if `closed` is true, and otherwise "open"."""
    return "closed" if closed else "open"
