"""A cluster with something to see, its dashboard, and a browser in front of it.

Tests that need a browser are left out where there is none, with one line that says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import quire
from quire.core.placement.tables import with_location
from quire.http.views.bookie_list import LOCATIONS_NODE
from quire.metadata.tree import Create
from quire.streams.namespace.namespace import open_namespace
from quire.testing.cluster import LocalCluster

from ..processes.cli import Quire, Running
from ..processes.conftest import WANTED as PROCESSES_WANT
from .browser import SCREENSHOTS, executable, missing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Response

LEFT_OUT = pytest.StashKey[list[str]]()
WANTED = {**PROCESSES_WANT, "browser": missing}
HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"
HOSTILE_NAME = "a&amp;b%41#c"
TEAM = "/team"
STREAM = "orders"
RECORDS = 30
READ = 12
LARGE_ID = 2**62 + 1
"""JavaScript's numbers do not hold it."""
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


@dataclass
class Dashboard:
    """`quire ui` of a cluster."""

    cluster: LocalCluster
    server: Running
    url: str
    ledger: int = 0
    large: int = LARGE_ID

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def put(self, path: str, body: dict[str, str]) -> Any:
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), kind, method="PUT"
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def problems(self) -> list[str]:
        status, found = self.get("/api/v1/quire/overview")
        assert status == 200, found
        return [one["what"] for one in found["problems"]]


@pytest.fixture(scope="session")
def dashboard() -> Iterator[Dashboard]:
    """Four bookies in two racks, ledgers, and a stream with a subscription."""
    with (
        LocalCluster(4, bookie_args=BOOKIE_ARGUMENTS) as cluster,
        Quire(cluster.uri).start("ui", "--http", "127.0.0.1:0") as server,
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


# -- the browser ------------------------------------------------------------------------------


@dataclass
class Seen:
    """What must not be seen."""

    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    answers: list[Response] = field(default_factory=list)


@dataclass
class Tab:
    page: Page
    url: str
    seen: Seen

    def open(self, path: str) -> None:
        """Until the page has its data."""
        self.page.goto("about:blank")  # what was there before is not taken for the answer
        self.page.goto(f"{self.url}/#/{path}")
        self.page.wait_for_selector("main [aria-busy=false]", state="attached")

    def picture(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its sandbox does not start as root; it sees nothing but our own pages.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = playwright.chromium.launch(executable_path=executable(), args=options)
        yield found
        found.close()


@pytest.fixture
def tab(dashboard: Dashboard, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Tab]:
    """Of a window as `request.param` says. A mistake on a page, or a request to anywhere else,
    fails the test."""
    context = browser.new_context(**getattr(request, "param", {}))
    page, seen = context.new_page(), Seen()
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("console", lambda said: seen.errors.append(said.text) if said.type == "error" else None)
    page.on("response", lambda one: seen.answers.append(one))
    page.on(
        "request",
        lambda one: (
            None
            if one.url.startswith((dashboard.url, "about:"))
            else seen.elsewhere.append(one.url)
        ),
    )
    yield Tab(page, dashboard.url, seen)
    context.close()
    assert not seen.elsewhere
    # A refused request is one of the browser's errors, too: tests that provoke one empty the list.
    assert not seen.errors
