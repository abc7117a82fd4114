"""A cluster with data to show, its dashboard, and a browser.

Tests that need a browser are deselected if there is none, with one line that says so.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import quire
from quire.core.placement.tables import with_location
from quire.http.views.bookie_list import LOCATIONS_NODE
from quire.metadata.tree import Create
from quire.streams.namespace.namespace import open_namespace
from quire.testing.cluster import LocalCluster
from tests.support.processes.cli import Quire
from tests.support.processes.http import TOKEN
from tests.support.processes.wanted import WANTED as PROCESSES_WANT
from tests.support.ui.browser import executable, missing
from tests.support.ui.dashboard import (
    HOSTILE,
    HOSTILE_NAME,
    LARGE_ID,
    READ,
    RECORDS,
    STREAM,
    TEAM,
    Dashboard,
    Tab,
    Windows,
)
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LEFT_OUT = pytest.StashKey[list[str]]()
WANTED = {**PROCESSES_WANT, "browser": missing}
EXPECT_LIMIT_MS = 60_000
"""The wait for what a page is expected to show. Reached only in a failing test."""
BOOKIE_ARGUMENTS = ("--http", "127.0.0.1:0", "--set", "min_free_bytes=0")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for marker, refused in WANTED.items():
        wanting = [item for item in items if item.get_closest_marker(marker)]
        why = refused() if wanting else ""
        if why:
            said = config.stash.setdefault(LEFT_OUT, [])
            said.append(f"{len(wanting)} tests were left out: {why}")
            config.hook.pytest_deselected(items=wanting)
            items[:] = [item for item in items if item not in wanting]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in terminalreporter.config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def dashboard() -> Iterator[Dashboard]:
    """Four bookies in two racks, ledgers, and a stream with a subscription."""
    with (
        LocalCluster(4, bookie_args=BOOKIE_ARGUMENTS, http_token=TOKEN) as cluster,
        Quire(cluster.uri).start("ui", "--http", "127.0.0.1:0", *cluster.token_arguments) as server,
    ):
        shown = Dashboard(cluster, server, server.line())
        shown.ledger = asyncio.run(_fill(cluster))
        yield shown


async def _fill(cluster: LocalCluster) -> int:
    """The id of a ledger that each bookie has a part of."""
    racks = b""
    for at, bookie in enumerate(cluster.bookies):
        racks = with_location(racks, bookie.id, f"/rack{at % 2}")
    async with quire.connect(cluster.uri) as client:
        await client.metadata.tree.commit(Create(LOCATIONS_NODE, racks))
        made = []
        for custom in ({"what": HOSTILE.encode()}, {}, {}):
            writer = await client.create_ledger(
                ensemble_size=4, write_quorum=3, ack_quorum=2, custom=custom
            )
            async with writer:
                await writer.append_many([b"entry"] * 100)
                made.append(writer.ledger_id)
        large = await client.create_ledger(ledger_id=LARGE_ID)
        async with large:
            await large.append(b"entry")
        async with await open_namespace(client, TEAM, create=True) as team:
            for name in (STREAM, "others", HOSTILE_NAME):
                await team.create_stream(name)
            async with await team.open_writer(STREAM) as writer:
                positions = [await writer.append(b"record") for _ in range(RECORDS)]
            await team.subscription(STREAM, "billing").commit(positions[READ - 1].next_slot())
        return made[0]


@pytest.fixture
def healed(dashboard: Dashboard) -> Iterator[None]:
    """Undo at the end of a test what it did to the bookies, also if the test fails.

    Bookies that were killed run again, no bookie is being decommissioned, and no job is paused.
    Otherwise all tests after a failed one would fail, too.
    """
    yield
    for bookie in dashboard.cluster.bookies:
        if not bookie.alive:
            bookie.start()
    for one in dashboard.get("/api/v1/quire/paused")[1]["paused"]:
        dashboard.put("/api/v1/quire/resume", {"kind": one["kind"], "target": one["target"]})
    run = Quire(dashboard.cluster.uri)
    for bookie in dashboard.cluster.bookies:
        run("bookie", "decommission", bookie.id, "--cancel")
    wait_for(
        lambda: dashboard.get("/api/v1/quire/overview")[1]["bookies"]["writable"] == 4,
        "all bookies take entries again",
    )


# -- the browser ------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    # The default of 5 s is too short beside other tests on a machine with few cores.
    expect.set_options(timeout=EXPECT_LIMIT_MS)
    with sync_playwright() as playwright:
        # Its sandbox does not start as root; it sees nothing but our own pages.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = playwright.chromium.launch(executable_path=executable(), args=options)
        yield found
        found.close()


@pytest.fixture(scope="session")
def windows(browser: Browser) -> Windows:
    """The windows of the browser, one for each size and kind, in which tabs are opened."""
    return Windows(browser)


@pytest.fixture
def tab(dashboard: Dashboard, windows: Windows, request: pytest.FixtureRequest) -> Iterator[Tab]:
    """Yield a tab in a window of the size in `request.param`, whose pages know the token.

    An error on a page, or a request to another server, fails the test.
    """
    with windows.tab(dashboard.url, token=TOKEN, **getattr(request, "param", {})) as opened:
        yield opened
    assert not opened.seen.elsewhere


@pytest.fixture
def lone_tab(dashboard: Dashboard, browser: Browser) -> Iterator[Tab]:
    """Yield a tab in a window of its own, for tests that set the clock of all tabs of a window."""
    windows = Windows(browser)
    with windows.tab(dashboard.url, token=TOKEN) as opened:
        yield opened
    windows.close()
