"""The layout of packages and tests.

There are no import cycles between files, folders are small and have a first sentence, and no test
imports another. Imports are found on the syntax trees, so imports inside a function or under
TYPE_CHECKING count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PACKAGES = (ROOT / "src" / "quire", ROOT / "simulator" / "quire_simulator")
ENTRIES_MAX = 15
"""Files and folders in one folder, besides `__init__.py`."""
TESTS = ROOT / "tests"
ONE_FOR_EACH_ROOM = (PACKAGES[0], TESTS / "support", TESTS / "unit")
"""These folders have an entry for each room, and may have more."""


def module_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources_of(package: Path) -> dict[str, str]:
    return {
        module_of(path, package): path.read_text(encoding="utf-8") for path in package.rglob("*.py")
    }


def imports_of(source: str, modules: Mapping[str, str]) -> Iterator[str]:
    """The modules among `modules` that a source imports. The package that a module is in does not
    count: Python imports it anyway."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in modules or node.module in modules:
                    yield whole if whole in modules else node.module


def circles(sources: Mapping[str, str]) -> set[frozenset[str]]:
    """The groups of modules that import each other, directly or through others."""
    graph = {name: set(imports_of(text, sources)) - {name} for name, text in sources.items()}
    reached: dict[str, set[str]] = {}
    for name in graph:
        found: set[str] = set()
        waiting = [name]
        while waiting:
            new = graph[waiting.pop()] - found
            found |= new
            waiting += new
        reached[name] = found
    return {
        frozenset(other for other in found if name in reached[other])
        for name, found in reached.items()
        if name in found
    }


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_no_modules_import_each_other(package: Path) -> None:
    found = circles(sources_of(package))
    assert not found, "\n".join(" <-> ".join(sorted(group)) for group in found)


@pytest.mark.parametrize("package", [*PACKAGES, TESTS], ids=lambda path: path.name)
def test_folders_are_small_and_introduced(package: Path) -> None:
    wrong = []
    for first in package.rglob("__init__.py"):
        folder = first.parent
        entries = [
            path for path in folder.iterdir()
            if path != first and (path.suffix == ".py" or (path / "__init__.py").is_file())
        ]  # fmt: skip
        if len(entries) > ENTRIES_MAX and folder not in ONE_FOR_EACH_ROOM:
            wrong.append(f"{folder.relative_to(ROOT)} has {len(entries)} entries")
        if not ast.get_docstring(ast.parse(first.read_text(encoding="utf-8"))):
            wrong.append(f"{first.relative_to(ROOT)} does not say what the folder holds")
    assert not wrong, "\n".join(wrong)


def test_no_test_imports_another_test() -> None:
    """Helpers are in `tests/support`, so that a test module can be read, moved and deleted alone.

    The defects that the simulator must find are data, and stay beside its tests.
    """
    sources = {
        module_of(path, ROOT / "tests"): path.read_text(encoding="utf-8")
        for path in (ROOT / "tests").rglob("*.py")
    }
    wrong = [
        f"{name} imports {target}"
        for name, text in sources.items()
        for target in imports_of(text, sources)
        if target.rpartition(".")[2].startswith(("test_", "conftest"))
    ]
    assert not wrong, "\n".join(wrong)


def test_an_import_cycle_is_found_wherever_the_import_is() -> None:
    sources = {
        "p.a": "from p.b import x",
        "p.b": "def f():\n    from p import c",
        "p.c": "if TYPE_CHECKING:\n    import p.a",
        "p.d": "from p import a",
    }
    assert circles(sources) == {frozenset({"p.a", "p.b", "p.c"})}
    assert not circles({**sources, "p.c": ""})
