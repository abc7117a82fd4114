"""The cookbook shows the programs as they are. `QUIRE_WRITE_DOCS=1` writes them into the page."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COOKBOOK = ROOT / "docs" / "guides" / "programs" / "cookbook.md"
PROGRAM = re.compile(r'(?<=^```python title=")(\w+\.py)"\n(.*?)(?=^```$)', re.MULTILINE | re.DOTALL)
ELSEWHERE = {"demo.py"}
"""Programs that are no recipes: `make demo`."""


def with_programs(page: str) -> str:
    def program(match: re.Match[str]) -> str:
        return f'{match[1]}"\n' + (ROOT / "examples" / match[1]).read_text(encoding="utf-8")

    return PROGRAM.sub(program, page)


def test_the_cookbook_shows_each_program_unchanged() -> None:
    page = COOKBOOK.read_text(encoding="utf-8")
    shown = [name for name, _ in PROGRAM.findall(page)]
    every = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert sorted(shown) == sorted(every - ELSEWHERE)
    if os.environ.get("QUIRE_WRITE_DOCS"):
        COOKBOOK.write_text(with_programs(page), encoding="utf-8")
    else:
        assert page == with_programs(page), "QUIRE_WRITE_DOCS=1 pytest tests/examples"


def test_make_demo_runs_only_the_demo() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    assert recipe[1] == "\t@$(BIN)/python examples/demo.py\n"
