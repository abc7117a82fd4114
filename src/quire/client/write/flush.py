"""What the writers of a client do at the end of a turn of the event loop, in one callback, and what
they send then: one buffer for all ledgers that have their members in common.

With thousands of ledgers that get an entry each, a callback for each costs as much as a fifth of
the rest, and a frame, a copy and a call for each member of each ledger more than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from quire.client.observability.metrics import ClientCounters
from quire.codec.wire.v2 import Buffer
from quire.core.append.coalesced_adds import Sheaf
from quire.net.link import Link

SHEAF_ROWS_MIN = 2
"""Fewer do not pay."""
TURNS_ALONE = 100
"""So many turns of a route go without sheaves, behind answers in another order than what was sent:
this bookie has several logs."""


class Route:
    """Connections that get the same frames: those to the members of one ensemble, in any order."""

    __slots__ = ("__weakref__", "_former", "_pieces", "_places", "_rests", "_sheaf", "_sheaves",
                 "links")  # fmt: skip

    def __init__(self, links: tuple[Link, ...]) -> None:
        self.links = links
        self._pieces: list[Buffer] = []
        """Of this turn. Each writer bounds what it hands over in one (`max_turn_bytes`)."""
        self._sheaves: list[Sheaf] = []
        """Of this turn. What is in one lies together."""
        self._sheaf: Sheaf | None = None
        """That takes the next entry."""
        self._former: Sheaf | None = None
        self._rests = 0
        self._places: dict[tuple[Link, ...], tuple[int, ...]] = {}

    def places(self, links: tuple[Link, ...]) -> tuple[int, ...]:
        """Where each of these connections is in `self.links`. One object for each order of them."""
        found = self._places.get(links)
        if found is None:
            found = self._places[links] = tuple(self.links.index(link) for link in links)
        return found

    def put(self, turns: Turns, pieces: Sequence[Buffer]) -> None:
        """What no sheaf expects the answers of."""
        self._load(turns)
        self._pieces += pieces

    def sheaf(self, turns: Turns, ack_quorum: int) -> Sheaf | None:
        """The one that takes the next entry, unless answers come in another order."""
        sheaf = self._sheaf
        if sheaf is not None and sheaf.ack_quorum == ack_quorum and not sheaf.tied:
            return sheaf
        if self._former is not None and self._former.disordered:
            self._former, self._rests = None, TURNS_ALONE
        if self._rests:
            return None
        self._load(turns)
        self._sheaf = Sheaf(len(self.links), ack_quorum, turns.now(), turns.confirmed)
        self._sheaves.append(self._sheaf)
        return self._sheaf

    def _load(self, turns: Turns) -> None:
        """What comes now stands behind all that is here."""
        if not self._pieces and self._sheaf is None:
            turns.loaded.append(self)
        self._tie()

    def _tie(self) -> None:
        sheaf, self._sheaf = self._sheaf, None
        if sheaf is not None:
            self._pieces += sheaf.tie()

    def send(self, counters: ClientCounters) -> None:
        """What this turn has brought: one buffer, one write for each connection."""
        self._tie()
        data = b"".join(self._pieces)
        sheaves, self._sheaves = self._sheaves, []
        self._pieces.clear()
        self._rests -= self._rests > 0
        for sheaf in sheaves:
            counters.count_adds(len(sheaf), sheaf.payload_bytes, batches=len(sheaf))
        for place, link in enumerate(self.links):
            link.send(data)
            for sheaf in sheaves:
                if len(sheaf) >= SHEAF_ROWS_MIN:
                    link.expect(sheaf, place)
        for sheaf in sheaves:
            if len(sheaf) < SHEAF_ROWS_MIN:
                sheaf.give_back()
            else:
                self._former = sheaf


class Turns:
    __slots__ = ("_counters", "_routes", "_waiting", "ending", "loaded")

    def __init__(self, counters: ClientCounters) -> None:
        self._counters = counters
        self._waiting: list[Callable[[], None]] = []
        """Each writer is here once at most: its bound is the number of open writers."""
        self._routes: WeakValueDictionary[tuple[Link, ...], Route] = WeakValueDictionary()
        """By connections, in each order that was asked for. It stays while a session uses it."""
        self.ending = False
        """Those who asked are being called: what they put into routes leaves behind that."""
        self.loaded: list[Route] = []
        """Those that hold something: who puts the first piece into one adds it."""

    def at_end(self, call: Callable[[], None]) -> None:
        """Call it when what runs now has come to its end, in the order of these requests. It sees
        the context of whoever asked first."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._end)
        self._waiting.append(call)

    def route(self, links: tuple[Link, ...]) -> Route:
        """The one to these connections."""
        route = self._routes.get(links)
        if route is None:
            key = tuple(sorted(links, key=lambda link: link.bookie_id))
            route = self._routes.setdefault(key, Route(key))
            self._routes[links] = route
        return route

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def confirmed(self, sent_at: float, count: int) -> None:
        """So many entries of one sheaf have come to their quorum."""
        self._counters.add_time.observe(self.now() - sent_at, count)

    def _end(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.ending = True
        try:
            for call in waiting:
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - as the loop does: others have theirs
                    message = "sending what was appended in a turn failed"
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": message, "exception": error}
                    )
        finally:
            self.ending = False
            self._send_loaded()

    def _send_loaded(self) -> None:
        loaded, self.loaded = self.loaded, []
        for route in loaded:
            route.send(self._counters)
