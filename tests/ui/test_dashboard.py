"""The dashboard in a real browser."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from quire.cli.pipeline.job import told
from quire.config import ClientConfig
from quire.http.server.static_files import POLICY
from quire.replication.marks.job_announcements import JobStatus
from tests.support.processes.cli import Quire
from tests.support.ui.browser import expect
from tests.support.ui.dashboard import (
    HOSTILE,
    HOSTILE_NAME,
    READ,
    RECORDS,
    STREAM,
    TEAM,
    Dashboard,
    Tab,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
INTERVAL_MS = 3000
"""The interval of the overview in app.js."""
WINDOWS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 375, "height": 700}, "has_touch": True},
}


def pages(dashboard: Dashboard) -> dict[str, str]:
    """Name -> path."""
    return {
        "overview": "",
        "bookies": "bookies",
        "bookie": f"bookie/{dashboard.cluster.bookies[0].id}",
        "topology": "topology",
        "configuration": "configuration",
        "ledgers": "ledgers",
        "ledger": f"ledger/{dashboard.ledger}",
        "namespaces": "streams",
        "streams": "streams/%2Fteam",
        "stream": f"stream/%2Fteam/{STREAM}",
        "work": "work",
        "explain": "explain",
    }


@pytest.mark.parametrize(
    ("tab", "window"),
    [
        pytest.param(options, name, marks=pytest.mark.long if name != "light" else ())
        for name, options in WINDOWS.items()
    ],
    indirect=["tab"],
    ids=list(WINDOWS),
)
def test_every_dashboard_page_passes_the_checks(
    dashboard: Dashboard, tab: Tab, window: str
) -> None:
    for name, path in pages(dashboard).items():
        tab.go(path)
        tab.check(name)
        tab.picture(f"{name}-{window}")
    background = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
    assert (brightness < 64) == (window == "dark")


REQUESTS = {"overview": 2, "explain": 2, "bookie": 4, "configuration": 3}
"""The requests of each page that needs more than one, such as another one for charts."""


def test_each_view_sends_few_requests(dashboard: Dashboard, tab: Tab) -> None:
    for name, path in pages(dashboard).items():
        asked = len(tab.seen.answers)
        tab.open(path)
        answers = tab.seen.of_pages(asked)
        assert len(answers) == REQUESTS.get(name, 1), answers
    first = next(one for one in tab.seen.answers if one.url == f"{dashboard.url}/")
    assert first.header_value("content-security-policy") == POLICY
    blocked = tab.page.evaluate(
        "() => { try { document.body.innerHTML = '<p>'; return false } catch { return true } }"
    )
    assert blocked, "text became HTML"
    tab.seen.errors.clear()  # the browser tells of that


def test_the_pages_show_the_state_of_the_cluster(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    tab.open("bookies")
    for at, bookie in enumerate(dashboard.cluster.bookies):
        row = page.get_by_role("row").filter(has_text=bookie.id)
        expect(row).to_contain_text("✓ writable")
        expect(row).to_contain_text(f"/rack{at % 2}")
        expect(row.get_by_role("meter")).to_have_attribute("aria-valuetext", re.compile("free of"))
    tab.go(f"ledger/{dashboard.ledger}")
    drawing = page.get_by_role("region", name="Ensemble over time")
    expect(drawing.get_by_role("columnheader", name="entries 0 to 99")).to_be_visible()
    expect(drawing.locator("td.good")).to_have_count(4)
    expect(page.get_by_role("cell", name=HOSTILE)).to_be_visible()
    tab.go("streams")
    page.get_by_role("link", name=TEAM, exact=True).click()
    expect(page.get_by_role("link", name=HOSTILE_NAME)).to_be_visible()
    page.get_by_label("Part of a name").fill("ord")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("link", name="others")).to_have_count(0)
    page.get_by_role("link", name=STREAM).click()
    expect(page.get_by_role("row").filter(has_text="billing")).to_contain_text(str(RECORDS - READ))
    segment = page.locator(".timeline li a")
    expect(segment).to_have_accessible_name(re.compile(f"Segment 1, completed, {RECORDS} records"))
    assert "hacked" not in page.title()


def test_nouns_follow_their_count(dashboard: Dashboard, tab: Tab) -> None:
    tab.open("")
    said = tab.page.evaluate(
        """async () => {
          const { counted } = await import("/ui/parts/format.js");
          return [[1, "entry"], [0, "entry"], [2000, "ledger"], [1, "ledger"], [3, "copy"],
            [null, "record"]].map(([count, noun]) => counted(count, noun));
        }"""
    )
    assert said == ["1 entry", "0 entries", "2,000 ledgers", "1 ledger", "3 copies", "– records"]


def test_rates_are_current(dashboard: Dashboard, tab: Tab) -> None:
    """Rates need two reads, so the page reloads by itself."""
    tab.open("")
    added = tab.page.locator("dl div").filter(has_text="Entries added").locator("dd").first
    expect(added).to_have_text(re.compile(r"^[\d,.]+/s$"))


def test_a_large_ledger_id_is_not_rounded(dashboard: Dashboard, tab: Tab) -> None:
    tab.open("ledgers")
    tab.page.get_by_role("link", name=str(dashboard.large)).click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text(f"Ledger {dashboard.large}")
    expect(tab.page.locator(".alert.good")).to_be_visible()


def test_the_dashboard_can_be_used_with_the_keyboard_alone(dashboard: Dashboard, tab: Tab) -> None:
    page, press = tab.page, tab.page.keyboard.press
    tab.open("")
    press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    page.get_by_role("link", name="Ledgers", exact=True).focus()
    press("Enter")
    expect(page.get_by_role("heading", name="Ledgers")).to_be_visible()
    expect(page.get_by_role("main")).to_be_focused()
    press("Tab")
    expect(page.get_by_label("Ledger id")).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus is not visible"
    page.keyboard.type(str(dashboard.ledger))
    press("Enter")
    expect(page.get_by_role("heading", name=f"Ledger {dashboard.ledger}")).to_be_visible()


def test_a_stream_near_its_limit_says_what_to_do(dashboard: Dashboard, tab: Tab) -> None:
    page, held = tab.page, 0.0

    def fulfill(route: Any) -> None:
        answer = route.fetch().json()
        answer["bytes"], answer["settings"]["bytes_max"] = int(1000 * held), 1000
        route.fulfill(json=answer)

    page.route("**/quire/stream?*", fulfill)
    tab.open(f"stream/%2Fteam/{STREAM}")
    expect(page.locator(".tile").filter(has_text="Size")).to_contain_text("of the limit of 1.0 kB")
    expect(page.locator(".alert.warn")).to_have_count(0)
    held = 0.9
    tab.open(f"stream/%2Fteam/{STREAM}")
    alert = page.locator(".alert.warn")
    expect(alert).to_contain_text(
        "This stream holds 900 B of the 1.0 kB that its setting bytes_max"
    )
    expect(alert).to_contain_text(f"quire stream set {STREAM} --namespace /team bytes_max=2000")
    expect(alert).to_contain_text(f"quire stream truncate {STREAM} --namespace /team --before 1:")
    tab.check("stream")


def test_a_missing_ledger_is_reported(dashboard: Dashboard, tab: Tab) -> None:
    tab.open("ledger/999999")
    expect(tab.page.get_by_role("alert")).to_contain_text("Ledger 999999 does not exist")
    tab.go("ledger/nonsense")
    expect(tab.page.get_by_role("alert")).to_contain_text("must be an integer")
    assert [one.status for one in tab.seen.answers if one.status >= 400] == [404, 400]
    tab.seen.errors.clear()


def test_autorecovery_is_switched_off_and_on(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    tab.open("work")
    page.get_by_role("button", name="Switch autorecovery off").click()
    page.get_by_role("dialog").get_by_role("button", name="Switch autorecovery off").click()
    expect(page.get_by_role("button", name="Switch autorecovery on")).to_be_visible()
    assert dashboard.recovery_is_off()
    page.get_by_role("button", name="Switch autorecovery on").click()
    page.get_by_role("dialog").get_by_role("button", name="Switch autorecovery on").click()
    expect(page.get_by_role("button", name="Switch autorecovery off")).to_be_visible()
    assert not dashboard.recovery_is_off()
    page.get_by_role("button", name="Look for lost bookies now").click()
    with page.expect_response("**/trigger_audit") as answer:
        page.get_by_role("dialog").get_by_role("button", name="Look for lost bookies").click()
    assert answer.value.status == 200
    expect(page.get_by_role("alert")).to_be_empty()


def test_a_running_pipeline_is_listed(dashboard: Dashboard, tab: Tab) -> None:
    """A pipeline runs in another process, has its own counters, and cannot be paused."""
    far = JobStatus("records written: 1,000 of 5,000")
    with told(
        dashboard.cluster.uri, ClientConfig(), "pipeline ingest", "/team/orders", lambda: far
    ):
        tab.open("work")
        row = tab.page.get_by_role("row").filter(has_text="pipeline ingest /team/orders")
        expect(row).to_contain_text("records written: 1,000 of 5,000")
        expect(row).not_to_contain_text("ledgers")
        expect(row.get_by_role("button")).to_have_count(0)
    expect(row).to_have_count(0)


def test_no_health_is_claimed_without_an_auditor(dashboard: Dashboard, tab: Tab) -> None:
    """Nobody looks for lost bookies here, so the page does not say that no replica lacks."""
    tab.open("work")
    expect(tab.page.get_by_role("main")).to_contain_text("although none is marked")
    tab.go("")
    expect(tab.page.locator(".tile.warn").filter(has_text="no auditor")).to_be_visible()


def test_jobs_of_any_process_can_be_paused(dashboard: Dashboard, tab: Tab, healed: None) -> None:
    """One of this server; and what is paused for whichever process comes to it."""
    run, leaving = Quire(dashboard.cluster.uri), dashboard.cluster.bookies[3].id
    page, name = tab.page, f"decommission {leaving}"
    run("cluster", "pause", "decommission", leaving).ok()
    job = dashboard.put(
        "/api/v1/autorecovery/decommission", {"bookie_src": leaving, "check": False}
    )
    tab.open("work")
    jobs = page.get_by_role("region", name="Newest first")
    paused = page.get_by_role("region", name="Paused until somebody resumes them")
    row = jobs.get_by_role("row").filter(has_text=name)
    expect(row).to_contain_text("paused")
    expect(row.get_by_role("button", name=f"Resume {name}")).to_be_visible()
    tab.picture("work-paused")
    jobs.get_by_role("button", name=f"Cancel job {job['id']}").click()
    tab.answer("Cancel the job")
    expect(row).to_contain_text("cancelled")
    paused.get_by_role("button", name=f"Resume {name}").click()
    expect(paused).to_have_count(0)
    assert dashboard.get("/api/v1/quire/paused")[1] == {"paused": []}


def test_the_loss_and_return_of_a_bookie_are_shown(
    dashboard: Dashboard, tab: Tab, healed: None
) -> None:
    """An open page shows the loss within ten seconds, and also the return."""
    page, bookie = tab.page, dashboard.cluster.bookies[1]
    tab.open("")
    bookie.kill()
    wrong = page.locator("li.bad").filter(has_text=bookie.id)
    expect(wrong).to_contain_text("is gone")
    expect(wrong.locator(".since")).to_have_text(re.compile(r"^since \d\d:\d\d, \d+ s$"))
    expect(wrong).to_contain_text(re.compile(r"At risk\d+ of \d+ ledgers? lack"))
    expect(wrong).to_contain_text("Being doneNothing is copied: no autorecovery process is")
    expect(wrong).to_contain_text("the others cannot take all of its copies")
    tab.picture("overview-lost")
    tab.go("bookies")
    row = page.get_by_role("row").filter(has_text=bookie.id)
    expect(row).to_contain_text("✗ gone")
    tab.go(f"ledger/{dashboard.ledger}")
    cell = page.locator("td.bad").filter(has_text=bookie.id)
    expect(cell).to_contain_text("✗ does not answer")
    red, green, blue = re.findall(
        r"\d+", cell.evaluate("one => getComputedStyle(one).backgroundColor")
    )[:3]
    assert int(red) > int(green)
    assert int(red) > int(blue)
    tab.picture("ledger-lost")
    bookie.start()
    expect(page.locator("td.bad")).to_have_count(0)


def test_the_page_reports_a_stopped_server(dashboard: Dashboard, browser: Browser) -> None:
    """The page reports it, keeps its data, and sends fewer requests."""
    with Quire(dashboard.cluster.uri).start("ui", "--http", "127.0.0.1:0") as server:
        page = browser.new_page()
        page.clock.install(time=BEGIN)
        page.goto(server.line())
        expect(page.get_by_role("heading", name="Key figures")).to_be_visible()
        said = page.locator("#freshness").inner_text()
        page.clock.pause_at(BEGIN + timedelta(hours=1))  # what was due is done once
        expect(page.locator("#freshness")).not_to_have_text(said)
        server.process.terminate()
        server.process.wait(20)
        asked: list[str] = []
        page.on("request", lambda one: asked.append(one.url) if "overview" in one.url else None)
        page.clock.run_for(INTERVAL_MS)
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("does not answer")
        expect(alert).to_contain_text("The data below is older")
        expect(page.get_by_role("heading", name="Key figures")).to_be_visible()
        page.clock.run_for(INTERVAL_MS)
        assert len(asked) == 1, "the page retried as often as before"
        with page.expect_request("**/api/**"):
            page.clock.run_for(INTERVAL_MS)
        page.close()
