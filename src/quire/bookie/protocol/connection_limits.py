"""The limits of a bookie's connections, and of the memory for unfinished requests.

When a bookie has `max_connections`, a new connection takes the place of an old one. The bookie
closes the oldest connection that has never completed a request and has had `NEWCOMER_GRACE_S`. If
there is none, it closes the one that has been silent longest, for at least `idle_timeout_s`. If
there is none either, it refuses the new connection.

Half of `max_connections` is reserved for clients that have completed a request. If the connections
without a request exceed the other half, a new connection always replaces one of them, if it can. It
then never replaces an idle connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from quire._runtime.event_log import EventLog
from quire.config import BookieConfig

SWEEP_S = 1.0
"""Seconds between two checks of all connections for those whose time is up."""
NEWCOMERS_SHARE = 2
"""The divisor that gives the most connections without a completed request from `max_connections`.
If there are more, a new connection replaces the oldest of them that has had `NEWCOMER_GRACE_S`."""
NEWCOMER_GRACE_S = 1.0
"""Seconds that a new connection has for its first request before it may be closed for another."""
FREE_PARTIAL_BYTES = 16 * 1024
"""The most bytes of an unfinished request that are not counted toward `max_partial_bytes` and never
delay their connection."""
PARTIAL_GRACE_S = 1.0
"""Seconds that an unfinished request has before its connection may be closed for lack of memory."""
HARD_FACTOR = 2
"""The multiple of `max_partial_bytes` above which the connections with the oldest unfinished
requests are closed at once. The last of them stays, so that any request can be read, even if
`max_partial_bytes` is smaller than `max_frame_bytes`."""
TOLD_EVERY_S = 1.0
"""Seconds between two log lines of one kind, so that a flood of connections or requests does not
flood the log."""


class Limited(Protocol):
    """The part of a client connection that the limits use."""

    peer: str
    opened_s: float
    heard_s: float
    """The monotonic time in seconds when the client of the connection last sent something."""
    partial_bytes: int
    """The bytes of the unfinished request of the connection that count toward
    `max_partial_bytes`."""
    partial_since_s: float
    """The monotonic time in seconds when the unfinished request of the connection began, or when
    reading it was last resumed. 0 means that there is no unfinished request."""

    @property
    def paused(self) -> bool:
        """Whether reading from the connection is paused."""
        ...

    @property
    def excused(self) -> bool:
        """Whether the connection is paused for a reason that its client has not caused."""
        ...

    @property
    def busy(self) -> bool:
        """Whether the connection waits for an answer, or for a TLS handshake."""
        ...

    def pause(self, reason: str) -> None: ...

    def resume(self, reason: str) -> None: ...

    def cut_off(self, event: str = "", why: str = "") -> None:
        """Close the connection without waiting for the client.

        Log `event` with the reason `why`, unless `event` is empty.
        """
        ...


@dataclass(slots=True)
class LimitCounters:
    """The numbers of connections that the limits refused or closed.

    The metrics read them.
    """

    refused: int = 0
    """The number of new connections that were refused."""
    displaced: int = 0
    """The number of connections that were closed to admit another one."""
    silent: int = 0
    """The number of connections that were closed because no request arrived within
    `first_request_timeout_s`."""
    partial_cut: int = 0
    """The number of connections that were closed because of an unfinished request."""


class ConnectionLimits:
    """The limits of a bookie's connections. They belong to the event loop."""

    def __init__(self, config: BookieConfig, monotonic: Callable[[], float], log: EventLog) -> None:
        self.counters = LimitCounters()
        # Dictionaries serve as ordered sets, so that the same seed gives the same run.
        self.connections: dict[Limited, None] = {}
        self.newcomers: dict[Limited, None] = {}
        """The connections that have not completed a request, the oldest first."""
        self.partial_bytes = 0
        """The bytes of the unfinished requests of all connections. Requests of at most
        `FREE_PARTIAL_BYTES` are not counted."""
        self.peak_bytes = 0
        """The largest value of `partial_bytes` since a reader last reset it."""
        self._config = config
        self._monotonic = monotonic
        self._log = log
        self._partials: dict[Limited, None] = {}
        self._held_up: dict[Limited, None] = {}
        """The connections that are paused until there is memory for their unfinished requests."""
        self._idle: list[tuple[float, Limited]] = []
        """The connections that were idle at the last search, each with the time when it was last
        heard. The one that had been silent longest is the last."""
        self._idle_looked_s = -TOLD_EVERY_S
        self._told_s: dict[str, float] = {}

    # -- places -------------------------------------------------------------------------------

    def admit(self, connection: Limited) -> bool:
        """Admit a new connection, closing an old one if necessary. Return False to refuse it."""
        config = self._config
        self.connections[connection] = None
        self.newcomers[connection] = None
        many_newcomers = len(self.newcomers) > max(1, config.max_connections // NEWCOMERS_SHARE)
        if len(self.connections) <= config.max_connections:
            victim = self._oldest_newcomer() if many_newcomers else None
            if victim is not None:
                self._displace(victim)
            return True
        victim = self._oldest_newcomer()
        if victim is None and not many_newcomers:
            victim = self._longest_idle()
        if victim is None:
            self.counters.refused += 1
            self.tell(
                "connections_refused",
                peer=connection.peer,
                refused=self.counters.refused,
                connections=len(self.connections) - 1,
            )
            return False
        self._displace(victim)
        return True

    def proven(self, connection: Limited) -> None:
        """Note that the connection has completed a request."""
        self.newcomers.pop(connection, None)

    def forget(self, connection: Limited) -> None:
        self.connections.pop(connection, None)
        self.newcomers.pop(connection, None)
        self._held_up.pop(connection, None)
        self.partial(connection, 0)

    def _oldest_newcomer(self) -> Limited | None:
        oldest = next(iter(self.newcomers))
        grace_is_over = self._monotonic() - oldest.opened_s > NEWCOMER_GRACE_S
        return oldest if grace_is_over else None

    def _longest_idle(self) -> Limited | None:
        """Return the connection that has been silent longest, beyond `idle_timeout_s`, or None.

        All connections are examined at most once per second, however many new connections arrive.
        """
        limit_s, now = self._config.idle_timeout_s, self._monotonic()
        if not limit_s:
            return None
        while True:
            while self._idle:
                heard_s, one = self._idle.pop()
                if one in self.connections and one.heard_s == heard_s:
                    return one
            if now - self._idle_looked_s < SWEEP_S:
                return None
            self._idle_looked_s = now
            idle = [(one.heard_s, one) for one in self.connections if now - one.heard_s > limit_s]
            if not idle:
                return None
            self._idle = sorted(idle, key=lambda one: one[0], reverse=True)

    def _displace(self, victim: Limited) -> None:
        # Free its place at once. The rest of it ends in this event-loop iteration.
        self.connections.pop(victim, None)
        self.newcomers.pop(victim, None)
        self.counters.displaced += 1
        victim.cut_off()
        self.tell("connections_displaced", peer=victim.peer, displaced=self.counters.displaced)

    # -- unfinished requests ------------------------------------------------------------------

    def partial(self, connection: Limited, size: int) -> None:
        """Note that a connection holds `size` bytes of requests that are unfinished or not parsed.

        If all connections together hold too much, this pauses or closes some of them.
        """
        size = size if size > FREE_PARTIAL_BYTES else 0
        grown = size - connection.partial_bytes
        self.partial_bytes += grown
        self.peak_bytes = max(self.peak_bytes, self.partial_bytes)
        connection.partial_bytes = size
        if size:
            self._partials[connection] = None
            if grown > 0 and self.partial_bytes > self._config.max_partial_bytes:
                self._make_room(connection)
        else:
            self._partials.pop(connection, None)
            if self._held_up:
                self._go_on()

    def _make_room(self, newest: Limited) -> None:
        limit = self._config.max_partial_bytes
        self._cut_partials(self._monotonic() - PARTIAL_GRACE_S)
        if self.partial_bytes > HARD_FACTOR * limit:
            # The oldest may hold far less than the newest has just brought.
            while len(self._partials) > 1 and self.partial_bytes > HARD_FACTOR * limit:
                self._cut_one(min(self._partials, key=_since))
        elif self.partial_bytes > limit and newest in self._partials:
            reading = [one for one in self._partials if not one.paused]
            if len(reading) > 1 and min(reading, key=_since) is not newest:
                self._held_up[newest] = None
                newest.pause("room")

    def _cut_partials(self, began_before_s: float) -> None:
        """Close connections with unfinished requests until `max_partial_bytes` is not exceeded.

        Only requests that began before the monotonic time `began_before_s` are considered, the
        oldest first. A connection that is paused through no fault of its client stays, and so does
        the only connection with an unfinished request.
        """
        limit = self._config.max_partial_bytes
        old = [o for o in self._partials if not o.excused and o.partial_since_s < began_before_s]
        for one in sorted(old, key=_since):
            if self.partial_bytes <= limit or len(self._partials) == 1:
                return
            self._cut_one(one)

    def _cut_one(self, connection: Limited) -> None:
        self.counters.partial_cut += 1
        held = connection.partial_bytes
        self._held_up.pop(connection, None)
        self.partial(connection, 0)
        connection.cut_off()
        self.tell("unfinished_request", peer=connection.peer, bytes=held,
                   closed=self.counters.partial_cut)  # fmt: skip

    def _go_on(self) -> None:
        """Resume connections that were paused for lack of memory, if there is enough memory now.

        If all connections with unfinished requests are paused, resume the one whose request began
        first. So one request can always finish.
        """
        if self.partial_bytes <= self._config.max_partial_bytes:
            upcoming = list(self._held_up)
        elif all(one.paused for one in self._partials):
            upcoming = [min(self._held_up, key=_since)]
        else:
            return
        for connection in upcoming:
            del self._held_up[connection]
            connection.resume("room")

    # -- time ---------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Close the connections whose requests are late.

        These are connections without a first request after `first_request_timeout_s`, and
        connections whose request is unfinished after `partial_frame_timeout_s`.
        """
        now = self._monotonic()
        for connection in list(self._silent(now)):
            self.counters.silent += 1
            connection.cut_off()
            self.tell("no_request_came", peer=connection.peer, closed=self.counters.silent)
        limit_s = self._config.partial_frame_timeout_s
        late = [
            one
            for one in self.connections
            if one.partial_since_s and now - one.partial_since_s > limit_s > 0 and not one.paused
        ]
        for connection in late:
            self._cut_one(connection)
        if self._held_up:
            self._cut_partials(now - PARTIAL_GRACE_S)
            self._go_on()

    def _silent(self, now_s: float) -> Iterator[Limited]:
        limit_s = self._config.first_request_timeout_s
        for connection in self.newcomers if limit_s else ():
            if now_s - connection.opened_s <= limit_s:
                return  # the newcomers are in the order of their arrival
            if not connection.busy:
                yield connection

    def tell(self, event: str, **fields: object) -> None:
        """Log an event, unless the same event was logged less than `TOLD_EVERY_S` ago."""
        now = self._monotonic()
        if now - self._told_s.get(event, -TOLD_EVERY_S) >= TOLD_EVERY_S:
            self._told_s[event] = now
            self._log(event, **fields)


def _since(connection: Limited) -> float:
    return connection.partial_since_s
