"""The flush of a client's writers at the end of an event-loop iteration: one callback for all of
them, and one buffer for all ledgers that have the same members.

With thousands of ledgers that get an entry each, a callback for each costs as much as a fifth of
the rest, and a frame, a copy and a call for each member of each ledger more than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from quire.client.observability.metrics import ClientCounters
from quire.codec.wire.v2 import Buffer
from quire.core.append.coalesced_adds import CoalescedAdds
from quire.net.link import Link

COALESCED_ROWS_MIN = 2
"""The number of rows from which on coalescing is worth its cost."""
FLUSHES_ALONE = 100
"""The number of flushes that a group makes without coalesced adds after answers came in another
order than what was sent: this bookie has several logs."""


class Flush:
    """The flush of one client."""

    __slots__ = ("_groups", "_waiting", "counters", "loaded", "running")

    def __init__(self, counters: ClientCounters) -> None:
        self.counters = counters
        self._waiting: list[Callable[[], None]] = []
        """Each writer is here once at most: its bound is the number of open writers."""
        self._groups: WeakValueDictionary[tuple[Link, ...], ConnectionGroup] = WeakValueDictionary()
        """The groups by their connections, in each order that was asked for. A group exists while a
        session uses it."""
        self.running = False
        """Whether the writers are being called. What they put into groups meanwhile leaves after
        that."""
        self.loaded: list[ConnectionGroup] = []
        """The groups that hold something. Who puts the first piece into a group adds it."""

    def at_end(self, call: Callable[[], None]) -> None:
        """Call this function at the end of the event-loop iteration, in the order of these
        requests. It runs in the context of the first one."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._run)
        self._waiting.append(call)

    def group(self, links: tuple[Link, ...]) -> ConnectionGroup:
        """Return the group of these connections."""
        group = self._groups.get(links)
        if group is None:
            key = tuple(sorted(links, key=lambda link: link.bookie_id))
            group = self._groups.setdefault(key, ConnectionGroup(self, key))
            self._groups[links] = group
        return group

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def confirmed(self, sent_at: float, count: int) -> None:
        """Count entries of coalesced adds that have come to their quorum."""
        self.counters.add_time.observe(self.now() - sent_at, count)

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.running = True
        try:
            for call in waiting:
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - as the loop does: others have theirs
                    message = "sending what was appended in an event-loop iteration failed"
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": message, "exception": error}
                    )
        finally:
            self.running = False
            loaded, self.loaded = self.loaded, []
            for group in loaded:
                group.send()


class ConnectionGroup:
    """Connections that get the same frames: those to the members of one ensemble, in any order."""

    __slots__ = ("__weakref__", "_filling", "_flush", "_former", "_leaving", "_pieces", "_places",
                 "_rests", "links")  # fmt: skip

    def __init__(self, flush: Flush, links: tuple[Link, ...]) -> None:
        self.links = links
        self._flush = flush
        self._pieces: list[Buffer] = []
        """The frames of the next flush. Each writer bounds its part (`max_turn_bytes`)."""
        self._leaving: list[CoalescedAdds] = []
        """The coalesced adds of the next flush. The frames of each are contiguous."""
        self._filling: CoalescedAdds | None = None
        """The one that takes the next entry."""
        self._former: CoalescedAdds | None = None
        self._rests = 0
        self._places: dict[tuple[Link, ...], tuple[int, ...]] = {}

    def places(self, links: tuple[Link, ...]) -> tuple[int, ...]:
        """Return where each of these connections is in `self.links`: one object for each order of
        them."""
        found = self._places.get(links)
        if found is None:
            found = self._places[links] = tuple(self.links.index(link) for link in links)
        return found

    def put(self, pieces: Sequence[Buffer]) -> None:
        """Send frames whose answers no coalesced adds expect."""
        self._load()
        self._pieces += pieces

    def coalesced(self, ack_quorum: int) -> CoalescedAdds | None:
        """Return the coalesced adds that take the next entry, or None while answers come in another
        order."""
        coalesced = self._filling
        if coalesced is not None and coalesced.ack_quorum == ack_quorum and not coalesced.sealed:
            return coalesced
        if self._former is not None and self._former.disordered:
            self._former, self._rests = None, FLUSHES_ALONE
        if self._rests:
            return None
        self._load()
        flush = self._flush
        self._filling = CoalescedAdds(len(self.links), ack_quorum, flush.now(), flush.confirmed)
        self._leaving.append(self._filling)
        return self._filling

    def _load(self) -> None:
        """Put what comes now after all that is here."""
        if not self._pieces and self._filling is None:
            self._flush.loaded.append(self)
        self._seal()

    def _seal(self) -> None:
        coalesced, self._filling = self._filling, None
        if coalesced is not None:
            self._pieces += coalesced.seal()

    def send(self) -> None:
        """Send what the writers have put here: one buffer, and one write for each connection."""
        self._seal()
        data = b"".join(self._pieces)
        leaving, self._leaving = self._leaving, []
        self._pieces.clear()
        self._rests -= self._rests > 0
        for coalesced in leaving:
            self._flush.counters.count_adds(
                len(coalesced), coalesced.payload_bytes, batches=len(coalesced)
            )
        for place, link in enumerate(self.links):
            link.send(data)
            for coalesced in leaving:
                if len(coalesced) >= COALESCED_ROWS_MIN:
                    link.expect(coalesced, place)
        for coalesced in leaving:
            if len(coalesced) < COALESCED_ROWS_MIN:
                coalesced.detach_all()
            else:
                self._former = coalesced
