"""The flush: the sending of all appends of an event-loop iteration, for all writers of a client.

All writers share one callback, and all ledgers with the same members share one buffer. With
thousands of ledgers that get an entry each, a callback for each ledger would cost a fifth of all
other work. A frame, a copy and a call for each member of each ledger would cost even more.
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
"""The smallest number of rows (entries of different ledgers) that are sent as coalesced adds. A
single row costs less as an entry of its own."""
FLUSHES_ALONE = 100
"""The number of flushes of a connection group without coalesced adds, after answers arrived in
another order than the adds were sent. A bookie with several logs answers in that way."""


class Flush:
    """The flush of one client: after each event-loop iteration, it sends what writers appended."""

    __slots__ = ("_groups", "_waiting", "counters", "loaded", "running")

    def __init__(self, counters: ClientCounters) -> None:
        self.counters = counters
        self._waiting: list[Callable[[], None]] = []
        """The functions to call after this event-loop iteration. Each writer appears at most once,
        so the number of open writers bounds this list."""
        self._groups: WeakValueDictionary[tuple[Link, ...], ConnectionGroup] = WeakValueDictionary()
        """The connection groups, by their connections. A group has one key for each order in which
        its connections were given. It exists while a session uses it."""
        self.running = False
        """Whether the writers are being called. The frames that they put into groups meanwhile are
        sent afterwards."""
        self.loaded: list[ConnectionGroup] = []
        """The groups that have something to send. The call that puts the first piece into a group
        adds the group here."""

    def at_end(self, call: Callable[[], None]) -> None:
        """Call a function after this event-loop iteration.

        The functions run in the order of these calls, in the context (`contextvars`) of the first
        caller.
        """
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._run)
        self._waiting.append(call)

    def group(self, links: tuple[Link, ...]) -> ConnectionGroup:
        """Return the connection group of these connections, which may be in any order."""
        group = self._groups.get(links)
        if group is None:
            key = tuple(sorted(links, key=lambda link: link.bookie_id))
            group = self._groups.setdefault(key, ConnectionGroup(self, key))
            self._groups[links] = group
        return group

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def confirmed(self, sent_at: float, count: int) -> None:
        """Record in the metrics that an ack quorum has `count` entries.

        They were sent at loop time `sent_at`.
        """
        self.counters.add_time.observe(self.now() - sent_at, count)

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.running = True
        try:
            for call in waiting:
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - one writer must not stop the others
                    _report(error)
        finally:
            self.running = False
            loaded, self.loaded = self.loaded, []
            for group in loaded:
                try:
                    group.send()
                except Exception as error:  # noqa: BLE001 - a group not sent is not loaded again
                    _report(error)


def _report(error: Exception) -> None:
    message = "sending what was appended in an event-loop iteration failed"
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


class ConnectionGroup:
    """The connections to the members of one ensemble, in any order. All of them get the same
    frames."""

    __slots__ = ("__weakref__", "_filling", "_flush", "_former", "_leaving", "_pieces", "_places",
                 "_rests", "links")  # fmt: skip

    def __init__(self, flush: Flush, links: tuple[Link, ...]) -> None:
        self.links = links
        self._flush = flush
        self._pieces: list[Buffer] = []
        """The pieces of the frames to send in the next flush. Each writer limits its own part
        (`max_turn_bytes`)."""
        self._leaving: list[CoalescedAdds] = []
        """The coalesced adds to send in the next flush. The frames of each are contiguous."""
        self._filling: CoalescedAdds | None = None
        """The coalesced adds to which the next entry can be added, or None."""
        self._former: CoalescedAdds | None = None
        self._rests = 0
        self._places: dict[tuple[Link, ...], tuple[int, ...]] = {}

    def places(self, links: tuple[Link, ...]) -> tuple[int, ...]:
        """Return the place of each of these connections in `self.links`.

        Each order of the connections has one tuple, which its callers share.
        """
        found = self._places.get(links)
        if found is None:
            found = self._places[links] = tuple(self.links.index(link) for link in links)
        return found

    def put(self, pieces: Sequence[Buffer]) -> None:
        """Queue frames for the next flush. The sinks of their ledgers receive the answers."""
        self._load()
        self._pieces += pieces

    def coalesced(self, ack_quorum: int) -> CoalescedAdds | None:
        """Return the coalesced adds to which the next entry can be added, or None.

        The result is None for `FLUSHES_ALONE` flushes after answers arrived in another order than
        the adds were sent. Each entry must then be sent by itself.
        """
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
        """Register the group for the next flush, and seal the open coalesced adds.

        Frames that are queued later are then sent after these adds.
        """
        if not self._pieces and self._filling is None:
            self._flush.loaded.append(self)
        self._seal()

    def _seal(self) -> None:
        coalesced, self._filling = self._filling, None
        if coalesced is not None:
            self._pieces += coalesced.seal()

    def send(self) -> None:
        """Send everything that writers have queued, as one buffer, over every connection."""
        # Take everything before anything can fail, because only an empty group is loaded again.
        pieces, self._pieces = self._pieces, []
        leaving, self._leaving = self._leaving, []
        filling, self._filling = self._filling, None
        if filling is not None:
            pieces += filling.seal()
        data = b"".join(pieces)
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
