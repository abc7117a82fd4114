"""Waits for a condition with a time limit, and never for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")

LIMIT_S = 60.0
"""The seconds after which a wait fails its test."""
ASYNC_POLL_S = 0.001
POLL_S = 0.05
"""Seconds between two checks of a condition that runs a command or a request."""


async def until(
    look: Callable[[], Awaitable[T]] | Callable[[], T],
    what: str = "",
    *,
    right: Callable[[T], object] = bool,
    limit_s: float = LIMIT_S,
    poll_s: float = ASYNC_POLL_S,
) -> T:
    """Call `look` until `right` holds for its result, and return that result.

    `look` may be a function or a coroutine function. Raises AssertionError after `limit_s` seconds
    of the event loop, whose time may be simulated. `what` describes the condition for the error, if
    the code of `look` does not.
    """
    found: Any = None
    bound = asyncio.timeout(limit_s)
    try:
        async with bound:
            while True:
                seen: Any = look()
                found = await seen if inspect.isawaitable(seen) else seen
                if right(found):
                    return cast(T, found)
                await asyncio.sleep(poll_s)
    except TimeoutError:
        if not bound.expired():
            raise
        raise _not_seen(look, what, limit_s, found) from None


def wait_for(
    look: Callable[[], T],
    what: str = "",
    *,
    right: Callable[[T], object] = bool,
    limit_s: float = LIMIT_S,
    poll_s: float = POLL_S,
) -> T:
    """Do what `until` does, in a thread without an event loop."""
    deadline = time.monotonic() + limit_s
    while not right(found := look()):
        if time.monotonic() > deadline:
            raise _not_seen(look, what, limit_s, found)
        time.sleep(poll_s)
    return found


def _not_seen(look: Callable[[], object], what: str, limit_s: float, found: object) -> Exception:
    try:
        source = " ".join(inspect.getsource(look).split())
    except (OSError, TypeError):  # A function in C, or a partial.
        source = repr(look)
    return AssertionError(f"not within {limit_s:g} s: {what or source}; last was {found!r}")
