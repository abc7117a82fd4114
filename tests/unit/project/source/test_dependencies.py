"""Every dependency is justified in CONTRIBUTING.md, and nothing else is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[4]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ROW = re.compile(r"^\| `([a-z0-9-]+)` \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)


def name_of(requirement: str) -> str:
    found = NAME.match(requirement)
    assert found, requirement
    return found[0].lower()


def wanted() -> dict[str, set[str]]:
    """Return where each dependency is required."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lists: dict[str, list[str]] = {
        "base": project["project"]["dependencies"],
        **project["project"]["optional-dependencies"],
        **project["dependency-groups"],
        "build": [
            line
            for line in (ROOT / "requirements" / "build.in").read_text(encoding="utf-8").split("\n")
            if line and not line.startswith("#")
        ],
    }
    found: dict[str, set[str]] = {}
    for where, requirements in lists.items():
        for one in requirements:
            found.setdefault(name_of(one), set()).add(where)
    return found


def test_each_dependency_has_its_reason() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## Dependencies")[2].partition("\n## ")[0]
    rows = ROW.findall(section)
    justified = {name: set(re.findall(r"[a-z]+", where)) for name, where in rows}
    assert len(justified) == len(rows), "a dependency is listed twice"
    assert justified == wanted()
