"""The route of repairs and jobs names the bookies that are away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.client import Client
from quire.http.routes import dashboard
from quire.http.routes.dashboard import DashboardRoutes
from quire.http.routes.jobs import Jobs
from quire.http.server.api import Call
from quire.http.views.cluster_view import ClusterView
from quire_simulator.world.world import bookie_id
from tests.support.streams import Bench, run


async def no_metrics(*_: object) -> str:
    raise ConnectionError


def test_lost_and_silent_bookies_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "AWAY_SHOWN_MAX", 2)

    async def scene(b: Bench) -> None:
        async def connect() -> Client:
            return b.client

        view = ClusterView(b.client.clock.monotonic, no_metrics, wait_s=10.0)
        routes = DashboardRoutes(connect, Jobs(b.client.clock), view, "x").routes()
        (work,) = (one for one in routes if one.path.endswith("/work"))

        async def away() -> list[Any]:
            found: list[Any] = (await work.handler(Call({}, {}, {})))["bookies_away"]
            return found

        try:
            assert await away() == []
            name = next(iter(b.world.disks))
            silent = bookie_id(name)
            b.world.kill(name, session_left_s=1_000.0)  # it stays registered
            await b.client.metadata.write_cookie("away:1", b"cookie", None)
            await asyncio.sleep(61)  # until the server asks all of them again
            # The page says it as badly as the problem of each bookie: nothing is lost with the one.
            assert await away() == [
                {"id": "away:1", "state": "gone", "severity": "note"},
                {"id": silent, "state": "writable", "severity": "bad"},
            ]
            await b.client.metadata.write_cookie("away:2", b"cookie", None)
            assert len(await away()) == 2
        finally:
            await view.close()

    run(scene)
