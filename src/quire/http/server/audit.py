"""The audit events of requests that change something, or would have.

| event | meaning |
|---|---|
| `http_change` | the request was allowed; `status` says what became of it |
| `http_change_refused` | it was refused before anything was done; `why` says the reason |
| `http_refusals_left_out` | how many more were refused in the last minute, without an event each |

Anybody who reaches the port can cause refusals, so their events are limited. Those of allowed
requests are not: their senders have the token.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire._runtime.event_log import EventLog
from quire.http.server.api import Route
from quire.http.server.security import RefusedRequest, TokenGiven

REFUSED_EVENTS_MAX = 20
"""The number of events `http_change_refused` in one interval. Other refusals are only counted."""
REFUSED_INTERVAL_S = 60.0
"""Seconds of the interval, from the first refusal on."""
TEXT_MAX = 200
"""The number of characters of each value that comes from the request. The rest is cut off."""


@dataclass(slots=True)
class Attempt:
    """A request that changes something, or would have."""

    route: Route
    peer: str
    """The address of the other end of the connection. It may be that of a proxy or a tunnel."""
    user_agent: str
    """The name and version that the client gives itself. Nothing proves it."""
    token: TokenGiven
    given: dict[str, Any] = field(default_factory=dict)
    """The values of fields as the request gives them, before they are checked."""

    def fields(self) -> dict[str, object]:
        return {
            "method": self.route.method,
            "route": self.route.path,
            "parameters": _shown(self.route, self.given),
            "peer": self.peer,
            "token": self.token,
            "user_agent": self.user_agent[:TEXT_MAX],
        }


def _shown(route: Route, given: Mapping[str, Any]) -> dict[str, object]:
    """Return the values of the route's own fields, without secrets, and shortened."""
    known = {one.name: one for one in (*route.fields, *route.query, *route.body)}
    found: dict[str, object] = {}
    for name, one in known.items():
        if name not in given:
            continue
        value = "(secret)" if one.secret else given[name]
        text = value if isinstance(value, str) else json.dumps(value)
        found[name] = text[:TEXT_MAX] + "…" if len(text) > TEXT_MAX else value
    return found


class ChangeAudit:
    """Writes the audit events of one server, and counts changes."""

    def __init__(self, log: EventLog, interval_s: float = REFUSED_INTERVAL_S) -> None:
        self._log = log
        self._interval_s = interval_s
        self._written = 0
        """The number of events about refusals in the present interval."""
        self._left_out = 0
        self._end: asyncio.TimerHandle | None = None
        self.allowed = 0
        """The number of requests for a change that were allowed."""
        self.refused_count = 0
        """The number of requests for a change that were refused."""

    def answered(self, attempt: Attempt, status: int | None) -> None:
        """Write the event of an allowed request. The status is None if it was not answered."""
        self.allowed += 1
        self._log("http_change", **attempt.fields(), status=status)

    def refused(self, attempt: Attempt, why: RefusedRequest) -> None:
        """Write the event of a refused request, or count it if there were too many of them."""
        self.refused_count += 1
        if self._end is None:
            loop = asyncio.get_running_loop()
            self._end = loop.call_later(self._interval_s, self._end_interval)
        if self._written >= REFUSED_EVENTS_MAX:
            self._left_out += 1
            return
        self._written += 1
        self._log("http_change_refused", **attempt.fields(), status=why.status, why=why.what)

    def close(self) -> None:
        """Write what was only counted so far."""
        if self._end is not None:
            self._end.cancel()
            self._end_interval()

    def _end_interval(self) -> None:
        self._end = None
        left_out, self._written, self._left_out = self._left_out, 0, 0
        if left_out:
            self._log("http_refusals_left_out", count=left_out, within_s=self._interval_s)
