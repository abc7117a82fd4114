"""The works that are measured, in the order in which they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["rate_per_s", "p50_ms", "p99_ms", "rss_mb", "cpu_us", "written"]

SIZES = {100: 200_000, 1_024: 50_000, 10_240: 7_500}
"""The number of records of each size with which a system's rate is tried."""
PRODUCE_SECONDS = 3
"""A system writes as many records as it is expected to write in this time, and reads them."""
LATENCY_RECORDS = 1_000
HALF_SECONDS = 3
HALF_SIZE_BYTES = 1_024
MANY_TOPICS = 1_000
MANY_RECORDS = 20
"""The number of records of 100 B to each of the topics."""
MANY_LIMIT_S = 120.0
LOSS_LOAD_S = 4.0
QUICK_DIVISOR = 20
QUICK_TOPICS = 20
KB = 1_024


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    title: str
    work: str
    """The name under which the results of its work are kept."""
    kind: str
    """The kind of the clients' lines that it takes."""
    unit: Unit


def size_words(size: int) -> str:
    return f"{size // KB} KB" if size >= KB else f"{size} B"


def work_of(size: int) -> str:
    return f"stream-{size}"


def rows() -> list[Row]:
    rates = [
        Row(f"{title}, records of {size_words(size)}", work_of(size), kind, "rate_per_s")
        for title, kind in (("Produce", "produce"), ("Consume", "consume"))
        for size in SIZES
    ]
    half = f"{size_words(HALF_SIZE_BYTES)} at half load"
    used = f"{size_words(HALF_SIZE_BYTES)}, all servers"
    return [
        *rates,
        Row("Lone record of 1 KB, p50", "latency", "latency", "p50_ms"),
        Row("Lone record of 1 KB, p99", "latency", "latency", "p99_ms"),
        Row(f"{half}, p99", "half", "half", "p99_ms"),
        Row(f"{half}, the rate itself", "half", "half", "rate_per_s"),
        Row("Produce to all topics or streams at once, 100 B", "many", "many", "rate_per_s"),
        Row("Memory of the largest server then", "many", "many", "rss_mb"),
        Row("Memory of the largest server, produce 1 KB", work_of(KB), "produce", "rss_mb"),
        Row(f"Processor time per record of {used}", work_of(KB), "produce", "cpu_us"),
        Row(f"Bytes written per byte of records of {used}", work_of(KB), "produce", "written"),
    ]
