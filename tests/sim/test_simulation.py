"""Whole runs made of one integer: every law holds, and the same integer gives the same run."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from quire.errors import UsageError
from quire.storage.segment import LOG_DIRECTORY
from quire.storage.spares import prepare
from quire.testing import SimDisk
from quire.testing.simulation import WORKLOADS, Plan, simulate
from quire.testing.simulation.faults import ALL_KINDS

SEEDS = int(os.environ.get("QUIRE_SIM_SEEDS", "20"))
DIGEST_OF = "from quire.testing.simulation import simulate; r = simulate({}); print(r.trace_digest)"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_laws_hold(seed: int) -> None:
    result = simulate(seed)
    assert result.failure is None, (result.failure, list(map(str, result.schedule)))
    assert result.events > 0


@pytest.mark.parametrize("seed", [512, 564])
def test_a_start_that_failed_loses_nothing(seed: int) -> None:
    """A sync that failed while a segment was prepared left a gap that looked like a loss."""
    result = simulate(seed)
    assert result.failure is None, result.failure


def test_a_preparation_that_failed_leaves_no_gap() -> None:
    """The same without a seed, which other workloads may give another meaning."""
    disk = SimDisk(random.Random(1), "disk")
    disk.make_directory(LOG_DIRECTORY)
    for number in (2, 3):
        file = prepare(disk, number, 1 << 16).file
        assert file is not None
        file.close()
    disk.fail_sync_once()
    with pytest.raises(OSError, match="simulated failure of sync"):
        prepare(disk, 2, 1 << 16)
    assert disk.list(LOG_DIRECTORY) == ["0000000000000002.seg", "0000000000000003.seg"]


@pytest.mark.parametrize("seed", [5268, 5684])
def test_a_read_that_ends_in_a_clean_stop_leaves_the_log_open(seed: int) -> None:
    """It closed the file of the segment that the stop was still writing, or about to seal."""
    result = simulate(seed)
    assert result.failure is None, result.failure


def test_a_key_that_rotted_away_is_not_a_wrong_password() -> None:
    """One bookie that had lost it kept every client from recovering the ledger."""
    result = simulate(342, "rot")
    assert result.failure is None, result.failure


@pytest.mark.parametrize("workload", [name for name in WORKLOADS if name != "all"])
def test_the_laws_hold_in_each_workload(workload: str) -> None:
    for seed in range(max(1, SEEDS // 10)):
        result = simulate(seed, workload)
        assert result.failure is None, (seed, workload, result.failure)


@pytest.mark.parametrize("seed", [2, 7])
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    one, other = simulate(seed, story=True), simulate(seed, story=True)
    assert one == other
    assert one.story
    assert simulate(seed + 1).trace_digest != one.trace_digest


@pytest.mark.parametrize("hash_seed", ["1", "77"])
def test_no_hash_seed_changes_the_run(hash_seed: str) -> None:
    for seed in (3, 5):
        found = subprocess.run(
            [sys.executable, "-c", DIGEST_OF.format(seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert found.stdout.strip() == simulate(seed).trace_digest


def test_the_seeds_order_every_kind_of_fault() -> None:
    ordered = {fault.kind for seed in range(200) for fault in Plan.make(seed, "all").schedule}
    assert ordered == set(ALL_KINDS)


def test_a_workload_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="no workload 'none'; there are: all"):
        simulate(1, "none")
