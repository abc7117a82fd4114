"""`quire pipeline` among the jobs that run: what `quire explain` and the dashboard tell of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from quire.errors import QuireError

if TYPE_CHECKING:
    from quire.config import ClientConfig
    from quire.replication.marks.running import Far

RETRY_S = 10.0
"""Between two attempts to reach a metadata store that cannot be reached."""
END_TIMEOUT_S = 5.0
"""A job that has ended waits so long to be told of no more; else that goes with its session."""


@contextmanager
def told(
    uri: str, config: ClientConfig, kind: str, target: str, far: Callable[[], Far]
) -> Iterator[None]:
    """While this is open, the job is among those that run on this cluster. On the loop behind the
    blocking client and with a client of its own, because the job has this thread. The job neither
    waits for it nor fails with it: a store that cannot be reached is asked again."""
    from quire.blocking.background import call

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(_tell(uri, config, kind, target, far))

    async def end() -> None:
        telling.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await asyncio.gather(telling, return_exceptions=True)

    telling = call(begin())
    try:
        yield
    finally:
        call(end())


async def _tell(
    uri: str, config: ClientConfig, kind: str, target: str, far: Callable[[], Far]
) -> None:
    import quire
    from quire.cli.autorecovery import default_name
    from quire.replication.marks.running import announced

    while True:
        try:
            async with (
                quire.connect(uri, config=config) as client,
                announced(client.metadata, kind, target, default_name(), client.clock.now_ms, far),
            ):
                await asyncio.Event().wait()
        except QuireError:
            await asyncio.sleep(RETRY_S)
