"""Observations of a cluster that are made in the background while somebody looks at a page.

All readers of a page share them, and nothing is observed while nobody asks. An observation that has
to read all ledgers or records is made less often if it takes long.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass

from quire._runtime.tasks import TaskSet, each
from quire.client import Client
from quire.client.client import pool_of
from quire.errors import MetadataError, QuireError
from quire.net.port_probe import ProbeResult
from quire.replication.explain.at_risk import AtRisk, at_risk
from quire.replication.explain.silence import Silence, ask_anew
from quire.replication.explain.status import MarkCount, count_marks
from quire.streams.ownership.lost_ledgers import LostLedgers, lost_ledgers
from quire.streams.ownership.owner_index import OwnerIndex

LOOK_WAIT_S = 0.1
"""Seconds that a caller waits for a running observation. After that it gets the previous one."""
LOOK_SHARE = 0.1
"""The share of the time that an observation of all ledgers may take. After one that took long, the
next one starts later."""
MARKS_INTERVAL_S = 2.0
"""The least number of seconds between two counts of the ledgers that are marked for repair."""
RISKS_INTERVAL_S = 5.0
"""The least number of seconds between two counts of the ledgers that are at risk because bookies
are lost."""
LOST_INTERVAL_S = 10.0
"""The least number of seconds between two searches of the records of all streams, objects and
datasets for ledgers that do not exist. `LOOK_SHARE` bounds the cost if there are many records."""
SPACE_INTERVAL_S = 1.0
"""The least number of seconds between two requests to a bookie for its free space."""
SPACE_TIMEOUT_S = 2.0
"""Seconds that a bookie has to report its free space. After that it counts as not answering."""
ANEW_INTERVAL_S = 60.0
"""Seconds between two requests over a new connection to a bookie without TLS. They show whether new
clients can connect."""
TLS_ANEW_INTERVAL_S = 5.0
"""The interval that replaces `ANEW_INTERVAL_S` for a bookie with TLS. An open connection still
works after the bookie's certificate has expired. Each refusal is a line in the bookie's log."""
GONE_PORTS_INTERVAL_S = 10.0
"""The least number of seconds between two connections to the address of a bookie that is not
registered."""
PAUSE_S = 0.005
"""Seconds for which an observation pauses between two parts, so that other requests are served."""
RECORDS_AT_ONCE = 64
"""The number of records that the search for lost ledgers examines between two pauses."""
BOOKIES_AT_ONCE = 32


class BackgroundObservation:
    """An observation that runs in the background.

    One runs at a time, at most once in `interval_s`, and only while somebody asks for it.
    """

    share: float | None = None
    """The share of the time that observations may take; None means that there is no bound."""

    def __init__(
        self, monotonic: Callable[[], float], interval_s: float, wait_s: float = LOOK_WAIT_S
    ) -> None:
        self.interval_s = self._shortest_s = interval_s
        self._wait_s = wait_s
        self._monotonic = monotonic
        self._tasks = TaskSet()
        self._looking: asyncio.Task[None] | None = None
        self._looked_s = self._ended_s = -math.inf
        """When the last successful observation ended (`_looked_s`), and when the last one ended,
        successful or not (`_ended_s`), in seconds of the monotonic clock."""
        self._failed = 0
        """The number of observations since the last successful one."""

    @property
    def age_s(self) -> float | None:
        """Seconds since the last successful observation, or None if there was none."""
        age_s = self._monotonic() - self._looked_s
        return age_s if math.isfinite(age_s) else None

    async def refresh(self, look: Callable[[], Coroutine[None, None, None]]) -> None:
        """Begin an observation if one is due, and wait up to `wait_s` for the running one.

        After that, the observation continues in the background. Its errors are not raised here. An
        observation that ends with MetadataError is not successful. After the first such error, the
        next observation is due soon, even if the failed one took long.
        """
        due = self._monotonic() - self._ended_s >= self.interval_s
        if due and (self._looking is None or self._looking.done()):
            self._looking = self._tasks.start(self._look_once(look))
        if self._looking is not None:
            await asyncio.wait([self._looking], timeout=self._wait_s)

    async def _look_once(self, look: Callable[[], Coroutine[None, None, None]]) -> None:
        begun_s = self._monotonic()
        self._failed += 1
        try:
            await look()
            self._looked_s = self._monotonic()
            self._failed = 0
        except MetadataError:
            pass  # the pages themselves report that the store does not answer
        finally:
            self._ended_s = self._monotonic()
            if self.share is not None:
                took_s = self._ended_s - begun_s
                bounded_s = max(self._shortest_s, took_s / self.share)
                self.interval_s = self._shortest_s if self._failed == 1 else bounded_s

    def forget(self) -> None:
        """Let the next caller begin another observation, however recent the last one is."""
        self._looked_s = self._ended_s = -math.inf

    async def close(self) -> None:
        await self._tasks.close()


class MarkCounts(BackgroundObservation):
    """The count, in the background, of the ledgers that are marked as under-replicated."""

    share = LOOK_SHARE

    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, MARKS_INTERVAL_S, wait_s)
        self._found = MarkCount(whole=False)
        self._error: MetadataError | None = None

    async def of(self, client: Client) -> MarkCount:
        """Return the last complete count, or the first one as far as it got.

        Raises MetadataError if the last count failed, and the next one has not begun.
        """
        await self.refresh(lambda: self._count(client))
        if self._error is not None:
            raise self._error
        return self._found

    async def _count(self, client: Client) -> None:
        first = not self._found.whole
        self._error = None
        try:
            async for found in count_marks(client.metadata, clock=client.clock):
                if first or found.whole:
                    self._found = found
                await asyncio.sleep(PAUSE_S)
        except MetadataError as error:
            self._error = error
            raise


class LedgerRisks(BackgroundObservation):
    """The count, in the background, of the ledgers that lack copies because bookies are lost."""

    share = LOOK_SHARE

    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, RISKS_INTERVAL_S, wait_s)
        self.found: AtRisk | None = None
        """The ledgers at risk that were counted so far, or None if none were counted yet."""
        self._of: tuple[frozenset[str], frozenset[str]] | None = None

    async def of(
        self,
        client: Client,
        registered: Collection[str],
        groups: Mapping[str, Collection[str]],
        writable: Collection[str] | None = None,
    ) -> AtRisk | None:
        """Return how many ledgers are at risk because the bookies in `groups` are lost.

        `registered` has the registered bookies. `groups` has the lost bookies under names such as
        their rack. `writable` has the bookies that can take copies; None means all registered ones.

        The counts are those of the last complete count, or of the first one as far as it got. The
        result is None if no bookie is lost, or nothing was counted yet.
        """
        of = (frozenset(registered), frozenset(groups))
        if of != self._of:
            # The last count was for another set of lost bookies.
            await self.close()
            self._of, self.found = of, None
            self.forget()
        if not groups:
            return None
        await self.refresh(lambda: self._count(client, registered, groups, writable))
        return self.found

    async def _count(
        self,
        client: Client,
        registered: Collection[str],
        groups: Mapping[str, Collection[str]],
        writable: Collection[str] | None,
    ) -> None:
        first = self.found is None
        async for found in at_risk(client, registered, groups, writable):
            if first or found.whole:
                self.found = found
            await asyncio.sleep(PAUSE_S)
        self.found = found


class LostLedgerSearch(BackgroundObservation):
    """The search, in the background, for ledgers that streams, objects and datasets name although
    they do not exist."""

    share = LOOK_SHARE

    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, LOST_INTERVAL_S, wait_s)
        self.found: LostLedgers | None = None
        """The result of the last complete search, or of the first search as far as it got. None
        before that."""
        self._index = OwnerIndex(0)

    async def of(self, client: Client) -> LostLedgers | None:
        """Return the lost ledgers that were found, or None if no search has read anything yet."""
        await self.refresh(lambda: self._look(client))
        return self.found

    async def owners(self, client: Client) -> OwnerIndex:
        """Return the owners of ledgers, which the search for lost ledgers finds as well.

        They are those of the last complete search, or of the first one as far as it got.
        """
        await self.refresh(lambda: self._look(client))
        return self._index

    async def _look(self, client: Client) -> None:
        first = self.found is None
        index = OwnerIndex(client.clock.now_ms())
        async for found in lost_ledgers(client, index.add):
            index.whole = found.whole
            if first or found.whole:
                self.found, self._index = found, index
            if found.records % RECORDS_AT_ONCE == 0:
                await asyncio.sleep(PAUSE_S)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The space of all data directories of a bookie together."""

    free_bytes: int
    total_bytes: int

    @property
    def used(self) -> float | None:
        """The share of the space that is used, or None if the disk has no size."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else None


class DiskSpaces(BackgroundObservation):
    """The requests, in the background, for the free space of the bookies' disks.

    They also show why a bookie does not answer, and when its certificate expires.
    """

    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, SPACE_INTERVAL_S, wait_s)
        self._found: dict[str, DiskSpace | None] = {}
        self._anew_s: dict[str, float] = {}
        """When each bookie was last asked over a new connection, by the monotonic clock."""
        self.silent: dict[str, Silence] = {}
        """Why each bookie does not answer new clients. Bookies that answer are missing."""
        self.certificates_ms: dict[str, int] = {}
        """The Unix time in milliseconds at which the certificate of each bookie expires, as the
        last new connection showed it. Bookies without TLS are missing."""

    async def of(self, client: Client, bookies: Collection[str]) -> Mapping[str, DiskSpace | None]:
        """Return the space of each bookie, by bookie id, or None for a bookie that did not answer.

        A bookie that was not asked yet is missing, because the first caller does not wait until all
        have answered.
        """
        names = sorted(bookies)
        await self.refresh(lambda: self._ask_all(client, names))
        return self._found

    async def _ask_all(self, client: Client, names: list[str]) -> None:
        answers = await each(names, lambda one: self._ask(client, one), BOOKIES_AT_ONCE)
        self._found = dict(zip(names, answers, strict=True))
        for known in (self._anew_s, self.silent, self.certificates_ms):
            for name in known.keys() - self._found.keys():
                known.pop(name, None)

    async def _ask(self, client: Client, bookie: str) -> DiskSpace | None:
        silence = self.silent.get(bookie)
        age_s = self._monotonic() - self._anew_s.get(bookie, -math.inf)
        if silence is None and not self._anew_due(client, bookie, age_s):
            space = await space_of(client, bookie)
            if space is not None:
                return space  # otherwise the new connection shows why
        elif silence is not None and silence.is_refusal and age_s < TLS_ANEW_INTERVAL_S:
            return None
        return await self._ask_anew(client, bookie)

    def _anew_due(self, client: Client, bookie: str, age_s: float) -> bool:
        """Return whether a bookie that answers is to be asked over a new connection.

        `age_s` is the number of seconds since the last new connection.
        """
        expires_ms = self.certificates_ms.get(bookie)
        if expires_ms is None:
            return age_s >= ANEW_INTERVAL_S
        now_ms = client.clock.now_ms()
        has_just_expired = now_ms - age_s * 1000 < expires_ms <= now_ms
        return age_s >= TLS_ANEW_INTERVAL_S or has_just_expired

    async def _ask_anew(self, client: Client, bookie: str) -> DiskSpace | None:
        answer = await ask_anew(client, bookie, SPACE_TIMEOUT_S)
        self._anew_s[bookie] = self._monotonic()
        if isinstance(answer, Silence):
            self.silent[bookie] = answer
            return None
        self.silent.pop(bookie, None)
        self.certificates_ms.pop(bookie, None)
        if answer.certificate_expires_ms is not None:
            self.certificates_ms[bookie] = answer.certificate_expires_ms
        return DiskSpace(answer.info.free_bytes, answer.info.total_bytes)


class GonePorts(BackgroundObservation):
    """The observation, in the background, of the addresses of bookies that are not registered."""

    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, GONE_PORTS_INTERVAL_S, wait_s)
        self._found: Mapping[str, ProbeResult | None] = {}

    async def of(
        self, client: Client, bookies: Collection[str]
    ) -> Mapping[str, ProbeResult | None]:
        """Return how the address of each bookie answers, by bookie id.

        A bookie that was not asked yet is missing, or has None if its address is not known.
        """
        names = sorted(bookies)
        if not self._found.keys() >= set(names):
            self.forget()
        if names:
            await self.refresh(lambda: self._probe(client, names))
        return {name: self._found[name] for name in names if name in self._found}

    async def _probe(self, client: Client, names: list[str]) -> None:
        pool = pool_of(client)
        answers = await each(
            names, lambda one: pool.probe_port(one, SPACE_TIMEOUT_S), BOOKIES_AT_ONCE
        )
        self._found = dict(zip(names, answers, strict=True))


async def space_of(client: Client, bookie: str) -> DiskSpace | None:
    """Return the space of one bookie, or None if it does not answer."""
    try:
        async with asyncio.timeout(SPACE_TIMEOUT_S):
            info = await client.bookie_info(bookie)
    except (QuireError, TimeoutError):
        return None
    return DiskSpace(info.free_bytes, info.total_bytes)
