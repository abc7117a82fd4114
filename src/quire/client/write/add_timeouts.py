"""One timer for all sessions of a client that add: which of their adds have waited too long.

A timer for each of thousands of ledgers costs more than their adds do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quire.errors import AddQuorumTimeoutError

if TYPE_CHECKING:
    from quire.client.write.add_session import AddSession

CHECKS = 10
"""A time-out is noticed at most this part of it late."""
AT_ONCE = 512
"""Sessions that are looked at in one step of the event loop, where there are not very many: then
all of them in `STEPS_MAX` steps."""
STEPS_MAX = 16


class AddTimeouts:
    """Looks at each session every `limit_s / CHECKS`."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._interval_s = limit_s / CHECKS
        self._sessions: dict[AddSession, None] = {}
        self._left: list[AddSession] = []
        """Of this round."""
        self._step = AT_ONCE
        self._pause_s = self._interval_s
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, session: AddSession) -> None:
        self._sessions[session] = None
        if self._timer is None:
            self._begin_round()

    def forget(self, session: AddSession) -> None:
        self._sessions.pop(session, None)
        if not self._sessions and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin_round(self) -> None:
        self._left = list(self._sessions)
        steps = min(STEPS_MAX, -(-len(self._left) // AT_ONCE))
        self._step = -(-len(self._left) // steps)
        self._pause_s = self._interval_s / steps
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for session in self._left[-self._step :]:
            session.check_timeouts(now)
        del self._left[-self._step :]
        if not self._sessions:
            self._timer = None
        elif self._left:
            self._timer = loop.call_later(self._pause_s, self._look)
        else:
            self._begin_round()


def quorum_timeout(session: AddSession, limit_s: float) -> AddQuorumTimeoutError:
    return AddQuorumTimeoutError(
        f"entry {session.pipeline.accepted + 1} of ledger {session.ledger_id} was not acknowledged "
        f"by {session.ack_quorum} bookies within {limit_s:g} s",
        ledger_id=session.ledger_id,
        causes=session.causes,
        remedy="Open the ledger with recovery to see which entries it has",
    )
