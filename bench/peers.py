#!/usr/bin/env python3
"""Compare Quire's streams with Kafka and NATS JetStream on this machine, in one run.

    bench/peers.py                      everything (about 20 minutes)
    bench/peers.py --quick              small numbers and few topics, to see that it works
    bench/peers.py --systems quire kafka --works stream latency
    bench/peers.py --write-page docs/internals/benchmarks.md    put the last table into a page

How it is measured:

- Each system has three servers and its own client, with three copies of each record. Kafka and NATS
  are measured twice: with their defaults, and with a sync before each acknowledgement.
- All systems run at once, but only one works. In every round each is measured once, and the order
  changes from round to round. Before each measurement, dirty pages are written back.
- Warm: the first round of each command does not count.
- Each measurement of produce takes about three seconds: a trial of each size says how many records
  a system writes in that time.
- Each client has its own best batching: before the first row, each system tries some sizes of its
  batches (Kafka's batch.size, the window of NATS's client) and keeps the fastest. For lone records
  and at half load, Kafka's client has linger.ms=0, because its default of 5 ms waits for more.
- Half load is a rate of records that is half of the system's own median rate of produce.
- The last two works have a system to themselves: many topics at once, and the power cut.

The results are results.md, results.json and results.png in bench/out/peers (`--out`).
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from harness.ending import status_of
from harness.facts import machine_facts, warnings_about
from harness.model import BenchmarkError
from harness.peers import powercut, rows
from harness.peers.running import COMMAND_LIMIT_S, Result, measure
from harness.peers.systems import KAFKA, NAMES, NATS, System, require_tools, system
from harness.peers.table import Column, write, write_into_page

ROOT = Path(__file__).resolve().parent
OUT = ROOT / "out" / "peers"
WORKS = ("stream", "latency", "half", "many", "loss")
BATCHES: dict[str, tuple[str, tuple[int, ...]]] = {
    "kafka": ("batch", (16_384, 262_144, 1_048_576)),
    "nats": ("window", (1_000, 4_000, 16_000)),
}
"""The option of each client's batching, and the values that are tried. Quire's has none."""
TRIAL_RECORDS = 100_000
LOW_LATENCY = {"kafka": {"linger": 0}}
"""The settings with which a client sends a record at once."""


class Run:
    def __init__(self, options: argparse.Namespace, facts: dict[str, str]) -> None:
        self.options = options
        self.facts = facts
        self.work: Path = (options.dir or options.out / "work").resolve() / "quire-peers"
        self.logs: Path = options.out / "logs"
        self.notes: list[str] = []
        self.systems = {name: system(name, self.work / name, self.logs) for name in options.systems}
        self.columns = {
            name: Column(name, one.title, one.durability) for name, one in self.systems.items()
        }
        self._batching: dict[str, dict[str, int]] = {}
        self._rates: dict[tuple[str, int], float] = {}
        """The last known rate of produce of each system and size of record."""

    # -- the parts of a run -------------------------------------------------------------------

    def all(self) -> None:
        for one in self.systems.values():
            say(f"building {one.title}")
            one.build()
        together = [work for work in ("stream", "latency", "half") if work in self.options.works]
        if together:
            try:
                for one in self.systems.values():
                    say(f"starting {one.title}")
                    one.start()
                self.find_batching()
                for number in range(self.options.rounds):
                    for work in together:
                        getattr(self, work)(number)
                        self.write()
            finally:
                self.stop()
        for work in ("many", "loss"):
            if work in self.options.works:
                for one in self.systems.values():
                    getattr(self, work)(one)
                    self.write()

    def stop(self) -> None:
        for one in self.systems.values():
            one.stop()

    def find_batching(self) -> None:
        """Find the fastest batching of each client for small records."""
        for name, one in self.systems.items():
            option, values = BATCHES.get(name.partition("-")[0], ("", ()))
            tried: dict[int, float] = {}
            for value in values:
                work = {"mode": "stream", "size": 100, "n": self.count(TRIAL_RECORDS), "rounds": 2}
                found = self.take(one, "stream", f"trial-{value}", {**work, option: value})
                rates = [r.values["rate_per_s"] for r in found if r.kind == "produce"]
                if rates:
                    tried[value] = rates[-1]
            if tried:
                best = max(tried, key=lambda value: tried[value])
                self._batching[name] = {option: best}
                self.note(f"{one.title}: {option}={best:,} is the fastest of {list(tried)}")

    def stream(self, number: int) -> None:
        for size, records in rows.SIZES.items():
            work = rows.work_of(size)
            for one in self.turned(number):
                given = {"mode": "stream", "size": size, "rounds": 2}
                if (one.name, size) not in self._rates:
                    trial = {**given, "n": self.count(records)}
                    self.learn(one, size, self.take(one, work, f"{work}-trial", trial))
                rate = self._rates.get((one.name, size), records)
                given["n"] = self.count(int(rate * rows.PRODUCE_SECONDS))
                found = self.take(one, work, f"{work}-{number}", given)
                self.learn(one, size, found)
                self.keep(one, work, found[2:])

    def learn(self, one: System, size: int, found: Sequence[Result]) -> None:
        """Remember the rate of the last produce."""
        for result in found:
            if result.kind == "produce":
                self._rates[one.name, size] = result.values["rate_per_s"]

    def latency(self, number: int) -> None:
        for one in self.turned(number):
            # The batching for many records would delay a lone one.
            records = self.count(rows.LATENCY_RECORDS)
            given = {"mode": "latency", "size": rows.KB, "n": records, "rounds": 2}
            given |= LOW_LATENCY.get(one.name.partition("-")[0], {})
            found = self.take(one, "latency", f"latency-{number}", given, batching=False)
            self.keep(one, "latency", found[1:])

    def half(self, number: int) -> None:
        size = rows.HALF_SIZE_BYTES
        for one in self.turned(number):
            produced = self.columns[one.name].results.get(rows.work_of(size), [])
            rates = [r.values["rate_per_s"] for r in produced if r.kind == "produce"]
            if not rates:
                self.columns[one.name].failures["half"] = "no rate of produce"
                continue
            rate = int(statistics.median(rates) / 2)
            seconds = 1 if self.options.quick else rows.HALF_SECONDS
            given = {"mode": "half", "size": size, "rate": rate, "seconds": seconds, "rounds": 2}
            given |= LOW_LATENCY.get(one.name.partition("-")[0], {})
            found = self.take(one, "half", f"half-{number}", given)
            self.keep(one, "half", found[1:])

    def many(self, one: System) -> None:
        topics = self.options.topics
        try:
            one.start()
            given = {"mode": "many", "topics": topics, "size": 100, "n": rows.MANY_RECORDS}
            # A thousand of the largest batches do not fit into the memory of Kafka's client, so
            # clients have their defaults.
            limit_s = rows.MANY_LIMIT_S
            found = self.take(one, "many", "many", given, batching=False, limit_s=limit_s)
            self.keep(one, "many", found)
            for result in found:
                created = result.values["created_s"]
                self.note(f"{one.title}: {topics:,} topics or streams were made in {created:.1f} s")
        except BenchmarkError as error:
            self.fail(one, "many", error)
        finally:
            one.stop()

    def loss(self, one: System) -> None:
        column = self.columns[one.name]
        if reason := powercut.why_not():
            column.loss_not = "not measured"
            self.note(f"the power cut was not measured: {reason}")
            return
        try:
            load_s = 1.0 if self.options.quick else rows.LOSS_LOAD_S
            found = powercut.lose_power(one, self.log(one, "loss"), load_s)
        except BenchmarkError as error:
            column.loss_not = str(error)
            self.note(f"{one.title}, power cut: {error}")
            return
        column.loss = found.acknowledged, found.lost
        say(f"  power cut: {one.title}: {found.lost:,} of {found.acknowledged:,} lost")

    # -- helpers ------------------------------------------------------------------------------

    def take(
        self,
        one: System,
        work: str,
        name: str,
        given: Mapping[str, object],
        *,
        batching: bool = True,
        limit_s: float = COMMAND_LIMIT_S,
    ) -> list[Result]:
        chosen = self._batching.get(one.name, {}) if batching else {}
        log = self.log(one, name)
        try:
            return measure(one, log, {**chosen, "name": name, **given}, limit_s=limit_s)
        except BenchmarkError as error:
            self.fail(one, work, error)
            return []

    def keep(self, one: System, work: str, found: Sequence[Result]) -> None:
        self.columns[one.name].results.setdefault(work, []).extend(found)
        for result in found:
            values = result.values
            rate = f" {values['rate_per_s']:,.0f}/s" if "rate_per_s" in values else ""
            times = f" p50 {values['p50_ms']:.2f} ms" if "p50_ms" in values else ""
            say(f"  {result.kind} {work}: {one.title}:{rate}{times}")

    def fail(self, one: System, work: str, error: BenchmarkError) -> None:
        self.columns[one.name].failures[work] = str(error).partition(" (see")[0]
        say(f"  {work}: {one.title}: {error}")

    def turned(self, number: int) -> list[System]:
        found = list(self.systems.values())
        at = number % len(found)
        return found[at:] + found[:at]

    def count(self, records: int) -> int:
        return max(50, records // (rows.QUICK_DIVISOR if self.options.quick else 1))

    def log(self, one: System, name: str) -> Path:
        return self.logs / f"client-{one.name}-{name}.log"

    def note(self, text: str) -> None:
        say(f"  note: {text}")
        if text not in self.notes:
            self.notes.append(text)

    def write(self) -> None:
        write(self.options.out, list(self.columns.values()), self.facts, self.notes)


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=NAMES,
        default=list(NAMES),
        metavar="NAME",
        help=f"some of {', '.join(NAMES)}",
    )
    parser.add_argument(
        "--works",
        nargs="+",
        choices=WORKS,
        default=list(WORKS),
        metavar="WORK",
        help=f"some of {', '.join(WORKS)}",
    )
    parser.add_argument("--quick", action="store_true", help="small numbers, one round")
    parser.add_argument("--rounds", type=int, help="the number of alternating rounds (2)")
    parser.add_argument("--topics", type=int, help="the number of topics at once (1,000)")
    parser.add_argument("--out", type=Path, default=OUT, help="results (bench/out/peers)")
    parser.add_argument("--dir", type=Path, help="data, whose disk is measured (OUT/work)")
    parser.add_argument(
        "--write-page",
        type=Path,
        metavar="PAGE",
        help="write the last results into this page, and measure nothing",
    )
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 2)
    options.topics = options.topics or (rows.QUICK_TOPICS if options.quick else rows.MANY_TOPICS)
    options.out = options.out.resolve()
    if options.rounds < 1 or options.topics < 1:
        parser.error("--rounds and --topics must be at least 1")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)

    def work() -> int:
        if options.write_page:
            write_into_page(options.out / "results.md", options.write_page)
            return 0
        return run(options)

    return status_of(work, BenchmarkError)


def run(options: argparse.Namespace) -> int:
    require_tools(options.systems)
    options.out.mkdir(parents=True, exist_ok=True)
    place = (options.dir or options.out / "work").resolve()
    place.mkdir(parents=True, exist_ok=True)
    facts = machine_facts(place)
    del facts["Apache BookKeeper"]
    facts |= {"Kafka": KAFKA, "NATS": NATS}
    benchmark = Run(options, facts)
    shutil.rmtree(benchmark.work, ignore_errors=True)
    shutil.rmtree(benchmark.logs, ignore_errors=True)
    benchmark.work.mkdir(parents=True)
    benchmark.logs.mkdir(parents=True)
    for warning in warnings_about(facts):
        benchmark.note(warning)
    stopped: Callable[[int, FrameType | None], None] = _stop
    signal.signal(signal.SIGTERM, stopped)
    began = time.monotonic()
    try:
        benchmark.all()
    finally:
        benchmark.stop()
        shutil.rmtree(benchmark.work, ignore_errors=True)
        with suppress(OSError):
            place.rmdir()  # Only if it is empty now.
    say(f"done in {(time.monotonic() - began) / 60:.0f} minutes: {options.out / 'results.md'}")
    return 1 if any(column.failures for column in benchmark.columns.values()) else 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
