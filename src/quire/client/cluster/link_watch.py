"""Detection and replacement of connections that died silently.

A connection dies silently if a firewall forgets it, if a bookie comes back at another address, or
if a machine loses its power. It stays open on this side, but no data arrives over it any more. TCP
notices that only after many minutes.

    no data for `silent_link_s` after a request         The connection is examined.
    no data for `idle_link_s`                           It is examined before it is used again.
    the bookie registers again                          It is examined.
    the bookie registers at another address             It is given up at once.

An examination sends one cheap request (`Link.probe`). If no data at all arrives within
`probe_timeout_s`, a second connection is made and probed. The old one is given up only if the new
one answers: then the old connection was at fault. If neither answers, the bookie is at fault, and
the time-outs of the requests decide, as for any bookie that hangs. If the system reports that the
probe arrived (TCP_INFO), the connection gets a second examination before it is given up, because a
bookie does not read from its connections while it waits for its disk.

There is one timer for all connections of a client, and nothing is done per request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quire._runtime.tasks import TaskSet
from quire.client.observability.logs import log_event
from quire.client.observability.metrics import ClientCounters
from quire.config import ClientConfig
from quire.errors import QuireError
from quire.net.link import Link

L = TypeVar("L", bound=Link)

LOOKS = 5
"""The number of checks of each connection within the time that the connection may be silent."""
LOOK_MIN_S = 0.02
"""The shortest time between two checks of a connection, in seconds, whatever the time-outs are."""
SILENCE_PART, PROBE_PART = 0.5, 0.2
"""The largest shares of a request's time-out that the allowed silence and a probe may take. The
rest leaves time to ask again over a new connection."""


class Links(Generic[L]):
    """A client's connections of one protocol to all bookies."""

    def __init__(self, make: Callable[[str], L]) -> None:
        self.make = make
        self.connecting: dict[str, asyncio.Lock] = {}
        self._links: dict[str, list[L]] = {}

    def find(self, bookie_id: str, adds_of: int | None) -> L | None:
        """Return an open connection to a bookie that may be used without an examination, or None.

        With `adds_of`, a ledger id, no other handle may add to that ledger over the connection.
        """
        return self._find(bookie_id, adds_of, trusted=True)

    def find_untrusted(self, bookie_id: str, adds_of: int | None) -> L | None:
        """Return an open connection that must be examined before its next use, or None.

        The arguments are those of `find`.
        """
        return self._find(bookie_id, adds_of, trusted=False)

    def _find(self, bookie_id: str, adds_of: int | None, *, trusted: bool) -> L | None:
        links = self._links.get(bookie_id)
        if not links:
            return None
        for link in list(links):
            if not link.usable:
                links.remove(link)
            elif link.trusted is trusted and (adds_of is None or link.takes_adds_of(adds_of)):
                return link
        return None

    def of(self, bookie_id: str) -> list[L]:
        """Return the open connections to this bookie."""
        return [link for link in self._links.get(bookie_id, ()) if link.usable]

    def bookies(self) -> list[str]:
        """Return the ids of the bookies to which there are or were connections."""
        return list(self._links)

    def received_bytes(self, bookie_id: str) -> int:
        """Return the number of bytes that the connections to this bookie have received."""
        return sum(link.received_bytes for link in self._links.get(bookie_id, ()))

    def add(self, link: L) -> None:
        """Add a connection, which `find` may return from now on."""
        self._links.setdefault(link.bookie_id, []).append(link)

    def close(self) -> list[L]:
        """Begin to close all connections, and return them. `Link.drained` waits for each."""
        closed = [link for links in self._links.values() for link in links]
        for link in closed:
            link.end()
        self._links.clear()
        return closed


@dataclass(slots=True)
class _Seen:
    """The activity of one connection, as of the last check. Times are loop times."""

    links: Links[Any]
    """The collection that has the connection."""
    heard_at: float
    """The time at which data was last seen to have arrived."""
    quiet_since: float | None
    """The time at which the silence began, or None if no answer is expected."""
    received_bytes: int = 0
    writes: int = 0
    slow: bool = False
    """Whether the last probe was not answered although TCP delivered it to the bookie's system."""


Connect = Callable[[str, Callable[[str], Link]], Awaitable[Link]]
"""A function that connects to a bookie. It receives the bookie id and a function that creates the
`Link`, and raises BookieUnavailableError."""


