"""A running dashboard with known content, and the browser tabs of its tests."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quire.testing.cluster import LocalCluster
from tests.support.processes.cli import Running
from tests.support.processes.http import TOKEN
from tests.support.ui.browser import SCREENSHOTS, expect

if TYPE_CHECKING:
    from playwright.sync_api import (
        Browser,
        BrowserContext,
        ConsoleMessage,
        Locator,
        Page,
        Request,
        Response,
    )


HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"


HOSTILE_NAME = "a&amp;b%41#c"


TEAM = "/team"


STREAM = "orders"


RECORDS = 30


READ = 12


LARGE_ID = 2**62 + 1
"""A ledger id that JavaScript's numbers cannot represent exactly."""


FIRST_SCRIPT = """
  if (location.protocol === 'http:') {
    if (!sessionStorage.getItem('tests.begun')) localStorage.clear();
    sessionStorage.setItem('tests.begun', 'yes');
    const token = %s;
    if (token) sessionStorage.setItem('quire.token', token);
  }
"""
"""The script that runs before the scripts of each page. It takes the token in place of `%s`.

It removes the values that earlier tabs of the window have stored, and stores the token.
"""


@dataclass
class Dashboard:
    """A process `quire ui` that serves the dashboard of a cluster."""

    cluster: LocalCluster
    server: Running
    url: str
    ledger: int = 0
    large: int = LARGE_ID

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def put(self, path: str, body: dict[str, Any]) -> Any:
        kind = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), kind, method="PUT"
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def problems(self) -> list[str]:
        status, found = self.get("/api/v1/quire/overview")
        assert status == 200, found
        return [one["what"] for one in found["problems"]]

    def recovery_is_off(self) -> bool:
        """Return whether the problems say that autorecovery is switched off."""
        return any(one.startswith("Autorecovery is switched off") for one in self.problems())


def line(page: Page, name: str) -> Locator:
    """Return the line of a list of entries or records that begins with this text, "Entry 7"."""
    begins = page.locator(".line-entry, .line-position").filter(
        has_text=re.compile(f"^{re.escape(name)}$")
    )
    return page.locator("summary.line").filter(has=begins)


def open_lines(page: Page) -> None:
    """Open all lines of a list of entries or records."""
    page.get_by_role("button", name="Open all", exact=True).click()


@dataclass
class Seen:
    """The answers that a page got, its errors, and the URLs outside of the dashboard it requested.

    A test fails at its end if there are errors or such URLs.
    """

    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    answers: list[Response] = field(default_factory=list)

    def of_pages(self, first: int) -> list[str]:
        """Return the URLs of the API that pages have asked for since the answer `first`.

        That of the number of problems is left out, because the frame asks for it now and then.
        """
        urls = [one.url for one in self.answers[first:] if "/api/" in one.url]
        return [one for one in urls if not one.endswith("/problem_counts")]


