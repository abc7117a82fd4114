"""The docstring of an attribute is understood without those of its neighbours.

Editors and the reference show it alone.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import quire

ROOT = Path(quire.__file__).parent
HANGS = re.compile(r"\bthese\b|(?<!no )\bsuch\b(?! as)", re.IGNORECASE)
"""Words that refer to something that was said before."""


def attribute_docstrings(code: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the first sentence of the docstring of each attribute or constant."""
    for node in ast.walk(ast.parse(code)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for named, said in itertools.pairwise(body):
            match named, said:
                case ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text))):
                    yield said.lineno, re.split(r"(?<=[.;:])\s", text.strip())[0]


def test_attribute_docstrings_do_not_depend_on_their_neighbour() -> None:
    hanging = [
        f"{path.relative_to(ROOT)}:{line}: {sentence}"
        for path in sorted(ROOT.rglob("*.py"))
        for line, sentence in attribute_docstrings(path.read_text(encoding="utf-8"))
        if HANGS.search(sentence)
    ]
    assert not hanging, "\n".join(hanging)


def test_a_docstring_fragment_is_found() -> None:
    code = 'a = 1\n"""The number of these."""\nb = 1\n"""No such node. These exist."""\n'
    found = [text for _, text in attribute_docstrings(code) if HANGS.search(text)]
    assert found == ["The number of these."]
