"""The pictures of the documentation: one style, light and dark, large enough for a phone."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

PICTURES = Path(__file__).resolve().parents[4] / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"
ALL = sorted(PICTURES.glob("*.svg"))
MIN_FONT_PX = 16
MAX_WIDTH = 640
"""The width of a picture's coordinates. A wider picture has smaller letters on a phone."""


def style(picture: Path) -> str:
    found = ElementTree.parse(picture).getroot().find(f"{SVG}style")
    assert found is not None
    assert found.text
    return found.text


@pytest.mark.parametrize("picture", ALL, ids=lambda one: one.stem)
def test_a_picture_describes_itself(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    assert root.get("role") == "img"
    for name in str(root.get("aria-labelledby")).split():
        [described] = [one for one in root if one.get("id") == name]
        assert described.text


@pytest.mark.parametrize("picture", ALL, ids=lambda one: one.stem)
def test_a_picture_has_the_common_style(picture: Path) -> None:
    text = style(picture)
    assert text == style(ALL[0])
    assert "prefers-color-scheme: dark" in text
    sizes = [int(size) for size in re.findall(r"(\d+)px", text)]
    assert min(sizes) >= MIN_FONT_PX
    root = ElementTree.parse(picture).getroot()
    assert int(str(root.get("viewBox")).split()[2]) <= MAX_WIDTH
    assert not [one.tag for one in root.iter() if one.get("style") or one.get("font-size")]


@pytest.mark.parametrize("picture", ALL, ids=lambda one: one.stem)
def test_every_class_of_a_picture_is_in_its_style(picture: Path) -> None:
    known = set(re.findall(r"\.([a-z-]+) \{", style(picture)))
    used = {
        name
        for element in ElementTree.parse(picture).getroot().iter()
        for name in str(element.get("class") or "").split()
    }
    assert used <= known


def test_the_pictures_on_pages_exist() -> None:
    docs = PICTURES.parent
    for page in docs.rglob("*.md"):
        for target in re.findall(r"!\[[^\]]*\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"
