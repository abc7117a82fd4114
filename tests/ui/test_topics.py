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
from tests.support.ui.dashboard import HOSTILE_NAME, Dashboard, Tab, Windows, line

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
            await site.create_topic("clicks", 3)
            async with (await site.topic("clicks")).open_writer() as writer:
                for number in range(50):
                    # Each record is a millisecond later than the one before.
                    await writer.append(b"click %d" % number, key=f"key-{number}")
                    await asyncio.sleep(0.002)
            for name in ("orders", "visits-eu"):
                await site.create_stream(name)
            await _append(site, 10)
            for partition, read in ((0, 2), (1, 3)):
                stream = f"visits/{partition}"
                records = [one async for one in site.open_reader(stream)]
                await site.subscription(stream, "billing").commit(records[read].position)

        async def delete(stream: StreamMetadata, _: object) -> None:
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
    expect(names).to_have_text([HOSTILE_NAME, "clicks", INTERRUPTED, f"{INTERRUPTED}/1", "orders",
                                "visits", "visits-eu"])  # fmt: skip
    expect(page.get_by_text("3 streams and 4 topics by name")).to_be_visible()
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
    expect(tile.filter(has_text="Largest lag")).to_contain_text("215records, by billing")
    heads = page.locator("table.sortable tbody th")
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


@pytest.mark.long
def test_the_subscriptions_of_a_topic_are_summed(site: str, tab: Tab) -> None:
    """Their lag is summed, and that of each partition is behind a line that opens."""
    page = tab.page
    tab.open("topic/%2Fsite/visits")
    progress = row_of(page, "billing")
    # Of 10 and 10 records, 2 and 3 were read. Another test may have appended 200 more.
    expect(progress.get_by_role("cell").first).to_have_text(re.compile("^2?15$"))
    expect(progress).to_contain_text(re.compile(r"\d+ % read"))
    summary = progress.locator("summary")
    expect(summary).to_have_text(re.compile("^most in partition 0: "))
    expect(progress.get_by_role("listitem").first).to_be_hidden()
    summary.focus()
    page.keyboard.press("Enter")
    listed = progress.get_by_role("listitem")
    expect(listed).to_have_count(2)
    expect(listed.first).to_contain_text(re.compile("Partition 0: [0-9]+ records, next position"))
    with page.expect_response("**/quire/topic?**"):
        pass  # a refresh
    expect(listed.first).to_be_visible()
    tab.check("topic")
    listed.last.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Stream visits/1")


def row_of(page: Page, name: str) -> Locator:
    heading = page.get_by_role("rowheader", name=name, exact=True)
    return page.get_by_role("row").filter(has=heading)


def values(page: Page) -> list[str]:
    shown = page.locator(".line .line-value")
    expect(shown.first).to_be_visible()
    return [text.removeprefix(", Value ") for text in shown.all_text_contents()]


