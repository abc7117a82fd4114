"""Calls of clients that are cancelled at random moments."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from quire.errors import QuireError
from quire_simulator.world.stage import Stage

T = TypeVar("T")

AT_ONCE = 0.3
"""The probability that a call is cancelled after a few iterations of the event loop."""
ITERATIONS_MAX = 8
LATER_S = 1.5
"""The latest time after which a call is cancelled. Most are cancelled much earlier."""
END_S = 30.0
"""Seconds within which a cancelled call must end. It may have to wait for the metadata store."""


class CallCancelledError(QuireError):
    """Raised when the simulator has cancelled a call. What became of the call is unknown."""

    outcome_known = False


async def call(stage: Stage, name: str, work: Awaitable[T]) -> T:
    """Await a call of a client, and cancel it with the probability that the plan gives.

    Raises:
        CallCancelledError: The call was cancelled.
        QuireError: The call raised it.
    """
    chance = stage.cancelling(name)
    if chance is None or chance.random() >= stage.plan.cancelling:
        return await work
    task = asyncio.ensure_future(work)
    if chance.random() < AT_ONCE:
        for _ in range(chance.randint(0, ITERATIONS_MAX)):
            await asyncio.sleep(0)
    else:
        await asyncio.wait([task], timeout=chance.random() ** 4 * LATER_S)
    task.cancel()
    await asyncio.wait([task], timeout=END_S)
    if not task.done():
        what = f"{name}: a call still runs {END_S:g} s after it was cancelled: {task!r}"
        stage.checker.fail("a_cancelled_call_ends", what)
    stage.calls_cancelled += task.cancelled()
    if task.cancelled():
        raise CallCancelledError(f"a call of {name} was cancelled")
    return task.result()
