"""The nearest known name in messages about a name that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

import quire
from quire._runtime.names.suggest import did_you_mean, nearest

KNOWN = ("retention_s", "retention_bytes", "roll_bytes")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("retention", "retention_s"),
        ("rol_bytes", "roll_bytes"),
        ("compression", None),
        ("", None),
    ],
)
def test_the_nearest_name_is_found_if_it_is_near_enough(name: str, found: str | None) -> None:
    assert nearest(name, KNOWN) == found


def test_the_hint_asks_did_you_mean_or_gives_the_fallback() -> None:
    assert did_you_mean("rol_bytes", KNOWN) == "Did you mean roll_bytes?"
    assert did_you_mean("rol_bytes", KNOWN, quote=True) == "Did you mean 'roll_bytes'?"
    assert did_you_mean("x", KNOWN, "There are three") == "There are three"
    assert did_you_mean("x", KNOWN) == ""


def test_names_are_compared_in_one_place() -> None:
    root = Path(quire.__file__).parent
    found = [
        str(path.relative_to(root)) for path in root.rglob("*.py") if "difflib" in path.read_text()
    ]
    assert found == ["_runtime/names/suggest.py"]
