"""The benchmark's harness: parsing both clients' output, their commands, and the judgement.

The lines of Apache's benchmark below were printed by `bench/peer/apache bench` (4.17.2).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[4] / "bench"


@pytest.fixture(scope="module", autouse=True)
def bench_on_path() -> Iterator[None]:
    """`bench/` is no installed package: its modules are imported as `make bench` does."""
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))


def module(name: str) -> ModuleType:
    return importlib.import_module(f"harness.{name}")


# -- Apache's lines ---------------------------------------------------------------------------

ADD = (
    "add   v2=true CRC32C E3W3A2 size=1024 ledgers=1 out=100 n=5000 err=0: 1847/s 1.9 MB/s "
    "p50=25.42ms p99=493.79ms p99.9=506.71ms max=731.1ms\n"
)
LEDGERS = (
    "add   v2=false CRC32C E3W3A2 size=1024 ledgers=5 out=1000 n=500 err=3: 742/s 0.8 MB/s "
    "p50=138.82ms p99=304.46ms p99.9=401.55ms max=401.5ms\n"
)
READ = "read  5000 entries: 13196/s 13.5 MB/s\n"
RECOVER = (
    "recover v2=false CRC32C E3W3A2 size=1024 entries=50 ledgers=2: p50=289.72ms p99=291.03ms "
    "p99.9=291.03ms max=291.0ms\n"
)
TAIL = (
    "tail  v2=false CRC32C E3W3A2 size=1024 rate=2000 readers=1 seen=19996 of 19999: append to "
    "read p50=2.55ms p99=6.14ms p99.9=9.01ms max=12.5ms\n"
)
STREAM = "stream write E3W3A2 size=100 out=100000 n=1000 err=2: 121000/s 12.1 MB/s\n"
STREAM_READ = "stream read size=100 n=1000 err=0: 699000/s 69.9 MB/s\n"
STREAM_TAIL = (
    "stream tail size=100 err=1: append to read p50=3.55ms p99=6.14ms p99.9=9.01ms max=12.5ms\n"
)
REREPLICATE = "rereplicate v2=true CRC32C E3W3A2 size=1024 ledgers=5 n=500 err=0: 4321/s 4.4 MB/s\n"
NO_RESULTS = [
    "2026-11-21 02:43:16,424 WARN  main BookKeeper - The mainWorkerPool did not shutdown cleanly\n",
    "ledger 12\n",
    "\n",
]


def test_apache_add_output_is_parsed() -> None:
    sample = module("parse").parse_apache(ADD)
    assert (sample.kind, sample.rate_per_s, sample.mb_per_s) == ("add", 1847, 1.9)
    assert (sample.p50_ms, sample.p99_ms, sample.errors) == (25.42, 493.79, 0)


def test_apache_add_output_with_errors_is_parsed() -> None:
    sample = module("parse").parse_apache(LEDGERS)
    assert (sample.kind, sample.rate_per_s, sample.errors) == ("add", 742, 3)


def test_apache_read_output_is_parsed() -> None:
    sample = module("parse").parse_apache(READ)
    assert (sample.kind, sample.rate_per_s, sample.mb_per_s) == ("read", 13196, 13.5)
    assert sample.p50_ms is None


def test_apache_tail_output_is_parsed() -> None:
    sample = module("parse").parse_apache(TAIL)
    assert (sample.kind, sample.rate_per_s, sample.errors) == ("tail", 2000, 3)
    assert (sample.p50_ms, sample.p99_ms) == (2.55, 6.14)


def test_apache_stream_output_is_parsed() -> None:
    sample = module("parse").parse_apache(STREAM)
    assert (sample.kind, sample.rate_per_s, sample.errors) == ("stream write", 121000, 2)
    sample = module("parse").parse_apache(STREAM_READ)
    assert (sample.kind, sample.rate_per_s, sample.mb_per_s) == ("stream read", 699000, 69.9)
    sample = module("parse").parse_apache(STREAM_TAIL)
    assert (sample.kind, sample.p50_ms, sample.p99_ms) == ("stream tail", 3.55, 6.14)
    assert (sample.rate_per_s, sample.errors) == (None, 1)


def test_apache_recover_output_is_parsed() -> None:
    sample = module("parse").parse_apache(RECOVER)
    assert (sample.kind, sample.p50_ms, sample.p99_ms) == ("recover", 289.72, 291.03)
    assert sample.rate_per_s is None


def test_apache_rereplicate_output_is_parsed() -> None:
    sample = module("parse").parse_apache(REREPLICATE)
    assert (sample.kind, sample.rate_per_s, sample.mb_per_s) == ("rereplicate", 4321.0, 4.4)
    assert sample.errors == 0


@pytest.mark.parametrize("line", NO_RESULTS)
def test_apache_lines_without_a_result_are_ignored(line: str) -> None:
    assert module("parse").parse_apache(line) is None


@pytest.mark.parametrize(
    "line",
    [
        ADD.replace("/s 1.9", "/s 1,9"),
        READ.replace("/s", " per s"),
        STREAM.replace("err", "failed"),
        REREPLICATE.replace("/s 4.4", "/s 4,4"),
        STREAM_TAIL.replace("p50", "median"),
    ],
)
def test_apache_result_in_another_format_is_refused(line: str) -> None:
    with pytest.raises(module("model").BenchmarkError, match="cannot be parsed"):
        module("parse").parse_apache(line)


# -- Quire's lines ----------------------------------------------------------------------------


def test_quire_bench_output_is_parsed() -> None:
    line = '{"rate_per_s": 98304, "mb_per_s": 100.7, "p50_ms": 9.1, "p99_ms": 20, "cpu_s": 1.5}\n'
    sample = module("parse").parse_quire(line, "add")
    assert (sample.kind, sample.rate_per_s, sample.mb_per_s) == ("add", 98304, 100.7)
    assert (sample.p50_ms, sample.p99_ms) == (9.1, 20)


def test_quire_bench_output_without_a_rate_is_parsed() -> None:
    sample = module("parse").parse_quire('{"rate_per_s": null, "p50_ms": 30.5}', "recover")
    assert (sample.rate_per_s, sample.p50_ms) == (None, 30.5)


def test_quire_lines_without_a_result_are_ignored() -> None:
    assert module("parse").parse_quire("98304/s\n", "add") is None


@pytest.mark.parametrize(
    "line", ["{", '{"cpu_s": 1}', '{"rate_per_s": "98304"}', '{"rate_per_s": true}']
)
def test_an_implausible_quire_result_is_refused(line: str) -> None:
    with pytest.raises(module("model").BenchmarkError, match="quire bench add"):
        module("parse").parse_quire(line, "add")


# -- what is asked of them --------------------------------------------------------------------


def test_every_comparison_of_a_row_names_its_measures() -> None:
    for row in module("rows").all_rows():
        names = {measure.name for measure in row.measures}
        assert len(names) == len(row.measures), row.key
        for comparison in row.comparisons:
            assert {comparison.ours, comparison.theirs} <= {*names, None}, row.key


def test_both_sides_of_a_comparison_do_the_same_work() -> None:
    for row in module("rows").all_rows():
        works = {measure.name: measure.work for measure in row.measures}
        for comparison in row.comparisons:
            if comparison.theirs is None:
                continue
            ours, theirs = works[comparison.ours], works[comparison.theirs]
            for name in ours.__slots__:
                if name != "mode":
                    assert getattr(ours, name) == getattr(theirs, name), (row.key, name)


def test_rows_are_grouped_by_the_cluster_they_need() -> None:
    chosen = module("rows").choose([], is_quick=False)
    kinds = [(row.bookies, row.zookeeper) for row in chosen]
    changes = sum(a != b for a, b in pairwise(kinds))
    assert changes == len(set(kinds)) - 1
    assert {row.bookies for row in chosen} == {3, 4, 5, 7}


def test_quick_rows_are_smaller() -> None:
    (full,) = module("rows").choose(["ledgers"], is_quick=False)
    (quick,) = module("rows").choose(["ledgers"], is_quick=True)
    assert quick.measures[0].work.entries < full.measures[0].work.entries
    assert full.title(full.comparisons[0]) == "1 KB adds over 2,000 ledgers"
    assert quick.title(quick.comparisons[0]) == "1 KB adds over 500 ledgers"


def test_benchmark_commands_of_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = module("sides")
    monkeypatch.setattr(sides, "quire_executable", lambda: "quire")
    (row,) = module("rows").choose(["e5w2a2"], is_quick=False)
    ours, theirs = row.measures
    assert " ".join(sides.quire_command(ours, "sqlite:////x", 3)) == (
        "quire bench add --metadata sqlite:////x --entries 100000 --size 1024 --outstanding 1000 "
        "--ensemble 5 --write-quorum 2 --ack-quorum 2 --rounds 3 --json --mode many"
    )
    assert " ".join(sides.apache_command(theirs, 3)[1:]) == (
        "bench mode=add v2=true digest=CRC32C E=5 W=2 A=2 size=1024 n=100000 out=1000 L=1 rounds=3"
    )


def test_a_tail_benchmark_has_a_rate_and_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = module("sides")
    monkeypatch.setattr(sides, "quire_executable", lambda: "quire")
    (row,) = module("rows").choose(["tail"], is_quick=False)
    ours, theirs = (
        sides.quire_command(row.measures[0], "sqlite:////x", 3),
        sides.apache_command(row.measures[1], 3),
    )
    assert ours[ours.index("--rate") :][:4] == ["--rate", "2000", "--readers", "1"]
    assert "--outstanding" not in ours
    assert {"mode=tail", "rate=2000", "readers=1", "v2=false"} <= set(theirs)


def test_tail_readers_share_a_client_or_have_one_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sides = module("sides")
    monkeypatch.setattr(sides, "quire_executable", lambda: "quire")
    shared, apart = module("rows").choose(["tail-100", "tail-100-clients"], is_quick=False)
    for row, clients in ((shared, ["--clients", "1"]), (apart, [])):
        command = sides.quire_command(row.measures[0], "sqlite:////x", 3)
        load = ["--rate", "300", "--readers", "100", *clients, "--explicit-lac", "1"]
        assert command[command.index("--rate") :][: len(load)] == load
    assert {row.title(line) for row in (shared, apart) for line in row.comparisons} >= {
        "1 KB, 300/s, from acknowledgement to 100 tailing readers of one client, p50",
        "1 KB, 300/s, from append to 100 tailing readers, each with a client, in one process, p50",
    }
    assert [line.metric for line in shared.comparisons if line.target is not None] == [
        "acked_p99_ms", "acked_p50_ms",
    ]  # fmt: skip


def test_a_tail_benchmark_prints_both_latencies() -> None:
    line = '{"rate_per_s": 300, "p50_ms": 4.1, "p99_ms": 9, "acked_p50_ms": 1.5, "acked_p99_ms": 7}'
    sample = module("parse").parse_quire(line, "tail")
    assert (sample.p50_ms, sample.acked_p50_ms, sample.acked_p99_ms) == (4.1, 1.5, 7)
    assert sample.get("acked_p99_ms") == 7


def test_the_rereplicate_benchmark_has_one_spare_bookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sides = module("sides")
    monkeypatch.setattr(sides, "quire_executable", lambda: "quire")
    (row,) = module("rows").choose(["rereplicate"], is_quick=False)
    ours, theirs = row.measures
    assert row.bookies == ours.work.ensemble + 1
    command = " ".join(sides.quire_command(ours, "sqlite:////x", 3))
    assert command.startswith("quire bench rereplicate --metadata sqlite:////x --entries 1000 ")
    assert command.endswith(" --ledgers 20")
    assert {"mode=rereplicate", "n=1000", "L=20"} <= set(sides.apache_command(theirs, 3))


def test_stream_benchmarks_use_the_stream_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = module("sides")
    monkeypatch.setattr(sides, "quire_executable", lambda: "quire")
    rows = {row.key: row for row in module("rows").all_rows()}
    ours, as_it_comes, theirs = rows["stream"].measures
    assert "buf=1024" in sides.apache_command(as_it_comes, 2)
    assert " ".join(sides.quire_command(ours, "sqlite:////x", 2)) == (
        "quire bench stream write --metadata sqlite:////x --entries 1000000 --size 100 "
        "--streams 1 --ensemble 3 --write-quorum 3 --ack-quorum 2 --rounds 2 --json"
    )
    assert {"mode=stream", "n=1000000", "out=100000"} <= set(sides.apache_command(theirs, 2))
    assert "mode=streamtail" in sides.apache_command(rows["stream-tail"].measures[1], 2)
    (many,) = rows["streams"].measures
    assert "--streams 1000 " in " ".join(sides.quire_command(many, "sqlite:////x", 2))


@pytest.mark.parametrize(
    ("ours", "theirs", "met"), [(5.0, 1.0, True), (5.0, 2.0, False), (3.0, 0.5, False)]
)
def test_a_target_may_ask_for_a_ratio_and_a_rate(ours: float, theirs: float, met: bool) -> None:
    model, report = module("model"), module("report")
    spreads = [model.Spread(value, value, value) for value in (ours, theirs)]
    target = model.Target(at_least=4, floor=4)
    line = report.Line("r", "t", "rate_per_s", *spreads, target, None)
    assert line.met is met
    assert target.text() == "≥ 4x, and ≥ 4/s"


def test_apache_reads_with_the_protocol_that_is_named() -> None:
    (row,) = module("rows").choose(["read"], is_quick=False)
    commands = {m.name: module("sides").apache_command(m, 1) for m in row.measures[1:]}
    assert "v2=false" in commands["apache v3"]
    assert "batch=true" not in commands["apache v3"]
    assert {"v2=true", "batch=true"} <= set(commands["apache batch"])


# -- a command is run -------------------------------------------------------------------------


class FakeCluster:
    """Its bookie is this process; its client prints the given lines."""

    side = "apache"
    bookies = 1

    def __init__(self, lines: list[str], status: int = 0) -> None:
        self._program = (
            f"import sys; sys.stdout.writelines({lines!r}); sys.stdout.flush(); "
            f"print('it broke', file=sys.stderr); sys.exit({status})"
        )

    def start(self) -> None: ...
    def stop(self) -> None: ...

    def bookie_pids(self) -> list[int]:
        return [os.getpid()]

    def server_pids(self) -> list[int]:
        return [os.getpid()]

    def command(self, measure: Any, rounds: int) -> list[str]:
        return [sys.executable, "-c", self._program]

    def environment(self) -> dict[str, str]:
        return dict(os.environ)


def take(lines: list[str], log: Path, *, row: str = "add-1k", status: int = 0) -> list[Any]:
    (chosen,) = module("rows").choose([row], is_quick=True)
    measure = next(m for m in chosen.measures if m.side == "apache")
    samples: list[Any] = module("measure").take(measure, FakeCluster(lines, status), 1, log)
    return samples


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")


@linux_only
def test_the_first_round_is_not_counted(tmp_path: Path) -> None:
    second = ADD.replace("1847/s", "5173/s")
    (sample,) = take([*NO_RESULTS, ADD, READ, second, READ], tmp_path / "log")
    assert sample.rate_per_s == 5173
    assert sample.seconds is not None
    assert sample.bookies[0].rss_peak_bytes > 1 << 20


@linux_only
def test_a_read_benchmark_takes_only_read_samples(tmp_path: Path) -> None:
    (sample,) = take([ADD, READ, ADD, READ.replace("13196", "777")], tmp_path / "log", row="read")
    assert sample.rate_per_s == 777


@linux_only
@pytest.mark.parametrize(
    ("lines", "status", "message"),
    [
        ([ADD, ADD], 3, "exit status 3: it broke"),
        ([ADD, READ], 0, "1 results instead of 2"),
        ([ADD, ADD.replace("err=0", "err=7")], 0, "7 operations failed"),
    ],
)
def test_a_failed_command_gives_no_result(
    lines: list[str], status: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(module("model").BenchmarkError, match=message):
        take(lines, tmp_path / "log", status=status)


@linux_only
def test_the_disk_measurement_leaves_no_file(tmp_path: Path) -> None:
    assert module("measure").take_disk(tmp_path, 1 << 20).mb_per_s > 0
    assert list(tmp_path.iterdir()) == []


# -- the verdict and the files ----------------------------------------------------------------


def line(ours: float | None, theirs: float | None, disk: float | None = None, **target: Any) -> Any:
    model = module("model")

    def spread(value: float | None) -> Any:
        return None if value is None else model.Spread(value, value, value)

    goal = model.Target(**target) if target else None
    return module("report").Line("r", "t", "rate_per_s", spread(ours), spread(theirs), goal, disk)


@pytest.mark.parametrize(
    ("ours", "theirs", "disk", "target", "met"),
    [
        (300.0, 100.0, None, {"at_least": 3}, True),
        (299.0, 100.0, None, {"at_least": 3}, False),
        (80.0, 100.0, 100.0, {"at_least": 3, "disk_share": 0.8}, True),
        (79.0, 100.0, 100.0, {"at_least": 3, "disk_share": 0.8}, False),
        (300.0, 100.0, 1000.0, {"at_least": 3, "disk_share": 0.8}, True),
        (0.5, 2.0, None, {"at_most": 0.25}, True),
        (0.6, 2.0, None, {"at_most": 0.25}, False),
        (4.9, None, None, {"below": 5}, True),
        (5.0, 9.0, None, {"below": 5}, False),
        (300.0, None, None, {"at_least": 3}, None),
        (None, 100.0, None, {"at_least": 3}, None),
        (300.0, 100.0, None, {}, None),
    ],
)
def test_a_target_is_met_by_its_ratio_or_rate(
    ours: float | None,
    theirs: float | None,
    disk: float | None,
    target: dict[str, float],
    met: bool | None,
) -> None:
    assert line(ours, theirs, disk, **target).met is met


def test_benchmark_results_are_written(tmp_path: Path) -> None:
    model, rows = module("model"), module("rows")
    chosen = rows.choose(["add-1k"], is_quick=False)
    use = (model.BookieUse(0.5, 10_000_000, 200 << 20),)
    outcomes = {"add-1k": {m.name: model.Outcome(m, 3) for m in chosen[0].measures}}
    for outcome in outcomes["add-1k"].values():
        rate = {"quire": 90_000.0, "apache": 30_000.0, "disk": None}[outcome.measure.side]
        written = 400.0 if rate is None else None
        bookies = () if rate is None else use
        outcome.samples = [
            model.Sample("add", rate, written, seconds=2.0, client_cpu_s=1.0, bookies=bookies)
        ]
    outcomes["add-1k"]["quire add one"].failures.append("quire add one: it broke")
    options = argparse.Namespace(out=tmp_path, rounds=3, samples=2, quick=False)
    facts = {"date": "2026-01-01 00:00 UTC", "processor": "x", "Apache BookKeeper": "4.17.2"}
    module("report").write_results(options, facts, chosen, outcomes, ["a note"])

    text = (tmp_path / "results.md").read_text()
    assert "| 1 KB adds, `append_many` | 90,000/s (90,000-90,000) | 30,000/s" in text
    assert "| 3.00x | ≥ 3x, or 80% of the disk's limit | yes |" in text
    assert "| 200 MB (200-200) | 200 MB (200-200) | 1.00x | < 300 MB | yes |" in text
    assert "could at most be added at 122,549/s" in text
    assert "| add-1k | quire add | 3 | 0.25 | 5.0 us | 10 | 200 MB | 10.0 us |" in text
    assert "- quire add one: it broke" in text
    assert "- a note" in text
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["lines"][0]["met"] is True
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
