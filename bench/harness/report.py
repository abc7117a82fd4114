"""Write the samples as results.md, results.json and results.png."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import disk
from harness.model import MIB, Comparison, Metric, Outcome, Row, Spread, Target

MANY_LEDGERS = ("recover", "rereplicate")
"""Works whose `entries` are those of one ledger."""
Outcomes = Mapping[str, Mapping[str, Outcome]]


@dataclass(frozen=True, slots=True)
class Line:
    """A comparison with its figures."""

    row: str
    title: str
    metric: Metric
    ours: Spread | None
    theirs: Spread | None
    target: Target | None
    disk_limit_per_s: float | None
    """The rate that the disk allows for three replicas, if the row measured the disk."""

    @property
    def ratio(self) -> float | None:
        if self.ours is None or self.theirs is None or not self.theirs.median:
            return None
        return self.ours.median / self.theirs.median

    @property
    def met(self) -> bool | None:
        """Whether the target was met, or None without a target or without a value."""
        target, ratio = self.target, self.ratio
        if target is None or self.ours is None:
            return None
        if target.below is not None:
            return self.ours.median < target.below
        if target.at_most is not None:
            return None if ratio is None else ratio <= target.at_most
        if target.floor is not None and self.ours.median < target.floor:
            return False
        assert target.at_least is not None
        if target.disk_share is not None and self.disk_limit_per_s is not None:
            enough = self.ours.median >= target.disk_share * self.disk_limit_per_s
            if enough or ratio is None:
                return enough or None
        return None if ratio is None else ratio >= target.at_least


def lines_of(rows: Iterable[Row], outcomes: Outcomes) -> list[Line]:
    return [
        _line(row, comparison, outcomes[row.key])
        for row in rows
        if row.key in outcomes
        for comparison in row.comparisons
    ]


def _line(row: Row, comparison: Comparison, outcomes: Mapping[str, Outcome]) -> Line:
    def spread(name: str | None) -> Spread | None:
        outcome = outcomes.get(name or "")
        return Spread.of(outcome.values(comparison.metric)) if outcome else None

    limit = None
    if (written := disk_spread(outcomes)) and comparison.metric == "rate_per_s":
        limit = disk.entries_per_s(written.median, row.work(comparison).size_bytes)
    return Line(
        row.key,
        row.title(comparison),
        comparison.metric,
        spread(comparison.ours),
        spread(comparison.theirs),
        comparison.target,
        limit,
    )


def disk_spread(outcomes: Mapping[str, Outcome]) -> Spread | None:
    found = [o for o in outcomes.values() if o.measure.side == "disk"]
    return Spread.of([s.mb_per_s for o in found for s in o.samples if s.mb_per_s is not None])


# -- files ------------------------------------------------------------------------------------


def write_results(
    options: argparse.Namespace,
    facts: Mapping[str, str],
    rows: Sequence[Row],
    outcomes: Outcomes,
    notes: Sequence[str],
) -> None:
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    lines = lines_of(rows, outcomes)
    settings = {k: v for k, v in sorted(vars(options).items()) if k not in ("out", "dir", "list")}
    judged = not options.quick
    results = {
        "facts": facts,
        "settings": settings,
        "notes": notes,
        "lines": [
            {**asdict(line), "ratio": line.ratio, "met": line.met if judged else None}
            for line in lines
        ],
        "rows": {
            key: {name: asdict(outcome) for name, outcome in row.items()}
            for key, row in outcomes.items()
        },
    }
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text = markdown(facts, settings, lines, outcomes, notes)
    (out / "results.md").write_text(text, encoding="utf-8")
    from harness.plot import draw  # matplotlib is slow to import, and only needed here

    draw(lines, facts, out / "results.png")


def markdown(
    facts: Mapping[str, str],
    settings: Mapping[str, object],
    lines: Sequence[Line],
    outcomes: Outcomes,
    notes: Sequence[str],
) -> str:
    parts = ["# Quire and Apache BookKeeper on one machine\n"]
    if settings.get("quick"):
        parts.append(
            "**A quick run is a first look and no basis for claims. Its rounds are too short to "
            "warm up Java's client, so the ratios favour Quire, and targets are not judged.**\n"
        )
    parts += [
        "Medians, with the lowest and the highest sample. Alternating rounds: "
        f"{settings.get('rounds')}, samples per side and round: {settings.get('samples')}. The "
        "ratio is Quire's median divided by Apache's. Unless a line says otherwise: digest CRC32C, "
        "fsync on, E=3 Wq=3 Aq=2, and 1,000 outstanding adds.\n",
        _table(
            ["what", "Quire", "Apache", "ratio", "target", "met"],
            [_comparison_cells(line, judged=not settings.get("quick")) for line in lines],
        ),
        *_disk_text(outcomes),
        "## What it cost\n",
        "Per bookie, the mean over the bookies and the median over the samples. Bytes are those "
        "sent to the disk.\n",
        _table(
            [
                "row", "measure", "bookies", "cores per bookie", "CPU per entry, one bookie",
                "MB per bookie and round", "peak memory of a bookie", "client's CPU per entry",
            ],
            [
                _use_cells(key, outcome)
                for key, row in outcomes.items()
                for outcome in row.values()
                if outcome.samples and outcome.samples[0].bookies
            ],
        ),
        "## The machine and the run\n",
        _table(["", ""], [[name, value] for name, value in facts.items()]),
    ]  # fmt: skip
    failures = [f for row in outcomes.values() for o in row.values() for f in o.failures]
    if failures:
        parts += ["## What failed\n", *(f"- {failure}" for failure in failures), ""]
    if notes:
        parts += ["## Notes\n", *(f"- {note}" for note in notes), ""]
    return "\n".join(parts)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *body)) + "\n"


def _comparison_cells(line: Line, *, judged: bool) -> list[str]:
    met = {True: "yes", False: "**no**", None: ""}[line.met if judged else None]
    ratio = f"{line.ratio:.2f}x" if line.ratio is not None else ""
    target = line.target.text() if line.target else ""
    if line.target and line.target.below is not None:
        target += {"rss_mb": " MB", "rate_per_s": "/s"}.get(line.metric, " ms")
    return [
        line.title, in_words(line.ours, line.metric), in_words(line.theirs, line.metric), ratio,
        target, met,
    ]  # fmt: skip


def in_words(spread: Spread | None, metric: Metric) -> str:
    if spread is None:
        return "-"
    form, unit = {
        "rate_per_s": ("{:,.0f}", "/s"),
        "mb_per_s": ("{:,.1f}", " MB/s"),
        "rss_mb": ("{:,.0f}", " MB"),
    }.get(metric, ("{:.2f}", " ms"))
    low, high = form.format(spread.minimum), form.format(spread.maximum)
    return f"{form.format(spread.median)}{unit} ({low}-{high})"


def _disk_text(outcomes: Outcomes) -> list[str]:
    for row in outcomes.values():
        if written := disk_spread(row):
            size = next(o.measure.work.size_bytes for o in row.values())
            limit = disk.entries_per_s(written.median, size)
            return [
                f"The disk in the same run: {written.median:,.0f} MB/s "
                f"({written.minimum:,.0f}-{written.maximum:,.0f}) written by one process with a "
                f"sync every {disk.GROUP_BYTES // 1024} KB, the better of appending and "
                f"preallocated. Three replicas of {size:,} B entries (with "
                f"{disk.ENTRY_OVERHEAD_BYTES} B of headers) could at most be added at "
                f"{limit:,.0f}/s.\n"
            ]
    return []


def _use_cells(key: str, outcome: Outcome) -> list[str]:
    work = outcome.measure.work
    entries = work.entries * work.streams * (work.ledgers if work.verb in MANY_LEDGERS else 1)
    samples = outcome.samples

    def middle(values: Iterable[float]) -> float:
        return statistics.median(values)

    cpu = middle(statistics.mean(u.cpu_s for u in s.bookies) for s in samples)
    cores = middle(
        statistics.mean(u.cpu_s for u in s.bookies) / s.seconds for s in samples if s.seconds
    )
    written = middle(statistics.mean(u.written_bytes for u in s.bookies) for s in samples)
    memory = max(u.rss_peak_bytes for s in samples for u in s.bookies)
    client = middle(s.client_cpu_s or 0.0 for s in samples)
    return [
        key, outcome.measure.name, str(outcome.bookies), f"{cores:.2f}",
        f"{cpu / entries * 1e6:.1f} us", f"{written / 1e6:,.0f}", f"{memory / MIB:,.0f} MB",
        f"{client / entries * 1e6:.1f} us",
    ]  # fmt: skip
