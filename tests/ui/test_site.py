"""The documentation's site, built strictly and opened from its directory in a browser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.docs.pages import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.browser]
PAGES = (
    "index.html",
    "tutorials/first-cluster.html",
    "guides/index.html",
    "guides/cluster/deployment.html",
    "reference/client.html",
    "reference/options.html",
    "explanation/replication.html",
    "project.html",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_load_only_files_and_fit_the_screen(site: Path, browser: Browser, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    for name in PAGES:
        page.goto((site / name).as_uri())
        wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0, f"{name} is {wider} pixels wider than a screen of {width}"
    page.close()
    assert not errors
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]


@pytest.mark.long
def test_search_works_in_pages_that_are_opened_as_files(site: Path, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.click("input[name=query]")
    page.keyboard.type("fencing")
    page.wait_for_selector(".md-search-result__item")
    page.close()


@pytest.mark.long
def test_a_picture_follows_the_palette_of_the_page(site: Path, browser: Browser) -> None:
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    schemes = []
    for _ in range(2):
        schemes.append(
            page.eval_on_selector("img[src$='cluster.svg']", "e => getComputedStyle(e).colorScheme")
        )
        page.click("label[for=__palette_1]:visible, label[for=__palette_0]:visible")
    context.close()
    assert schemes == ["light", "dark"]
