"""Telling bookies the LAC of a writer that pauses (replication spec, 8).

The LAC travels with the next entry. A writer that has none to send would leave its newest entry
unseen by readers, so after an interval without news it sends the LAC itself: WRITE_LAC to every
member of the ensemble. Only confirmed entries are named, so a LAC on a bookie is always safe to
believe (invariant I3). It is best effort: a failure is counted, and the next round tries again.
"""

from __future__ import annotations

import asyncio

from quire.client.add_session import AddSession
from quire.codec.entry import EntryCodec
from quire.errors import QuireError

TICKS = 2
"""Looks at the LAC in one interval."""


class ExplicitLac:
    """Runs beside one `AddSession`, from `start` to `stop`."""

    def __init__(
        self, session: AddSession, codec: EntryCodec, key: bytes, interval_ms: int
    ) -> None:
        self.failures = 0
        """Bookies that did not take a LAC, counted each time."""
        self._session = session
        self._codec = codec
        self._key = key
        self._tick_s = interval_ms / 1000 / TICKS
        self._written = -1
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._session.tasks.start(self._run())

    def stop(self) -> None:
        """Nothing is sent any more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        session, pipeline = self._session, self._session.pipeline
        before = None
        while session.failure is None:
            await asyncio.sleep(self._tick_s)
            now = (pipeline.last_confirmed, session.lac_pushed)
            if now == before and now[0] > max(now[1], self._written):
                await self._write(now[0])
            before = now

    async def _write(self, lac: int) -> None:
        ensemble = self._session.ensemble
        packet = self._codec.pack_lac(lac)
        async with asyncio.TaskGroup() as group:
            done = [group.create_task(self._write_to(b, lac, packet)) for b in ensemble]
        missed = sum(not task.result() for task in done)
        self.failures += missed
        if len(ensemble) - missed >= self._session.ack_quorum:
            self._written = lac

    async def _write_to(self, bookie: str, lac: int, packet: bytes) -> bool:
        try:
            async with asyncio.timeout(self._session.config.add_timeout_s):
                channel = await self._session.pool.control(bookie)
                await channel.write_lac(self._codec.ledger_id, lac, self._key, packet)
        except (QuireError, TimeoutError):
            return False
        return True