def test_the_records_of_all_partitions_are_shown_together(site: str, tab: Tab) -> None:
    page = tab.page
    tab.open("topic/%2Fsite/clicks")
    page.get_by_role("link", name="Records", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Records of topic clicks")
    expect(page.get_by_text("20 records, the newest first")).to_be_visible()
    tab.check("topic-records")
    tab.picture("topic-records")
    assert values(page) == [f"click {number}" for number in range(49, 29, -1)]
    partitions = page.locator(".line .line-partition")
    assert set(partitions.all_text_contents()) == {f", Partition {at}" for at in range(3)}
    above = page.get_by_role("navigation", name="Pages of records, above")
    expect(above.get_by_role("link", name="Newer")).to_be_visible()  # for what is appended later
    above.get_by_role("link", name="Older").click()
    expect(page.locator(".line .line-value").first).to_contain_text("click 29")
    assert values(page) == [f"click {number}" for number in range(29, 9, -1)]
    above.get_by_role("link", name="Older").click()
    expect(page.get_by_text("10 records, the newest first")).to_be_visible()
    expect(above.get_by_role("link", name="Older")).to_have_count(0)
    above.get_by_role("link", name="Newer").click()
    expect(page.get_by_text("20 records, the newest first")).to_be_visible()
    assert values(page) == [f"click {number}" for number in range(29, 9, -1)]
    above.get_by_role("link", name="Oldest").click()
    expect(page.get_by_text("20 records, the oldest first")).to_be_visible()
    assert values(page) == [f"click {number}" for number in range(20)]
    # One of them, with its key and its place in the partition.
    first = page.locator("summary.line").first
    expect(first).to_contain_text("key-0")
    first.press("Enter")
    opened = page.locator(".item").first
    expect(opened.locator(".payload")).to_have_text("click 0")
    opened.get_by_role("link", name=re.compile("Partition . from here")).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Records of stream clicks/")
    expect(page.locator(".line .line-value").first).to_contain_text("click 0")


@pytest.mark.long
def test_records_of_a_topic_are_filtered_by_partition_and_time(site: str, tab: Tab) -> None:
    page = tab.page
    tab.open("topic/%2Fsite/clicks/records")
    page.get_by_label("Partition", exact=True).fill("2")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("Only partition 2 of 3.")).to_be_visible()
    assert set(page.locator(".line .line-partition").all_text_contents()) == {", Partition 2"}
    page.get_by_role("navigation", name="Pages of records, above").get_by_role(
        "link", name="Oldest"
    ).click()
    expect(page.get_by_text("the oldest first")).to_be_visible()
    assert set(page.locator(".line .line-partition").all_text_contents()) == {", Partition 2"}
    page.get_by_role("link", name="Show all partitions").click()
    expect(page.get_by_text("Records of 3 partitions")).to_be_visible()
    expect(page.get_by_label("Partition", exact=True)).to_have_value("")
    for moment, found in (("2020-01-01T00:00:00", "click 0"), ("2099-01-01T00:00:00", None)):
        page.get_by_label("Begin at").select_option(label="a time")
        page.locator("#records-value").fill(moment)
        page.get_by_role("button", name="Show", exact=True).click()
        if found is None:
            expect(page.get_by_text("There are no records here")).to_be_visible()
        else:
            expect(page.locator(".line .line-value").first).to_contain_text(found)
            expect(page.get_by_text("20 records, the oldest first")).to_be_visible()
    page.get_by_label("Begin at").select_option(label="the newest records")
    page.get_by_label("Partition", exact=True).fill("9")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Topic clicks has no partition 9")
    tab.seen.errors.clear()  # the browser names the refused request


def test_a_subscription_that_missed_records_is_marked(site: str, tab: Tab) -> None:
    page = tab.page

    def fulfill(route: Any) -> None:
        answer = route.fetch().json()
        for one in answer["subscriptions"]:
            one["missed"] = one["partitions"][1]["missed"] = True
        route.fulfill(json=answer)

    page.route("**/quire/topic?*", fulfill)
    tab.open("topic/%2Fsite/visits")
    billing = row_of(page, "billing")
    expect(billing).to_contain_text("! next records were truncated unread")
    billing.locator("summary").click()
    partitions = billing.locator("li").filter(has_text="truncated unread")
    expect(partitions).to_have_count(1)
    expect(partitions).to_contain_text("Partition 1")


