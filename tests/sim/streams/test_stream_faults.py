"""The faults of streams really happen: counts over some seeds of their workloads."""

from __future__ import annotations

from collections import Counter

import pytest

from quire_simulator import simulate
from quire_simulator.streams.stage import StreamStage

SEEDS = 6
RETENTION_SEEDS = 40
"""These runs are short, and their places are rare."""


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the counts of what clients of streams note, by kind and first words."""
    counts: Counter[str] = Counter()
    note = StreamStage.note

    def counted(self: StreamStage, who: str, kind: str, what: object = "") -> None:
        counts[kind] += 1
        counts[f"{kind} {str(what).partition(':')[0]}"] += 1
        note(self, who, kind, what)

    monkeypatch.setattr(StreamStage, "note", counted)
    return counts


def run(workload: str, seeds: int = SEEDS) -> None:
    for seed in range(seeds):
        result = simulate(seed, workload)
        assert result.failure is None, (seed, result.failure)


@pytest.mark.long
def test_streams_are_truncated_at_every_kind_of_position(noted: Counter[str]) -> None:
    run("retention", RETENTION_SEEDS)
    for place in (
        "a record", "the beginning", "a boundary", "the newest segment", "the end",
        "beyond the end", "the last record", "beyond a segment", "inside a segment",
    ):  # fmt: skip
        assert noted[f"truncate {place}"], (place, noted)
    assert noted["retained"] > RETENTION_SEEDS
    assert noted["retained 0 of 0 segments expired"] < noted["retained"]


@pytest.mark.long
def test_drivers_die_at_every_step_and_repeat_it(noted: Counter[str]) -> None:
    run("publishing")
    steps = [step for step in ("begin", "write", "publish", "note", "sweep", "abort")
             if noted[f"died {step}"]]  # fmt: skip
    assert len(steps) >= 3, (steps, noted)
    for what in (
        "aborted", "published", "published and aborted", "swept", "task failed", "driver failed",
        "tried a commit again",
    ):  # fmt: skip
        assert noted[what], (what, noted)


@pytest.mark.long
def test_ledgers_are_lost_and_nodes_are_damaged(noted: Counter[str]) -> None:
    run("damaged")
    assert noted["delete ledger"] >= 2, noted
    assert noted["refused"] >= 2, noted
    assert noted["spoil completed"] + noted["spoil in progress"] >= 2, noted
    assert noted["looked for orphans"], noted


@pytest.mark.long
def test_queries_of_spark_die_at_every_step_and_are_superseded(noted: Counter[str]) -> None:
    run("spark")
    steps = [what for what in noted if what.startswith("died ")]
    assert len(steps) >= 3, (steps, noted)
    for what in ("committed", "superseded", "task failed", "drained"):
        assert noted[what], (what, noted)
