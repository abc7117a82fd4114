"""Bookies that handle requests in another order than they came, and answers that overtake others.

The protocol allows any order on one connection. Bookies with several journals or worker threads use
that freedom, across ledgers and within one. Only whole frames change places.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from quire.net.frame_buffer import frame_size
from quire_simulator.machine.transport import SimTransport

HEAD_BYTES = 4
OVERTAKEN = 0.25
"""The share of the frames that are held back while a bookie is in disorder."""


@dataclass
class _Held:
    """The bytes from one end of a connection that are held back."""

    begun: bytes = b""
    """The beginning of a frame of which the rest was not written yet."""
    frames: dict[int, bytes] = field(default_factory=dict)


class Disorder:
    """The frames that are held back. It sees everything that is written on connections."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self._port = port
        self._rng = rng
        self.answers_s: dict[str, float] = {}
        """The longest time that single answers of these bookies are held back."""
        self.requests_s: dict[str, float] = {}
        """The longest time that single requests to these bookies are held back."""
        self.late: dict[str, deque[float]] = {}
        """For each bookie, the time by which each of its next answers is late: one number for one
        answer.
        """
        self.overtaken = 0
        """The number of frames that were sent before an earlier one."""
        self._held: dict[SimTransport, _Held] = {}
        self._numbers = 0

    def sent(self, end: SimTransport, data: bytes) -> bytes:
        """Return the part of `data` that leaves now."""
        if not (self._longest_s(end) or self._late(end) or end in self._held):
            return data
        held = self._held.setdefault(end, _Held())
        data = held.begun + data
        now: list[bytes] = []
        at = 0
        while at + HEAD_BYTES <= len(data) and (stop := at + frame_size(data, at)) <= len(data):
            frame, at = data[at:stop], stop
            delay_s = self._delay_s(end)
            if delay_s:
                self._hold(end, held, frame, delay_s)
            else:
                now.append(frame)
                self.overtaken += bool(held.frames)
        held.begun = data[at:]
        self._forget_empty(end, held)
        return b"".join(now)

    def rest(self, end: SimTransport) -> bytes:
        """Return everything that is held back on a connection that this end closes."""
        held = self._held.pop(end, _Held())
        return b"".join(held.frames.values()) + held.begun

    def disturbs(self, name: str) -> bool:
        """Return whether something of this bookie is held back, now or soon."""
        held = any(name in end.out.route for end in self._held)
        return held or name in self.answers_s or name in self.requests_s or name in self.late

    def calm(self) -> None:
        self.answers_s.clear()
        self.requests_s.clear()
        self.late.clear()

    # -- inside -------------------------------------------------------------------------------

    def _longest_s(self, end: SimTransport) -> float:
        sender, receiver = end.out.route
        if end.local[1] == self._port:
            return self.answers_s.get(sender, 0.0)
        return self.requests_s.get(receiver, 0.0) if end.remote[1] == self._port else 0.0

    def _late(self, end: SimTransport) -> deque[float] | None:
        return self.late.get(end.host.name) if end.local[1] == self._port else None

    def _delay_s(self, end: SimTransport) -> float:
        late = self._late(end)
        if late:
            delay_s = late.popleft()
            if not late:
                del self.late[end.host.name]
            return delay_s
        longest_s = self._longest_s(end)
        if longest_s and self._rng.random() < OVERTAKEN:
            # The cube lets most frames be overtaken by few others, and some by very many.
            return longest_s * self._rng.random() ** 3
        return 0.0

    def _hold(self, end: SimTransport, held: _Held, frame: bytes, delay_s: float) -> None:
        self._numbers += 1
        held.frames[self._numbers] = frame
        context = end.host.node.context
        end.host.network.loop.call_later(
            delay_s, self._release, end, self._numbers, context=context
        )

    def _release(self, end: SimTransport, number: int) -> None:
        held = self._held.get(end)
        if held is not None and number in held.frames:
            end.write_now(held.frames.pop(number))
            self._forget_empty(end, held)

    def _forget_empty(self, end: SimTransport, held: _Held) -> None:
        if not held.frames and not held.begun:
            self._held.pop(end, None)
