"""Topics: one row in the list of streams, and a page with the partitions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import quire
from quire.metadata.tree import Put
from quire.metadata.values import ANY_VERSION
from quire.streams.namespace.removal import delete_stream
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.topic_nodes import topic_path
from quire.streams.topics.topic_metadata import TopicMetadata
from tests.support.ui.browser import expect
from tests.support.ui.dashboard import HOSTILE_NAME, Dashboard, Tab, line

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SITE = "/site"
DAMAGED = "/damaged"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
INTERRUPTED = "it's-old"
"""The name of a topic that a shell must not take apart."""


def outside(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in another thread, because Playwright runs an event loop in this one."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(asyncio.run, work).result()


@pytest.fixture(scope="module")
def site(dashboard: Dashboard) -> str:
    """A namespace with topics and streams. Returns the URI of the cluster."""
    outside(_fill(dashboard.cluster.uri))
    return dashboard.cluster.uri


async def _fill(uri: str) -> None:
    async with quire.connect(uri) as client:
        async with client.namespace(SITE, create=True) as site:
            for name, partitions in (("visits", 3), (HOSTILE_NAME, 2), (INTERRUPTED, 2)):
                await site.create_topic(name, partitions)
            for name in ("orders", "visits-eu"):
                await site.create_stream(name)
            await _append(site, 10)
            for partition, read in ((0, 3), (1, 4)):
                stream = f"visits/{partition}"
                records = [one async for one in site.open_reader(stream)]
                await site.subscription(stream, "billing").commit(records[read - 1].position)

        async def delete(stream: StreamMetadata) -> None:
            if stream.paths.name.endswith("/1"):
                raise ConnectionError
            await delete_stream(client, stream, b"")

        with pytest.raises(ConnectionError):
            await TopicMetadata(client, SITE).delete(INTERRUPTED, delete)
        async with client.namespace(DAMAGED, create=True) as damaged:
            await damaged.create_topic("broken", 2)
        path = topic_path(DAMAGED, "broken")
        await client.metadata.tree.commit(Put(path, b"garbage", ANY_VERSION))


async def _append(site: Any, count: int) -> None:
    topic = await site.topic("visits")
    async with topic.open_writer(assign=[0, 1]) as writer:
        for partition in (0, 1):
            await writer.append_many([b"0123456789"] * count, partition=partition)


async def _append_more(uri: str) -> None:
    async with quire.connect(uri) as client, client.namespace(SITE) as site:
        await _append(site, 100)


def row(page: Page, name: str) -> Locator:
    link = page.get_by_role("link", name=name, exact=True)
    return page.get_by_role("row").filter(has=link)


def test_a_topic_is_one_row_and_opens_its_partitions(site: str, tab: Tab) -> None:
    page = tab.page
    tab.open("streams/%2Fsite")
    tab.check("streams")
    names = page.locator("tbody th a")
    expect(names).to_have_text([HOSTILE_NAME, INTERRUPTED, f"{INTERRUPTED}/1", "orders", "visits",
                                "visits-eu"])  # fmt: skip
    expect(page.get_by_text("3 streams and 3 topics by name")).to_be_visible()
    topic = row(page, "visits")
    expect(topic).to_contain_text("topic, 3 partitions")
    expect(topic.get_by_role("cell").first).to_have_text("20")
    expect(topic).to_contain_text("15 records billing")
    expect(topic).to_contain_text(re.compile(r"\d/s"))
    outside(_append_more(site))
    expect(topic.get_by_role("cell").first).to_have_text("220")
    page.get_by_role("button", name="Records", exact=True).click()
    expect(page.locator("tbody tr").first).to_contain_text("visits")
    page.get_by_role("link", name="visits", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Topic visits")
    expect(page.locator("#pages a[aria-current]")).to_have_text("Streams")
    tab.check("topic")
    tile = page.locator(".tile")
    expect(tile.filter(has_text="that can be read")).to_contain_text("220")
    expect(tile.filter(has_text="Largest lag")).to_contain_text("215records, billing")
    heads = page.locator("tbody th")
    expect(heads).to_have_text(["0", "1", "2"])
    expect(page.get_by_role("row").filter(has_text="no subscription")).to_have_count(1)
    page.get_by_role("button", name="Records", exact=True).click()
    page.get_by_role("button", name="Records", exact=True).click()
    expect(heads.first).to_have_text("2")
    page.get_by_role("link", name="1", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Stream visits/1")
    expect(page.get_by_text("Partition 1 of topic visits, which has 3.")).to_be_visible()
    page.get_by_role("link", name="topic visits").click()
    expect(heads.first).to_have_text("2")  # the order is kept
    row(page, "1").get_by_role("link", name="Show records").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Records of stream visits/1")
    expect(line(page, "Position 1:0:0")).to_contain_text("0123456789")


def test_a_search_finds_a_topic_by_its_partition(site: str, tab: Tab) -> None:
    page = tab.page
    tab.open("streams/%2Fsite")
    page.get_by_label("Part of a name").fill("visits/2")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody th a")).to_have_text(["visits"])
    expect(page.get_by_text("1 topic by name")).to_be_visible()


def test_a_topic_whose_deletion_was_interrupted_says_what_to_type(site: str, tab: Tab) -> None:
    page = tab.page
    tab.open("streams/%2Fsite")
    expect(row(page, INTERRUPTED)).to_contain_text("! deletion not complete")
    page.get_by_role("link", name=INTERRUPTED, exact=True).click()
    expect(page.locator(".alert.warn")).to_contain_text("It can no longer be written or read")
    typed = r"quire stream delete 'it'\''s-old' --namespace /site"
    expect(page.locator(".command code")).to_have_text(typed)
    expect(page.locator("tbody th")).to_have_text(["1"])
    tab.open("topic/%2Fsite/nothing")
    expect(page.get_by_role("alert")).to_contain_text("There is no topic nothing")
    tab.seen.errors.clear()  # the browser names the refused request


def test_a_topic_that_cannot_be_read_is_named(site: str, tab: Tab) -> None:
    tab.open("streams/%2Fdamaged")
    alert = tab.page.locator(".alert.bad")
    expect(alert).to_contain_text("of topic broken cannot be decoded")
    expect(alert).to_contain_text("The partitions of such a topic are listed as streams")
    expect(tab.page.locator("tbody th a")).to_have_text(["broken/0", "broken/1"])


@pytest.mark.parametrize("tab", [PHONE], indirect=True, ids=["phone"])
def test_a_topic_on_a_phone(site: str, tab: Tab) -> None:
    for name, path in (("streams-topics", "streams/%2Fsite"), ("topic", "topic/%2Fsite/visits")):
        tab.open(path)
        tab.check(name)
        tab.picture(f"{name}-phone")
