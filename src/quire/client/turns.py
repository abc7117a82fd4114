"""What the writers of a client do at the end of a turn of the event loop, in one callback, and what
they send then: one buffer for all ledgers that have their members in common.

With thousands of ledgers that get an entry each, a callback for each costs as much as a fifth of
the rest, and a frame, a copy and a call for each member of each ledger more than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from quire.codec.frames import Buffer
from quire.net.link import Link


class Route:
    """Connections that get the same frames: those to the members of one ensemble, in any order."""

    __slots__ = ("__weakref__", "links", "pieces")

    def __init__(self, links: tuple[Link, ...]) -> None:
        self.links = links
        self.pieces: list[Buffer] = []
        """Of this turn. Each writer bounds what it hands over in one (`max_turn_bytes`)."""


class Turns:
    __slots__ = ("_routes", "_waiting", "ending", "loaded")

    def __init__(self) -> None:
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
            data = b"".join(route.pieces)
            route.pieces.clear()
            for link in route.links:
                link.send(data)
