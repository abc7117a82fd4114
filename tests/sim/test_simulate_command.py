"""`quire simulate`: what it prints, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys

TIMEOUT_S = 120


def quire(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quire", "simulate", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_a_range_of_seeds() -> None:
    done = quire("--seeds", "3..7", "--workload", "calm", "--processes", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["seeds"] == 4
    assert found["failures"] == []
    assert found["simulated_s"] > 0


def test_the_summary_in_words() -> None:
    done = quire("--seeds", "1..2", "--workload", "calm")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 seeds of 'calm' in ")
    assert "seeds/s" in done.stdout
    assert "simulated hours per real minute; 0 failed" in done.stdout


def test_the_story_of_one_seed() -> None:
    one, other = quire("--trace", "5"), quire("--trace", "5")
    assert one.returncode == 0, one.stderr
    assert one.stdout == other.stdout
    assert one.stdout.startswith("seed 5, workload all; faults:")
    assert one.stdout.endswith("every law holds\n")
    assert " writer-0 create ledger=" in one.stdout


def test_what_makes_no_sense() -> None:
    done = quire("--seeds", "7..3")
    assert done.returncode == 2
    assert "'7..3' is no range of seeds" in done.stderr
    done = quire("--workload", "none")
    assert done.returncode == 2
    assert "no workload 'none'; there are: all" in done.stderr
