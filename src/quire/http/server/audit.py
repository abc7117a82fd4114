"""The audit events of requests for changes, whether they were allowed or refused.

| event | meaning |
|---|---|
| `http_change` | the request was allowed; `status` says what became of it |
| `http_change_refused` | it was refused before anything was done; `why` says the reason |
| `http_refusals_left_out` | `count` more requests were refused in the last minute |

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
"""The largest number of events `http_change_refused` in `REFUSED_INTERVAL_S` seconds. Further
refusals are only counted."""
REFUSED_INTERVAL_S = 60.0
"""The length, in seconds, of an interval in which refusals are counted. A refusal begins it."""
TEXT_MAX = 200
"""The largest number of characters of a value from the request in an event. The rest is cut off."""


@dataclass(slots=True)
class Attempt:
    """A request, with what its audit event says about it if it is a request for a change."""

    route: Route
    peer: str
    """The address of the client, or of the proxy or tunnel that connects it."""
    user_agent: str
    """The name and version that the client claims to have. Nothing proves them."""
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
    """Return the values in `given` of the route's fields, for an event.

    Secrets are replaced, and long texts are cut off.
    """
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
    """A writer of the audit events of one server, which also counts requests for changes."""

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
        """Write the event with the number of refusals that were only counted."""
        if self._end is not None:
            self._end.cancel()
            self._end_interval()

    def _end_interval(self) -> None:
        self._end = None
        left_out, self._written, self._left_out = self._left_out, 0, 0
        if left_out:
            self._log("http_refusals_left_out", count=left_out, within_s=self._interval_s)
