"""The time-out of a connection counts the time in which the event loop runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from quire.config import ClientConfig
from quire.errors import BookieUnavailableError
from quire.net.handshake import Dialer

LIMIT_S = 30.0


class Clock:
    """The time of the running event loop, which the test moves forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)


class Connecting:
    """A network whose connections need some iterations of the loop."""

    def __init__(self, clock: Clock, pauses: list[float]) -> None:
        self.clock = clock
        self.pauses = pauses
        """The seconds that pass before each iteration."""

    async def connect(self, host: str, port: int, protocol: Callable[[], Any]) -> None:
        for pause in self.pauses:
            self.clock.now += pause
            await asyncio.sleep(0)
        protocol()


async def dial(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    network: Any = Connecting(Clock(monkeypatch), pauses)
    dialer = Dialer(network, ClientConfig(connect_timeout_s=LIMIT_S))
    await dialer.connect("b:1", "b", 1, asyncio.Protocol())


@pytest.mark.parametrize("pause", [29.9, 30.0, 31.0, 10_000.0])
async def test_a_pause_of_the_event_loop_is_no_silence_of_the_bookie(
    monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    """The program computed something, or was stopped, while the connection was made."""
    await dial(monkeypatch, [1.0, pause, 0.1, 0.1, 0.1])
    await dial(monkeypatch, [pause, 1.0, pause, 0.1, 0.1, 0.1])


@pytest.mark.parametrize("step", [0.1, 1.0, 2.9, 3.0, 5.0, 60.0])
async def test_a_silent_bookie_is_given_up(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    with pytest.raises(BookieUnavailableError, match="did not accept a connection within 30 s"):
        await dial(monkeypatch, [step] * 1_000)


async def test_a_bookie_gets_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    await dial(monkeypatch, [0.1] * 298)
