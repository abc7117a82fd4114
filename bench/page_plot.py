#!/usr/bin/env python3
"""Draw docs/pictures/benchmarks.svg from the table in docs/explanation/benchmarks.md.

    bench/page_plot.py            write the picture
    bench/page_plot.py --check    end with status 1 if the picture does not match the table

Each row of the table becomes a bar. Its length is the ratio, on a logarithmic scale that begins at
1, where both sides are equal. The style is that of the other pictures of the documentation.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "benchmarks.md"
PICTURE = ROOT / "docs" / "pictures" / "benchmarks.svg"
STYLED = PICTURE.with_name("cluster.svg")
"""The picture whose style is used."""
ROW = re.compile(
    r"^\| (?P<what>[^|]+) \| (?P<ours>[^|]+) \| (?P<theirs>[^|]+) \| (?P<ratio>[\d.]+) \|$"
)

WIDTH = 640
LEFT, RIGHT = 24, 545
"""The x coordinates where bars begin and where the bar of the largest ratio ends."""
TOP = 96
ROW_HEIGHT = 60
TICKS = (1, 2, 5, 10, 20)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    ours: str
    theirs: str
    ratio: float


def rows_of(page: str) -> list[Row]:
    """Return the rows of the table of results, in their order."""
    found = filter(None, map(ROW.match, page.splitlines()))
    return [
        Row(row["what"].replace("`", ""), row["ours"], row["theirs"], float(row["ratio"]))
        for row in found
    ]


def style() -> str:
    """Return the style element that all pictures share."""
    found = re.search(r"<style>.*?</style>", STYLED.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[0]


def picture_of(rows: Sequence[Row]) -> str:
    """Return the picture as SVG."""
    largest = max(TICKS[-1], *(row.ratio for row in rows))
    bottom = TOP + len(rows) * ROW_HEIGHT
    height = bottom + 56

    def x(ratio: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * math.log(ratio) / math.log(largest), 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-labelledby="title desc">',
        '  <title id="title">Quire compared with Apache BookKeeper</title>',
        '  <desc id="desc">A bar for each measurement. '
        + escape(" ".join(f"{row.what}: {row.ratio:g} times." for row in rows))
        + "</desc>",
        f"  {style()}",
        f'  <rect class="panel" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" '
        'rx="12"/>',
        f'  <text x="{LEFT}" y="38" class="b">'
        "How many times better Quire is than Apache BookKeeper</text>",
        f'  <text x="{LEFT}" y="64" class="n">One machine with two cores; logarithmic scale</text>',
        f'  <text x="{WIDTH - LEFT}" y="64" class="n e">Quire, Apache</text>',
    ]
    for tick in TICKS:
        lines += [
            f'  <line class="panel" x1="{x(tick)}" y1="{TOP - 12}" x2="{x(tick)}" y2="{bottom}"/>',
            f'  <text x="{x(tick)}" y="{bottom + 24}" class="n m">{tick}×</text>',
        ]
    for number, row in enumerate(rows):
        y = TOP + number * ROW_HEIGHT
        lines += [
            f'  <text x="{LEFT}" y="{y + 14}">{escape(row.what)}</text>',
            f'  <text x="{WIDTH - LEFT}" y="{y + 14}" class="n e">'
            f"{escape(row.ours)}, {escape(row.theirs)}</text>",
            f'  <rect class="num" x="{LEFT}" y="{y + 22}" width="{round(x(row.ratio) - LEFT, 1)}" '
            'height="18" rx="3"/>',
            f'  <text x="{x(row.ratio) + 8:.1f}" y="{y + 37}" class="b">{row.ratio:g}×</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    arguments = parser.parse_args()
    made = picture_of(rows_of(PAGE.read_text(encoding="utf-8")))
    if not arguments.check:
        PICTURE.write_text(made, encoding="utf-8")
    elif PICTURE.read_text(encoding="utf-8") != made:
        sys.exit(f"{PICTURE.relative_to(ROOT)} does not match the table: run bench/page_plot.py")


if __name__ == "__main__":
    main()
