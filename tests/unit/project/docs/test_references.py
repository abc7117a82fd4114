"""A text refers only to what a reader of the repository can look up.

Texts may cite a page of `docs`, a rule by its number, and Apache's programs.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
FOLDERS = ("src", "simulator", "tests", "docs", "examples", "scripts", "bench")
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
ENDINGS = {".py", ".proto", ".md", ".sh", ".toml", ""}

WORDS = re.compile(r"spec\b|specs\b|issue\b|invariant I", re.IGNORECASE)
LINE_END = re.compile(r"\s*\n\s*(?:(?:#|//)\s)?\s*")
FORBIDDEN = (
    re.compile(
        r"\b(?:replication|metadata|wire(?:[ -]protocol)?|distributedlog) specs?\b", re.IGNORECASE
    ),
    re.compile(r"\bspec, (?:rule|section )?\d", re.IGNORECASE),
    re.compile(r"\binvariant I\d\b"),
    re.compile(r"(?<![\w/])issue #?\d+\b(?! of )|\bissue of faults\b", re.IGNORECASE),
)
"""Citations of documents, and of issues without a repository."""
PAGE = re.compile(r"\bdocs/[\w/.-]+\.md\b")


@cache
def texts() -> dict[str, str]:
    """Return the text of each file by its name."""
    paths = [ROOT / name for name in PAGES]
    for folder in FOLDERS:
        paths += [path for path in (ROOT / folder).rglob("*") if path.suffix in ENDINGS]
    found = {}
    for path in paths:
        if path.is_file() and path != Path(__file__):
            try:
                found[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a program, or data
    return found


def citations(text: str) -> list[str]:
    """Return the citations in a text that no reader can follow."""
    if not WORDS.search(text):
        return []
    joined = LINE_END.sub(" ", text)
    return [match[0] for pattern in FORBIDDEN for match in pattern.finditer(joined)]


def test_every_citation_is_in_the_repository() -> None:
    found = [f"{name}: {cited}" for name, text in texts().items() for cited in citations(text)]
    assert not found, "\n".join(sorted(found))


def test_every_page_that_a_text_names_exists() -> None:
    missing = {
        f"{name}: {page}"
        for name, text in texts().items()
        for page in PAGE.findall(text)
        if not (ROOT / page).exists()
    }
    assert not missing, "\n".join(sorted(missing))


@pytest.mark.parametrize(
    "text",
    [
        "Removes a bookie (replication spec, 12.5).",
        "the order of the wire-protocol\n        spec, 5.4.",
        "# (metadata\n# spec, 3.2)",
        "Source: DistributedLog spec, 2.1",
        'rule="issue 28, point 3"',
        "the issue of faults from outside",
        "safe to believe (invariant I3)",
    ],
)
def test_a_citation_that_leads_nowhere_is_found(text: str) -> None:
    assert citations(text)


@pytest.mark.parametrize(
    "text",
    [
        "rule 8 of docs/internals/replication-rules.md",
        "bk#1591, an issue of Apache BookKeeper",
        'spec = importlib.util.find_spec("quire")',
    ],
)
def test_a_citation_that_can_be_followed_is_allowed(text: str) -> None:
    assert not citations(text)
