"""Mutation testing changes the places that it should, and leaves out the others."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.operators.operator import Operator
from parso.tree import NodeOrLeaf

from tests.support.mutation.rooms import (
    PACKAGE,
    ROOMS,
    SEEDS_MAX,
    WORKLOADS,
    room_of,
    seeds_of,
    workloads_of,
)
from tests.support.mutation.sites import (
    Mutant,
    body_of,
    diff,
    mutated,
    operators,
    positions,
    sites,
)

ROOT = Path(__file__).parents[4]
FILE = "src/quire/core/example.py"


def mutants_of(source: str) -> list[Mutant]:
    return [mutant for site in sites(FILE, source) for mutant in site.mutants]


def changes(source: str) -> set[str]:
    """Return all texts that a change of this source can give."""
    return {text for mutant in mutants_of(source) if (text := mutated(mutant, source)) is not None}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b\n", "x = a <= b\n"),
        ("x = a + b\n", "x = a - b\n"),
        ("x = a and b\n", "x = a or b\n"),
        ("x = 7\n", "x = 8\n"),
        ("x = not a\n", "x =  a\n"),
        ("x = True\n", "x = False\n"),
        ("if a:\n    b()\n", "if not a:\n    b()\n"),
        ("x = a if b else c\n", "x = a if not b else c\n"),
        ("for a in b:\n    c()\n", "for a in []:\n    c()\n"),
        ("while a:\n    break\n", "while a:\n    continue\n"),
        ("@cache\ndef f():\n    pass\n", "def f():\n    pass\n"),
    ],
)
def test_each_kind_of_mutation_is_generated(source: str, expected: str) -> None:
    same = {"".join(text.split()) for text in changes(source)}
    assert "".join(expected.split()) in same


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring with 1 + 2 and True."""\n',
        "def f(a: int | None) -> bytes | None:\n    pass\n",
        "x: int | None\n",
        "Position = int | str | None\n",
        "if TYPE_CHECKING:\n    Position = A | B\n",
        "class A:\n    def __repr__(self):\n        return a + b if c else d\n",
        "__all__ = [name for name in names if name != 'a' and True]\n",
        "@override\ndef f():\n    pass\n",
        "log_event(WARNING, 'lost', entry=last + 1)\n",
        "self._logger.warning('entry %d', last + 1)\n",
        'raise ReadError(a, f"entry {last + 1} of {b}")\n',
        'error = LostError(f"entry {last + 1} of {b}")\n',
    ],
)
def test_meaningless_places_are_not_mutated(source: str) -> None:
    assert mutants_of(source) == []


def test_only_the_order_flag_of_a_dataclass_is_mutated() -> None:
    source = "@dataclass(frozen=True, slots=True, order=True)\nclass A:\n    pass\n"
    flags = [mutant for mutant in mutants_of(source) if "True" in mutant.operator]
    assert [mutant.column for mutant in flags] == [source.index("True", source.index("order"))]


@pytest.mark.parametrize(
    "source",
    [
        "LIMIT_BYTES = 1 << 20\n",
        "FLAGS = A | B\n",
        "def f(a=1):\n    pass\n",
        "x: int = 1\n",
        "raise ReadError(last + 1)\n",
        'path = f"{number + 1}.log"\n',
        "def f():\n    Wanted = a | b\n",
        "if TYPE_CHECKING:\n    a\nelse:\n    x = 1\n",
        "dialog.close(1)\n",
    ],
)
def test_places_beside_meaningless_ones_are_mutated(source: str) -> None:
    assert mutants_of(source)


class Positions(Visitor):
    """The places of one operator, in the order in which Cosmic Ray walks through a file."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.found: list[tuple[int, int]] = []

    def visit(self, node: NodeOrLeaf) -> NodeOrLeaf:
        self.found += [begin for begin, _ in self.operator.mutation_positions(node)]
        return node


def test_occurrences_are_numbered_like_cosmic_rays() -> None:
    """Only the nodes at which an operator looks are asked. That must not change the numbers."""
    source = (ROOT / PACKAGE / "core" / "append" / "quorum.py").read_text(encoding="utf-8")
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in operators()}
    for _, name, occurrence, begin, _ in positions(source):
        assert occurrence == len(found[name])
        found[name].append(begin)

    assert sum(map(len, found.values())) > 100
    for name, operator in operators().items():
        visitor = Positions(operator)
        visitor.walk(get_ast(source))
        assert visitor.found == found[name], name


def test_invalid_or_unchanged_code_is_not_a_mutant() -> None:
    source = "def f(*, a):\n    return a\n"
    assert all(mutated(mutant, source) is None for mutant in mutants_of(source))
    unchanged = Mutant(FILE, "core/NumberReplacer", 0, 1, 0, 1)
    assert mutated(unchanged, source) is None


def test_a_mutation_is_on_its_reported_line() -> None:
    """Draw from real files, and compare the line that changed with the line of the mutant."""
    chance = random.Random(0)
    for name in ("core/append/quorum.py", "storage/worker.py"):
        source = (ROOT / PACKAGE / name).read_text(encoding="utf-8")
        for mutant in chance.sample(mutants_of(source), 12):
            if mutated(mutant, source) is not None:
                head = next(line for line in diff(mutant, source).split("\n") if line[:2] == "@@")
                first = int(head.split()[1].split(",")[0].removeprefix("-"))
                assert first <= mutant.line <= first + 1, (mutant, head)


SOURCE = """\
LIMIT = 1

def f(
    a=2,
):
    x = g(
        a,
        3,
    )
    if x and (
        a > 4
    ):
        return 5
    try:
        def h():
            return 7
    except A:
        g(6)
"""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("LIMIT = 1", None),
        ("a=2", None),
        ("3,", range(6, 19)),
        ("except A", range(6, 19)),
        ("6", range(6, 19)),
        ("7", range(16, 17)),
    ],
)
def test_the_function_of_a_mutation_is_named(text: str, lines: range | None) -> None:
    line = SOURCE[: SOURCE.index(text)].count("\n") + 1
    assert body_of(Mutant(FILE, "", 0, line, 0, line), SOURCE) == lines


def test_each_folder_has_workloads_that_exist() -> None:
    from quire_simulator import WORKLOADS as KNOWN

    assert set(WORKLOADS) >= set(ROOMS)
    for folder, names in WORKLOADS.items():
        assert (ROOT / PACKAGE / folder).is_dir(), folder
        assert set(names) <= set(KNOWN), folder
    assert workloads_of("src/quire/client/recovery.py") == WORKLOADS["client"]
    assert workloads_of("src/quire/client/read/tail.py") == WORKLOADS["client/read"]
    assert room_of("src/quire/client/read/tail.py") == "client"


def test_simulator_workloads_alternate() -> None:
    file = "src/quire/streams/write/writer.py"
    workloads = workloads_of(file)
    found = seeds_of(file, 7, first_seed=10)
    assert found[: len(workloads)] == [(workload, 10) for workload in workloads]
    assert found[len(workloads)] == (workloads[0], 11)
    assert len(found) == 7
    assert len(seeds_of("src/quire/core/ranges.py", SEEDS_MAX)) == SEEDS_MAX