class LinkWatch:
    """A watchdog that finds and replaces silently dead connections of one client to bookies."""

    def __init__(
        self, config: ClientConfig, connect: Connect, tasks: TaskSet, counters: ClientCounters
    ) -> None:
        limit_s = min(config.read_timeout_s, config.add_timeout_s)
        self.silence_s = min(config.silent_link_s, limit_s * SILENCE_PART)
        self.probe_s = min(config.probe_timeout_s, limit_s * PROBE_PART)
        self._idle_s = config.idle_link_s
        self._look_s = max(self.silence_s / LOOKS, LOOK_MIN_S)
        self._connect = connect
        self._tasks = tasks
        self._counters = counters
        self._seen: dict[Link, _Seen] = {}
        self._examined: dict[Link, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def add(self, link: L, links: Links[L]) -> None:
        """Add a new connection to `links`, and watch it from now on.

        If `silent_link_s` is 0, connections are not watched.
        """
        links.add(link)
        if not self.silence_s:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._seen[link] = _Seen(links, now, now)
        if self._timer is None and not self._closed:
            self._timer = loop.call_later(self._look_s, self._look)

    def close(self) -> None:
        """Stop watching, and cancel all examinations."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._examined.values():
            task.cancel()
        self._seen.clear()

    def examine(self, link: Link) -> None:
        """Begin to examine a connection that has probably died, unless that is in progress.

        New requests do not use the connection meanwhile.
        """
        if not self._closed and link in self._seen and link not in self._examined:
            link.trusted = False
            self._counters.links_examined += 1
            seen, heard = self._seen[link], link.received_bytes
            task = self._tasks.start(self._examine(link, seen, heard))
            self._examined[link] = task
            task.add_done_callback(lambda _: self._conclude(link, seen, heard))

    async def examined(self, link: Link) -> None:
        """Examine a connection, and wait for the end: it may be used again, or was given up.

        Cancel-safe.
        """
        self.examine(link)
        task = self._examined.get(link)
        if task is not None:
            await asyncio.wait((task,))
        else:
            link.trusted = True

    # -- inside -------------------------------------------------------------------------------

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for link, seen in list(self._seen.items()):
            if not link.usable:
                del self._seen[link]
            elif link not in self._examined:
                self._look_at(link, seen, now)
        self._timer = loop.call_later(self._look_s, self._look) if self._seen else None

    def _look_at(self, link: Link, seen: _Seen, now: float) -> None:
        if link.received_bytes != seen.received_bytes:
            seen.received_bytes, seen.writes = link.received_bytes, link.writes
            seen.heard_at = seen.quiet_since = now
            link.trusted = True
            return
        if link.writes != seen.writes:
            seen.writes = link.writes
            if seen.quiet_since is None:
                seen.quiet_since = now
        if seen.quiet_since is not None and now - seen.quiet_since >= self.silence_s:
            self.examine(link)
        elif self._idle_s and now - seen.heard_at >= self._idle_s:
            link.trusted = False

    async def _examine(self, link: Link, seen: _Seen, heard: int) -> None:
        """Probe a connection, and replace it by a new one if only the old one is dead.

        `heard` is the number of bytes that it had received when the examination began.
        """
        if await self._answers(link):
            seen.slow = False
        elif link.flows and not seen.slow:
            # Most likely the disk of the bookie hangs: the next examination decides.
            seen.slow = True
        elif (fresh := await self._fresh(link, seen)) is not None:
            if link.received_bytes != heard:
                fresh.close()  # the old connection was only slow, and one is enough
                return
            self.add(fresh, seen.links)
            self._count_silent(link)
            link.give_up("no data arrives over it any more, but a new connection works")

    def _conclude(self, link: Link, seen: _Seen, heard: int) -> None:
        """End the examination of a connection, which may be used again.

        If nothing was received since `heard`, the allowed silence begins anew.
        """
        del self._examined[link]
        link.trusted = True
        now = asyncio.get_running_loop().time()
        seen.heard_at, seen.quiet_since = now, None if link.received_bytes != heard else now
        seen.received_bytes, seen.writes = link.received_bytes, link.writes

    def _count_silent(self, link: Link) -> None:
        if link.usable:
            self._counters.links_silent += 1
            log_event(logging.WARNING, "connection_silent", bookie=link.bookie_id)

    async def _answers(self, link: Link) -> bool:
        """Probe a connection, and return whether any data arrives within the time of a probe."""
        heard = link.received_bytes
        try:
            async with asyncio.timeout(self.probe_s):
                await link.probe()
        except (QuireError, TimeoutError):
            pass
        return link.received_bytes != heard

    async def _fresh(self, link: Link, seen: _Seen) -> Link | None:
        """Return a new connection to the same bookie that answers a probe, or None."""
        try:
            fresh = await self._connect(link.bookie_id, seen.links.make)
        except QuireError:
            return None
        answers = False
        try:
            answers = await self._answers(fresh)
        finally:
            if not answers:
                fresh.abort("the bookie did not answer a probe")
        return fresh if answers and fresh.usable else None
