"""Rates and remaining times of jobs and repairs."""

from __future__ import annotations

from typing import Any

from quire.http.views import job_pace
from quire.http.views.job_pace import WINDOW_S, JobPaces, Pace


def job(
    done: int = 0, ledgers: int = 0, paused: bool = False, total: int = 1_000
) -> dict[str, Any]:
    return {
        "bytes": total, "bytes_done": done, "ledgers": 100, "ledgers_done": ledgers,
        "started_ms": 0, "paused": paused,
    }  # fmt: skip


def test_the_first_rate_is_the_mean_since_the_start() -> None:
    assert JobPaces().of("a", job(100, 10), 10_000) == Pace(10.0, 1.0, 90.0)


def test_later_rates_are_those_of_the_last_minute() -> None:
    paces = JobPaces()
    paces.of("a", job(100), 100_000)
    assert paces.of("a", job(140, 2), 104_000) == Pace(10.0, 0.5, 86.0)


def test_a_job_that_was_not_observed_for_long_keeps_its_rate() -> None:
    paces = JobPaces()
    paces.of("a", job(100), 100_000)
    later_s = 100 + 10 * WINDOW_S
    assert paces.of("a", job(700), int(later_s * 1000)).bytes_per_s == 1.0
    # The next one is compared with the last sample, and not with that of long ago.
    assert paces.of("a", job(900), int(later_s * 1000) + 4_000).bytes_per_s == 50.0


def test_a_pause_does_not_lower_the_rate_of_a_job() -> None:
    paces = JobPaces()
    paces.of("a", job(100), 10_000)
    assert paces.of("a", job(100, paused=True), 20_000) == Pace()
    assert paces.of("a", job(100), 500_000) == Pace(), "no mean over the time of the pause"
    assert paces.of("a", job(200), 504_000).bytes_per_s == 25.0


def test_another_pass_starts_a_new_rate() -> None:
    paces = JobPaces()
    paces.of("a", job(900), 10_000)
    assert paces.of("a", job(100), 20_000) == Pace(), "no mean over the time of the first pass"
    assert paces.of("a", job(140), 24_000).bytes_per_s == 10.0


def test_the_rate_counts_ledgers_if_bytes_are_unknown() -> None:
    pace = JobPaces().of("a", job(0, 25, total=0), 50_000)
    assert pace == Pace(None, 0.5, 150.0)


def test_a_job_that_has_just_started_has_no_rate() -> None:
    assert JobPaces().of("a", job(10), 500) == Pace()


def test_old_jobs_are_forgotten() -> None:
    paces = JobPaces()
    for key in range(job_pace.KEPT_MAX + 10):
        paces.of(key, job(), 1_000)
    assert len(paces._samples) == job_pace.KEPT_MAX
    assert 0 not in paces._samples


def test_the_progress_of_autorecovery_is_estimated() -> None:
    paces = JobPaces()
    assert paces.repair(0, 0) is None
    first = paces.repair(100, 10_000)
    assert first is not None
    assert (first["ledgers"], first["ledgers_done"], first["left_s"]) == (100, 0, None)
    then = paces.repair(80, 20_000)
    assert then is not None
    assert (then["ledgers_done"], then["ledgers_per_s"], then["left_s"]) == (20, 2.0, 40.0)
    more = paces.repair(150, 30_000)
    assert more is not None
    assert (more["ledgers"], more["ledgers_done"]) == (150, 0)
    assert paces.repair(0, 40_000) is None
    again = paces.repair(5, 50_000)
    assert again is not None
    assert again["ledgers"] == 5
