"""Packages whose names are imported on first use."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import quire
import quire.replication

LAZY = [quire, quire.replication]


@pytest.mark.parametrize("package", LAZY, ids=lambda package: package.__name__)
def test_each_lazy_name_is_the_object_that_type_checkers_see(package: ModuleType) -> None:
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text("utf-8"))
    (branch,) = (node for node in tree.body if isinstance(node, ast.If))
    named = {
        alias.name: node.module
        for node in branch.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    assert named
    for name, module in named.items():
        home = import_module(module)
        expected = vars(home).get(name) or import_module(f"{module}.{name}")
        assert getattr(package, name) is expected
        assert package.__getattr__(name) is expected, "the name also works before it is cached"
    assert {*named} <= {*package.__all__} <= {*dir(package)}


def test_a_former_name_still_works_with_a_warning_that_gives_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"quire\.Suspect is deprecated.*UnhealthyBookie"):
        assert quire.Suspect is quire.UnhealthyBookie  # type: ignore[attr-defined]


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'quire' has no attribute 'Ledger'"):
        _ = quire.Ledger  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'Bookie' from 'quire'"):
        from quire import Bookie  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize(
    ("module", "spared"),
    [
        ("quire.bookie.main", "quire.client"),
        ("quire.configuration.layers", "quire.replication.autorecovery.auditor"),
    ],
)
def test_importing_a_package_loads_no_unneeded_modules(module: str, spared: str) -> None:
    program = f"import sys, {module}; sys.exit({spared!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
