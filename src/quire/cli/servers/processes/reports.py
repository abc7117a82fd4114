"""The side of a bookie in a service: it answers its supervisor over its standard streams.

The supervisor writes one line for each question, `status` or `metrics`, to the standard input of
the bookie's process. The answer is one line of JSON on its standard output. The streams reach no
other process, so the answers need no token and no TLS. If standard input ends, the supervisor is
gone, and the bookie stops in an orderly way.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.bookie.server import Bookie

Around = Callable[["Bookie"], AbstractAsyncContextManager[Any]]
STATUS, METRICS = b"status\n", b"metrics\n"
QUESTION_BYTES_MAX = 64


def reporting(around: Around | None) -> Around:
    """Return a `BookieOptions.around` that also answers the supervisor while the bookie runs.

    `around` is the function that serves HTTP, or None.
    """

    @asynccontextmanager
    async def run(bookie: Bookie) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            server = None if around is None else await stack.enter_async_context(around(bookie))
            task = asyncio.create_task(_answer(bookie, server))
            try:
                yield
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    return run


async def _answer(bookie: Bookie, server: Any) -> None:
    loop = asyncio.get_running_loop()
    questions = asyncio.StreamReader(QUESTION_BYTES_MAX)
    # A transport closes its file, but the command still flushes its standard output at the end.
    given = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    said = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    reading, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(questions), given
    )
    # Standard output must never block the event loop, even if the supervisor reads nothing. A
    # writer needs the protocol of a reader for its flow control. That reader receives nothing.
    nothing = asyncio.StreamReader()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(nothing), said
    )
    answers = asyncio.StreamWriter(transport, protocol, nothing, loop)
    try:
        while question := await questions.readline():
            answer = status_of(bookie, server.url if server is not None else None)
            if question == METRICS and server is not None:
                # No error of a metric may end the bookie. An answer without metrics says that there
                # are none.
                with suppress(Exception):
                    answer["metrics"] = await server.metrics_text()
            answers.write(json.dumps(answer).encode() + b"\n")
            await answers.drain()
    except OSError:
        pass  # The supervisor is gone.
    finally:
        reading.close()
        answers.close()
    os.kill(os.getpid(), signal.SIGTERM)


def status_of(bookie: Bookie, url: str | None) -> dict[str, Any]:
    """Return the state of a bookie as its supervisor receives it."""
    well = bookie.serving and not bookie.failed.done()
    return {
        "id": bookie.bookie_id,
        "serving": well,
        "writable": well and bookie.writable,
        "loaded_percent": bookie.loading_percent,
        "http": url,
    }
