"""The Python of a page uses only names that a reader of the page can know.

A name is known if a block that the reader sees defines it, or if the text mentions it as code, for
example "`uri` is the metadata URI". The hidden blocks that only the tests run do not count.
"""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import pytest

from tests.support.docs.pages import ROOT, all_pages, blocks

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


def unknown(page: Path) -> set[str]:
    """Return the names that the Python of a page uses and that its reader cannot know."""
    prose = FENCE.sub("", COMMENT.sub("", page.read_text(encoding="utf-8")))
    known = set(dir(builtins)) | {"__file__"} | set(re.findall(r"`(\w+)(?=[`.(])", prose))
    found: set[str] = set()
    for block in blocks(page):
        if block.language == "python":
            used, defined = names(block.text)
            known |= defined
            found |= used - known
    return found


def names(code: str) -> tuple[set[str], set[str]]:
    """Return the names that code reads, and those that it defines anywhere."""
    used: set[str] = set()
    defined: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(name, ast.Load()):
                used.add(name)
            case ast.Name(name) | ast.arg(name):
                defined.add(name)
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                defined.add(name)
            case ast.Import(aliases) | ast.ImportFrom(_, aliases):
                defined |= {(one.asname or one.name).partition(".")[0] for one in aliases}
            case ast.ExceptHandler(_, str(name)) | ast.MatchAs(_, str(name)):
                defined.add(name)
    return used, defined


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_on_a_page_is_defined_there(page: Path) -> None:
    assert not unknown(page)


def test_a_name_from_a_hidden_block_counts_as_undefined(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- run: python\nevent = 1\n-->\n```python\nprint(event, other)\n```\n\n`other`\n"
    )
    assert unknown(page) == {"event"}
