"""What can be pressed or typed on the pages and is not tested elsewhere: sorting by each heading,
pages of lists, filters, links to what is above, and what is the same on all pages.

Lists that need many or special rows get their rows from the test, in the form of the server's
answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from quire.cli.pipeline.job import told
from quire.config import ClientConfig
from quire.replication.marks.job_announcements import JobStatus
from tests.support.long import long_after
from tests.support.processes.http import TOKEN
from tests.support.ui.browser import expect
from tests.support.ui.dashboard import RECORDS, STREAM, Dashboard, Tab, Windows, line
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
Values = dict[str, Any]


def heading(page: Page, text: str) -> None:
    """Expect the heading of the page."""
    expect(page.get_by_role("heading", level=1)).to_have_text(text)


# -- sorting ----------------------------------------------------------------------------------

DAYS = [f"2026-01-0{day}T00:00:00Z" for day in (1, 2, 3)]
FIGURES: dict[str, tuple[str, list[Any]]] = {
    "Records": ("records", [9, 10, 200]), "Size": ("bytes", [9, 10_000, 2_000_000]),
    "Records/s": ("records_per_s", [0.5, 3.0, 20.0]),
    "Bytes/s": ("bytes_per_s", [5.0, 30.0, 900.0]),
    "Lag": ("lag", [0, 5, 11]), "Last write": ("last_time", DAYS),
}  # fmt: skip
STREAM_VALUES: Values = {
    "segments": 1, "whole": True, "last": "1:0:0", "ended": False, "slowest": "billing",
    "subscriptions": 1, "age_s": 0.0, "error": "",
}  # fmt: skip
LEDGER: Values = {
    "digest": "CRC32C", "ensemble": 3, "write_quorum": 3, "ack_quorum": 2, "segments": [],
    "ctime_ms": 1780000000000, "custom": {},
}  # fmt: skip
RATES: Values = dict.fromkeys(
    ("adds_per_s", "add_bytes_per_s", "reads_per_s", "read_bytes_per_s", "add_p50_ms",
     "add_p99_ms", "sync_p50_ms", "sync_p99_ms", "ledgers")
)  # fmt: skip


def figures(rows: list[Values], key: str) -> Values:
    return {row[key]: {**STREAM_VALUES, **row} for row in rows}


def bookie(row: Values) -> Values:
    rates = {key: row.pop(key) for key in list(row) if key in RATES}
    return {"host": "h", "port": 1, "tls": False, "http": ["http://h:1"], "unwritable": [],
            "total_bytes": 1000, "space_age_s": 0, "answers": True, "silence": None,
            "free_shares": {}, "disks": [], "compaction_suspended": [], "severity": "",
            "fullness": "",
            "rates": {**RATES, **rates}, **row}  # fmt: skip


def ledger(row: Values) -> Values:
    owners = [{"kind": row.pop("kind"), "name": "n", "place": "/p", "doubt": False}]
    replication = {"state": row.pop("replicas"), "gone": []}
    return {**LEDGER, "owners": owners, "replication": replication, **row}


LISTS: dict[str, tuple[str, str, dict[str, tuple[str, list[Any]]], Callable[..., Values]]] = {
    "bookies": (
        "bookies", "**/quire/bookies?**",
        {"Bookie": ("id", ["b2:1", "b9:1", "b10:1"]), "State": ("state", ["gone", "read-only",
         "writable"]), "Rack": ("location", ["/r1", "/r2", "/r10"]),
         "Disk": ("free_bytes", [900, 500, 100]), "Ledgers": ("ledgers", [9, 10, 200]),
         "Adds": ("adds_per_s", [9.0, 10.0, 200.0]), "Reads": ("reads_per_s", [0.0, 3.0, 20.0]),
         "Add, p99": ("add_p99_ms", [0.5, 3.0, 20.0]),
         "Sync, p99": ("sync_p99_ms", [0.1, 30.0, 200.0])},
        lambda rows: {"bookies": [bookie(row) for row in rows], "next": None},
    ),
    "ledgers": (
        "ledgers", "**/quire/ledgers?**",
        {"Ledger": ("ledger_id", [9, 10, 2**62 + 1]), "State": ("state", ["CLOSED", "IN_RECOVERY",
         "OPEN"]), "Owner": ("kind", ["object", "state machine", "stream"]),
         "Replicas": ("replicas", ["complete", "lacking", "marked"]),
         "Entries": ("last_entry_id", [9, 10, 200]), "Size": ("length", [9, 10_000, 2_000_000]),
         "Created": ("ctime", DAYS)},
        lambda rows: {"ledgers": [ledger(row) for row in rows], "next": None, "looked_at": 3},
    ),
    "streams": (
        "streams/%2Fx", "**/quire/streams?**",
        {"Stream": ("name", ["s2", "s9", "s10"]), **FIGURES},
        lambda rows: {"streams": [row["name"] for row in rows], "topics": [], "unreadable": "",
                      "next": None, "statistics": figures(rows, "name")},
    ),
    "topic": (
        "topic/%2Fx/t", "**/quire/topic?**",
        {"Partition": ("stream", ["t/2", "t/9", "t/10"]), **FIGURES},
        lambda rows: {"name": "t", "partitions": 3, "deleting": False, "subscriptions": [],
                      "streams": [row["stream"] for row in rows],
                      "statistics": {"t": None, **figures(rows, "stream")}},
    ),
    "segments": (
        "stream/%2Fx/s", "**/quire/stream?**",
        {"Segment": ("number", [2, 9, 10]), "State": ("state", ["completed", "in progress",
         "truncated"]), "Records": ("records", [9, 10, 200]), "Size": ("bytes", [9, 100, 20_000]),
         "Began": ("created", DAYS), "Completed": ("completed", DAYS)},
        lambda rows: {"name": "s", "records": 1, "bytes": 1, "ended": False, "last": None,
                      "last_time": None, "settings": {"txids": "time"}, "lost": [], "lag": [],
                      "subscriptions": [], "figures": None, "topic": None,
                      "segments": [{"ledger_id": 7, "first": "1:0:0", "last": None,
                                    "first_txid": 1, **row} for row in rows]},
    ),
    "objects": (
        "objects/x", "**/quire/objects?**",
        {"Object": ("name", ["o2", "o9", "o10"]), "Size": ("bytes", [9, 10_000, 2_000_000]),
         "Stored": ("ctime", DAYS)},
        lambda rows: {"objects": [{"ledger_id": 7, **row} for row in rows], "next": None,
                      "unreadable": ""},
    ),
    "datasets": (
        "datasets", "**/quire/datasets?**",
        {"Dataset": ("name", ["d2", "d9", "d10"]), "Ledgers": ("ledgers", [9, 10, 200]),
         "Rows": ("rows", [0, 90, 1000]), "Size": ("bytes", [9, 10_000, 2_000_000]),
         "Publications": ("sequence", [1, 9, 10])},
        lambda rows: {"datasets": rows, "next": None},
    ),
    "machines": (
        "machines", "**/quire/state_machines?**",
        {"State machine": ("stream", ["m2", "m9", "m10"]), "Namespace": ("namespace", ["/a", "/b",
         "/c"]), "Commands in the snapshot": ("applied", [9, 10, 200]),
         "Snapshot": ("bytes", [9, 10_000, 2_000_000]), "Taken": ("ctime", DAYS)},
        lambda rows: {"state_machines": [{"name": row["stream"], **row} for row in rows],
                      "next": None, "unreadable": ""},
    ),
    "keys": (
        "configuration", "**/quire/configuration**",
        {"Key": ("key", ["a.k2", "a.k9", "a.k10"]), "Value": ("value", ["9", "10", "200"]),
         "Default": ("default", ["1", "20", "100"]), "From": ("origin", ["a", "b", "c"])},
        lambda rows: {"process": "p", "file": None, "keys": [
            {"meaning": "", "unit": "", "changed": True, "applies": True, "environment": "", **row}
            for row in rows]},
    ),
}  # fmt: skip


def rows_of(columns: dict[str, tuple[str, list[Any]]]) -> list[Values]:
    """Return three rows that each column sorts in another order, as far as there are orders.

    Each column has its values in ascending order.
    """
    orders = [(0, 1, 2), (2, 0, 1), (1, 2, 0), (0, 2, 1), (1, 0, 2), (2, 1, 0)]
    return [
        {
            key: values[orders[number % len(orders)][at]]
            for number, (key, values) in enumerate(columns.values())
        }
        for at in range(3)
    ]


@pytest.mark.parametrize("name", long_after(2, LISTS))
def test_each_heading_sorts_by_its_column(tab: Tab, name: str) -> None:
    page = tab.page
    path, url, columns, answer = LISTS[name]
    rows = rows_of(columns)
    first = next(iter(columns.values()))[0]
    body = json.dumps(answer([dict(row) for row in rows]))
    page.route(url, lambda route: route.fulfill(content_type="application/json", body=body))
    tab.open(path)
    table = page.locator("table.sortable")
    heads = table.locator("tbody th")
    expect(heads).to_have_count(3)
    buttons = table.locator("thead button")
    assert buttons.all_inner_texts() == list(columns)
    named = {row[first]: text for row in rows for text in heads.all_inner_texts()
             if re.match(rf"{re.escape(str(row[first]).rpartition('/')[2])}\b", text)}  # fmt: skip
    assert len(named) == 3
    for text, (key, values) in columns.items():
        button = table.get_by_role("button", name=text, exact=True)
        column = table.get_by_role("columnheader", name=text, exact=True)
        ascending = [
            named[row[first]] for row in sorted(rows, key=lambda row: values.index(row[key]))
        ]
        seen = []
        for _ in range(2):
            button.click()
            seen.append(column.get_attribute("aria-sort"))
            expect(heads).to_have_text(ascending if seen[-1] == "ascending" else ascending[::-1])
        assert sorted(map(str, seen)) == ["ascending", "descending"], text


# -- pages of lists ---------------------------------------------------------------------------

PAGES: dict[str, tuple[str, str, Callable[..., Values], str, str]] = {
    "bookies": ("bookies", "**/quire/bookies?**",
                lambda names: {"bookies": [bookie({"id": one, "state": "writable", "location": None,
                                                   "free_bytes": 1}) for one in names]},
                "", "Next page"),
    "ledgers": ("ledgers", "**/quire/ledgers?**",
                lambda names: {"looked_at": 1, "ledgers": [
                    ledger({"ledger_id": int(one), "state": "OPEN", "kind": "object", "length": 1,
                            "replicas": "complete", "last_entry_id": 1}) for one in names]},
                "Newest", "Older"),
    "streams": ("streams/%2Fx", "**/quire/streams?**",
                lambda names: {"streams": names, "topics": [], "unreadable": "", "statistics": {}},
                "First page", "Next page"),
    "objects": ("objects/x", "**/quire/objects?**",
                lambda names: {"unreadable": "", "objects": [
                    {"name": one, "bytes": 1, "ctime": None, "ledger_id": 7} for one in names]},
                "First page", "Next page"),
    "datasets": ("datasets", "**/quire/datasets?**",
                 lambda names: {"datasets": [{"name": one, "ledgers": 1, "rows": 1, "bytes": 1,
                                              "sequence": 1} for one in names]},
                 "First page", "Next page"),
    "dataset": ("dataset/d", "**/quire/dataset?**",
                lambda names: {"name": "d", "rows": 2, "bytes": 2, "ledgers": 2, "sequence": 1,
                               "part_count": 2, "columns": None, "partition_by": [],
                               "transactions": [], "transaction_count": 0, "parts": [
                    {"ledger_id": int(one), "first": 0, "last": 0, "rows": 1, "bytes": 1,
                     "partition": {}} for one in names]},
                "First page", "Next page"),
    "machines": ("machines", "**/quire/state_machines?**",
                 lambda names: {"unreadable": "", "state_machines": [
                    {"name": one, "stream": one, "namespace": "/x", "applied": 1, "bytes": 1,
                     "ctime": None} for one in names]},
                 "First page", "Next page"),
}  # fmt: skip


@pytest.mark.parametrize("name", long_after(2, PAGES))
def test_a_list_has_pages(tab: Tab, name: str) -> None:
    page = tab.page
    path, url, answer, back, on = PAGES[name]

    def fulfill(route: Route) -> None:
        found = re.search(r"[?&]after=(\d+)", route.request.url)
        body = answer(["2"]) | {"next": None} if found else answer(["1"]) | {"next": 1}
        assert not found or found[1] == "1"
        route.fulfill(content_type="application/json", body=json.dumps(body))

    page.route(url, fulfill)
    tab.open(path)
    head = page.locator("tbody th").first
    expect(head).to_have_text("1")
    page.get_by_role("link", name=on, exact=True).click()
    expect(head).to_have_text("2")
    expect(page.get_by_role("link", name=on, exact=True)).to_have_count(0)
    if back:
        page.get_by_role("link", name=back, exact=True).click()
    else:
        page.go_back()
    expect(head).to_have_text("1")


def test_an_unfinished_filter_can_be_continued(tab: Tab) -> None:
    """Each request looks at ledgers for a short time only, so a page may end before its last."""
    page, asked = tab.page, []

    def fulfill(route: Route) -> None:
        asked.append(route.request.url)
        # A refresh of the page may ask again for what it has: the number of requests says nothing.
        after = re.search(r"after=(\d+)", route.request.url)
        body = {"ledgers": [], "next": int(after[1]) + 1 if after else 1, "looked_at": 100}
        route.fulfill(content_type="application/json", body=json.dumps(body))

    page.route("**/quire/ledgers?**", fulfill)
    tab.open("ledgers?state=OPEN")
    expect(page.get_by_text("1,000 ledgers searched, as far as ledger 10.")).to_be_visible()
    page.get_by_role("link", name="Search further").click()
    page.wait_for_url(re.compile("after=10$"))
    expect(page.get_by_text("1,000 ledgers searched, as far as ledger 20.")).to_be_visible()
    assert any("after=10" in one for one in asked)


@pytest.mark.long
@pytest.mark.parametrize("tab", [PHONE], indirect=True, ids=["phone"])
def test_unknown_values_are_omitted_on_a_phone(tab: Tab) -> None:
    page = tab.page
    rows = [bookie({"id": "away", "state": "gone", "location": None, "free_bytes": None})]
    answers = {
        "bookies": {"bookies": rows, "next": None},
        "configuration": {"process": "p", "file": None, "keys": [
            {"key": "k", "meaning": "Set `--metadata` to it.", "unit": "", "changed": False,
             "applies": True, "environment": "", "value": "", "default": "", "origin": ""}]},
    }  # fmt: skip

    def fulfill(route: Route) -> None:
        name = re.search(r"quire/(bookies|configuration)", route.request.url)
        assert name is not None
        route.fulfill(content_type="application/json", body=json.dumps(answers[name[1]]))

    page.route(re.compile(r"/quire/(bookies\?|configuration)"), fulfill)
    tab.open("bookies")
    unknown = page.locator("tbody td.unknown")
    expect(unknown).to_have_count(7)  # all but the state
    expect(unknown.first).to_be_hidden()
    tab.open("configuration")
    expect(page.locator(".keys .meaning").first).to_have_text("Set --metadata to it.")
    expect(page.locator(".keys .meaning code").first).to_have_text("--metadata")


def test_the_reason_for_a_full_directory_has_readable_sizes(dashboard: Dashboard, tab: Tab) -> None:
    tab.open("")
    said = tab.page.evaluate(
        """async () => {
          const { localSizes } = await import("/ui/parts/format.js");
          return ["897024 bytes are free, less than 8388608", "7 bytes are free, and adds are taken again at 1000000",
            "7 bytes are free, less than 1000000, of which 4194304 are set aside for a job",
            "/data/12345678 cannot be used"].map(localSizes);
        }"""  # noqa: E501
    )
    assert said == ["897 kB are free, less than 8.4 MB",
                    "7 B are free, and adds are taken again at 1.0 MB",
                    "7 B are free, less than 1.0 MB, of which 4.2 MB are set aside for a job",
                    "/data/12345678 cannot be used"]  # fmt: skip


# -- filters and fields -----------------------------------------------------------------------


def test_bookies_are_filtered_by_state(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    rows: list[Values] = [
        {"id": "well", "state": "writable", "free_bytes": 900},
        {"id": "held", "state": "read-only", "free_bytes": 900, "severity": "warn"},
        {"id": "away", "state": "gone", "free_bytes": None, "severity": "note"},
        {"id": "full", "state": "writable", "free_bytes": 150, "fullness": "warn"},
        {"id": "mute", "state": "writable", "free_bytes": None, "answers": False,
         "severity": "bad"},
        {"id": "part", "state": "writable", "free_bytes": 900, "fullness": "warn", "disks": [
            {"directory": "/d0", "free_bytes": 895, "total_bytes": 900, "fullness": ""},
            {"directory": "/d1", "free_bytes": 5, "total_bytes": 100, "fullness": "warn"}]},
    ]  # fmt: skip
    body = json.dumps(
        {"bookies": [bookie({"location": None, **row}) for row in rows], "next": None}
    )
    page.route("**/quire/bookies?**",
               lambda route: route.fulfill(content_type="application/json", body=body))  # fmt: skip
    tab.open("bookies")
    for choice, found in (
        ("writable", ["mute", "full", "part", "well"]), ("read-only", ["held"]), ("gone", ["away"]),
        ("nearly full", ["full", "part"]), ("no answer", ["mute"]),
        ("any", ["mute", "held", "away", "full", "part", "well"]),
    ):  # fmt: skip
        page.get_by_label("State").select_option(label=choice)
        expect(page.locator("tbody th")).to_have_text(found)
    expect(page.locator("small.worst")).to_have_text("/d1: 95 % used")


def test_ledgers_are_filtered_by_their_replicas(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    tab.open("ledgers")
    page.get_by_text("Filters").click()
    for choice, some in (("complete", True), ("being repaired", False), ("any", True)):
        page.get_by_label("Replicas", exact=True).select_option(label=choice)
        page.get_by_role("button", name="Apply").click()
        shown = page.get_by_role("link", name=str(dashboard.ledger), exact=True)
        expect(shown).to_have_count(1 if some else 0)
        if not some:
            expect(page.get_by_text("No ledgers match the filters")).to_be_visible()


def test_all_keys_are_shown_after_the_changed_ones(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    tab.open("configuration")
    keys = page.locator(".keys")
    page.get_by_label("Changed").check()
    expect(keys).not_to_contain_text("client.long_poll_s")
    page.get_by_label("All", exact=True).check()
    expect(keys).to_contain_text("client.long_poll_s")


@pytest.mark.long
def test_the_size_of_a_page_of_entries_can_be_chosen(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    tab.open(f"ledger/{dashboard.ledger}/entries")
    items = page.locator(".item")
    expect(items).to_have_count(20)
    page.get_by_label("Entries", exact=True).select_option(label="50 on a page")
    with page.expect_request("**/entries") as asked:
        page.get_by_label("Bytes").select_option(label="1 kB of each")
        page.get_by_role("button", name="Show", exact=True).click()
    assert asked.value.post_data_json == {"limit": 50, "shown_bytes": 1024}
    expect(items).to_have_count(50)
    above = page.get_by_role("navigation", name="Pages of entries, above")
    above.get_by_role("link", name="Next").click()
    expect(line(page, "Entry 50")).to_be_visible()
    expect(items).to_have_count(50)  # the size stays from page to page
    above.get_by_role("link", name="First").click()
    expect(line(page, "Entry 0")).to_be_visible()


@pytest.mark.long
def test_the_parts_of_an_entry_can_be_paged_backward(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page

    def fulfill(route: Route) -> None:
        offset = (route.request.post_data_json or {}).get("offset", 0)
        body = {"ledger_id": 7, "entry_id": 1, "write_quorum": 1, "locked": None, "from": "b:1",
                "verified": True, "bytes": 200_000, "offset": offset, "shown_bytes": 65_536,
                "payload": "b2s=", "copies": [{"bookie": "b:1", "registered": "writable",
                                               "state": "good", "detail": "", "bytes": 200_000}],
                }  # fmt: skip
        route.fulfill(content_type="application/json", body=json.dumps(body))

    page.route("**/quire/ledgers/7/entries/1", fulfill)
    tab.open("ledger/7/entries/1?offset=131072")
    main = page.get_by_role("main")
    expect(main).to_contain_text("bytes 131,072 to 196,607")
    page.get_by_role("link", name="Previous part").click()
    expect(main).to_contain_text("bytes 65,536 to 131,071")
    page.get_by_role("link", name="Previous part").click()
    expect(main).to_contain_text("bytes 0 to 65,535")
    expect(page.get_by_role("link", name="Previous part")).to_have_count(0)


@pytest.mark.long
def test_the_oldest_and_the_newest_records_can_be_selected(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    tab.open(f"stream/%2Fteam/{STREAM}")
    page.locator(".timeline li a").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Ledger ")
    page.go_back()
    page.get_by_role("link", name="Records", exact=True).click()
    above = page.get_by_role("navigation", name="Pages of records, above")
    first = page.locator(".line .line-position").first
    expect(first).to_have_text("Position 1:0:0")
    expect(page.get_by_text("20 records, the oldest first")).to_be_visible()
    above.get_by_role("link", name="Newest").click()
    expect(first).to_have_text(f"Position 1:{RECORDS - 1}:0")
    expect(page.get_by_text("20 records, the newest first")).to_be_visible()
    above.get_by_role("link", name="Older").click()
    expect(first).to_have_text("Position 1:19:0")  # still the newest first
    above.get_by_role("link", name="Newer").click()
    expect(first).to_have_text(f"Position 1:{RECORDS - 1}:0")
    above.get_by_role("link", name="Oldest").click()
    expect(first).to_have_text("Position 1:0:0")
    page.get_by_role("link", name="Segments and lag").click()
    heading(page, f"Stream {STREAM}")


# -- the same on all pages --------------------------------------------------------------------


def test_each_menu_entry_and_the_brand_lead_to_their_page(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    tab.open("")
    menu = page.get_by_role("navigation", name="Pages")
    names = menu.get_by_role("link").all_inner_texts()
    assert len(names) == 10
    for name in [*names[1:], names[0]]:
        menu.get_by_role("link", name=name, exact=True).click()
        heading(page, name)
        expect(page.locator("main [aria-busy=false]")).to_be_attached()
        expect(menu.locator("[aria-current]")).to_have_text([name])
        expect(page.get_by_role("alert")).to_be_empty()
    page.get_by_role("link", name="Topology").click()
    page.get_by_role("link", name="Quire", exact=True).click()
    heading(page, "Overview")


@pytest.mark.parametrize("tab", [PHONE], indirect=True, ids=["phone"])
def test_the_menu_of_a_phone_is_closed_by_its_button(dashboard: Dashboard, tab: Tab) -> None:
    tab.open("")
    menu = tab.page.get_by_role("button", name="Pages")
    menu.click()
    expect(tab.page.get_by_role("navigation", name="Pages")).to_be_visible()
    menu.click()
    expect(tab.page.get_by_role("navigation", name="Pages")).to_be_hidden()


@pytest.mark.long
def test_breadcrumb_links_lead_to_the_parent_pages(dashboard: Dashboard, tab: Tab) -> None:
    page, one = tab.page, dashboard.cluster.bookies[0].id
    for path, above in (
        (f"bookie/{one}", ["Bookies"]),
        (f"configuration/{one}", ["Bookies", f"Bookie {one}"]),
        (f"ledger/{dashboard.ledger}/entries/3",
         ["Ledgers", f"Ledger {dashboard.ledger}", "Entries from 3 on"]),
        (f"stream/%2Fteam/{STREAM}", ["Namespaces", "Streams of /team"]),
        ("objects/default", ["Buckets"]),
        ("object/default/o", ["Buckets", "Bucket default"]),
        ("dataset/d", ["Datasets"]), ("machine/m", ["State machines"]),
    ):  # fmt: skip
        for name in above:
            tab.go(path)
            crumbs = page.get_by_role("navigation", name="Above")
            expect(crumbs.get_by_role("link")).to_have_text(above)
            crumbs.get_by_role("link", name=name).click()
            expected = {"Namespaces": "Streams", "Buckets": "Objects",
                        "Bucket default": "Objects of bucket default",
                        "Entries from 3 on": f"Entries of ledger {dashboard.ledger}"}  # fmt: skip
            heading(page, expected.get(name, name))
    tab.seen.errors.clear()  # there is no such object, dataset or state machine


@pytest.mark.long
def test_pages_link_to_each_other(dashboard: Dashboard, tab: Tab) -> None:
    page, one = tab.page, dashboard.cluster.bookies[0].id
    for path, where, name, expected in (
        ("", ".disks", one, f"Bookie {one}"),
        ("", "main", "All bookies", "Bookies"),
        ("", "main", "Repair and jobs", "Repair and jobs"),
        (f"bookie/{one}", "main", "rack0", "Topology"),
        (
            f"bookie/{one}",
            "main",
            "Keys and where their values come from",
            f"Configuration of {one}",
        ),
        (f"ledger/{dashboard.ledger}", ".drawing", one, f"Bookie {one}"),
        (f"ledger/{dashboard.ledger}/entries", "main", "Replicas", f"Ledger {dashboard.ledger}"),
    ):
        tab.go(path)
        page.locator(where).get_by_role("link", name=name, exact=True).first.click()
        heading(page, expected)


def test_the_colours_can_be_reset_to_the_system(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    tab.open("")
    button = page.get_by_role("button", name="Colours")
    for name, words in (("light", "light"), ("dark", "dark"), (None, "system colours")):
        button.focus()
        page.keyboard.press("Enter")
        expect(button).to_have_accessible_name(f"Colours: {words}. Press to change")
        assert page.evaluate("document.documentElement.dataset.theme ?? null") == name


def test_a_command_on_a_page_is_copied_with_the_keyboard(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.open("work")
    page.get_by_role("button", name="Copy the command quire autorecovery start").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "quire autorecovery start"


@pytest.mark.long
def test_a_refresh_keeps_selected_text_and_scroll_positions(dashboard: Dashboard, tab: Tab) -> None:
    """A page does not replace what somebody is about to copy, or has scrolled to."""
    page, adds = tab.page, [1.0]

    def fulfill(route: Route) -> None:
        adds[0] += 1
        row = {"id": "b" * 300, "state": "writable", "location": None, "free_bytes": 900,
               "adds_per_s": adds[0]}  # fmt: skip
        body = json.dumps({"bookies": [bookie(row)], "next": None})
        route.fulfill(content_type="application/json", body=body)

    page.route("**/quire/bookies?**", fulfill)
    page.set_viewport_size({"width": 800, "height": 700})
    tab.open("bookies")
    scroll = page.locator("main .scroll")
    assert scroll.evaluate("one => { one.scrollLeft = 40; return one.scrollLeft; }") == 40
    cell = page.locator("tbody td", has_text="/s").first
    expect(cell).to_contain_text(f"{adds[0] + 1:.1f}/s")
    assert scroll.evaluate("one => one.scrollLeft") == 40
    before = cell.inner_text()
    cell.evaluate("one => getSelection().selectAllChildren(one)")
    with page.expect_response("**/quire/bookies?**"):
        pass
    expect(page.locator("#freshness")).to_have_text(re.compile(r"^As of \d\d:\d\d:\d\d \S+$"))
    assert cell.inner_text() == before
    page.evaluate("getSelection().removeAllRanges()")
    expect(cell).not_to_have_text(before)
    page.set_viewport_size({"width": 1280, "height": 720})


def test_a_hidden_tab_sends_no_requests_and_refreshes_when_shown(
    dashboard: Dashboard, lone_tab: Tab
) -> None:
    page, asked = lone_tab.page, []
    page.clock.install()
    lone_tab.open("")
    page.on("request", lambda one: asked.append(one.url) if "overview" in one.url else None)
    hide = """(hidden) => {
      Object.defineProperty(document, "hidden", { configurable: true, value: hidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    page.clock.run_for(4_000)  # the refresh that was due already
    page.wait_for_load_state("networkidle")
    before = len(asked)
    page.clock.run_for(60_000)
    assert len(asked) == before
    with page.expect_request("**/quire/overview"):
        page.evaluate(hide, False)


def answer_series(page: Page, newest: Callable[[], float]) -> None:
    """Answer requests for series with three values each, of which the last is `newest()`."""

    def fulfill(route: Route) -> None:
        values = {name: [1.0, 2.0, newest()] for name in ("adds_per_s", "reads_per_s")}
        body = {"source": "memory", "bookie": None, "range_s": 900, "to_s": 1780000900,
                "ranges_s": [900, 3600], "first_s": 1780000100, "step_s": 400,
                "series": values}  # fmt: skip
        route.fulfill(content_type="application/json", body=json.dumps(body))

    page.route("**/quire/series?**", fulfill)


@pytest.mark.long
def test_the_cursor_of_a_chart_moves_with_every_key(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    answer_series(page, lambda: 3.0)
    tab.open("")
    figure = page.get_by_role("group", name="Adds and reads per second")
    expect(figure.locator("canvas")).to_be_visible()
    figure.get_by_role("img").focus()
    shown = figure.locator(".legend .value").first
    for key, value in (("Home", "1.0/s"), ("End", "3.0/s"), ("ArrowLeft", "2.0/s"),
                       ("ArrowLeft", "1.0/s"), ("ArrowRight", "2.0/s"), ("Escape", "3.0/s"),
                       ):  # fmt: skip
        page.keyboard.press(key)
        expect(shown).to_have_text(value)
    expect(figure.locator(".legend .at")).to_have_text("now")
    page.keyboard.press("Home")
    page.keyboard.press("Tab")
    expect(shown).to_have_text("3.0/s")  # the cursor goes with the focus
    line = figure.get_by_role("button", name="adds")
    for pressed in ("false", "true"):
        line.click()
        expect(line).to_have_attribute("aria-pressed", pressed)


@pytest.mark.long
def test_a_refresh_keeps_the_cursor_of_the_keyboard(dashboard: Dashboard, tab: Tab) -> None:
    page, latest = tab.page, [3.0]

    def newest() -> float:
        latest[0] += 1
        return latest[0]

    answer_series(page, newest)
    tab.open("")
    figure = page.get_by_role("group", name="Adds and reads per second")
    expect(figure.locator("canvas")).to_be_visible()
    plot = figure.get_by_role("img")
    plot.focus()
    page.keyboard.press("Home")
    before = plot.get_attribute("aria-label") or ""
    expect(plot).not_to_have_attribute("aria-label", before)  # the page was refreshed
    expect(plot).to_be_focused()
    assert figure.locator(".legend .value").first.inner_text() == "1.0/s"


# -- what changes something -------------------------------------------------------------------


@pytest.fixture
def stranger(dashboard: Dashboard, windows: Windows) -> Iterator[Page]:
    """A page that does not know the token."""
    with windows.tab(dashboard.url) as opened:
        yield opened.page
        opened.seen.errors.clear()  # the browser names the refused requests


def test_the_token_is_entered_at_the_top_of_a_page(dashboard: Dashboard, stranger: Page) -> None:
    stranger.goto(f"{dashboard.url}/#/bookies")
    button = stranger.get_by_role("banner").get_by_role("button", name="Enter the token")
    dialog = stranger.get_by_role("dialog")
    for end in ("Cancel", "Escape"):
        button.click()
        expect(dialog).to_be_visible()
        if end == "Cancel":
            dialog.get_by_role("button", name="Cancel").click()
        else:
            stranger.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(button).to_be_focused()
        assert stranger.evaluate("sessionStorage.getItem('quire.token')") is None
    button.click()
    dialog.get_by_label("Token").fill(TOKEN)
    dialog.get_by_role("button", name="Use this token").click()
    expect(button).to_have_count(0)
    assert stranger.evaluate("sessionStorage.getItem('quire.token')") == TOKEN


def test_a_running_job_is_paused_and_resumed(dashboard: Dashboard, tab: Tab) -> None:
    """The job is one of another process, which runs until the test ends it.

    A job of the dashboard's server would end as soon as it has copied what it can.
    """
    page, leaving = tab.page, dashboard.cluster.bookies[1].id
    name, uri = f"decommission {leaving}", dashboard.cluster.uri
    paused: list[tuple[str, str]] = []

    def far() -> JobStatus:
        return JobStatus("copying", 4, 1, 4000, 1000, bool(paused))

    def stored() -> list[tuple[str, str]]:
        found = dashboard.get("/api/v1/quire/paused")[1]["paused"]
        return [(one["kind"], one["target"]) for one in found]

    with told(uri, ClientConfig(), "decommission", leaving, far):
        tab.open("work")
        jobs = page.get_by_role("region", name="As these processes report them")
        row = jobs.get_by_role("row").filter(has_text=name)
        row.get_by_role("button", name=f"Pause {name}").click()
        wait_for(lambda: stored() == [("decommission", leaving)], "it is paused")
        paused += stored()
        expect(row).to_contain_text("! paused")
        row.get_by_role("button", name=f"Resume {name}").click()
        wait_for(lambda: stored() == [], "it is resumed")
        paused.clear()
        expect(row.get_by_role("button", name=f"Pause {name}")).to_be_visible()


def test_a_paused_job_is_cancelled_after_a_question(
    dashboard: Dashboard, tab: Tab, healed: None
) -> None:
    """The job is paused before it begins, so that it does not end while the test looks at it."""
    page, leaving = tab.page, dashboard.cluster.bookies[1].id
    name, named = f"decommission {leaving}", {"kind": "decommission", "target": leaving}
    dashboard.put("/api/v1/quire/pause", named)
    job = dashboard.put(
        "/api/v1/autorecovery/decommission", {"bookie_src": leaving, "check": False}
    )
    tab.open("work")
    row = page.get_by_role("region", name="Newest first").get_by_role("row")
    row = row.filter(has_text=f"{job['id']}: {name}")
    expect(row).to_contain_text("! paused")
    expect(row.get_by_role("button", name=f"Resume {name}")).to_be_visible()
    row.get_by_role("button", name=f"Cancel job {job['id']}").click()
    tab.answer("Cancel")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(row).to_contain_text("! paused")
    row.get_by_role("button", name=f"Cancel job {job['id']}").click()
    tab.answer("Cancel the job")
    expect(row).to_contain_text("cancelled")


def test_an_incomplete_job_says_how_many_ledgers_are_left_and_why(tab: Tab) -> None:
    """It was "done, 100 %": whoever then stopped the bookie lost replicas."""
    page = tab.page
    ended: Values = {
        "state": "incomplete", "paused": None, "step": "replicating", "ledgers": 0,
        "ledgers_done": 0, "bytes": 10, "bytes_done": 10, "started_ms": 1780000000000,
        "ended_ms": 1780000009000, "result": {}, "error": None, "advice": "",
        "bytes_per_s": None, "ledgers_per_s": None, "left_s": None,
    }  # fmt: skip
    jobs = [
        {**ended, "id": 2, "kind": "rebalance", "target": "cluster", "remaining": {
            "counts": "replicas", "done": 3, "left": 1, "reasons": ["ledger 9: it is locked"],
            "remedy": "Start the job again."}},
        {**ended, "id": 1, "kind": "decommission", "target": "b:1", "remaining": {
            "counts": "ledgers", "done": 1, "left": 3, "reasons": ["ledgers 7, 8: <i>no</i> room"],
            "remedy": "Add a bookie. Then run `quire bookie decommission b:1`."}},
    ]  # fmt: skip

    def fulfill(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "jobs": jobs})

    page.route("**/quire/work", fulfill)
    tab.open("work")
    rows = page.get_by_role("region", name="Newest first").get_by_role("row")
    row = rows.filter(has_text="decommission b:1")
    expect(row).to_contain_text("! incomplete")
    expect(row.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "25")
    for text in ("1 of 4 ledgers", "3 ledgers are left.", "ledgers 7, 8: <i>no</i> room",
                 "took 9 s"):  # fmt: skip
        expect(row).to_contain_text(text)
    expect(row.locator("code")).to_have_text("quire bookie decommission b:1")
    expect(rows.filter(has_text="rebalance cluster")).to_contain_text("1 replica is left.")
    tab.check("work with incomplete jobs")
    tab.picture("work-incomplete")
