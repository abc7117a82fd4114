"""The index pages of the documentation and the navigation of its site name every page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[4]
DOCS = ROOT / "docs"
KINDS = ("tutorials", "guides", "reference", "explanation", "internals")


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags for Python functions are of no interest here."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation() -> list[str]:
    def pages(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            for inner in entry.values():
                yield from pages(inner)
        else:
            for inner in entry:
                yield from pages(inner)

    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return list(pages(yaml.load(text, _Loader)["nav"]))


def listed(index: Path) -> list[str]:
    """The links of the lines `- [Title](page.md): What the page answers.`"""
    lines = index.read_text(encoding="utf-8").splitlines()
    found = [re.match(r"- \[[^\]]+\]\(([^)#]+)\): \S.*[.?]$", line) for line in lines]
    return [match[1] for match in found if match]


@pytest.mark.parametrize("kind", KINDS)
def test_the_index_of_a_folder_names_each_of_its_pages(kind: str) -> None:
    folder = DOCS / kind
    pages = {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")} - {"README.md"}
    names = listed(folder / "README.md")
    assert sorted(names) == sorted(set(names)), "a page is listed twice"
    missing = pages - set(names)
    assert not missing, (
        f"docs/{kind}/README.md does not list {', '.join(sorted(missing))}. Add a line of the "
        "form `- [Title](page.md): The question that the page answers?`"
    )


def test_the_navigation_names_each_page_once() -> None:
    names = navigation()
    assert sorted(names) == sorted(set(names))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    missing = pages - set(names)
    assert not missing, f"mkdocs.yml has no navigation entry for {', '.join(sorted(missing))}"


def test_every_page_of_a_folder_is_below_the_tab_of_that_folder() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for entry in yaml.load(text, _Loader)["nav"]:
        [(title, pages)] = entry.items()
        for page in re.findall(r"[\w/-]+\.md", str(pages)):
            folder, _, name = page.partition("/")
            if name:
                assert title.lower() == folder, f"{page} is below {title}"
