"""Requests that come close together share one look at the cluster."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quire._runtime.clock import SystemClock
from quire.client import Client
from quire.config import ClientConfig
from quire.errors import MetadataUnavailableError
from quire.http.routes.bookie_pages import BookiePages
from quire.http.routes.dashboard import KEPT, DashboardRoutes
from quire.http.routes.jobs import HttpJob, Jobs
from quire.http.routes.quire_api import QuireRoutes
from quire.http.server.api import Call
from quire.http.server.run import serve_cluster
from quire.http.server.security import HttpOptions
from quire.http.views.cluster_view import SHARED_AGE_MAX_S, ClusterState, ClusterView
from quire.metadata import open_metadata


async def no_answer(*_: object) -> Any:
    raise ConnectionError


class CountingView(ClusterView):
    """A view that counts its looks, and whose clock the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        super().__init__(lambda: self.now_s, no_answer)
        self.looks = 0
        self.error: Exception | None = None
        self.during = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def look(self, client: Client) -> ClusterState:
        self.looks += 1
        self.during.set()
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return await super().look(client)


@asynccontextmanager
async def viewed(directory: Path) -> AsyncIterator[tuple[CountingView, Client]]:
    store = await open_metadata(f"sqlite:///{directory}/meta.db", create=True)
    await store.initialise()
    async with Client(store) as client:
        view = CountingView()
        try:
            yield view, client
        finally:
            await view.close()


async def test_the_pages_that_are_kept_share_one_look(tmp_path: Path) -> None:
    async with viewed(tmp_path) as (view, client):

        async def connect() -> Client:
            return client

        jobs = Jobs(SystemClock())
        routes = [
            *DashboardRoutes(connect, jobs, view, "x").routes(),
            *BookiePages(connect, jobs, view, "x", no_answer).routes(),
            *QuireRoutes(connect, jobs, view, "x").routes(),
        ]
        kept = [one for one in routes if one.path in KEPT and not one.changes]
        assert len(kept) == len(KEPT)
        for route in kept:
            await route.handler(Call({}, KEPT[route.path], {}))
        assert view.looks == 1


async def test_a_look_is_shared_only_while_it_is_recent(tmp_path: Path) -> None:
    async with viewed(tmp_path) as (view, client):
        first = await view.recent(client)
        view.now_s += SHARED_AGE_MAX_S
        assert await view.recent(client) is first
        view.now_s += SHARED_AGE_MAX_S / 2
        assert await view.recent(client) is not first
        assert view.looks == 2


async def test_requests_at_the_same_time_wait_for_one_look(tmp_path: Path) -> None:
    async with viewed(tmp_path) as (view, client):
        found = await asyncio.gather(*(view.recent(client) for _ in range(4)))
        assert view.looks == 1
        assert all(one is found[0] for one in found)


async def test_a_cancelled_request_does_not_fail_those_that_wait_for_its_look(
    tmp_path: Path,
) -> None:
    async with viewed(tmp_path) as (view, client):
        view.may_end.clear()
        first = asyncio.create_task(view.recent(client))
        await view.during.wait()
        second = asyncio.create_task(view.recent(client))
        first.cancel()
        await asyncio.wait([first])
        view.may_end.set()
        assert (await second).problems
        assert view.looks == 2


async def test_a_failed_look_is_not_shared(tmp_path: Path) -> None:
    async with viewed(tmp_path) as (view, client):
        await view.recent(client)
        view.now_s += 2 * SHARED_AGE_MAX_S
        view.error = MetadataUnavailableError("the store does not answer")
        with pytest.raises(MetadataUnavailableError):
            await view.recent(client)
        view.error = None
        await view.recent(client)
        assert view.looks == 3


async def test_a_request_after_a_change_never_gets_a_look_from_before_it(tmp_path: Path) -> None:
    async with viewed(tmp_path) as (view, client):
        view.may_end.clear()
        before = asyncio.create_task(view.recent(client))
        await view.during.wait()
        view.changed()
        after = asyncio.create_task(view.recent(client))
        view.may_end.set()
        assert await after is not await before
        assert view.looks == 2
        assert await view.recent(client) is await after


async def test_the_end_of_a_job_is_reported() -> None:
    jobs, ended = Jobs(SystemClock()), []
    jobs.on_end = lambda: ended.append(True)

    async def work(job: HttpJob) -> dict[str, Any]:
        return {}

    job = jobs.start("rebalance", "cluster", work)
    assert job.task is not None
    await job.task
    assert ended == [True]


async def test_the_page_after_a_change_shows_it(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/meta.db"
    store = await open_metadata(uri, create=True)
    await store.initialise()
    await store.close()

    def ask(url: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": "Bearer 0123456789abcdef"}
        method = "GET" if body is None else "PUT"
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def log(event: str, **fields: object) -> None:
        pass

    options = HttpOptions(token="0123456789abcdef")
    served = serve_cluster(options, uri, ClientConfig(), "1", log, owner="test")
    async with served as server:
        for enabled in (False, True) * 3:
            path = f"{server.url}/api/v1/autorecovery/status?enabled={str(enabled).lower()}"
            await asyncio.to_thread(ask, path, {})
            found = await asyncio.to_thread(ask, f"{server.url}/api/v1/quire/overview")
            assert found["autorecovery"]["enabled"] is enabled
