"""The charts of the overview in a real browser, with values of the server and of the test."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.ui.browser import expect
from tests.support.ui.dashboard import Dashboard, Tab

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True}
STEP_S = 10
INTERVAL_MS = 3000
"""The interval of the overview in app.js."""
TITLES = (
    "Adds and reads per second", "Bytes per second", "Latency of adds", "Latency of reads",
    "Stages of an add, p99", "Disk use", "Under-replicated ledgers", "Bookies",
)  # fmt: skip
NAMES = (
    "adds_per_s", "reads_per_s", "add_bytes_per_s", "read_bytes_per_s", "add_p50_ms", "add_p99_ms",
    "read_p50_ms", "read_p99_ms", "queue_p99_ms", "sync_p99_ms", "log_p99_ms", "disk_used",
    "disk_used_max", "under_replicated", "bookies", "bookies_writable",
)  # fmt: skip


def answer(range_s: int, value: Callable[[str, int], float | None], **more: Any) -> dict[str, Any]:
    now_s = int(time.time())
    count = 60
    return {
        "source": "memory", "bookie": None, "range_s": range_s, "to_s": now_s,
        "ranges_s": [900, 3600, 86400], "first_s": now_s - (count - 1) * STEP_S, "step_s": STEP_S,
        "series": {name: [value(name, at) for at in range(count)] for name in NAMES}, **more,
    }  # fmt: skip


def answering(page: Page, make: Callable[[int], dict[str, Any]]) -> list[int]:
    """Answer requests for series with what `make` returns for their range, and list the ranges."""
    asked: list[int] = []

    def fulfill(route: Route) -> None:
        found = re.search(r"range=(\d+)", route.request.url)
        assert found is not None
        asked.append(int(found[1]))
        route.fulfill(content_type="application/json", body=json.dumps(make(asked[-1])))

    page.route("**/api/v1/quire/series**", fulfill)
    return asked


def test_the_overview_has_charts_of_the_server(dashboard: Dashboard, tab: Tab) -> None:
    tab.open("")
    page = tab.page
    for title in TITLES:
        figure = page.get_by_role("group", name=title)
        expect(figure).to_be_visible()
        expect(figure.locator("canvas")).to_be_visible()
    disk = page.get_by_role("group", name="Disk use")
    expect(disk.locator(".value").first).to_have_text(re.compile(r"\d+ %"))
    expect(disk.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("fullest bookie: last")
    )


@pytest.mark.long
def test_another_range_can_be_selected(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    asked = answering(page, lambda range_s: answer(range_s, lambda name, at: float(at)))
    tab.open("")
    expect(page.get_by_role("radio", name="15 min")).to_be_checked()
    assert set(asked) == {900}
    page.get_by_role("radio", name="15 min").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="1 h")).to_be_checked()
    expect(page.get_by_role("radio", name="1 h")).to_be_focused()
    page.wait_for_function("() => performance.getEntriesByType('resource').some((one) => "
                           "one.name.includes('range=3600'))")  # fmt: skip
    tab.open("")  # the choice is kept in this tab
    expect(page.get_by_role("radio", name="1 h")).to_be_checked()
    assert asked[-1] == 3600


@pytest.mark.long
def test_long_ranges_need_prometheus(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    answering(
        page, lambda range_s: answer(range_s, lambda name, at: 1.0, source="prometheus", step_s=360)
    )
    tab.open("")
    page.get_by_role("radio", name="1 day").check()
    expect(page.get_by_text("From Prometheus, one value every 6 min")).to_be_visible()


def test_a_refresh_keeps_the_cursor_and_adds_values(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    latest = [59.0]
    answering(
        page,
        lambda range_s: answer(range_s, lambda name, at: latest[0] if at == 59 else float(at)),
    )
    tab.open("")
    figure = page.get_by_role("group", name="Adds and reads per second")
    expect(figure.locator(".value").first).to_have_text("59/s")
    figure.evaluate("one => { one.dataset.same = 'yes' }")
    latest[0] = 1234.0
    expect(figure.locator(".value").first).to_have_text("1,234/s")
    expect(figure).to_have_attribute("data-same", "yes")


def test_a_bookie_that_was_away_leaves_a_gap(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    answering(
        page,
        lambda range_s: answer(range_s, lambda name, at: None if 20 <= at < 30 else float(at + 1)),
    )
    tab.open("")
    figure = page.get_by_role("group", name="Adds and reads per second")
    words = figure.get_by_role("img").get_attribute("aria-label") or ""
    assert words.count("with a gap") == 2
    figure.get_by_text("Table").click()
    expect(figure.get_by_role("cell", name="–")).to_have_count(20)


def test_a_chart_without_values_explains_it(dashboard: Dashboard, tab: Tab) -> None:
    answering(tab.page, lambda range_s: answer(range_s, lambda name, at: None))
    tab.open("")
    figure = tab.page.get_by_role("group", name="Adds and reads per second")
    expect(figure.get_by_text("No bookie with an HTTP server")).to_be_visible()


def test_a_page_is_shown_even_if_its_charts_fail(dashboard: Dashboard, tab: Tab) -> None:
    error = {"what": "Prometheus cannot be read", "remedy": "Check that it runs"}
    tab.page.route(
        "**/api/v1/quire/series**",
        lambda route: route.fulfill(
            status=502, content_type="application/json", body=json.dumps({"error": error})
        ),
    )
    tab.open("")
    expect(tab.page.get_by_text("Prometheus cannot be read. Check that it runs")).to_be_visible()
    expect(tab.page.get_by_role("heading", name="Key figures")).to_be_visible()
    tab.seen.errors.clear()  # the browser names the refused request


@pytest.mark.long
@pytest.mark.parametrize("tab", [{"color_scheme": "dark"}], indirect=True)
def test_lines_have_the_colours_of_the_page(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    answering(page, lambda range_s: answer(range_s, lambda name, at: 50.0 + len(name)))
    tab.open("")
    expect(page.locator(".chart canvas").first).to_be_visible()
    drawn = page.evaluate(
        """() => {
          const canvas = document.querySelector(".chart canvas");
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          const found = new Set();
          for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 250) found.add(data.slice(at, at + 3).join());
          return [...found];
        }"""  # noqa: E501
    )
    swatch = page.locator(".chart .swatch").first.evaluate(
        "one => getComputedStyle(one).backgroundColor"
    )
    assert ",".join(re.findall(r"\d+", swatch)) in drawn


def test_an_outdated_state_is_kept_and_marked(dashboard: Dashboard, lone_tab: Tab) -> None:
    """A page whose server loses the metadata store shows what it knows, with its age."""
    tab, page = lone_tab, lone_tab.page
    what = "the metadata store has not answered for 5 s"
    error = {"what": what, "remedy": "Start it", "outcome_known": False}
    away = False

    def fulfill(route: Route) -> None:
        if away:
            body = json.dumps({"error": error})
            route.fulfill(status=503, content_type="application/json", body=body)
        else:
            route.continue_()

    page.route("**/api/v1/quire/overview", fulfill)
    page.clock.install()
    tab.open("")
    expect(page.get_by_role("heading", name="Key figures")).to_be_visible()
    away = True
    page.clock.run_for(INTERVAL_MS)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The metadata store has not answered for 5 s.")
    expect(alert).not_to_contain_text("may have taken effect")
    expect(alert).to_contain_text("The data below is older")
    expect(page.get_by_role("heading", name="Key figures")).to_be_visible()
    expect(page.locator(".old-data")).to_have_count(1)
    page.clock.run_for(200_000)
    expect(page.locator(".age")).to_contain_text(re.compile(r"Last known state, of \d min ago"))
    expect(alert).not_to_contain_text("ago")  # an alert is read again when it changes
    tab.seen.errors.clear()  # the browser names the refused requests


@pytest.mark.long
def test_the_last_known_state_of_the_server_is_shown(dashboard: Dashboard, tab: Tab) -> None:
    """The problem that the store is away is current, and everything else is grey."""
    page = tab.page

    def fulfill(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        lost = {"severity": "bad", "what": "The store is away", "next": "Start it", "risk": "",
                "doing": ""}  # fmt: skip
        now_ms = round(1000 * time.time())
        found |= {"old_since_ms": now_ms - 65_000, "metadata_away_since_ms": now_ms - 25_000,
                  "problems": [lost]}  # fmt: skip
        found["rates"] |= {"bookies": 4, "adds_per_s": 1_234.0}
        route.fulfill(response=answer, json=found)

    page.route("**/api/v1/quire/overview", fulfill)
    tab.open("")
    age = page.locator(".age")
    expect(age).to_contain_text(re.compile(r"The metadata store has not answered for \d+ s\."))
    expect(age).to_contain_text(re.compile(r"This is the last known state, of \d\d:\d\d"))
    load = page.get_by_role("heading", name="Load")
    assert load.evaluate("one => getComputedStyle(one.closest('section')).opacity") == "1"
    expect(
        page.get_by_role("heading", name=re.compile(r"^Key figures as of \d\d:"))
    ).to_be_visible()
    opacity = "one => getComputedStyle(one.closest('section')).opacity"
    assert page.get_by_text("The store is away").evaluate(opacity) == "1"
    assert float(page.get_by_role("heading", name="Key figures").evaluate(opacity)) < 1


def test_a_ledger_is_found_from_the_overview(dashboard: Dashboard, tab: Tab) -> None:
    """Also at the address of the page that explained ledgers once."""
    page = tab.page
    for path in ("", "explain"):
        tab.open(path)
        expect(page.get_by_role("link", name="Overview")).to_have_attribute("aria-current", "page")
        page.get_by_label("Ledger id").fill(str(dashboard.ledger))
        page.get_by_role("button", name="Open", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Ledger {dashboard.ledger}")


@pytest.mark.parametrize("tab", [PHONE], indirect=True, ids=["phone"])
def test_the_search_field_is_beside_the_heading(dashboard: Dashboard, tab: Tab) -> None:
    tab.open("")
    title = tab.page.get_by_role("heading", level=1).bounding_box()
    field = tab.page.get_by_label("Ledger id").bounding_box()
    assert title
    assert field
    assert field["x"] > title["x"] + title["width"], "the field is below the heading"
    button = tab.page.get_by_role("button", name="Open", exact=True).bounding_box()
    assert button
    assert button["height"] <= field["height"] + 1, "the word on the button is broken"


def test_the_fullest_disks_are_shown(dashboard: Dashboard, tab: Tab) -> None:
    tab.open("")
    tile = tab.page.locator(".tile").filter(has_text="Fullest bookie")
    expect(tile.locator(".figure")).to_have_text(re.compile(r"\d\s%\sused$"))
    expect(tile).to_contain_text("free in all")
    for bookie in dashboard.cluster.bookies:
        meter = tab.page.get_by_role("meter", name=f"disk of {bookie.id}")
        expect(meter).to_be_visible()
        assert re.search(r"% used, .* free of", meter.get_attribute("aria-valuetext") or "")
