"""The comparison with Kafka and NATS: what its clients print, and the table that it becomes."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
BENCH = ROOT / "bench"
CLIENTS = ("streams.py", "kafka/KafkaBench.java", "nats/main.go")


@pytest.fixture(scope="module", autouse=True)
def bench_on_path() -> Iterator[None]:
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))


def peers(name: str) -> Any:
    return importlib.import_module(f"harness.peers.{name}")


LINE = '{"kind": "produce", "errors": 0, "records": 500, "rate_per_s": 21011.5}\n'


def test_result_lines_of_the_peer_clients_are_parsed() -> None:
    read = peers("running").read_line
    assert read("Picked up _JAVA_OPTIONS\n") is None
    found = read(LINE)
    assert (found.kind, found.values["rate_per_s"]) == ("produce", 21011.5)
    error = importlib.import_module("harness.model").BenchmarkError
    with pytest.raises(error, match="3 records of produce were not acknowledged"):
        read(LINE.replace('"errors": 0', '"errors": 3'))
    with pytest.raises(error, match="cannot be read"):
        read('{"kind": "produce", "rate')


def test_the_peer_clients_have_the_same_modes() -> None:
    modes = [
        set(re.findall(r"mode=(\w+)", (BENCH / "peer" / name).read_text())) for name in CLIENTS
    ]
    assert modes[0] == {"stream", "latency", "half", "many", "loss", "check"}
    assert modes == [modes[0]] * 3


def column(name: str, *rates: float) -> Any:
    used = {"records": 1_000.0, "cpu_s": 0.01, "written_bytes": 3_072_000.0, "rss_mb": 50.0}
    work = peers("rows").work_of(1_024)
    made = peers("table").Column(name, name.title(), "on disk")
    made.results[work] = [
        peers("running").Result("produce", {"rate_per_s": rate, **used}) for rate in rates
    ]
    return made


def test_the_table_shows_rates_losses_and_failures(tmp_path: Path) -> None:
    quire, kafka = column("quire", 100.0, 300.0, 200.0), column("kafka", 50.0)
    quire.loss, kafka.loss = (8_014, 0), (9_000, 4_321)
    kafka.failures["many"] = "not done after 120 s"
    table = peers("table")
    facts = {"date": "2026-01-01 00:00 UTC", "processor": "x"}
    table.write(tmp_path, [quire, kafka], facts, ["a note"])
    text = (tmp_path / "results.md").read_text()
    assert "|  | Quire | Kafka |\n| --- | --- | --- |\n" in text
    assert "| Produce, records of 1 KB | 200/s (100-300) | 50/s |" in text
    assert "| Processor time per record of 1 KB, all servers | 10.00 us (10.00-10.00) |" in text
    assert "| Bytes written per byte of records of 1 KB, all servers | 3.00 (3.00-3.00) |" in text
    assert "| Produce to all topics or streams at once, 100 B | - | not done after 120 s |" in text
    lost = "| Acknowledged records lost in a power cut of all servers |"
    assert f"{lost} 0 of 8,014 | 4,321 of 9,000 |" in text
    assert "Consume" not in text  # nobody has a value
    assert "- a note" in text
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["systems"]["kafka"]["loss"] == [9_000, 4_321]
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")

    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write_into_page(tmp_path / "results.md", page)
    assert page.read_text().startswith(f"before\n{table.BEGIN}\n\n|  | Quire")
    assert page.read_text().endswith(f"- a note\n\n{table.END}\nafter\n")


def test_the_page_has_a_place_for_the_table() -> None:
    table = peers("table")
    text = (ROOT / "docs" / "internals" / "benchmarks.md").read_text()
    assert 0 < text.index(table.BEGIN) < text.index(table.END)


def test_the_documented_bookkeeper_version_is_the_benchmarked_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version = importlib.import_module("harness.facts")._apache_version
    script = (BENCH / "peer" / "apache").read_text()
    monkeypatch.delenv("APACHE_VERSION", raising=False)
    assert f"VERSION=${{APACHE_VERSION:-{version()}}}" in script
    monkeypatch.setenv("APACHE_VERSION", "4.17.2")
    assert version() == "4.17.2"
