"""The maps of ARCHITECTURE.md as values, and the comparison of a map with the source.

A map is a table below a heading. A row with a number is a step: a file below `src/quire`, a
function, what it does, and its calls that lead to other steps. A row with a number and a letter is
a branch, which a plain request does not take. A second table names other files on the path, with
the reason why nobody needs to read them first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.call_trace import SOURCE, Function

PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"
STEP = re.compile(r"(\d+)([a-z]?)")
CODE = re.compile(r"`([^`]+)`")
FILE = re.compile(r"`([\w/]+\.(?:py|toml|proto))`")


@dataclass(frozen=True, slots=True)
class Step:
    """One row of a map."""

    number: str
    file: str
    function: str
    leads_to: tuple[str, ...]
    branch: bool

    def __str__(self) -> str:
        return f"step {self.number}: {self.file} {self.function}"


@dataclass(frozen=True, slots=True)
class Map:
    steps: tuple[Step, ...]
    also_crossed: frozenset[str]

    @property
    def main(self) -> list[Step]:
        """Return the steps that every plain request takes."""
        return [step for step in self.steps if not step.branch]

    @property
    def files(self) -> set[str]:
        return {step.file for step in self.steps}


def rows_below(heading: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the tables below `## heading`."""
    text = PAGE.read_text(encoding="utf-8")
    _, found, rest = text.partition(f"\n## {heading}\n")
    assert found, f"ARCHITECTURE.md has no section '{heading}'"
    for line in rest.partition("\n## ")[0].splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def read_map(heading: str) -> Map:
    steps: list[Step] = []
    also: list[str] = []
    for cells in rows_below(heading):
        if number := STEP.fullmatch(cells[0]):
            assert len(cells) == 5, f"{heading}: step {cells[0]} has {len(cells)} cells"
            (file,), (function,) = CODE.findall(cells[1]), CODE.findall(cells[2])
            calls = tuple(CODE.findall(cells[4]))
            steps.append(Step(cells[0], file, function, calls, bool(number[2])))
        else:
            also += FILE.findall(cells[0])
    assert steps, f"{heading}: there is no table of steps"
    return Map(tuple(steps), frozenset(also))


@cache
def definitions(file: str) -> dict[str, ast.AST]:
    """Return what a file defines, by qualified name: classes, functions, and assigned names."""
    found: dict[str, ast.AST] = {}

    def note(body: Iterable[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[prefix + node.name] = node
                note(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + node.name] = node
            elif isinstance(node, ast.Assign):
                found.update({prefix + t.id: node for t in node.targets if isinstance(t, ast.Name)})
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[prefix + node.target.id] = node

    note(ast.parse((SOURCE / file).read_text(encoding="utf-8")).body, "")
    return found


def names_used(node: ast.AST) -> set[str]:
    """Return the names and attributes that a function mentions."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def untrue(steps: Sequence[Step]) -> list[str]:
    """Return a text for each file, function or call that the source does not contain."""
    wrong: list[str] = []
    for step in steps:
        if not (SOURCE / step.file).is_file():
            wrong.append(f"{step}: there is no such file")
            continue
        function = definitions(step.file).get(step.function)
        if function is None:
            wrong.append(f"{step}: there is no such function")
            continue
        used = names_used(function)
        wrong += [
            f"{step}: does not call {call}" for call in step.leads_to
            if call.rpartition(".")[2] not in used
        ]  # fmt: skip
    return wrong


def out_of_order(steps: Sequence[Step], calls: Sequence[Function]) -> list[str]:
    """Return a text for each step that was not called, or was called before the step before it."""
    position = {function: at for at, function in enumerate(calls)}
    wrong: list[str] = []
    latest, before = -1, ""
    for step in steps:
        at = position.get((step.file, step.function))
        if at is None:
            wrong.append(f"{step}: was not called")
        elif at <= latest:
            wrong.append(f"{step}: was called before {before}")
        else:
            latest, before = at, str(step)
    return wrong


def files_of(calls: Iterable[Function]) -> set[str]:
    return {file for file, _ in calls}
