"""The search for a Chromium on this machine, and Playwright, which drives it."""

from __future__ import annotations

import os
import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_driver: Any = import_module("playwright.sync_api") if find_spec("playwright") else None
expect = _driver and _driver.expect

HEADLESS_SHELL = "chromium-headless-shell"
"""Chromium without windows, with which the tests take a quarter less processor time."""
NAMES = (HEADLESS_SHELL, "chromium", "chromium-browser", "google-chrome")
SCREENSHOTS = Path(__file__).parents[3] / "build" / "screenshots"


def executable() -> str | None:
    chosen = os.environ.get("QUIRE_CHROMIUM")
    found = (shutil.which(name) for name in ((chosen,) if chosen else NAMES))
    return next((path for path in found if path), None)


def missing() -> str:
    """Return a text that says what browser tests lack on this machine, or '' if nothing."""
    if find_spec("playwright") is None:
        return "Playwright is missing (it is in requirements/dev.lock: run make)"
    if executable() is None:
        return (
            f"no Chromium (install the package {HEADLESS_SHELL} or chromium, or set QUIRE_CHROMIUM "
            "to a browser)"
        )
    return ""
