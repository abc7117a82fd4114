"""`make bench-scale` on a small cluster, which loses a rack."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture(autouse=True)
def bench_on_path() -> Iterator[None]:
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))


def test_the_start_of_a_process_costs_the_same_in_a_larger_cluster() -> None:
    import scale

    options = scale.parse_arguments(["--rack", "3", "--ledgers", "5"])
    small, large = (scale.run(size, options)["requests of the start"] / size for size in (12, 24))
    assert large <= small


def test_a_small_cluster_loses_a_rack(capsys: pytest.CaptureFixture[str]) -> None:
    import scale

    options = scale.parse_arguments(["--bookies", "12", "--rack", "3", "--ledgers", "10"])
    found = scale.run(12, options)
    assert found["fewest racks of an ensemble"] == 3
    assert found["ledgers repaired"] >= 40
    assert 8 <= found["seconds until the first mark"] <= 20
    assert found["requests/s of a calm cluster"] <= 12 * 0.3
    assert found["ledgers of a decommissioned bookie"] >= 20
    assert found["GB that were copied from it"] > 0
    for what in ("real seconds of this run", "MB of this process at most"):
        del found[what]
    # Names of locks and votes contain numbers that grow while the process of the benchmark runs.
    del found["MB sent by ZooKeeper"]
    again = scale.run(12, options)
    assert found.items() <= again.items(), "one seed gives one result"
