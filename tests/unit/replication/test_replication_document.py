"""The pages about replication name all 47 rules, every kind of wrong answer, and real limits.

The modules and tests that they name exist.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from functools import cache
from pathlib import Path

import pytest

from quire.client.cluster.health import PROVEN, REPAIRABLE, Misbehaviour
from quire.config import ClientConfig

ROOT = Path(__file__).parents[3]
PAGES = (
    "internals/replication-rules.md",
    "explanation/replication.md",
    "explanation/byzantine-bookies.md",
)
DOCUMENT = "\n".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES)
RULES = range(1, 48)
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def functions_of(file: str) -> frozenset[str]:
    """The functions of a test file that pytest runs."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def rows() -> dict[int, tuple[str, str, str]]:
    return {int(number): (rule, code, tests) for number, rule, code, tests in ROW.findall(DOCUMENT)}


def test_every_rule_is_documented_once() -> None:
    assert [int(number) for number, *_ in ROW.findall(DOCUMENT)] == list(RULES)


@pytest.mark.parametrize("number", RULES)
def test_a_rule_has_a_module_and_a_test(number: int) -> None:
    _, code, tests = rows()[number]
    modules = re.findall(r"`([\w/]+\.py)`", code)
    assert modules
    for module in modules:
        assert (ROOT / "src" / "quire" / module).exists(), module
    assert TEST.findall(tests)


def test_every_module_that_a_rule_names_exists() -> None:
    named = set(re.findall(r"`((?!tests/)[\w/]+\.py)`", DOCUMENT))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / "src" / "quire" / name).exists()] == []


def test_every_test_that_a_rule_names_exists() -> None:
    named = TEST.findall(DOCUMENT)
    assert len(named) > len(RULES)
    for file, function in named:
        assert (ROOT / file).exists(), file
        assert function in functions_of(file), f"{file}::{function}"


def test_a_test_that_does_not_exist_is_noticed() -> None:
    assert "test_every_rule_is_documented_once" in functions_of(
        "tests/unit/replication/test_replication_document.py"
    )
    assert "test_nothing_at_all" not in functions_of(
        "tests/unit/replication/test_replication_document.py"
    )


def test_the_documented_kinds_of_misbehaviour_match_the_code() -> None:
    page = (ROOT / "docs" / "reference" / "client.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `([a-z-]+)` \| .+ \| (yes|no) \| (yes|no) \|$", page, re.MULTILINE)
    assert found == [
        (kind.value, "yes" if kind in PROVEN else "no", "yes" if kind in REPAIRABLE else "no")
        for kind in Misbehaviour
    ]


def test_the_documented_limits_exist_in_the_configuration() -> None:
    fields = {field.name for field in dataclasses.fields(ClientConfig)}
    named = set(re.findall(r"`((?:\w+_)+(?:s|ms|errors|changes|liars|ledgers))`", DOCUMENT))
    assert len(named) >= 10
    assert named <= fields
