"""The number of problems at the top of every page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.ui.browser import expect
from tests.support.ui.dashboard import Dashboard, Tab, Windows
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = [pytest.mark.browser, pytest.mark.slow]

COUNTS = "**/api/v1/quire/problem_counts"


@pytest.fixture
def without_autorecovery(dashboard: Dashboard) -> Iterator[None]:
    """A cluster that has a problem."""
    dashboard.put("/api/v1/autorecovery/status?enabled=false", {})
    try:
        wait_for(dashboard.recovery_is_off)
        yield
    finally:
        dashboard.put("/api/v1/autorecovery/status?enabled=true", {})


@pytest.mark.usefixtures("without_autorecovery")
def test_every_page_shows_the_number_of_problems(dashboard: Dashboard, tab: Tab) -> None:
    """The number equals that of the overview, to which it links with the mouse and the keyboard."""
    page = tab.page
    _, found = dashboard.get("/api/v1/quire/overview")
    wrong = [one for one in found["problems"] if one["severity"] != "note"]
    assert wrong
    _, counts = dashboard.get("/api/v1/quire/problem_counts")
    assert counts["bad"] + counts["warn"] == len(wrong)
    assert counts["note"] == len(found["problems"]) - len(wrong)
    assert counts["old_since_ms"] is None
    badge = page.locator("#problems a")
    said = " ".join(
        f"{sign} {counts[kind]} {noun}{'' if counts[kind] == 1 else 's'}"
        for kind, sign, noun in (("bad", "✗", "problem"), ("warn", "!", "warning"))
        if counts[kind]
    )
    for path in ("streams", "objects", f"ledger/{dashboard.ledger}/entries", "configuration"):
        tab.open(path)
        expect(badge).to_have_text(said)
        tab.check(path)
    badge.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    shown = page.locator(".problems > li:not(.note)")
    expect(shown).to_have_count(len(wrong))
    expect(badge).to_have_text(said)


@pytest.mark.long
def test_the_number_of_problems_is_requested_at_most_every_30_seconds(
    dashboard: Dashboard, lone_tab: Tab
) -> None:
    """One request in 30 s, however often the page refreshes, and none from the overview."""
    page, asked = lone_tab.page, 0
    answer: dict[str, Any] = {"bad": 0, "warn": 0, "note": 0, "age_s": 0.0, "old_since_ms": None}

    def fulfill(route: Route) -> None:
        nonlocal asked
        asked += 1
        route.fulfill(json=answer)

    page.route(COUNTS, fulfill)
    page.clock.install()
    lone_tab.open("streams")
    badge = page.locator("#problems")
    expect(badge).to_be_empty()
    page.clock.run_for(20_000)
    assert asked == 1
    answer |= {"bad": 1, "warn": 2}
    page.clock.run_for(20_000)
    expect(badge).to_have_text("✗ 1 problem ! 2 warnings")
    assert badge.locator(".badge").evaluate_all("all => all.map(one => one.className)") == [
        "badge bad", "badge warn",
    ]  # fmt: skip
    answer |= {"bad": 0, "warn": 1}
    page.clock.run_for(30_000)
    expect(badge).to_have_text("! 1 warning")
    expect(badge.locator(".badge")).to_have_class("badge warn")
    assert asked <= 4
    answer |= {"bad": 0, "warn": 0, "note": 2}
    page.clock.run_for(30_000)
    expect(badge).to_have_text("2 notes")
    expect(badge.locator(".badge")).to_have_class("badge note")
    answer |= {"note": 0}
    page.clock.run_for(30_000)
    expect(badge).to_be_empty()


@pytest.mark.long
def test_outdated_numbers_are_marked(dashboard: Dashboard, lone_tab: Tab) -> None:
    page = lone_tab.page
    answer: dict[str, Any] = {"bad": 1, "warn": 0, "note": 0, "age_s": 0.0, "old_since_ms": None}
    broken = False

    def fulfill(route: Route) -> None:
        if broken:
            route.fulfill(status=503, json={"error": {"what": "busy", "remedy": ""}})
        else:
            route.fulfill(json=answer)

    page.route(COUNTS, fulfill)
    page.clock.install()
    lone_tab.open("streams")
    badge = page.locator("#problems a")
    expect(badge).to_have_text("✗ 1 problem")
    # The server has not made a new overview for a long time.
    answer["age_s"] = 300.0
    page.clock.run_for(40_000)
    expect(badge).to_have_text(re.compile(r"^✗ 1 problem, as of \d\d:\d\d$"))
    expect(badge.locator(".badge")).to_have_class("badge bad old")
    answer["age_s"] = 0.0
    page.clock.run_for(40_000)
    expect(badge.locator(".badge")).to_have_class("badge bad")
    broken = True  # The number stays, and grows old.
    page.clock.run_for(60_000)
    expect(badge).to_have_text("✗ 1 problem")
    page.clock.run_for(60_000)
    expect(badge.locator(".badge")).to_have_class("badge bad old")
    # Without the metadata store, its loss is a current problem, and the others are old.
    broken = False
    answer |= {"bad": 2, "old_since_ms": 1_000_000}
    page.clock.run_for(40_000)
    expect(badge).to_have_text(re.compile(r"^✗ 2 problems, as of \d\d:\d\d$"))
    expect(badge.locator(".badge")).to_have_class("badge bad")
    lone_tab.seen.errors.clear()  # the browser names the failed requests


def test_a_page_that_may_not_be_read_requests_no_number(
    dashboard: Dashboard, windows: Windows
) -> None:
    with windows.tab(dashboard.url) as opened:
        page, asked = opened.page, []
        page.on("request", lambda one: asked.append(one.url))
        refusal = {"error": {"what": "The token is missing", "remedy": ""}}
        page.route("**/quire/namespaces", lambda route: route.fulfill(status=401, json=refusal))
        page.goto(f"{dashboard.url}/#/streams")
        expect(page.get_by_role("alert")).to_contain_text("The token is missing")
        assert not [one for one in asked if one.endswith("problem_counts")]
        opened.seen.errors.clear()  # the browser names the refused request


@pytest.mark.long
@pytest.mark.parametrize("tab", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_on_a_phone_the_sign_and_the_number_are_shown(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    counts = {"bad": 12, "warn": 0, "note": 0, "age_s": 900.0, "old_since_ms": None}
    page.route(COUNTS, lambda route: route.fulfill(json=counts))
    tab.open("streams")
    badge = page.locator("#problems a")
    expect(badge).to_have_accessible_name(re.compile(r"^12 problems ?, as of"))
    tab.check("streams")
    tab.picture("badge-phone")


@pytest.mark.parametrize("tab", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_two_numbers_fit_on_a_phone(dashboard: Dashboard, tab: Tab) -> None:
    """The page was wider than the screen while there were problems and warnings."""
    page = tab.page
    counts = {"bad": 12, "warn": 34, "note": 0, "age_s": 0.0, "old_since_ms": None}
    page.route(COUNTS, lambda route: route.fulfill(json=counts))
    tab.open("streams")
    expect(page.locator("#problems .badge")).to_have_count(2)
    tab.check("streams")
