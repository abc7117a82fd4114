"""A fact is said in the same way on every page, and says what to do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.ui.browser import expect
from tests.support.ui.dashboard import TEAM, Dashboard, Tab

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


def changed(page: Page, path: str | re.Pattern[str], change: Callable[[Any], None]) -> None:
    """Change the answers of a route of the server before the page gets them."""

    def fulfill(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        change(found)
        route.fulfill(response=answer, json=found)

    page.route(path, fulfill)


@pytest.mark.long
def test_a_bookie_without_an_answer_is_not_counted_as_writable(
    dashboard: Dashboard, tab: Tab
) -> None:
    """The number in red once said that all were writable."""
    page = tab.page
    silent = dashboard.cluster.bookies[1].id

    def of_overview(found: Any) -> None:
        found |= {"silent_bookies": 1, "silent_writable": 1, "away_severity": "bad"}

    def of_list(found: Any) -> None:
        one = next(one for one in found["bookies"] if one["id"] == silent)
        one |= {"answers": False, "severity": "bad"}

    changed(page, "**/quire/overview", of_overview)
    changed(page, "**/quire/bookies?**", of_list)
    for path, name in (("", "Writable bookies"), ("bookies", "Writable")):
        tab.open(path)
        title = page.locator("dt").get_by_text(name, exact=True)
        tile = page.locator(".tile").filter(has=title)
        expect(tile.locator(".figure")).to_have_text("3 of 4")
        expect(tile).to_contain_text("1 does not answer")
        expect(tile).to_have_class("tile bad")
        page.unroute_all()
        tab.open(path)
        expect(tile.locator(".figure")).to_have_text("4 of 4")
        expect(tile).to_have_class("tile")
        changed(page, "**/quire/bookies?**", of_list)


@pytest.mark.long
def test_the_page_of_repairs_and_jobs_names_absent_bookies(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    first, second = (one.id for one in dashboard.cluster.bookies[:2])
    tab.open("work")
    expect(page.get_by_role("heading", name="Jobs of this server")).to_be_visible()
    expect(page.locator("main .alert.warn")).to_have_count(0)
    away = [{"id": first, "state": "gone", "severity": "note"},
            {"id": second, "state": "writable", "severity": "warn"}]  # fmt: skip
    changed(page, "**/quire/work", lambda found: found.update(bookies_away=away))
    tab.open("work")
    alert = page.locator("main .alert.warn")
    expect(alert).to_contain_text(f"! Bookie {second} does not answer.")
    expect(alert).to_contain_text(f"! Bookie {first} is gone.")
    expect(alert.get_by_role("link", name=first)).to_have_attribute(
        "href", re.compile("^#/bookie/")
    )
    tab.check("work")
    alert.get_by_role("link", name="see the overview").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


@pytest.mark.long
@pytest.mark.parametrize(("severity", "shown"), [("note", "gone"), ("bad", "✗ gone")])
def test_a_lost_bookie_has_the_colour_of_its_problem(
    dashboard: Dashboard, tab: Tab, severity: str, shown: str
) -> None:
    """The bookie was once grey, amber and red at the same time."""
    page, lost = tab.page, dashboard.cluster.bookies[1].id
    gone = {"state": "gone", "severity": severity, "answers": None}

    def lose(found: Any) -> None:
        for one in _bookies(found):
            if one["id"] == lost:
                one.update(gone)

    def of_overview(found: Any) -> None:
        found["bookies"] |= {"writable": 3, "gone": 1}
        found["away_severity"] = severity

    def of_work(found: Any) -> None:
        found["bookies_away"] = [{"id": lost, "state": "gone", "severity": severity}]

    changed(page, "**/quire/overview", of_overview)
    changed(page, "**/quire/work", of_work)
    changed(page, "**/quire/topology", lose)
    changed(page, re.compile(r"/quire/bookies(\?|/[^/]+$)"), lose)
    tile = "tile" if severity == "note" else f"tile {severity}"
    titles = {"": "Writable bookies", "bookies": "Gone", f"bookie/{lost}": "State"}
    for path, title in titles.items():
        tab.open(path)
        name = page.locator("dt").get_by_text(title, exact=True)
        expect(page.locator(".tile").filter(has=name)).to_have_class(tile)
        if path:
            expect(page.locator("main .mark").first).to_have_text(shown)
            expect(page.locator("main .mark").first).to_have_class(f"mark {severity}")
    tab.open("topology")
    chip = page.locator(".chip").filter(has_text=lost)
    expect(chip).to_have_class(f"chip {severity}")
    expect(chip).to_contain_text(": gone")
    tab.open("work")
    expect(page.locator("main .alert").first).to_have_class(f"alert {severity}")


def _bookies(found: Any) -> list[Any]:
    """Return the descriptions of bookies in the answer of one of the routes about them."""
    if "regions" in found:
        racks = [rack for region in found["regions"] for rack in region["racks"]]
        return [one for rack in racks for one in rack["bookies"]]
    return [found["bookie"]] if "bookie" in found else list(found["bookies"])


def test_namespaces_are_listed_with_their_number_of_streams(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    tab.open("streams")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=TEAM, exact=True))
    expect(row.get_by_role("cell")).to_have_text("3")
    row.get_by_role("link", name=TEAM, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Streams of {TEAM}")
    expect(page.locator("tbody th")).to_have_count(3)


@pytest.mark.parametrize("tab", [{}, PHONE], indirect=True, ids=["desktop", "phone"])
def test_the_hint_about_headings_is_shown_only_with_headings(
    dashboard: Dashboard, tab: Tab
) -> None:
    tab.open("ledgers")
    narrow = tab.page.evaluate("innerWidth") < 500
    hint = tab.page.get_by_text("The headings sort this page.")
    expect(hint).to_be_hidden() if narrow else expect(hint).to_be_visible()
    expect(tab.page.get_by_role("region", name=re.compile("on this page")).first).to_be_visible()


AWAY = {
    "what": "the metadata store zk://zk1/ledgers has not answered for 25 s",
    "remedy": "Start the store, or check the network to it. To ask each server for its role: "
              "echo srvr | curl -sm 3 telnet://zk1:2181. In its log, look for fsync. Open ledgers "
              "can still be written and read while their bookies run",
    "kind": "MetadataUnavailableError", "causes": {}, "outcome_known": True, "status": 503,
}  # fmt: skip


def test_a_page_of_data_shows_the_same_command_as_the_overview(
    dashboard: Dashboard, tab: Tab
) -> None:
    page = tab.page
    at = datetime(2026, 1, 1, 1, 16).astimezone()
    counts = {"bad": 2, "warn": 0, "note": 0, "age_s": 9, "old_since_ms": at.timestamp() * 1000}
    page.route("**/quire/problem_counts", lambda one: one.fulfill(json=counts))
    for path, route in (("streams", "**/quire/namespaces"), ("objects", "**/quire/buckets")):
        page.route(route, lambda one: one.fulfill(status=503, json={"error": AWAY}))
        tab.open(path)
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("What to do: Start the store")
        expect(alert.get_by_role("link", name="overview")).to_have_attribute("href", "#/")
        expect(page.locator(".head form")).to_have_count(0)
        command = alert.locator(".command code")
        expect(command).to_have_text("echo srvr | curl -sm 3 telnet://zk1:2181")
        expect(alert.get_by_role("button", name=re.compile("^Copy the command"))).to_be_visible()
        expect(page.locator("#problems")).to_have_text("✗ 2 problems, as of 01:16")
    tab.seen.errors.clear()  # the browser names the failed requests


@pytest.mark.long
def test_all_ages_on_a_page_are_counted_from_one_instant(dashboard: Dashboard, tab: Tab) -> None:
    """The store has not answered for some seconds; the state is older, and has only its time."""
    page = tab.page
    now_ms = round(1000 * time.time())

    def old(found: Any) -> None:
        found |= {"old_since_ms": now_ms - 65_000, "metadata_away_since_ms": now_ms - 25_000}

    for path, route in (("work", "**/quire/work"), ("topology", "**/quire/topology")):
        changed(page, route, old)
        tab.open(path)
        age = page.locator(".age")
        expect(age).to_have_text(
            re.compile(
                r"^! The metadata store has not answered for (2[5-9]|[3-5]\d) s\. This is the last "
                r"known state, of \d\d:\d\d:\d\d\. It may have changed since\.$"
            )
        )
        expect(page.locator(".old-data")).to_have_count(1)
        if path == "work":
            off = page.get_by_role("button", name="Switch autorecovery off")
            expect(off).to_be_disabled()
            expect(off).to_have_attribute("title", "The metadata store does not answer.")
            expect(off).to_have_class("danger")
