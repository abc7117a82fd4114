"""The supervisor of a service: it starts N bookies, and restarts a bookie that dies.

A bookie that fails before it has served once ends the service, because a person has to correct
something. Later failures leave the other bookies alone. A bookie that is killed or fails is started
again after a pause that grows. As with systemd, it is not started again if its configuration is
wrong, its disk failed, or it was decommissioned.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire._runtime.event_log import EventLog
from quire._runtime.retry import Backoff, Retry
from quire._runtime.tasks import TaskSet
from quire.bookie.main import EXIT_DISK_FAILED
from quire.cli.common.groups import EXIT_ERROR, EXIT_USAGE, fail
from quire.cli.servers.processes.bookie_process import BookieProcess, how_it_ended, write_line
from quire.cli.servers.processes.division import Share

if TYPE_CHECKING:
    from quire.http.server.security import HttpOptions

RESTART_BACKOFF = Backoff(1.0, 60.0)
"""The pauses before a bookie that failed is started again."""
STEADY_S = 60.0
"""Seconds that a bookie must run before the pauses begin again with the shortest one."""
LOOK_SOON_S = 0.25
"""Seconds between two questions to a bookie that does not serve or accept entries yet."""
LOOK_INTERVAL_S = 1.0
"""Seconds between two questions to a bookie that serves."""
STOP_MARGIN_S = 5.0
"""Seconds, besides `stop_timeout_s`, after which a bookie that was asked to stop is killed."""
ROLLING_LIMIT_S = 600.0
"""Seconds within which a bookie must serve again during a rolling restart. Otherwise the rolling
restart ends, and the other bookies are left as they are."""
_NOT_AGAIN = (0, EXIT_USAGE, EXIT_DISK_FAILED)
"""The exit statuses after which a bookie is not started again: it was stopped or decommissioned,
its configuration is wrong, or its disk failed."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of a service of several bookies."""

    shares: Sequence[Share]
    command: Callable[[Share], Sequence[str]]
    """Returns the command line of the process of a bookie."""
    stop_timeout_s: float
    http: HttpOptions | None
    version: str
    on_serving: Callable[[str], None]
    """A function that is called with the id of each bookie once it serves for the first time."""
    log: EventLog


def run_service(options: ServiceOptions) -> int:
    """Run the bookies of a service until it ends, and return the exit status of the process.

    The status is 0 after SIGTERM or SIGINT if all bookies ended cleanly. SIGHUP restarts one bookie
    after another. Raises StartError and TlsConfigError if the HTTP server cannot start.
    """
    return asyncio.run(Supervisor(options, random.Random()).run())


