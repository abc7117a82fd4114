"""Sampling of the whole cluster every few seconds, for the charts of the dashboard.

The server of a dashboard (`quire ui`, `quire http`) samples always, so that a chart is full when
somebody opens it. A bookie's own server has the same pages. It samples only while somebody looks at
them, because otherwise each bookie would read the metrics of all others all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from quire._runtime.clock import Clock
from quire._runtime.event_log import EventLog
from quire._runtime.metrics import Metric, counter, gauge
from quire._runtime.tasks import TaskSet
from quire.client import Client
from quire.errors import QuireError
from quire.http.watch.observations import DiskSpace, DiskSpaces, MarkCounts
from quire.http.watch.rates import Fetch, Rates, together
from quire.http.watch.series import STEP_S, SeriesStore, Values
from quire.metadata.interface import BookieAddress

BOOKIES_AT_ONCE = 4
"""The number of bookies whose metrics are read at the same time. It is small, so that requests for
pages do not wait meanwhile."""
METADATA_TIMEOUT_S = 5.0
"""Seconds that the metadata store has to list the bookies for a sample. After that, the sample is
of the bookies of the last one."""
IDLE_S = 600.0
"""Seconds after the last request for series until a bookie's own server stops sampling."""


class SeriesRecorder:
    """A recorder that takes samples of a cluster in the background.

    Call `start` once, `touch` at each request for series, and `close` at the end.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        clock: Clock,
        fetch: Fetch,
        spaces: DiskSpaces,
        marks: MarkCounts,
        log: EventLog,
        *,
        always: bool,
    ) -> None:
        """Create a recorder.

        Args:
            connect: Returns the client. It may raise QuireError while the store is away.
            clock: The clock of the samples.
            fetch: Reads the metrics of a bookie from its URL.
            spaces: Measures the disk space of the bookies.
            marks: Counts the under-replicated ledgers.
            log: Receives the event `series_failed` if a sample fails unexpectedly.
            always: Whether to sample all the time after `start`. If False, the recorder samples
                only until `IDLE_S` after the last `touch`.
        """
        self._connect = connect
        self._clock = clock
        self._rates = Rates(clock.monotonic, fetch, at_once=BOOKIES_AT_ONCE)
        self._spaces = spaces
        self._marks = marks
        self._log = log
        self._always = always
        self._client: Client | None = None
        self._registered: Mapping[str, BookieAddress] = {}
        self._writable: int | None = None
        self._tasks = TaskSet()
        self._running: asyncio.Task[None] | None = None
        self._wanted_s = 0.0
        self.store = SeriesStore(clock)
        self.samples = 0
        """The number of samples since the start."""
        self.late = 0
        """The number of samples that were left out because the one before took too long."""
        self.took_s = 0.0
        """Seconds that the last sample took."""

    def start(self) -> None:
        """Begin to sample, if this recorder samples always."""
        if self._always:
            self._run()

    def touch(self) -> None:
        """Note that somebody looks at the series, and begin to sample if nothing does."""
        self._wanted_s = self._clock.monotonic()
        self._run()

    def _run(self) -> None:
        if self._running is None or self._running.done():
            self._running = self._tasks.start(self._loop())

    async def _loop(self) -> None:
        due_s = self._clock.monotonic()
        while self._always or self._clock.monotonic() - self._wanted_s < IDLE_S:
            try:
                await self.sample()
            except Exception as error:  # noqa: BLE001 - otherwise the sampling would silently stop
                self._log("series_failed", error=f"{type(error).__name__}: {error}")
            due_s += STEP_S
            behind_s = self._clock.monotonic() - due_s
            if behind_s > 0:
                left_out = int(behind_s // STEP_S) + 1
                self.late += left_out
                due_s += left_out * STEP_S
            await asyncio.sleep(due_s - self._clock.monotonic())

    async def sample(self) -> None:
        """Take one sample now. Values that cannot be read are missing in it."""
        begun_s = self._clock.monotonic()
        tick = self.store.begin()
        marked = await self._look_up()
        rates = await self._rates.read(self._registered)
        spaces = {}
        if self._client is not None and self._registered:
            spaces = dict(await self._spaces.of(self._client, self._registered))
        known = {name: one for name, one in spaces.items() if one is not None and one.total_bytes}
        whole = DiskSpace(
            sum(one.free_bytes for one in known.values()),
            sum(one.total_bytes for one in known.values()),
        )
        used = {name: one.used for name, one in known.items()}
        cluster: dict[str, float | None] = {
            **together(rates),
            "disk_used": whole.used,
            "disk_used_max": max((one for one in used.values() if one is not None), default=None),
            "under_replicated": marked,
            "bookies": None if self._writable is None else len(self._registered),
            "bookies_writable": self._writable,
        }
        bookies: dict[str, Values] = {
            name: {**rates.get(name, {}), "disk_used": used.get(name)} for name in self._registered
        }
        self.store.add(tick, cluster, bookies)
        self.samples += 1
        self.took_s = self._clock.monotonic() - begun_s

    async def _look_up(self) -> int | None:
        """Read the list of registered bookies, and return the number of under-replicated ledgers.

        Return None if the number is not known. If the metadata store does not answer, the bookies
        of the last sample remain.
        """
        self._writable = None
        try:
            async with asyncio.timeout(METADATA_TIMEOUT_S):
                client = self._client = await self._connect()
                found = await client.bookies()
                self._registered = {**found.readonly, **found.writable}
                self._writable = len(found.writable)
                counted = await self._marks.of(client)
        except (QuireError, TimeoutError):
            return None
        return counted.marked if counted.whole else None

    def knows(self, bookie: str) -> bool:
        """Return whether there are samples of a bookie, or none was taken of any bookie yet."""
        return not self.samples or bookie in self._registered or bookie in self.store.bookies

    def now_ms(self) -> int:
        """Return the time of the clock that dates the samples."""
        return self._clock.now_ms()

    def endpoint(self, bookie: str) -> BookieAddress | None:
        """Return the registration of a bookie at the last sample, or None if it had none."""
        return self._registered.get(bookie)

    def metrics(self) -> Iterable[Metric]:
        """Yield the metrics of this recorder."""
        yield counter("quire_series_samples_total",
                      "The number of samples of the cluster that were taken for the charts of the "
                      "dashboard.",
                      self.samples)  # fmt: skip
        yield counter("quire_series_samples_late_total",
                      "The number of samples that were left out because an earlier one took longer "
                      f"than {STEP_S} seconds.",
                      self.late)  # fmt: skip
        yield gauge("quire_series_sample_seconds",
                    "The seconds that the last sample of the cluster took.",
                    self.took_s)  # fmt: skip
        yield gauge("quire_series_bookies",
                    "The number of bookies whose samples are kept.",
                    len(self.store.bookies))  # fmt: skip
        yield gauge("quire_series_bookies_left_out",
                    "The number of bookies of the last sample that have no charts, because too "
                    "many others have.",
                    self.store.left_out)  # fmt: skip

    async def close(self) -> None:
        """End the sampling."""
        await self._tasks.close()
        await self._rates.close()
