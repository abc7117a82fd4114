"""Continuous copies of streams: the pages name one that was killed, and what to type."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import quire
from quire.replication.marks.copy_notes import CopyNote, CopyReporter, StreamLag, forget_copy
from tests.support.ui.browser import expect
from tests.support.ui.dashboard import HOSTILE, STREAM, TEAM, Dashboard, Tab

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
TARGET = "zk+hierarchical://zk1.backup.example.com:2181,zk2.backup.example.com:2181/ledgers"


def outside(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in another thread, because Playwright runs an event loop in this one."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(asyncio.run, work).result()


async def _killed(uri: str) -> CopyNote:
    """Store the note of a copy whose process was killed ten minutes ago."""
    async with quire.connect(uri) as client:
        now_ms = client.clock.now_ms()
        note = CopyNote(
            uri, await client.metadata.instance_id(), TEAM, TARGET, "there", "/copies", "*",
            f"mirror-1.example.com.4711 {HOSTILE}", now_ms - 3_600_000, records=120, seconds=3.0,
            count=3, lags=(StreamLag(STREAM, 120, 3.0),),
        )  # fmt: skip
        await CopyReporter([client.metadata], note).say(now_ms - 600_000)
        return note


async def _forget(uri: str, note: CopyNote) -> None:
    async with quire.connect(uri) as client:
        await forget_copy(client.metadata, note.name)


@pytest.fixture
def killed(dashboard: Dashboard) -> Iterator[CopyNote]:
    uri = dashboard.cluster.uri
    note = outside(_killed(uri))
    yield note
    outside(_forget(uri, note))


def commands(tab: Tab, within: str) -> list[str]:
    return tab.page.locator(f"{within} .command code").all_inner_texts()


@pytest.mark.parametrize("tab", [{}, PHONE], indirect=True, ids=["desktop", "phone"])
def test_a_killed_copy_is_named_with_the_commands(tab: Tab, killed: CopyNote) -> None:
    page, width = tab.page, tab.page.evaluate("innerWidth")
    tab.open("")
    problem = page.locator(".problems > .warn").filter(has_text="The continuous copy of")
    expect(problem).to_contain_text("the streams of /team to /copies in zk+hierarchical://zk1")
    expect(problem).to_contain_text("has stopped")
    shown = problem.locator(".command code").all_inner_texts()
    assert shown == [killed.restart(), killed.forget()]
    tab.check("overview with a killed copy")
    tab.picture(f"copy-overview-{width}")
    tab.go(f"stream/{TEAM.replace('/', '%2F')}/{STREAM}")
    alert = page.locator(".alert.warn").filter(has_text="The continuous copy of")
    expect(alert).to_contain_text("has stopped")
    assert commands(tab, ".alert.warn") == [killed.restart(), killed.forget()]
    row = page.get_by_role("region", name="As their processes report them").get_by_role("row")
    expect(row.last).to_contain_text("! stopped")
    expect(row.last).to_contain_text("120 records")
    expect(row.last).to_contain_text(HOSTILE)
    tab.check("stream with a killed copy")
    tab.picture(f"copy-stream-{width}")
    tab.go("work")
    table = page.get_by_role("region", name="From and to other clusters")
    expect(table.get_by_role("row").last).to_contain_text("! stopped")
    tab.check("work with a killed copy")
    tab.picture(f"copy-work-{width}")
