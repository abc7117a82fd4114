"""The supervisor of several bookies, with small programs in the place of bookies."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from quire._runtime.retry import Backoff
from quire.cli.servers.processes import bookie_process, supervisor
from quire.cli.servers.processes.division import divide
from quire.cli.servers.processes.supervisor import ServiceOptions, Supervisor
from quire.configuration.fields import BookieProcessConfig
from tests.support.waiting import until

PROGRAM = """
import json, os, sys
if os.path.exists(sys.argv[1]):
    sys.exit(int(open(sys.argv[1]).read()))
for line in sys.stdin:
    answer = dict(id=sys.argv[2], serving=True, writable=True, loaded_percent=100, http=None)
    print(json.dumps(answer), flush=True)
"""
"""Answers like a bookie that serves. If the file of its first argument exists, it ends at once with
the status in that file."""


class Service:
    """A running supervisor of three programs."""

    def __init__(self, directory: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self.directory = directory
        options = ServiceOptions(
            divide(BookieProcessConfig((str(directory),), bookie_id="b"), 3),
            lambda share: (sys.executable, "-S", "-c", PROGRAM,
                           str(directory / str(share.number)), f"b-{share.number}"),
            stop_timeout_s=10.0, http=None, version="1", on_serving=lambda name: None,
            log=lambda event, **fields: self.events.append({"event": event, **fields}),
        )  # fmt: skip
        self.supervisor = Supervisor(options, random.Random(1))

    @property
    def states(self) -> list[str]:
        return [one.state for one in self.supervisor.bookies]

    def named(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == event]

    def fails(self, number: int, status: int) -> None:
        """Let each later process of this bookie end at once with this status."""
        (self.directory / str(number)).write_text(str(status))

    async def ended(self, number: int, status: int) -> None:
        """End the process of a bookie in such a way that its exit status is this one."""
        bookie = self.supervisor.bookies[number]
        self.fails(number, status)
        assert bookie.pid is not None
        os.kill(bookie.pid, signal.SIGKILL)
        await until(lambda: bookie.state == "ended")

    async def rolled(self) -> None:
        self.supervisor.roll()
        await until(lambda: not self.supervisor.rolling)


def running(
    directory: Path, work: Callable[[Service], Awaitable[None]], patch: pytest.MonkeyPatch
) -> None:
    patch.setattr(supervisor, "RESTART_BACKOFF", Backoff(0.0))
    patch.setattr(supervisor, "LOOK_SOON_S", 0.01)

    async def main() -> None:
        service = Service(directory)
        run = asyncio.create_task(service.supervisor.run())
        try:
            await until(lambda: service.states == ["serving"] * 3)
            await work(service)
        finally:
            service.supervisor._stopping.set()
            await run

    asyncio.run(main())


def test_a_rolling_restart_skips_a_decommissioned_bookie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was once started again, failed for its cookie, and was started again without an end."""

    async def work(service: Service) -> None:
        await service.ended(1, 0)
        (tmp_path / "1").unlink()
        await service.rolled()
        assert service.states == ["serving", "ended", "serving"]
        assert [one.restarts for one in service.supervisor.bookies] == [1, 1, 1]
        assert service.named("bookie_not_restarted")[-1]["bookie"] == "b-1"
        assert service.named("rolling_restart_done")

    running(tmp_path, work, monkeypatch)


def test_a_rolling_restart_starts_a_bookie_with_a_corrected_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(service: Service) -> None:
        await service.ended(2, 2)
        (tmp_path / "2").unlink()  # somebody has corrected it
        await service.rolled()
        assert service.states == ["serving"] * 3
        assert service.named("rolling_restart_done")

    running(tmp_path, work, monkeypatch)


def test_a_rolling_restart_stops_at_a_bookie_that_exits_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state was overwritten: it was starting for good, and the restart waited ten minutes."""
    monkeypatch.setattr(supervisor, "ROLLING_LIMIT_S", 60.0)

    async def work(service: Service) -> None:
        service.fails(1, 2)
        # Slower than the new process: it has started and ended before anybody looks.
        monkeypatch.setattr(supervisor, "LOOK_SOON_S", 0.5)
        await service.rolled()
        assert service.states == ["serving", "ended", "serving"]
        (stopped,) = service.named("rolling_restart_stopped")
        assert stopped["bookie"] == "b-1"
        assert "bookie b-1 ended with status 2" in stopped["why"]
        assert service.supervisor.bookies[2].restarts == 0

    running(tmp_path, work, monkeypatch)


def test_a_rolling_restart_stops_while_a_bookie_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once went on, so that two bookies of a machine were away at the same time."""
    monkeypatch.setattr(supervisor, "ROLLING_LIMIT_S", 1.0)
    monkeypatch.setattr(bookie_process, "ANSWER_TIMEOUT_S", 0.3)

    async def work(service: Service) -> None:
        pid = service.supervisor.bookies[2].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            await service.rolled()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert [one.restarts for one in service.supervisor.bookies] == [0, 0, 0]
        (stopped,) = service.named("rolling_restart_stopped")
        assert (stopped["process"], stopped["bookie"]) == (2, "b-2")
        assert stopped["why"] == "bookie b-2 does not answer, and has not recovered in 1 s"
        await until(lambda: service.supervisor.bookies[2].answers)
        monkeypatch.setattr(supervisor, "ROLLING_LIMIT_S", 60.0)
        monkeypatch.setattr(bookie_process, "ANSWER_TIMEOUT_S", 60.0)
        await service.rolled()
        assert [one.restarts for one in service.supervisor.bookies] == [1, 1, 1]

    running(tmp_path, work, monkeypatch)
