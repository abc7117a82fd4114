"""A regular check whether the metadata store answers.

If the store is away, an operation on it is retried for a long time before it fails. An HTTP server
therefore checks the store every few seconds. While the store does not answer, the server refuses
new requests that need it at once, and gives up waiting requests that change nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from quire._runtime.clock import Clock
from quire._runtime.metrics import Metric, counter, gauge
from quire._runtime.tasks import each
from quire._runtime.units import duration_text
from quire.client import Client
from quire.errors import MetadataUnavailableError, QuireError
from quire.http.server.api import Call, Handler, Route
from quire.http.views.problems.metadata_store import find_out
from quire.metadata.outages import START_STORE, Outage
from quire.metadata.uri import parse_uri

PROBE_INTERVAL_S = 2.0
"""Seconds between two probes of the store."""
SERVER_TIMEOUT_S = 0.5
"""Seconds that a server of the store has to accept a connection, by which a check finds out why the
store does not answer."""
PROBE_TIMEOUT_S = 2.0
"""Seconds that the store has to answer a probe. After that it counts as unreachable."""
OPEN_LEDGERS = (
    "Open ledgers can still be written and read while their bookies run. No ledger can be created, "
    "opened or repaired until the store answers"
)

OUTAGES_MAX = 100
"""The number of outages of the store that are remembered."""

Connect = Callable[[], Awaitable[Client]]


class MetadataReachability:
    """A regular probe of the metadata store, by which requests are refused while it is away."""

    def __init__(
        self,
        uri: str,
        ask: Callable[[], Awaitable[object]],
        clock: Clock,
        why: Callable[[], Awaitable[Mapping[str, str]]] | None = None,
    ) -> None:
        """Create a check of the store at `uri`.

        `ask` reads something small from the store. Any error means that the store does not answer.
        If the error does not say why, `why` is called, which returns the reason for each server.
        """
        self._why = why
        self.uri = uri
        self._ask = ask
        self._clock = clock
        self._answered_ms = clock.now_ms()
        self._causes: Mapping[str, BaseException | str] = {}
        self.outages: deque[Outage] = deque(maxlen=OUTAGES_MAX)
        """The last periods in which the store did not answer, the newest last. A period that is not
        over is not among them."""
        self._down = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failures = 0
        """The number of probes without an answer since the start."""

    @property
    def since_ms(self) -> int | None:
        """The Unix time in milliseconds of the last answer, or None if the store answers now."""
        return self._answered_ms if self._down.is_set() else None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def look(self) -> None:
        """Probe the store once, and remember whether it answered."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._ask()
        except Exception as error:  # noqa: BLE001 - otherwise the probing would silently stop
            self.failures += 1
            self._causes = self._causes_of(error)
            self._down.set()
            if not self._causes and self._why is not None:
                self._causes = await self._reasons(self._why)
        else:
            if self._down.is_set():
                self.outages.append(Outage(self._answered_ms, self._clock.now_ms()))
            self._answered_ms = self._clock.now_ms()
            self._down.clear()

    async def _reasons(
        self, why: Callable[[], Awaitable[Mapping[str, str]]]
    ) -> Mapping[str, BaseException | str]:
        try:
            return await why()
        except Exception as error:  # noqa: BLE001 - otherwise the probing would silently stop
            return self._causes_of(error)

    def _causes_of(self, error: Exception) -> Mapping[str, BaseException | str]:
        if isinstance(error, QuireError):
            return error.causes
        if isinstance(error, TimeoutError):
            return {}
        return {self.uri: f"{type(error).__name__}: {error}"}

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(PROBE_INTERVAL_S)

    def error(self) -> MetadataUnavailableError:
        silent_s = max(0, self._clock.now_ms() - self._answered_ms) / 1000
        return MetadataUnavailableError(
            f"the metadata store {self.uri} has not answered for {duration_text(silent_s)}",
            causes=self._causes,
            remedy=store_remedy(self.uri),
        )

    def check(self) -> None:
        """Raise MetadataUnavailableError if the store did not answer the last probe."""
        if self._down.is_set():
            raise self.error()

    def connecting(self, connect: Connect) -> Connect:
        """Return a function like `connect` that calls `check` first."""

        async def connected() -> Client:
            self.check()
            return await connect()

        return connected

    def guarded(self, routes: Iterable[Route]) -> list[Route]:
        """Return the routes, with handlers that give up when the store stops answering.

        Only handlers that change nothing do so: they raise MetadataUnavailableError instead of
        waiting for the store.
        """
        return [
            one if one.changes else replace(one, handler=self._giving_up(one.handler))
            for one in routes
        ]

    def _giving_up(self, handler: Handler) -> Handler:
        async def handle(call: Call) -> Any:
            if self._down.is_set():
                return await handler(call)  # a handler that needs the store fails by itself
            loop = asyncio.get_running_loop()
            work = loop.create_task(_made(handler(call)))
            down = loop.create_task(self._down.wait())
            try:
                await asyncio.wait((work, down), return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    raise self.error()
                return work.result()
            finally:
                await _end(work, down)

        return handle

    def metrics(self) -> Iterable[Metric]:
        since_ms = self.since_ms
        yield gauge("quire_metadata_reachable", "1 if the metadata store answers; otherwise 0.",
                    int(since_ms is None))  # fmt: skip
        yield gauge("quire_metadata_unreachable_since_seconds",
                    "The Unix time in seconds of the metadata store's last answer; 0 if it "
                    "answers.",
                    0 if since_ms is None else since_ms / 1000)  # fmt: skip
        yield counter("quire_metadata_unanswered_total",
                      "The number of probes that the metadata store did not answer in time.",
                      self.failures)  # fmt: skip


def store_remedy(uri: str) -> str:
    """Return what to do about a store that does not answer, and what works meanwhile."""
    return f"{find_out(uri, START_STORE)}. {OPEN_LEDGERS}"


async def server_causes(uri: str) -> dict[str, str]:
    """Connect to each server of the store, and return why it does not answer, by server.

    The result is empty for a store without servers.
    """
    try:
        servers = parse_uri(uri).servers
    except QuireError:
        return {}
    return dict(zip(servers, await each(servers, _server_cause), strict=True))


async def _server_cause(server: str) -> str:
    host, _, port = server.rpartition(":")
    try:
        async with asyncio.timeout(SERVER_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return f"it did not accept a connection within {SERVER_TIMEOUT_S:g} s"
    except OSError as error:
        return f"it accepts no connections: {error.strerror or error}"
    except UnicodeError as error:
        return f"its host name is not valid: {error}"
    writer.close()
    return "it accepts connections, but does not answer"


async def _made(answer: Awaitable[Any]) -> Any:
    return await answer


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
