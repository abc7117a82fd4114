"""Hedged requests: one request to several bookies in turn, until one gives a good answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from quire._runtime.tasks import cancelled
from quire.config import ClientConfig
from quire.errors import BookieTimeoutError, QuireError

T = TypeVar("T")

PATIENCE_ROUNDS = 6
"""The longest time that a bookie may take while data still arrives from it, as a multiple of
`read_timeout_s`. Large answers over a slow network arrive one after the other, and asking again
would only make the queue longer."""


@dataclass(slots=True)
class _Asked:
    bookie: str
    order: int
    until: float
    received_bytes: int
    rounds: int = 1


class Hedge:
    """A sender of requests to several bookies, one after the other, until one answers.

    The next bookie is asked after an error, and if there is no answer within `speculative_read_s`.
    Each bookie is asked once, and a late answer still counts. Cancel-safe.
    """

    def __init__(
        self,
        config: ClientConfig,
        received_bytes: Callable[[str], int],
        overtaken: Callable[[str], None] = lambda bookie: None,
    ) -> None:
        """Create a sender with the given limits and callbacks.

        Args:
            config: The time-outs.
            received_bytes: A function that returns the bytes received from a bookie so far.
            overtaken: A function that is called for each bookie that was asked before the one whose
                answer came first, and that has not answered.
        """
        self._config = config
        self._received_bytes = received_bytes
        self._overtaken = overtaken

    async def first_good(
        self, bookies: Iterable[str], ask: Callable[[str], Awaitable[T]]
    ) -> tuple[T | None, dict[str, QuireError]]:
        """Return the first good answer, and the errors of the bookies that failed before it.

        The answer is None if no bookie gave a good one.

        Args:
            bookies: The ids of the bookies, in the order in which to ask them.
            ask: A function that sends the request to a bookie, and returns its answer or raises
                QuireError.
        """
        waiting = deque(bookies)
        asked: dict[asyncio.Future[T], _Asked] = {}
        errors: dict[str, QuireError] = {}
        order = 0
        try:
            while waiting or asked:
                if waiting:
                    bookie = waiting.popleft()
                    asked[asyncio.ensure_future(ask(bookie))] = _Asked(
                        bookie, order, self._later(), self._received_bytes(bookie)
                    )
                    order += 1
                for done in await self._some(asked, hedged=bool(waiting)):
                    one = asked.pop(done)
                    bookie = one.bookie
                    try:
                        found = done.result()
                    except QuireError as error:
                        errors[bookie] = error
                        continue
                    for future, other in asked.items():
                        if other.order < one.order and not future.done():
                            self._overtaken(other.bookie)
                    return found, errors
                await self._give_up(asked, errors)
        finally:
            await cancelled(asked)
        return None, errors

    async def _some(
        self, asked: dict[asyncio.Future[T], _Asked], *, hedged: bool
    ) -> set[asyncio.Future[T]]:
        """Wait until a request is done, and return all requests that are done.

        The result is empty if it is time to ask another bookie (`hedged`), or to give up a request.
        """
        now = asyncio.get_running_loop().time()
        patience_s = max(0.0, min(one.until for one in asked.values()) - now)
        if hedged:
            patience_s = min(patience_s, self._config.speculative_read_s)
        done, _ = await asyncio.wait(asked, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        return done

    async def _give_up(
        self, asked: dict[asyncio.Future[T], _Asked], errors: dict[str, QuireError]
    ) -> None:
        """Give up the requests whose time is over, and add BookieTimeoutError to `errors` for each.

        A request whose bookie has sent any data meanwhile gets more time (`PATIENCE_ROUNDS`).
        """
        now = asyncio.get_running_loop().time()
        over: list[asyncio.Future[T]] = []
        for future, one in asked.items():
            if one.until > now:
                continue
            received_bytes = self._received_bytes(one.bookie)
            if received_bytes > one.received_bytes and one.rounds < PATIENCE_ROUNDS:
                one.until, one.received_bytes = self._later(), received_bytes
                one.rounds += 1
            else:
                over.append(future)
        for future in over:
            one = asked.pop(future)
            limit_s = self._config.read_timeout_s * one.rounds
            errors[one.bookie] = BookieTimeoutError(
                f"the bookie did not answer within {limit_s:g} s"
            )
        await cancelled(over)

    def _later(self) -> float:
        return asyncio.get_running_loop().time() + self._config.read_timeout_s
