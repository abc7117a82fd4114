"""The pages about bookies: the list, one bookie and its actions, the topology, configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from quire.blocking import connect
from quire.http.routes.dashboard import KEPT
from quire.testing.cluster import LocalCluster
from tests.support.long import long_after
from tests.support.processes.cli import Quire
from tests.support.processes.http import TOKEN
from tests.support.ui.browser import expect
from tests.support.ui.dashboard import Dashboard, Tab, Windows
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True}


@pytest.fixture
def bookie(dashboard: Dashboard) -> str:
    return str(dashboard.cluster.bookies[2].id)


def said(dashboard: Dashboard, bookie: str) -> Any:
    status, found = dashboard.get(f"/api/v1/quire/bookies/{bookie}")
    assert status == 200, found
    return found


def tile(page: Page, name: str) -> Locator:
    return page.locator(".tile").filter(has=page.get_by_text(name, exact=True))


def rows(page: Page, region: str) -> Locator:
    return page.get_by_role("region", name=region).locator("tbody tr")


@pytest.fixture(scope="module")
def roomy() -> Iterator[Dashboard]:
    """Four bookies with ledgers on three of them each, so that one bookie can be emptied."""
    arguments = ("--http", "127.0.0.1:0", "--set", "min_free_bytes=0")
    with (
        LocalCluster(4, bookie_args=arguments, http_token=TOKEN) as cluster,
        Quire(cluster.uri).start("ui", "--http", "127.0.0.1:0", *cluster.token_arguments) as server,
    ):
        with connect(cluster.uri) as client:
            for _ in range(4):
                with client.create_ledger() as writer:
                    writer.append_many([b"entry"] * 100)
        yield Dashboard(cluster, server, server.line())


@pytest.fixture
def roomy_tab(roomy: Dashboard, windows: Windows) -> Iterator[Tab]:
    """Yield a tab that knows the token. An error on its pages fails the test."""
    with windows.tab(roomy.url, token=TOKEN) as opened:
        yield opened


# -- the list ---------------------------------------------------------------------------------


def test_the_list_of_bookies_is_filtered(dashboard: Dashboard, tab: Tab) -> None:
    page, one = tab.page, dashboard.cluster.bookies[1]
    tab.open("bookies")
    everything = page.locator("tbody tr")
    expect(everything).to_have_count(4)
    page.get_by_label("Part of an id, host or rack").fill(str(one.port))
    expect(everything).to_have_count(1)
    expect(everything).to_contain_text(one.id)
    expect(page.get_by_text("1 of 4 bookies")).to_be_visible()
    page.get_by_label("Part of an id, host or rack").fill("/rack1")
    expect(everything).to_have_count(2)
    page.get_by_label("State").select_option("read-only")
    expect(page.get_by_text("No bookie matches the filter")).to_be_visible()
    page.get_by_label("State").select_option("writable")
    expect(everything).to_have_count(2)
    # The filter stays when the page refreshes, and the field keeps the focus.
    page.get_by_label("Part of an id, host or rack").focus()
    with page.expect_response("**/api/v1/quire/bookies?**"):
        pass
    expect(everything).to_have_count(2)
    expect(page.get_by_label("Part of an id, host or rack")).to_be_focused()


def test_the_list_is_sorted_with_the_keyboard(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    tab.open("bookies")
    heads = page.locator("tbody th")
    expect(heads).to_have_count(4)
    column = page.get_by_role("columnheader", name="Bookie", exact=True)
    button = page.get_by_role("button", name="Bookie", exact=True)
    button.focus()
    page.keyboard.press("Enter")
    expect(column).to_have_attribute("aria-sort", "ascending")
    before = heads.all_inner_texts()
    page.keyboard.press("Enter")
    expect(heads.first).to_have_text(before[-1])
    assert heads.all_inner_texts() == before[::-1]
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    expect(heads.first).to_have_text(before[0])


def test_the_list_sends_the_query_that_the_server_caches(dashboard: Dashboard, tab: Tab) -> None:
    """The server has a last known state only for this query."""
    with tab.page.expect_request("**/quire/bookies?**") as asked:
        tab.open("bookies")
    query = {name: json.loads(value) for name, value in parse_qsl(urlsplit(asked.value.url).query)}
    assert query == KEPT["/api/v1/quire/bookies"]


@pytest.mark.parametrize("tab", [PHONE], indirect=True, ids=["phone"])
@pytest.mark.parametrize(
    "path", long_after(1, ["bookies", "topology", "configuration", "work", "bookie"])
)
def test_no_content_is_cut_off_on_a_phone(
    dashboard: Dashboard, tab: Tab, path: str, bookie: str
) -> None:
    page = tab.page
    tab.open(f"bookie/{bookie}" if path == "bookie" else path)
    cut = page.evaluate(
        """() => [...document.querySelectorAll("main *")].filter((one) => {
          const { left, right, width } = one.getBoundingClientRect();
          const hidden = one.closest(".hidden-text, caption, thead");
          return width && !hidden && (right > innerWidth + 1 || left < -1);
        }).map((one) => one.outerHTML.slice(0, 100))"""
    )
    assert not cut
    scrolls = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > "
        "one.clientWidth + 1).map(one => one.getAttribute('aria-label'))"
    )
    assert not scrolls


# -- one bookie -------------------------------------------------------------------------------


def test_the_programs_that_suspect_a_bookie_are_listed(
    dashboard: Dashboard, windows: Windows, bookie: str
) -> None:
    known = {
        "own": {"reasons": ["slow"], "wrong_answers": {}}, "prometheus": True, "missing": None,
        "clients": [{"instance": "app-1:9000", "job": "apps", "reasons": ["wrong-answers"],
                     "wrong_answers": {"dropped": 3}}],
    }  # fmt: skip
    with windows.tab(dashboard.url, token=TOKEN, **PHONE) as tab:
        tab.page.route("**/clients", lambda one: one.fulfill(json=known))
        tab.open(f"bookie/{bookie}")
        tab.check("bookie")
        (own, app) = (
            tab.page.get_by_role("row").filter(has_text=name)
            for name in ("this server", "app-1:9000")
        )
        expect(own).to_contain_text("! slow")
        expect(app).to_contain_text("✗ quarantine: wrong answers")
        expect(app).to_contain_text("acknowledged entry denied: 3")
        expect(tab.page.get_by_text("2 programs, see above")).to_be_visible()
        cut = app.locator(".mark").evaluate("one => one.getBoundingClientRect().right > innerWidth")
        assert not cut
        nothing = {"reasons": [], "wrong_answers": {}}
        missing = {"what": "Prometheus at x cannot be read", "next": "Check that it runs"}
        known.update(own=nothing, clients=[], missing=missing)
        tab.open("bookies")
        tab.open(f"bookie/{bookie}")
        expect(tab.page.get_by_text("! Prometheus at x cannot be read")).to_be_visible()
        expect(tab.page.get_by_role("heading", name="Programs that suspect it")).to_have_count(0)


def test_a_bookie_is_reached_from_the_list(dashboard: Dashboard, tab: Tab, bookie: str) -> None:
    page = tab.page
    tab.open("bookies")
    page.get_by_role("link", name=bookie).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Bookie {bookie}")
    expect(page.locator("#pages a[aria-current]")).to_have_text("Bookies")
    own = dashboard.cluster.bookies[2]
    card = page.get_by_label(f"Directory {own.directory}")
    expect(card).to_contain_text("✓ writable")
    expect(card.get_by_role("meter")).to_have_attribute("aria-valuetext", re.compile(r"free of"))
    expect(card.get_by_role("row").filter(has_text="adds go to it")).to_be_visible()
    expect(tile(page, "State")).to_contain_text("writable")
    expect(page.get_by_text("Python 3.")).to_be_visible()


def test_the_ledgers_of_a_bookie_are_listed(dashboard: Dashboard, tab: Tab, bookie: str) -> None:
    page = tab.page
    tab.open(f"bookie/{bookie}")
    listed = page.get_by_role("region", name=re.compile(r"^Newest first"))
    row = listed.get_by_role("row").filter(
        has=page.get_by_role("link", name=str(dashboard.ledger), exact=True)
    )
    expect(row).to_contain_text("closed")
    expect(row).to_contain_text("0 to 99")
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Ledger {dashboard.ledger}")


def test_a_ledger_without_entries_is_shown_as_empty(
    dashboard: Dashboard, tab: Tab, bookie: str
) -> None:
    def without_entries(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        segment = {"first_entry_id": 0, "last_entry_id": -1, "bookies": [bookie]}
        found["ledgers"][0] |= {"state": "CLOSED", "segments": [segment]}
        route.fulfill(response=answer, json=found)

    tab.page.route(re.compile(r"/bookies/[^/]+/ledgers"), without_entries)
    tab.open(f"bookie/{bookie}")
    listed = tab.page.get_by_role("region", name=re.compile(r"^Newest first"))
    expect(listed.get_by_role("row").nth(1)).to_contain_text("none")


def test_the_ledgers_of_a_bookie_are_paged(dashboard: Dashboard, tab: Tab, bookie: str) -> None:
    page = tab.page
    count = said(dashboard, bookie)["ledgers"]["count"]
    assert count >= 3
    tab.open(f"bookie/{bookie}?after={dashboard.ledger + 1}")
    listed = page.get_by_role("region", name=re.compile(r"^Newest first"))
    expect(listed.get_by_role("link", name=str(dashboard.ledger), exact=True)).to_be_visible()
    expect(listed.get_by_role("link", name=str(dashboard.ledger + 1), exact=True)).to_have_count(0)
    page.get_by_role("link", name="First page").click()
    expect(listed.get_by_role("link", name=str(dashboard.ledger + 1), exact=True)).to_be_visible()


def test_a_bookie_is_made_read_only_and_writable(
    dashboard: Dashboard, tab: Tab, bookie: str
) -> None:
    page = tab.page
    tab.open(f"bookie/{bookie}")
    expect(page.get_by_role("button", name=f"Make writable {bookie}", exact=True)).to_be_disabled()
    # A question that is given up changes nothing.
    page.get_by_role("button", name=f"Make read-only {bookie}", exact=True).click()
    tab.answer("Cancel")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert said(dashboard, bookie)["bookie"]["state"] == "writable"
    page.get_by_role("button", name=f"Make read-only {bookie}", exact=True).click()
    tab.answer("Make it read-only")
    expect(tile(page, "State")).to_contain_text("read-only")
    expect(page.locator(".problems")).to_contain_text("read-only because an operator holds it")
    tab.picture("bookie-read-only")
    page.get_by_role("button", name=f"Make writable {bookie}", exact=True).click()
    tab.answer("Make it writable")
    expect(tile(page, "State")).to_contain_text("writable")
    expect(page.get_by_role("alert")).to_be_empty()


def test_a_bookie_is_decommissioned_with_the_keyboard_and_taken_back(
    roomy: Dashboard, roomy_tab: Tab
) -> None:
    tab, bookie = roomy_tab, roomy.cluster.bookies[2].id
    page, run = tab.page, Quire(roomy.cluster.uri)
    run("cluster", "pause", "decommission", bookie).ok()
    tab.open(f"bookie/{bookie}")
    page.get_by_role("button", name=f"Decommission {bookie}", exact=True).focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Remove {bookie} permanently?")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    jobs = page.get_by_role("region", name="Jobs of this server, newest first")
    row = jobs.get_by_role("row").filter(has_text=f"decommission {bookie}").first
    expect(row).to_contain_text("paused")
    expect(row.get_by_role("progressbar")).to_be_visible()
    expect(page.get_by_text("that this bookie be emptied")).to_be_visible()
    tab.picture("bookie-decommission")
    row.get_by_role("button", name="Cancel job").click()
    tab.answer("Cancel the job")
    expect(row).to_contain_text("cancelled")
    page.get_by_role("button", name=f"Stop decommissioning {bookie}", exact=True).click()
    tab.answer("Stop decommissioning")
    expect(tile(page, "State")).to_contain_text("writable")
    page.get_by_role("button", name=f"Resume decommission {bookie}", exact=True).first.click()
    expect(page.get_by_role("region", name="Paused until somebody resumes them")).to_have_count(0)
    assert roomy.get("/api/v1/quire/paused")[1] == {"paused": []}


def test_a_lost_bookie_is_recovered(roomy: Dashboard, roomy_tab: Tab) -> None:
    tab, lost = roomy_tab, roomy.cluster.bookies[3]
    page = tab.page
    lost.kill()
    wait_for(lambda: said(roomy, lost.id)["bookie"]["state"] == "gone", "it is gone")
    tab.open("bookies")
    expect(page.locator("tbody th").first, "the worst bookie is the first").to_have_text(lost.id)
    tab.go(f"bookie/{lost.id}")
    expect(page.locator(".problems > .bad")).to_contain_text("is gone")
    names = page.locator(".tile dt")
    expect(names, "what it did is not known").to_have_text(["State", "Ledgers that use it"])
    expect(page.get_by_role("heading", name="Over time")).to_be_visible()  # It comes last.
    order = page.locator("main h2").all_inner_texts()
    assert order.index("What is wrong") < order.index("Actions") < order.index("Over time")
    expect(
        page.get_by_role("button", name=f"Make read-only {lost.id}", exact=True)
    ).to_be_disabled()
    expect(page.get_by_text("Directories, segments and the reason").first).to_be_visible()
    page.get_by_role("button", name=f"Recover {lost.id}", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text(
        f"Copy the ledgers of {lost.id} to other bookies?"
    )
    tab.answer("Recover the bookie")
    jobs = page.get_by_role("region", name="Jobs of this server, newest first")
    row = jobs.get_by_role("row").filter(has_text=f"recover {lost.id}").first
    expect(row).to_contain_text("✓ done")
    tab.picture("bookie-gone")
    lost.start()
    expect(tile(page, "State")).to_contain_text("writable")


def test_an_unknown_bookie_is_reported(dashboard: Dashboard, tab: Tab) -> None:
    tab.open("bookie/10.0.0.1%3A3181")
    expect(tab.page.get_by_role("alert")).to_contain_text("The cluster knows no bookie")
    tab.go("bookie/a%20b")
    expect(tab.page.get_by_role("alert")).not_to_be_empty()
    tab.seen.errors.clear()


@pytest.fixture(scope="module")
def silent() -> Iterator[Dashboard]:
    """A cluster of one bookie without an HTTP server."""
    with (
        LocalCluster(1, bookie_args=("--set", "min_free_bytes=0")) as cluster,
        Quire(cluster.uri).start("ui", "--http", "127.0.0.1:0") as server,
    ):
        yield Dashboard(cluster, server, server.line())


def test_the_page_of_a_bookie_without_http_names_the_missing_option(
    silent: Dashboard, browser: Browser
) -> None:
    (one,) = silent.cluster.bookies
    page = browser.new_page()
    page.goto(f"{silent.url}/#/bookie/{one.id}")
    missing = page.locator(".alert").filter(has_text="It has no HTTP server that could report")
    expect(missing).to_contain_text("Start it with --http HOST:PORT")
    expect(page.get_by_role("button", name=f"Make read-only {one.id}", exact=True)).to_be_disabled()
    page.close()


# -- topology and configuration ---------------------------------------------------------------


def test_the_topology_page_shows_racks_and_warnings(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    tab.open("topology")
    for at in range(2):
        rack = page.get_by_label(f"Rack /rack{at}")
        expect(rack.get_by_role("link")).to_have_count(2)
        expect(rack.get_by_role("link").first).to_contain_text("writable")
        expect(rack).to_contain_text("2 of 2 bookies writable")
    expect(page.get_by_text("If it is lost, 2 are left")).to_have_count(2)
    page.get_by_label("Rack /rack0").get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Bookie ")


def test_the_configuration_is_searched(dashboard: Dashboard, tab: Tab, bookie: str) -> None:
    page = tab.page
    tab.open("configuration")
    expect(page.get_by_role("heading", name=re.compile(r"^Keys of "))).to_be_visible()
    listed = page.locator(".keys tbody tr")
    page.get_by_label("Part of a name, value or meaning").fill("long_poll")
    expect(listed).to_have_count(1)
    expect(listed).to_contain_text("client.long_poll_s")
    page.get_by_label("Part of a name, value or meaning").fill("")
    page.get_by_label("Changed").check()
    expect(page.locator(".keys")).to_contain_text("http.address")
    expect(page.locator(".keys")).to_contain_text("--http")
    expect(page.locator(".keys")).not_to_contain_text("client.long_poll_s")
    page.get_by_label("Table", exact=True).select_option("client")
    expect(page.get_by_text("No key matches the filter")).to_be_visible()
    page.get_by_label("Table", exact=True).select_option("")
    page.get_by_label("Process", exact=True).select_option(bookie)
    expect(page.get_by_role("heading", name=f"Keys of {bookie}")).to_be_visible()
    row = page.locator(".keys tbody tr").filter(has_text="bookie.min_free_bytes")
    expect(row).to_contain_text("--set min_free_bytes=0")
    expect(row).to_contain_text("changed")


def test_the_settings_of_the_cluster_are_shown(dashboard: Dashboard, tab: Tab) -> None:
    run, page = Quire(dashboard.cluster.uri), tab.page
    run("autorecovery", "delay", "15m").ok()
    try:
        tab.open("configuration")
        page.get_by_label("Part of a name, value or meaning").fill("lost bookie delay")
        there = "1 setting in the tab “Settings of the cluster” matches the filter."
        expect(page.get_by_text(there)).to_be_visible()
        page.get_by_role("tab", name="Settings of the cluster").click()
        row = page.get_by_role("row").filter(has_text="lost bookie delay")
        expect(row).to_contain_text("900 seconds")
        expect(row).to_contain_text("quire autorecovery delay SECONDS")
        page.get_by_label("Changed").check()
        expect(row).to_be_visible()
        expect(page.get_by_role("row").filter(has_text="instance id")).to_have_count(0)
    finally:
        run("autorecovery", "delay", "0").ok()