def test_the_page_of_a_topic_shows_which_ledgers_lack_copies(site: str, tab: Tab) -> None:
    page = tab.page
    nothing = dict.fromkeys(("lost", "unreadable", "unknown", "lacking", "marked", "repairing"), 0)
    whole = {"ledgers": 1, "whole": True, **nothing, "named": {}, "error": ""}
    bad = {**whole, "ledgers": 9, "marked": 7, "repairing": 1,
           "named": {"marked": [11, 12, 13, 14, 15], "repairing": [9]}}  # fmt: skip
    sums = {**bad, "ledgers": 11, "lost": 1, "named": {**bad["named"], "lost": [5]}}
    lost = {**whole, "lost": 1, "named": {"lost": [5]}}

    def fulfill(route: Any) -> None:
        answer = route.fetch().json()
        answer["replicas"] = {"visits": sums, "visits/0": bad, "visits/1": lost, "visits/2": None}
        route.fulfill(json=answer)

    page.route("**/quire/topic?*", fulfill)
    tab.open("topic/%2Fsite/visits")
    alert = page.locator(".alert.bad")
    expect(alert).to_contain_text("✗ 1 ledger does not exist any more")
    expect(alert).to_contain_text("! 7 ledgers lack copies, and wait for repair: ledgers 11, 12")
    expect(alert).to_contain_text("! 1 ledger is being repaired: ledger 9.")
    expect(page.locator(".tile").filter(has_text="Copies")).to_contain_text("9 incomplete")
    first, second, third = (row(page, name) for name in "012")
    expect(first).to_contain_text("! 7 waiting for repair")
    expect(first.get_by_role("link", name="! 1 being repaired")).to_have_attribute(
        "href", re.compile("#/ledger/9$")
    )
    expect(second).to_contain_text("✗ 1 lost")
    expect(third).to_contain_text("reading …")
    tab.check("topic")
    page.unroute("**/quire/topic?*")
    alert.get_by_role("link", name="2 more").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Ledgers")
    expect(page.get_by_label("Replicas")).to_have_value("marked")
    expect(page.get_by_label("Part of the owner's name")).to_have_value("/site/visits/")


def test_a_partition_that_cannot_be_read_is_named(site: str, tab: Tab) -> None:
    page = tab.page

    def fulfill(route: Any) -> None:
        answer = route.fetch().json()
        error = {"what": "ledger 7 cannot be opened", "remedy": "Start the bookies", "causes": {}}
        answer["unreadable"] = [{"partition": 1, "error": error}]
        route.fulfill(json=answer)

    page.route("**/quire/topic/records", fulfill)
    tab.open("topic/%2Fsite/clicks/records")
    alert = page.locator(".alert.bad")
    expect(alert).to_contain_text("Partition 1 could not be read, so its records are missing here")
    expect(alert).to_contain_text("ledger 7 cannot be opened")
    expect(page.locator(".line")).to_have_count(20)


def test_records_of_a_topic_need_the_token(
    site: str, dashboard: Dashboard, windows: Windows
) -> None:
    with windows.tab(dashboard.url) as opened:
        page = opened.page
        page.goto(f"{dashboard.url}/#/topic/%2Fsite/clicks")
        expect(page.get_by_role("link", name="Records", exact=True)).to_be_visible()
        page.get_by_role("link", name="Records", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("The token is missing or wrong")
        assert "click 4" not in page.content()
        opened.seen.errors.clear()  # the browser names the refused request


@pytest.mark.long
def test_a_search_finds_a_topic_by_its_partition(site: str, tab: Tab) -> None:
    page = tab.page
    tab.open("streams/%2Fsite")
    page.get_by_label("Part of a name").fill("visits/2")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody th a")).to_have_text(["visits"])
    expect(page.get_by_text("1 topic by name")).to_be_visible()


def test_a_partly_deleted_topic_shows_the_command_to_complete_it(site: str, tab: Tab) -> None:
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


@pytest.mark.long
@pytest.mark.parametrize("tab", [PHONE], indirect=True, ids=["phone"])
def test_a_topic_fits_on_a_phone(site: str, tab: Tab) -> None:
    for name, path in (("streams-topics", "streams/%2Fsite"), ("topic", "topic/%2Fsite/visits"),
                       ("topic-records", "topic/%2Fsite/clicks/records")):  # fmt: skip
        tab.open(path)
        tab.check(name)
        tab.picture(f"{name}-phone")
    tall = [box["height"] for one in tab.page.locator(".line").all() if (box := one.bounding_box())]
    assert max(tall, default=0) < 56, "a record takes more than two lines"
