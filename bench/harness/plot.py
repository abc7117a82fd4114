"""Draw the plot: one panel for rates and one for times, with two marks per line.

A thin line shows the spread. Values are bars on a linear scale, and dots on a logarithmic scale,
where the length of a bar would mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from harness.model import Spread
from harness.report import Line

QUIRE, APACHE, INK = "#1f5a8c", "#c9b48f", "#333333"
BAR_HEIGHT = 0.38
LINE_INCHES = 0.62
MARGIN_INCHES = 1.1


def draw(lines: Sequence[Line], facts: Mapping[str, str], path: Path) -> None:
    """Draw the plot into `path`, or nothing if there is nothing to compare."""
    shown = [line for line in lines if line.ours is not None and line.metric != "rss_mb"]
    panels = [
        (title, unit, scale, chosen)
        for title, unit, scale, chosen in (
            ("Entries per second (longer is better)", "thousands/s", 1e-3,
             [line for line in shown if line.metric == "rate_per_s"]),
            ("Bytes per second (longer is better)", "MB/s", 1.0,
             [line for line in shown if line.metric == "mb_per_s"]),
            ("Time (shorter is better)", "ms", 1.0,
             [line for line in shown if line.metric in ("p50_ms", "p99_ms")]),
        )
        if chosen
    ]  # fmt: skip
    if not panels:
        return
    heights = [len(chosen) for *_, chosen in panels]
    figure, axes = pyplot.subplots(
        len(panels),
        1,
        figsize=(10, LINE_INCHES * sum(heights) + MARGIN_INCHES * (len(panels) + 0.5)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axis, (title, unit, scale, chosen) in zip(axes[:, 0], panels, strict=True):
        _panel(axis, title, unit, scale, chosen)
    figure.suptitle(
        f"Quire and Apache BookKeeper {facts['Apache BookKeeper']} on one machine: "
        f"{facts['processor']}, {facts['date'].split()[0]}",
        x=0.01, ha="left", fontsize=11, color=INK,
    )  # fmt: skip
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _panel(axis: Axes, title: str, unit: str, scale: float, lines: Sequence[Line]) -> None:
    logarithmic = _spans_decades(lines)
    axis.set_xscale("log" if logarithmic else "linear")
    for place, line in enumerate(lines):
        for offset, spread, colour, more in (
            (-BAR_HEIGHT / 2, line.ours, QUIRE, _ratio_text(line)),
            (BAR_HEIGHT / 2, line.theirs, APACHE, ""),
        ):
            if spread is not None:
                _mark(axis, place + offset, spread, scale, colour, more, dot=logarithmic)
        if line.target is not None and line.target.disk_share and line.disk_limit_per_s:
            limit = line.disk_limit_per_s * scale
            axis.plot([limit, limit], [place - 0.45, place + 0.45], color=INK, linewidth=1.2)
            axis.annotate(
                "disk's limit", (limit, place + 0.45), fontsize=7, color=INK,
                ha="center", va="top",
            )  # fmt: skip
    axis.set_yticks(range(len(lines)), [line.title.replace("`", "") for line in lines], fontsize=9)
    axis.set_ylim(len(lines) - 0.4, -0.6)
    axis.set_xlabel(unit + (" (logarithmic)" if logarithmic else ""), fontsize=8)
    axis.set_title(title, loc="left", fontsize=10, color=INK)
    axis.tick_params(axis="x", labelsize=8)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.margins(x=0.2)
    keys = [Patch(color=QUIRE, label="Quire"), Patch(color=APACHE, label="Apache")]
    axis.legend(
        handles=keys, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=8
    )


def _mark(
    axis: Axes, place: float, spread: Spread, scale: float, colour: str, more: str, *, dot: bool
) -> None:
    low, middle, high = (v * scale for v in (spread.minimum, spread.median, spread.maximum))
    axis.plot([low, high], [place, place], color=INK, linewidth=0.8, zorder=3)
    if dot:
        axis.plot([middle], [place], "o", color=colour, markersize=9, zorder=4)
    else:
        axis.barh(place, middle, BAR_HEIGHT, color=colour)
    value = f"{middle:,.0f}" if middle >= 10 else f"{middle:.2g}"
    axis.annotate(
        f"{value}{more}", (max(high, middle), place), xytext=(8, 0),
        textcoords="offset points", va="center", fontsize=8, color=INK,
    )  # fmt: skip


def _ratio_text(line: Line) -> str:
    return f"  ({line.ratio:.2g}x)" if line.ratio is not None else ""


def _spans_decades(lines: Sequence[Line]) -> bool:
    values = [s.median for line in lines for s in (line.ours, line.theirs) if s and s.median > 0]
    return max(values) > 30 * min(values)
