"""`quire pipeline` among the jobs that run: what `quire explain` and the dashboard tell of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quire.errors import QuireError

if TYPE_CHECKING:
    from quire.config import ClientConfig
    from quire.replication.running import Far

RETRY_S = 10.0
"""Between two attempts to reach a metadata store that cannot be reached."""
END_TIMEOUT_S = 5.0
"""A job that has ended waits so long to be told of no more; else that goes with its session."""


@contextmanager
def told(
    uri: str, config: ClientConfig, kind: str, target: str, far: Callable[[], Far]
) -> Iterator[None]:
    """While this is open, the job is among those that run on this cluster. In a thread and with a
    client of its own, because the job has this thread. The job neither waits for it nor fails with
    it: a store that cannot be reached is asked again."""
    telling = _Telling(uri, config, kind, target, far)
    thread = threading.Thread(target=telling.run, name="quire-running", daemon=True)
    thread.start()
    try:
        yield
    finally:
        telling.stop()
        thread.join(END_TIMEOUT_S)


class _Telling:
    def __init__(
        self, uri: str, config: ClientConfig, kind: str, target: str, far: Callable[[], Far]
    ) -> None:
        self._uri = uri
        self._config = config
        self._kind = kind
        self._target = target
        self._far = far
        self._lock = threading.Lock()
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()

    def run(self) -> None:
        asyncio.run(self._run())

    def stop(self) -> None:
        """From any thread."""
        with self._lock:
            self._stopped = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._ended.set)

    async def _run(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._loop = asyncio.get_running_loop()
        telling = asyncio.ensure_future(self._tell())
        await self._ended.wait()
        with self._lock:
            self._loop = None
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)

    async def _tell(self) -> None:
        import quire
        from quire.admin.autorecovery import default_name
        from quire.replication.running import announced

        while True:
            try:
                async with (
                    quire.connect(self._uri, config=self._config) as client,
                    announced(
                        client.metadata, self._kind, self._target, default_name(),
                        client.clock.now_ms, self._far,
                    ),
                ):  # fmt: skip
                    await asyncio.Event().wait()
            except QuireError:
                await asyncio.sleep(RETRY_S)
