"""The troubleshooting page explains exactly what Quire reports.

The tests compare it with the error classes, the findings of `quire explain`, the reasons of `quire
bookie explain space`, the exit statuses, and the names of the commands.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest

from quire import errors
from quire.bookie import main as bookie_main
from quire.cli.common import groups
from quire.errors import QuireError
from tests.support.docs.pages import section

ROOT = Path(__file__).parents[4]
SOURCE = ROOT / "src" / "quire"
PAGE = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")

SIGTERM_STATUS = 143
"""128 and the number of the signal, as shells count."""
LITERAL_MIN = 12
"""A sentence with fewer constant characters is made elsewhere; `ELSEWHERE` names where."""
ELSEWHERE = ["garbage collection is switched off for the whole cluster"]
"""Findings whose sentence the code of problems only passes on."""

PROBLEMS = sorted((SOURCE / "http" / "views" / "problems").glob("*.py"))
CALLS = [
    *((f"http/views/problems/{path.name}", "Problem", 1) for path in PROBLEMS),
    ("http/views/topology.py", "TopologyWarning", 1),
    ("replication/explain/copies.py", "CopyProblem", 0),
    ("replication/explain/explain.py", "Diagnosis", 0),
]
"""A file, the class that its findings have, and which argument is the sentence."""
FUNCTIONS = [
    ("http/views/problems/autorecovery.py", "healing"),
    ("replication/explain/explain.py", "_why"),
    ("replication/explain/status.py", "sentence"),
    ("core/compaction.py", "why_not"),
    ("storage/inspect/space_report.py", "_why"),
    ("storage/background/suspension.py", "describe"),
]
"""A file, and a function that returns such sentences."""


Names = Mapping[str, ast.AST]
"""The f-strings that a function assigns to names, by name."""


def texts(node: ast.AST, names: Names) -> list[str]:
    """The sentences that an expression may give, with NUL for each value that is not constant."""
    match node:
        case ast.Constant(str(value)):
            return [value]
        case ast.JoinedStr(parts):
            made = [""]
            for part in parts:
                made = [before + text for before in made for text in texts(part, names)]
            return made
        case ast.FormattedValue(ast.Name(name)) if name in names:
            return texts(names[name], {})
        case ast.BinOp(left, ast.Add(), right):
            return [a + b for a in texts(left, names) for b in texts(right, names)]
        case ast.IfExp(_, body, otherwise):
            return [*texts(body, names), *texts(otherwise, names)]
    return ["\0"]


def functions(name: str) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse((SOURCE / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield node


def assigned(function: ast.FunctionDef) -> Names:
    return {
        node.targets[0].id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.JoinedStr)
    }


def sentences() -> Iterator[tuple[str, str]]:
    """Yield the place where a sentence is made, and its text."""
    for name, kind, argument in CALLS:
        for function in functions(name):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == kind:
                    found = texts(node.args[argument], assigned(function))
                    yield from ((f"{name}: {kind}", text) for text in found)
    for name, wanted in FUNCTIONS:
        for function in functions(name):
            for node in ast.walk(function):
                if function.name == wanted and isinstance(node, ast.Return) and node.value:
                    found = texts(node.value, assigned(function))
                    yield from ((f"{name}: {wanted}", text) for text in found)


def first_cells() -> list[str]:
    return [line[2:].split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| ")]


def said(template: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, template.split("\0"))), re.IGNORECASE)


SENTENCES = [
    (place, text)
    for place, text in sentences()
    if len(text.replace("\0", "").strip(" .;,()")) >= LITERAL_MIN
]


@pytest.mark.parametrize(
    ("place", "text"), SENTENCES, ids=[text.replace("\0", "..") for _, text in SENTENCES]
)
def test_the_troubleshooting_page_explains_each_finding(place: str, text: str) -> None:
    shown = text.replace("\0", "...")
    assert any(said(text).fullmatch(cell) for cell in first_cells()), (
        f"no row of the page shows what {place} says: {shown}"
    )


def test_the_page_shows_findings_that_are_made_elsewhere() -> None:
    for text in ELSEWHERE:
        assert any(text in cell.lower() for cell in first_cells()), text
        assert any(text in path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")), text


@pytest.mark.parametrize(
    "heading", ["## What quire explain says", "## What quire explain ledger says"]
)
def test_each_finding_on_the_page_is_made_by_the_code(heading: str) -> None:
    patterns = [said(text) for _, text in sentences() if text.strip("\0 .")]
    rows = re.findall(r"^\| ([^|]+) \|", section(PAGE, heading), re.MULTILINE)
    for row in rows:
        if row in ("finding", "sentence", "verdict", "reason") or row.startswith("---"):
            continue
        elsewhere = any(text in row.lower() for text in ELSEWHERE)
        assert elsewhere or any(pattern.fullmatch(row) for pattern in patterns), row


KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, QuireError)
}
ERROR_ROW = re.compile(r"^\| `(\w+)` \| (known|unknown) \|", re.MULTILINE)


def test_the_page_explains_each_error_and_whether_its_outcome_is_known() -> None:
    rows = ERROR_ROW.findall(section(PAGE, "## Errors"))
    shown = dict(rows)
    assert len(rows) == len(shown)
    assert shown == {
        name: "known" if kind.outcome_known else "unknown" for name, kind in KINDS.items()
    }


def test_the_page_explains_each_exit_status() -> None:
    constants = {
        value
        for module in (groups, bookie_main)
        for name, value in vars(module).items()
        if name.startswith("EXIT_")
    }
    assert len(constants) >= 4  # the constants are still called so
    shown = set(
        map(int, re.findall(r"^\| (\d+) \|", section(PAGE, "## Exit statuses"), re.MULTILINE))
    )
    assert shown == {0, SIGTERM_STATUS, *constants}


def test_every_command_on_the_page_exists() -> None:
    """Commands in the text: their names, to the last one before arguments."""
    from quire.cli.main import cli

    typed = set(re.findall(r"`quire ([a-z][a-z -]*[a-z])", PAGE))
    assert len(typed) > 20  # the pattern still finds them
    context = cli.make_context("quire", [], resilient_parsing=True)
    for command in typed:
        group: click.Command = cli
        for word in command.split():
            if word.startswith("-") or not isinstance(group, click.Group):
                break
            found = group.get_command(context, word)
            assert found is not None, f"quire {command}: no command {word}"
            group = found
