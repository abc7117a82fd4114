"""The places of a source text that can be changed, and the change itself.

The operators are Cosmic Ray's. They exchange comparisons, arithmetic operators, `and` and `or`,
True and False, `break` and `continue`. They add or remove `not`, change numbers by one, and leave
out handlers, loops and decorators. A *site* is a place with the changes that one family of
operators can make there.
"""

from __future__ import annotations

import ast
import difflib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.support.mutation.rules import is_meaningless

NEED_ARGUMENTS = ("core/VariableReplacer", "core/VariableInserter")
"""The operators that are not used because they need the name of a variable."""

NODES_OF_FAMILY: dict[str, tuple[str, ...]] = {
    "AddNot": ("if_stmt", "while_stmt", "assert_stmt", "test"),
    "ExceptionReplacer": ("except_clause",),
    "NumberReplacer": ("number",),
    "RemoveDecorator": ("decorator",),
    "ReplaceAndWithOr": ("keyword",),
    "ReplaceBinaryOperator": ("operator",),
    "ReplaceBreakWithContinue": ("keyword",),
    "ReplaceComparisonOperator": ("comparison",),
    "ReplaceContinueWithBreak": ("keyword",),
    "ReplaceFalseWithTrue": ("keyword",),
    "ReplaceOrWithAnd": ("keyword",),
    "ReplaceTrueWithFalse": ("keyword",),
    "ReplaceUnaryOperator": ("factor", "not_test"),
    "ZeroIterationForLoop": ("for_stmt",),
}
"""The types of syntax nodes that the operators of a family can change.

The operators would ignore all other nodes, but slowly.
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file.

    `occurrence` is Cosmic Ray's number of the place, among all places in the file that this
    operator can change.
    """

    path: str
    operator: str
    occurrence: int
    line: int
    column: int
    end_line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column + 1} {self.operator}"


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a file, with every change that one family of operators can make there."""

    path: str
    line: int
    column: int
    family: str
    mutants: tuple[Mutant, ...]


def family_of(operator: str) -> str:
    """Return the family of an operator.

    It is ReplaceBinaryOperator for core/ReplaceBinaryOperator_Add_Sub.
    """
    return operator.removeprefix("core/").partition("_")[0]


@cache
def operators() -> dict[str, Any]:
    """Return one instance of each operator by its name."""
    names = [name for name in cosmic_ray.plugins.operator_names() if name not in NEED_ARGUMENTS]
    return {name: cosmic_ray.plugins.get_operator(name)() for name in names}


@cache
def _operators_at() -> dict[str, list[tuple[str, Any]]]:
    found: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for name, operator in operators().items():
        for node_type in NODES_OF_FAMILY[family_of(name)]:
            found[node_type].append((name, operator))
    return found


def positions(source: str) -> Iterator[tuple[Any, str, int, tuple[int, int], tuple[int, int]]]:
    """Yield the syntax node, operator, occurrence, begin and end of every possible change.

    Begin and end are (line, column) pairs.
    """
    counts: dict[str, int] = defaultdict(int)
    at = _operators_at()
    for node in ast_nodes(get_ast(source)):
        for name, operator in at.get(node.type, ()):
            for begin, end in operator.mutation_positions(node):
                yield node, name, counts[name], begin, end
                counts[name] += 1


def sites(path: str, source: str) -> list[Site]:
    """Return the sites of a source text in order, without places where a change means nothing."""
    found: dict[tuple[int, int, str], list[Mutant]] = defaultdict(list)
    for node, operator, occurrence, begin, end in positions(source):
        if not is_meaningless(node):
            mutant = Mutant(path, operator, occurrence, *begin, end[0])
            found[(*begin, family_of(operator))].append(mutant)
    return [Site(path, *key, tuple(mutants)) for key, mutants in sorted(found.items())]


def mutated(mutant: Mutant, source: str) -> str | None:
    """Return the changed text, or None if it is no valid Python or means the same as `source`."""
    text = mutate_code(source, operators()[mutant.operator], mutant.occurrence)
    if text is None:
        return None
    try:
        # Names are bound when a text is compiled: `await` outside of a function is found here.
        compile(text, mutant.path, "exec", dont_inherit=True)
        same = ast.dump(ast.parse(text)) == ast.dump(ast.parse(source))
    except SyntaxError:
        return None
    return None if same else text


def diff(mutant: Mutant, source: str) -> str:
    """Return the change as a unified diff with one line around it."""
    text = mutate_code(source, operators()[mutant.operator], mutant.occurrence) or source
    lines = difflib.unified_diff(
        source.splitlines(), text.splitlines(), f"a/{mutant.path}", f"b/{mutant.path}",
        lineterm="", n=1,
    )  # fmt: skip
    return "\n".join(lines)


def body_of(mutant: Mutant, source: str) -> range | None:
    """Return the line numbers of the body of the innermost function around the change.

    Return None if the change is in the header of a function or outside of all functions, in code
    that runs when the module is imported.
    """
    bodies = [
        range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return min((one for one in bodies if mutant.line in one), key=len, default=None)
