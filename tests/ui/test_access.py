"""The dashboard's rules for changes, and the questions before them, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from quire.cli.servers.http import _open_in_browser, address_with_token
from tests.support.long import long_after
from tests.support.processes.cli import Quire
from tests.support.processes.http import TOKEN
from tests.support.ui.browser import expect
from tests.support.ui.dashboard import Dashboard, Tab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PAUSE = "Switch autorecovery off"
FORBIDDEN = "the server responded with a status of 401"
"""The browser's report of an answer that the test provokes."""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Yield a tab that knows no token. An error on its pages fails the test."""
    context = browser.new_context()
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    yield page
    context.close()
    assert not [one for one in errors if FORBIDDEN not in one]


@pytest.fixture
def start(dashboard: Dashboard) -> Iterator[Callable[..., str]]:
    """Yield a function that starts `quire ui` with these options, and returns its address."""
    running = []

    def run(*arguments: str) -> str:
        server = Quire(dashboard.cluster.uri).start("ui", "--http", "127.0.0.1:0", *arguments)
        running.append(server.__enter__())
        return server.line()

    yield run
    for one in running:
        one.__exit__(None, None, None)


def pause(page: Page) -> Locator:
    return page.get_by_role("button", name=PAUSE)


def kept(page: Page) -> str | None:
    found: str | None = page.evaluate("sessionStorage.getItem('quire.token')")
    return found


def enabled(dashboard: Dashboard) -> bool:
    return not dashboard.recovery_is_off()


def test_an_address_with_the_token_opens_a_logged_in_page(dashboard: Dashboard, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    page.goto(address_with_token(dashboard.url, TOKEN))
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert page.url == f"{dashboard.url}/#/"
    assert kept(page) == TOKEN
    page.goto(f"{dashboard.url}/#/work")
    expect(pause(page)).to_be_enabled()
    expect(page.get_by_role("button", name="Enter the token")).to_have_count(0)
    assert not [url for url in asked if TOKEN in url]
    other = page.context.new_page()
    other.goto(f"{dashboard.url}/#/work")
    expect(pause(other)).to_be_disabled()
    assert kept(other) is None
    # An address that is opened in the same tab is taken, too.
    other.goto(f"{dashboard.url}/#/work?token={TOKEN}")
    expect(pause(other)).to_be_enabled()
    assert other.url == f"{dashboard.url}/#/work"


def test_the_page_opened_in_the_browser_redirects_to_the_dashboard(
    dashboard: Dashboard, page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []
    monkeypatch.setattr(click, "launch", launched.append)
    _open_in_browser(address_with_token(dashboard.url, TOKEN), tmp_path / "open.html")
    page.goto(launched[0])
    page.wait_for_url(f"{dashboard.url}/#/")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert kept(page) == TOKEN


def test_buttons_are_disabled_without_the_token(dashboard: Dashboard, page: Page) -> None:
    """The page says why, and takes the token, with the keyboard alone."""
    page.goto(f"{dashboard.url}/#/work")
    expect(pause(page)).to_be_disabled()
    assert pause(page).get_attribute("title") == "Changes need the token of this server."
    note = page.get_by_role("main").get_by_text("Changes need the token of this server.")
    expect(note).to_be_visible()
    note.get_by_role("button", name="Enter the token").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Enter the token of this server")
    field = dialog.get_by_label("Token (kept only in this tab)")
    expect(field).to_be_focused()
    page.keyboard.type("this is wrong")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("status")).to_have_text("This is not the token of this server.")
    expect(field).to_be_focused()
    assert kept(page) is None
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(pause(page)).to_be_enabled()
    expect(note).to_have_count(0)
    expect(page.get_by_role("button", name="Enter the token")).to_have_count(0)


@pytest.mark.parametrize(
    ("option", "why"),
    [((), "This server was started without a token"), (("--http-read-only",), "is read-only")],
)
def test_a_read_only_server_is_marked_as_read_only(
    start: Callable[..., str], page: Page, option: tuple[str, ...], why: str
) -> None:
    page.goto(f"{start(*option)}/#/work")
    expect(pause(page)).to_be_disabled()
    expect(page.get_by_role("main").get_by_text(why)).to_be_visible()
    expect(page.get_by_role("banner").get_by_text("Read-only")).to_be_visible()
    expect(page.get_by_role("button", name="Enter the token")).to_have_count(0)


def test_a_server_that_protects_everything_asks_for_the_token(
    dashboard: Dashboard, start: Callable[..., str], page: Page
) -> None:
    """A typed text stays, although the page asks the server again meanwhile."""
    url = start("--http-token-file", str(dashboard.cluster.token_file))
    page.clock.install()
    page.goto(url)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The token is missing or wrong")
    alert.get_by_label("Token").fill(TOKEN[:5])
    with page.expect_response("**/api/v1/quire/overview"):
        page.clock.run_for(60_000)
    alert.get_by_label("Token").press_sequentially(TOKEN[5:])
    alert.get_by_role("button", name="Use this token").click()
    expect(page.get_by_role("heading", name="Key figures")).to_be_visible()
    expect(alert).to_be_empty()


@pytest.mark.parametrize("answer", long_after(1, ["Escape", "Enter", "Cancel"]))
def test_an_unconfirmed_question_changes_nothing(
    dashboard: Dashboard, tab: Tab, answer: str
) -> None:
    """The button that does nothing has the focus, so pressing Enter at once does nothing."""
    page = tab.page
    tab.open("work")
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if one.method != "GET" else None)
    pause(page).focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Switch autorecovery off in the whole cluster?")
    expect(dialog).to_contain_text("no process restores the copies")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    if answer == "Cancel":
        dialog.get_by_role("button", name="Cancel").click()
    else:
        page.keyboard.press(answer)
    expect(dialog).to_have_count(0)
    expect(pause(page)).to_be_focused()
    assert asked == []
    assert enabled(dashboard)


def test_a_question_is_confirmed_with_the_keyboard(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    tab.open("work")
    pause(page).focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    tab.picture("question")
    page.keyboard.press("Tab")
    expect(dialog.get_by_role("button", name=PAUSE)).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Switch autorecovery on")).to_be_visible()
    assert not enabled(dashboard)
    page.get_by_role("button", name="Switch autorecovery on").click()
    page.get_by_role("dialog").get_by_role("button", name="Switch autorecovery on").click()
    expect(pause(page)).to_be_visible()
    assert enabled(dashboard)


def test_a_rebalance_is_started_after_a_question(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    tab.open("work")
    page.get_by_role("button", name="Rebalance the cluster").click()
    dialog = page.get_by_role("dialog", name="Move copies between bookies?")
    dialog.get_by_role("button", name="Rebalance the cluster").click()
    row = page.get_by_role("row").filter(has_text="rebalance cluster")
    # Whether anything can be moved depends on the disks of this machine.
    expect(row).to_contain_text(re.compile("done|cannot be rebalanced"))
