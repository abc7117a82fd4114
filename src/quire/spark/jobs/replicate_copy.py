"""The tasks of `replicate`, and the collection of many streams' segments into Spark jobs.

A piece describes a ledger to copy, as `quire.streams.mirror.copy.Piece` does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from quire import errors
from quire.blocking.background import call
from quire.errors import JobError, QuireError
from quire.spark.jobs.tasks import ClusterOptions
from quire.streams.mirror.copy import Piece, copy_ledger

PIECES_MAX = 256
"""The largest number of ledgers to copy in one Spark job."""
GATHER_S = 0.02
"""Seconds to wait for pieces of other streams before a Spark job begins."""


def copy_piece(source: ClusterOptions, target: ClusterOptions, piece: Piece) -> Piece:
    """Copy the ledger of a completed segment, in a task.

    Errors are returned as answers, so that the driver can tell what may be tried again. Spark's own
    retries are for workers that die.
    """
    try:
        with source.client() as read, target.client() as written:
            passwords = source.password, target.password
            return call(copy_ledger(read.aio, written.aio, piece, *passwords))
    except QuireError as error:
        return {"error": type(error).__name__, "says": error.args[0], "remedy": error.remedy}


def error_of(answer: Piece) -> QuireError | None:
    """Return the error that a task's answer contains, or None if the task succeeded."""
    if "error" not in answer:
        return None
    kind: Any = getattr(errors, answer["error"], JobError)
    found: QuireError = kind(answer["says"], remedy=answer["remedy"])
    return found


class SegmentCopier:
    """A collector of the pieces of all streams, which runs one Spark job after another for them."""

    def __init__(self, run: Callable[[Sequence[Piece]], list[Piece]]) -> None:
        """Create a copier. `run` runs a Spark job, and blocks until it has the answers."""
        self._run = run
        self._waiting: deque[tuple[Piece, asyncio.Future[Piece]]] = deque()
        self._work = asyncio.Event()

    async def copy(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Have the ledgers of the pieces copied by tasks, and return their answers in this order.

        Raises the first error of a task, or the error of Spark. `serve` must be running.
        """
        loop = asyncio.get_running_loop()
        futures = []
        for piece in pieces:
            future: asyncio.Future[Piece] = loop.create_future()
            self._waiting.append((piece, future))
            futures.append(future)
        self._work.set()
        answers = await asyncio.gather(*futures)
        for answer in answers:
            error = error_of(answer)
            if error is not None:
                raise error
        return answers

    async def serve(self) -> None:
        """Run Spark jobs for the pieces that callers of `copy` wait for, until cancelled."""
        while True:
            await self._work.wait()
            await asyncio.sleep(GATHER_S)
            self._work.clear()
            while self._waiting:
                taken = [self._waiting.popleft() for _ in range(self._next_count())]
                await self._answer(taken)

    def _next_count(self) -> int:
        return min(len(self._waiting), PIECES_MAX)

    async def _answer(self, taken: list[tuple[Piece, asyncio.Future[Piece]]]) -> None:
        wanted = [(piece, future) for piece, future in taken if not future.done()]
        if not wanted:
            return
        try:
            answers = await asyncio.to_thread(self._run, [piece for piece, _ in wanted])
        except Exception as error:  # noqa: BLE001 - Spark's error, which the waiting callers raise
            for _, future in wanted:
                if not future.done():
                    future.set_exception(error)
                    future.exception()
            return
        for (_, future), answer in zip(wanted, answers, strict=True):
            if not future.done():
                future.set_result(answer)
