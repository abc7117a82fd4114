"""docs/internals/simulator.md names exactly the existing invariants, faults and workloads."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import quire_simulator as simulation
from quire_simulator import WORKLOADS
from quire_simulator.invariants.ledger import LEDGER_INVARIANTS
from quire_simulator.streams.invariants import (
    ACK_INVARIANTS,
    END_INVARIANTS,
    METADATA_INVARIANTS,
    READ_INVARIANTS,
)

DOCUMENT = (Path(__file__).parents[3] / "docs" / "internals" / "simulator.md").read_text(
    encoding="utf-8"
)
ROOMS = (
    "actors",
    "faults",
    "invariants",
    "plans",
    "report",
    "spark",
    "streams",
    "world",
)
ROOT = Path(simulation.__file__).parent
SOURCES = [ROOT / "run.py", *(source for room in ROOMS for source in (ROOT / room).rglob("*.py"))]
RAISERS = {"fail", "tell", "_compare", "Comparison", "InvariantError", "RunFailure"}
"""Functions whose first argument, or the one after some facts, is the name of an invariant."""


def named_in(section: str) -> set[str]:
    """Return the code in the first column of the section's tables."""
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert text is not None, f"no section {section}"
    cells = re.findall(r"^\| (`[^|]*) \|", text[1], re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_invariant_is_documented() -> None:
    functions = (
        *LEDGER_INVARIANTS,
        *ACK_INVARIANTS,
        *READ_INVARIANTS,
        *METADATA_INVARIANTS,
        *END_INVARIANTS,
    )
    invariants = {invariant.__name__ for invariant in functions}
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            texts = [arg.value for arg in node.args[:2] if isinstance(arg, ast.Constant)]
            if called in RAISERS and texts:
                invariants.add(str(texts[0]))
    assert "quiet_heals" in invariants
    assert named_in("Invariants") == invariants


def test_every_fault_is_documented() -> None:
    assert named_in("Faults") == {kind for mix in WORKLOADS.values() for kind in mix.kinds}


def test_every_workload_is_documented() -> None:
    assert named_in("Workloads") == set(WORKLOADS)