class Supervisor:
    """The supervisor of a service."""

    def __init__(self, options: ServiceOptions, rng: random.Random) -> None:
        self.bookies = [
            BookieProcess(share, options.command(share), write_line) for share in options.shares
        ]
        self._options = options
        self._write_event = options.log
        self._rng = rng
        self._stopping = asyncio.Event()
        self._failure: tuple[int, str] | None = None
        """The exit status and the error of the bookie that could not start."""
        self._tasks = TaskSet()
        self.rolling = False
        """Whether a rolling restart is running."""

    def _log(self, event: str, **fields: object) -> None:
        with suppress(OSError):  # Nobody reads standard error any more: the bookies go on.
            self._write_event(event, **fields)

    async def run(self) -> int:
        """Run the service, and return its exit status. Call it once. Raises as `run_service`."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            loop.add_signal_handler(signal.SIGHUP, self.roll)
        async with AsyncExitStack() as stack:
            if self._options.http is not None:
                from quire.cli.servers.processes.page import serve_page

                await stack.enter_async_context(
                    serve_page(self, self._options.http, self._options.version, self._log)
                )
            stack.push_async_callback(self._tasks.close)
            keepers = [asyncio.create_task(self._keep(one)) for one in self.bookies]
            try:
                await self._until_stopped(keepers)
                return await self._stop(keepers)
            finally:
                for keeper in keepers:
                    keeper.cancel()
                await asyncio.gather(*keepers, return_exceptions=True)

    async def _until_stopped(self, keepers: Sequence[asyncio.Task[None]]) -> None:
        """Wait until the service is asked to stop, and raise the error of a keeper that failed."""
        asked = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([asked, *keepers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        for keeper in keepers:
            if keeper.done():
                keeper.result()

    async def _stop(self, keepers: Sequence[asyncio.Task[None]]) -> int:
        self._stopping.set()
        for bookie in self.bookies:
            bookie.wake.set()
            bookie.signal(signal.SIGTERM)
        _, late = await asyncio.wait(keepers, timeout=self._options.stop_timeout_s + STOP_MARGIN_S)
        for keeper, bookie in zip(keepers, self.bookies, strict=True):
            if keeper in late:
                bookie.signal(signal.SIGKILL)
        await asyncio.gather(*keepers)
        self._log("bookies_stopped", bookies=len(self.bookies))
        if self._failure is not None:
            status, error = self._failure
            if error:
                fail(error)
            return status
        # The signal itself ends a process that has no handler for it yet. It has stored nothing.
        statuses = [one.exit_status for one in self.bookies]
        bad = [one for one in statuses if one not in (None, 0, -signal.SIGTERM)]
        return next((one for one in bad if one is not None and one > 0), EXIT_ERROR) if bad else 0

    # -- one bookie ---------------------------------------------------------------------------

    async def _keep(self, bookie: BookieProcess) -> None:
        """Run a bookie until the service stops, and start it again if it ends before."""
        retry = Retry(RESTART_BACKOFF, self._rng)
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            began_s = loop.time()
            watch = asyncio.create_task(self._watch(bookie))
            try:
                status = await bookie.run()
            except OSError as error:  # for example too many processes, or a missing interpreter
                status = bookie.exit_status = EXIT_ERROR
                bookie.error = f"its process could not be started: {error}"
            finally:
                watch.cancel()
                await asyncio.wait([watch])
            asked, bookie.restart_asked = bookie.restart_asked, False
            if self._stopping.is_set():
                bookie.state = "ended"
                if status not in (0, -signal.SIGTERM) and self._failure is None:
                    self._log("bookie_ended", **_ending(bookie))
                return
            if asked:
                bookie.begin_again()
                retry.reset()
                continue
            if loop.time() - began_s >= STEADY_S:
                retry.reset()
            if status > 0 and not bookie.has_served:
                bookie.state = "ended"
                self._failure = self._failure or (status, bookie.error)
                self._stopping.set()
                return
            await self._after(bookie, status, retry)

    async def _after(self, bookie: BookieProcess, status: int, retry: Retry) -> None:
        """Log the end of a bookie, and wait until it is to be started again."""
        fields = _ending(bookie)
        bookie.wake.clear()
        if status in _NOT_AGAIN:
            bookie.state = "ended"
            self._log("bookie_not_restarted", **fields)
            if all(one.state == "ended" for one in self.bookies):
                self._stopping.set()
                return
            await bookie.wake.wait()
        else:
            bookie.state = "pausing"
            retry.failed()
            pause_s = retry.pause_s()
            self._log("bookie_ended", **fields, restart_in_s=round(pause_s, 1))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await bookie.wake.wait()
        bookie.restart_asked = False
        if not self._stopping.is_set():
            bookie.begin_again()

    async def _watch(self, bookie: BookieProcess) -> None:
        """Ask a bookie for its status again and again, and log what changes."""
        served = False
        answers = True
        while True:
            first = not bookie.has_served
            await bookie.look()
            if bookie.answers != answers:
                answers = bookie.answers
                event = "bookie_answers_again" if answers else "bookie_not_answering"
                self._log(event, process=bookie.share.number, bookie=bookie.name)
            if bookie.state == "serving" and not served:
                served = True
                self._log("bookie_serving", process=bookie.share.number, bookie=bookie.name,
                          pid=bookie.pid)  # fmt: skip
                if first:
                    self._options.on_serving(bookie.name)
            settled = bookie.status.serving and bookie.status.writable
            await asyncio.sleep(LOOK_INTERVAL_S if settled else LOOK_SOON_S)

    # -- rolling restart ----------------------------------------------------------------------

    def roll(self) -> None:
        """Restart one bookie after another in the background, unless that is running already."""
        if not self.rolling and not self._stopping.is_set():
            self.rolling = True
            self._tasks.start(self._roll())

    async def _roll(self) -> None:
        """Restart one bookie after another. Each must serve again before the next one stops.

        A bookie that ended with status 0 was decommissioned or stopped on purpose. It stays ended.
        """
        self._log("rolling_restart", bookies=len(self.bookies))
        try:
            for bookie in self.bookies:
                if bookie.state == "ended" and bookie.exit_status == 0:
                    self._log("bookie_not_restarted", **_ending(bookie))
                elif why := await self._roll_one(bookie):
                    self._log("rolling_restart_stopped", **why)
                    return
            self._log("rolling_restart_done", bookies=len(self.bookies))
        finally:
            self.rolling = False

    async def _roll_one(self, bookie: BookieProcess) -> dict[str, object]:
        """Restart a bookie and wait until it serves again.

        If it or another bookie does not serve in time, the result says which one and why. It has
        the fields of an event, and is empty if everything is in order.
        """
        was_writable, waits_for = bookie.status.writable, bookie
        try:
            async with asyncio.timeout(ROLLING_LIMIT_S):
                while (other := await self._other_away(bookie)) is not None:
                    waits_for = other
                    await asyncio.sleep(LOOK_SOON_S)
                waits_for = bookie
                await self._restart(bookie)
                while not (bookie.state == "serving"
                           and (bookie.status.writable or not was_writable)):  # fmt: skip
                    if bookie.state == "ended":
                        return _lagging(bookie, bookie.complaint)
                    await asyncio.sleep(LOOK_SOON_S)
        except TimeoutError:
            complaint = waits_for.complaint or "accepts no entries"
            return _lagging(
                waits_for, f"{complaint}, and has not recovered in {ROLLING_LIMIT_S:g} s"
            )
        return {}

    async def _other_away(self, bookie: BookieProcess) -> BookieProcess | None:
        """Return another bookie that starts, pauses or does not answer, so that one is away."""
        for one in self.bookies:
            if one is bookie or one.state == "ended":
                continue
            if one.state != "serving" or not await one.look():
                return one
        return None

    async def _restart(self, bookie: BookieProcess) -> None:
        """Stop the process of a bookie, and return when its successor is about to start."""
        before = bookie.restarts
        bookie.restart_asked = True
        bookie.wake.set()
        bookie.signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.stop_timeout_s + STOP_MARGIN_S):
                while bookie.restarts == before:
                    await asyncio.sleep(LOOK_SOON_S)
        while bookie.restarts == before:
            bookie.signal(signal.SIGKILL)
            await asyncio.sleep(LOOK_SOON_S)


def _lagging(bookie: BookieProcess, why: str) -> dict[str, object]:
    """Return the fields of an event about the bookie that ends a rolling restart."""
    name = bookie.name
    return {"process": bookie.share.number, "bookie": name, "why": f"bookie {name} {why}"}


def _ending(bookie: BookieProcess) -> dict[str, object]:
    """Return the fields of an event about the end of a bookie's process."""
    how = how_it_ended(bookie.exit_status)
    error = {"error": bookie.error} if bookie.error else {}
    return {"process": bookie.share.number, "bookie": bookie.name, "how": how, **error}
