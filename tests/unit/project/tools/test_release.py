"""`make release` refuses a source that is not ready, and says why."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

import quire

ROOT = Path(__file__).resolve().parents[4]
CHANGELOG = """# Changelog

## [Unreleased]

## [0.2.0] - 2026-11-26

### Added

- Something.

## [0.1.0] - 2026-11-25

- Everything.
"""


def loaded() -> Any:
    loader = SourceFileLoader("quire_release", str(ROOT / "scripts" / "release"))
    spec = spec_from_loader("quire_release", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


release = loaded()


def git(source: Path, *arguments: str) -> None:
    names = ("-c", "user.name=A", "-c", "user.email=a@example.net", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(source), *names, *arguments], check=True, capture_output=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A repository that is ready for the release of 0.2.0."""
    for name in ("pyproject.toml", *release.NAMES_VERSION):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace(quire.__version__, "0.2.0"), encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    golden = tmp_path / "tests" / "golden" / "0.2.0"
    golden.mkdir(parents=True)
    (golden / "cluster.json").write_text("{}")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "--quiet", "-m", "all")
    git(tmp_path, "tag", "-a", "v0.2.0", "-m", "Quire 0.2.0")
    return tmp_path


def commit(source: Path) -> None:
    """Commit what changed, and move the tag, so that only one thing is wrong."""
    git(source, "add", "-A")
    git(source, "commit", "--quiet", "--allow-empty", "-m", "changed")
    git(source, "tag", "--force", "-a", "v0.2.0", "-m", "Quire 0.2.0")


def changed(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(source: Path) -> None:
        path = source / name
        text, count = re.subn(old, new, path.read_text(encoding="utf-8"), count=1)
        assert count
        path.write_text(text, encoding="utf-8")
        commit(source)

    return change


def without_golden(source: Path) -> None:
    shutil.rmtree(source / "tests")
    commit(source)


def test_a_releasable_source_has_no_problems(source: Path) -> None:
    assert release.problems(source) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed("pyproject.toml", r'version = "0\.2\.0"', 'version = "0.3.0"'), "says 0.2.0"),
        (changed("pyproject.toml", r'version = "0\.2\.0"', 'version = "0.2"'), "of the form"),
        (changed("src/quire/__init__.py", r"0\.2\.0", "0.1.0"), "__init__.py says 0.1.0"),
        (changed("simulator/pyproject.toml", r"0\.2\.0", "0.1.0"), "simulator.* says 0.1.0"),
        (changed("deploy/Dockerfile", r"quire:0\.2\.0", "quire:0.1.0"), "Dockerfile says 0.1.0"),
        (
            changed("deploy/kubernetes/3-bookies.yaml", r"quire:0\.2\.0", "quire:0.1.0"),
            "3-bookies.yaml says 0.1.0",
        ),
        (changed("deploy/Dockerfile", r"quire:0\.2\.0", "other"), "does not name the version"),
        (
            changed("docs/guides/cluster/deployment.md", r"quire:0\.2\.0", "quire:0.1.0"),
            "says 0.1.0",
        ),
        (changed("CHANGELOG.md", r"## \[0\.2\.0\].*", ""), "unreleased entries"),
        (changed("CHANGELOG.md", r"(?s)## \[Unreleased\].*Something\.\n", ""), "newest section"),
        (changed("CHANGELOG.md", r" - 2026-11-26", ""), "has no date"),
        (changed("CHANGELOG.md", r"2026-11-26", "2026-11-31"), "has no date"),
        (changed("CHANGELOG.md", r"### Added\n\n- Something\.\n", ""), "is empty"),
        (without_golden, "there is no tests/golden/0.2.0"),
        (lambda source: git(source, "tag", "-d", "v0.2.0"), "there is no tag v0.2.0"),
        (
            lambda source: git(source, "commit", "--quiet", "--allow-empty", "-m", "later"),
            "the tag v0.2.0 names",
        ),
        (lambda source: (source / "left").write_text("over"), "not clean.* left"),
        (
            lambda source: (source / "CHANGELOG.md").write_text(f"{CHANGELOG}\n"),
            "not clean.* CHANGELOG.md",
        ),
    ],
)
def test_a_source_that_is_not_releasable_is_refused(
    source: Path, change: Callable[[Path], object], said: str
) -> None:
    change(source)
    found = release.problems(source)
    assert re.search(said, "\n".join(found)), found


def test_the_release_script_prints_what_to_publish(source: Path) -> None:
    dist = source / "dist"
    dist.mkdir()
    (dist / "quire_log-0.2.0.tar.gz").write_text("x")
    said = "\n".join(release.what_to_publish(source))
    assert "git push origin v0.2.0" in said
    assert "twine upload dist/quire_log-0.2.0.tar.gz" in said
    assert "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" in said


def test_the_version_is_the_same_everywhere() -> None:
    assert release.version_of(ROOT) == quire.__version__
    assert list(release.version_problems(ROOT)) == []


def test_the_changelog_has_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{quire.__version__}] - " in text


def test_an_entry_of_the_changelog_has_two_lines_at_most() -> None:
    """A line has 110 characters here; the targets of links do not count."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for entry in re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE):
        assert len(re.sub(r"\]\([^)]*\)", "]", entry)) <= 220, entry
