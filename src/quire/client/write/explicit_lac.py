"""The explicit LAC, which tells bookies the LAC of a writer that pauses.

Each entry carries the LAC at the time when it is sent. A writer without a next entry would leave
its newest entry invisible to readers. So after an interval without entries it sends the LAC itself,
with WRITE_LAC to every member of the ensemble. Only confirmed entries are named, so a LAC on a
bookie is always safe to believe. This is best effort: a failure is counted, and the next round
tries again.

After a pause of an interval the LAC of an entry is sent at once, because its writer will probably
pause again, and its readers wait. The LAC of an entry that came sooner waits for a tick, within
which the next entry may come and carry it.

This costs nothing while the writer is silent, and one timer per tick while entries follow each
other.
"""

from __future__ import annotations

import asyncio

from quire._runtime.tasks import UnexpectedErrors, cancelled
from quire.client.write.add_session import AddSession
from quire.codec.entry.entry import EntryCodec
from quire.errors import QuireError

TICKS = 2
"""The number of ticks in one interval. A LAC that no entry has carried is sent at the end of a
tick, between half an interval and a whole one after the acknowledgement."""
APPEND_ITERATIONS = 2
"""The number of event-loop iterations to wait before a LAC is sent at once. If the caller appends
another entry when its append returns, that entry is sent within this time and carries the LAC."""
RETRY_DELAY_S = 0.05
"""Seconds for which no further LAC is sent to a bookie that failed to store one."""


class ExplicitLac:
    """A background task that sends the explicit LACs of one `AddSession`, until `stop`."""

    def __init__(
        self, session: AddSession, codec: EntryCodec, key: bytes, interval_s: float
    ) -> None:
        self.failures = 0
        """The number of requests to store a LAC that failed."""
        self._session = session
        self._codec = codec
        self._key = key
        self._tick_s = interval_s / TICKS
        self._written = -1
        self._busy: dict[str, asyncio.Task[bool]] = {}
        """The request in progress to each bookie that has not answered the last LAC yet. No other
        LAC is sent to it meanwhile."""
        self._unexpected = UnexpectedErrors()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send explicit LACs."""
        self._task = self._session.tasks.start(self._run())

    def stop(self) -> None:
        """Stop sending explicit LACs."""
        if self._task is not None:
            self._task.cancel()

    @property
    def _told(self) -> int:
        return max(self._session.lac_pushed, self._written)

    async def _run(self) -> None:
        session, pipeline = self._session, self._session.pipeline
        now = asyncio.get_running_loop().time
        try:
            while session.failure is None:
                before, since_s = pipeline.last_confirmed, now()
                # With deferred sync more may be accepted: a force will confirm it.
                if before <= self._told and pipeline.accepted <= before:
                    await session.wait_for(before + 1)
                lac = pipeline.last_confirmed
                if now() - since_s < self._tick_s * TICKS:
                    await asyncio.sleep(self._tick_s)
                else:
                    for _ in range(APPEND_ITERATIONS):
                        await asyncio.sleep(0)
                if lac > self._told and session.failure is None:
                    await self._write()
        except QuireError:
            pass  # the session has ended
        finally:
            await cancelled(self._busy.values())

    async def _write(self) -> None:
        """Send the LAC to all bookies without an outstanding request, and wait for an ack quorum.

        If fewer bookies than an ack quorum are free, it waits for them first. A slow bookie delays
        neither the others nor the next round.
        """
        session = self._session
        while len(free := self._free()) < session.ack_quorum:
            await asyncio.wait(self._busy.values(), return_when=asyncio.FIRST_COMPLETED)
        lac = session.pipeline.last_confirmed
        packet = self._codec.pack_lac(lac)
        waiting: set[asyncio.Task[bool]] = set()
        for bookie in free:
            task = asyncio.ensure_future(self._write_to(bookie, lac, packet))
            self._busy[bookie] = task
            waiting.add(task)
        taken = 0
        while waiting and taken < session.ack_quorum:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            taken += sum(task.result() for task in done)
        if taken >= session.ack_quorum:
            self._written = lac

    def _free(self) -> list[str]:
        self._busy = {bookie: task for bookie, task in self._busy.items() if not task.done()}
        return [bookie for bookie in self._session.ensemble if bookie not in self._busy]

    async def _write_to(self, bookie: str, lac: int, packet: bytes) -> bool:
        try:
            async with asyncio.timeout(self._session.config.add_timeout_s):
                await self._session.pool.ask_control(
                    bookie,
                    lambda channel: channel.write_lac(
                        self._codec.ledger_id, lac, self._key, packet
                    ),
                )
        except (QuireError, TimeoutError):
            pass
        except Exception as error:  # noqa: BLE001 - a defect must not end all later LACs
            message = f"unexpected error in the explicit LACs of ledger {self._codec.ledger_id}"
            self._unexpected.note("explicit LACs", error, message)
        else:
            return True
        self.failures += 1
        await asyncio.sleep(RETRY_DELAY_S)
        return False
