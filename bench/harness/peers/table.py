"""The results as a table in Markdown, as JSON, and as a plot."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from harness.model import BenchmarkError
from harness.peers.rows import Row, Unit, rows
from harness.peers.running import Result, Values

COLOURS = ("#1f5a8c", "#c9b48f", "#8f6f3a", "#9fc5a8", "#4d8a5f")
INK = "#333333"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
MICRO = 1e6


@dataclass(slots=True)
class Column:
    """One system, and what was found about it."""

    name: str
    title: str
    durability: str
    results: dict[str, list[Result]] = field(default_factory=dict)
    """The measured results by work."""
    failures: dict[str, str] = field(default_factory=dict)
    loss: tuple[int, int] | None = None
    """The numbers of records acknowledged, and lost, in a power cut."""
    loss_not: str = ""
    """Why it is not known, or empty."""

    def values(self, row: Row) -> list[float]:
        found = [r.values for r in self.results.get(row.work, []) if r.kind == row.kind]
        size = int(row.work.partition("-")[2] or 0)
        return [value for one in found if (value := _value(one, row.unit, size)) is not None]


def _value(values: Values, unit: Unit, size: int) -> float | None:
    if unit == "cpu_us":
        return values["cpu_s"] * MICRO / values["records"]
    if unit == "written":
        return values["written_bytes"] / values["records"] / size
    return values.get(unit)


FORMS: dict[Unit, tuple[str, str]] = {
    "rate_per_s": (",.0f", "/s"),
    "p50_ms": (".2f", " ms"),
    "p99_ms": (".2f", " ms"),
    "rss_mb": (",.0f", " MB"),
    "cpu_us": (".2f", " us"),
    "written": (".2f", ""),
}


def words(value: float, unit: Unit, *, bare: bool = False) -> str:
    form, behind = FORMS[unit]
    return f"{value:{form}}{'' if bare else behind}"


def cell(column: Column, row: Row) -> str:
    """Return the median, with the lowest and the highest value if there are several."""
    found = column.values(row)
    if not found:
        return column.failures.get(row.work, "-")
    middle = words(statistics.median(found), row.unit)
    if len(found) == 1:
        return middle
    lowest, highest = (words(value, row.unit, bare=True) for value in (min(found), max(found)))
    return f"{middle} ({lowest}-{highest})"


def loss_cell(column: Column) -> str:
    if column.loss is None:
        return column.loss_not or "-"
    acknowledged, lost = column.loss
    return f"{lost:,} of {acknowledged:,}"


def table(columns: Sequence[Column]) -> str:
    lines = [["", *(column.title for column in columns)]]
    lines.append(["An acknowledged record is", *(column.durability for column in columns)])
    for row in rows():
        cells = [cell(column, row) for column in columns]
        if any(one != "-" for one in cells):
            lines.append([row.title, *cells])
    lost = [loss_cell(column) for column in columns]
    if any(one != "-" for one in lost):
        lines.append(["Acknowledged records lost in a power cut of all servers", *lost])
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def write(
    out: Path,
    columns: Sequence[Column],
    facts: Mapping[str, str],
    notes: Sequence[str],
) -> None:
    conditions = ["| condition | value |", "|---|---|"]
    conditions += [f"| {name} | {value} |" for name, value in facts.items()]
    page = f"{table(columns)}\n" + "\n".join(conditions) + "\n"
    if notes:
        page += "\nNotes:\n\n" + "\n".join(f"- {note}" for note in notes) + "\n"
    (out / "results.md").write_text(page)
    data = {
        "facts": dict(facts),
        "notes": list(notes),
        "systems": {
            column.name: {
                "title": column.title,
                "durability": column.durability,
                "results": {
                    work: [{"kind": r.kind, **r.values} for r in found]
                    for work, found in column.results.items()
                },
                "failures": column.failures,
                "loss": column.loss,
                "loss_not": column.loss_not,
            }
            for column in columns
        },
    }
    (out / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    _plot(out / "results.png", columns, facts)


def _plot(path: Path, columns: Sequence[Column], facts: Mapping[str, str]) -> None:
    """Draw a panel for rates and one for times, with a bar for each system."""
    panels = []
    for title, units in (
        ("Records per second (longer is better)", ("rate_per_s",)),
        ("Milliseconds (shorter is better)", ("p50_ms", "p99_ms")),
    ):
        chosen = [r for r in rows() if r.unit in units and any(c.values(r) for c in columns)]
        if chosen:
            panels.append((title, chosen))
    if not panels:
        return
    heights = [len(chosen) for _, chosen in panels]
    figure, axes = pyplot.subplots(
        len(panels),
        1,
        squeeze=False,
        layout="constrained",
        height_ratios=heights,
        figsize=(10, 0.22 * len(columns) * sum(heights) + 2),
    )
    thickness = 0.8 / len(columns)
    for axis, (title, chosen) in zip(axes[:, 0], panels, strict=True):
        for place, (column, colour) in enumerate(zip(columns, COLOURS, strict=False)):
            for at, row in enumerate(chosen):
                found = column.values(row)
                if not found:
                    continue
                middle = statistics.median(found)
                y = at + (place - (len(columns) - 1) / 2) * thickness
                axis.barh(
                    y, middle, thickness, color=colour, label=column.title if at == 0 else None
                )
                axis.plot([min(found), max(found)], [y, y], color=INK, linewidth=1)
        axis.set_yticks(range(len(chosen)), [row.title for row in chosen])
        axis.invert_yaxis()
        axis.set_xscale("log")
        axis.set_title(title, loc="left", fontsize=10, color=INK)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(fontsize=8, loc="lower right")
    figure.suptitle(
        f"{facts['processor']}, {facts['date'].split()[0]}",
        x=0.01,
        ha="left",
        fontsize=10,
        color=INK,
    )
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def write_into_page(results: Path, page: Path) -> None:
    """Replace what is between the marks of a page by the table of these results."""
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise BenchmarkError(f"{page} has no place for the table: {BEGIN} ... {END}")
    made = f"{BEGIN}\n\n{results.read_text().strip()}\n\n{END}"
    page.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: made, text, flags=re.DOTALL))
