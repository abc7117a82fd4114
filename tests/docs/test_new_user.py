"""The README alone leads from a copy of the source to a cluster with its dashboard open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.docs.new_user import (
    NewUserError,
    copy_source,
    follow,
    kind_of,
    not_installed,
    quickstart,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def source(tmp_path: Path) -> Path:
    copy_source(tmp_path / "quire")
    return tmp_path / "quire"


def test_the_readme_steps_lead_to_an_open_dashboard(source: Path, tmp_path: Path) -> None:
    assert [kind_of(block) for block in quickstart(source)] == ["install", "start", "use", "make"]
    steps = follow(source, not_installed(source, tmp_path))
    names = [step.name for step in steps]
    assert names[:2] == ["a cluster runs", "the dashboard is open"]
    assert any("ledger write" in name for name in names[2:-2])
    assert names[-2:] == ["quire explain", "stopped"]
    for step in steps:
        print(f"{step.ended_s:6.1f} s  {step.name}")


@pytest.mark.parametrize(
    ("pattern", "instead", "said"),
    [
        (r"--bookies 3 --dir data", "--bookys 3", "No such option"),
        (r"^\$ quire local[^\n]*\n", "$ quire ui\n", "no longer starts"),
    ],
)
def test_an_incorrect_readme_fails(
    source: Path, tmp_path: Path, pattern: str, instead: str, said: str
) -> None:
    readme = source / "README.md"
    text, changed = re.subn(pattern, instead, readme.read_text(), count=1, flags=re.MULTILINE)
    assert changed
    readme.write_text(text)
    with pytest.raises(NewUserError, match=said):
        follow(source, not_installed(source, tmp_path))