@dataclass
class Tab:
    page: Page
    url: str
    seen: Seen

    def open(self, path: str) -> None:
        """Open a page and wait for its data."""
        self.page.goto("about:blank")  # So that the previous page is not taken for the answer.
        self.page.goto(f"{self.url}/#/{path}")
        self.page.wait_for_selector("main [aria-busy=false]", state="attached")

    def go(self, path: str) -> None:
        """Go to another page of the dashboard, in the way a link does, and wait for its data.

        In a tab that shows the dashboard, this takes a quarter of the processor time of `open`,
        which loads all scripts again. Another tab opens the page.
        """
        if not self.page.url.startswith(f"{self.url}/"):
            self.open(path)
            return
        # Each page has a new element for its data. The mark tells the previous one apart.
        self.page.eval_on_selector_all(
            "main [aria-busy]", "all => { for (const one of all) one.dataset.previous = '' }"
        )
        self.page.goto(f"{self.url}/#/{path}")
        self.page.wait_for_selector("main [aria-busy=false]:not([data-previous])", state="attached")

    def answer(self, action: str) -> None:
        """Press the button `action` in the dialog that asks for confirmation."""
        asked = self.page.get_by_role("dialog")
        asked.get_by_role("button", name=action, exact=True).click()

    def check(self, name: str) -> None:
        """Check what must hold on every page: headings, labels, width, and no error."""
        page = self.page
        expect(page.locator("h1")).to_have_count(1)
        expect(page.get_by_role("alert")).to_be_empty()
        expect(page.get_by_role("main")).to_be_visible()
        assert page.title().endswith(" · Quire")
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{name} is wider than the window by {wide}"
        unnamed = page.evaluate(
            "[...document.querySelectorAll('table')].filter(one => !one.caption || "
            "!one.querySelector('th[scope=col]') || !one.querySelector('th[scope=row]')).length + "
            "[...document.querySelectorAll('input, select')].filter(one => !one.labels.length)"
            ".length"
        )
        assert not unnamed, f"{name} has a table without headings, or a field without a label"

    def picture(self, name: str) -> None:
        """Save a picture of the page if QUIRE_SCREENSHOTS is set."""
        if not os.environ.get("QUIRE_SCREENSHOTS"):
            return
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


class Windows:
    """The windows of one browser. Each test has a tab of its own in one of them.

    A new window costs the browser about half a second of processor time more than a new tab, and a
    new tab 0.2 s more than one that has loaded the scripts before. So a test takes over the tab
    that the test before has left, unless that one changed its size or left the dashboard. A tab
    begins without cookies, permissions, routes and stored values, as a new window does.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._open: dict[str, BrowserContext] = {}
        self._left: dict[tuple[str, str], Page] = {}

    @contextmanager
    def tab(self, url: str, *, token: str = "", **options: Any) -> Iterator[Tab]:
        """Open a tab for the server at `url`, in the window with these options of Playwright.

        An error on its pages fails the test.
        """
        window, place = self._window(options), (json.dumps(options, sort_keys=True), token)
        window.clear_cookies()
        window.clear_permissions()
        page, seen = self._left.pop(place, None), Seen()
        if page is None:
            page = window.new_page()
            page.add_init_script(FIRST_SCRIPT % json.dumps(token))
        page.bring_to_front()  # The pages of a hidden tab are not refreshed.
        size = page.viewport_size
        with listening(page, url, seen):
            yield Tab(page, url, seen)
            if page.is_closed() or page.viewport_size != size or not page.url.startswith(f"{url}/"):
                page.close()
            else:
                page.evaluate("sessionStorage.clear()")
                page.goto("about:blank")
                page.unroute_all(behavior="ignoreErrors")
                self._left[place] = page
        # A refused request is one of the browser's errors, too: tests that provoke one empty the
        # list.
        assert not seen.errors

    def _window(self, options: dict[str, Any]) -> BrowserContext:
        name = json.dumps(options, sort_keys=True)
        if name not in self._open:
            # A test must not see a colour that is half-way to another one.
            self._open[name] = self._browser.new_context(reduced_motion="reduce", **options)
            self._open[name].new_page()  # A window without tabs would close.
        return self._open[name]

    def close(self) -> None:
        for window in self._open.values():
            window.close()


@contextmanager
def listening(page: Page, url: str, seen: Seen) -> Iterator[None]:
    """Note the errors, the answers, and the requests to other servers of a tab's pages."""

    def failed(error: object) -> None:
        seen.errors.append(str(error))

    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            seen.errors.append(message.text)

    def asked(request: Request) -> None:
        if not request.url.startswith((url, "about:")):
            seen.elsewhere.append(request.url)

    def answered(response: Response) -> None:
        seen.answers.append(response)

    page.on("pageerror", failed)
    page.on("console", said)
    page.on("request", asked)
    page.on("response", answered)
    yield
    page.remove_listener("request", asked)
    page.remove_listener("pageerror", failed)
    page.remove_listener("console", said)
    page.remove_listener("response", answered)
