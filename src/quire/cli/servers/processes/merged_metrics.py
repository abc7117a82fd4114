"""The metrics of several bookies as one page in Prometheus' text format.

Each sample gets the label `bookie` with the id of its bookie. No values are added up: quantiles and
gauges of different bookies have no sum that means anything, and Prometheus sums counters itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

LABEL = "bookie"
_HEAD = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*)(?: |$)")
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+(?: -?\d+)?)")
_OWN_LABEL = re.compile(rf'(^|,){LABEL}="')


@dataclass(slots=True)
class _Family:
    """A metric with the samples of all bookies."""

    heads: dict[str, str] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)


def merged(texts: Mapping[str, str]) -> str:
    """Return one page with the metrics of all bookies.

    A metric appears once, with its help and its type, as the format requires. Lines that are not
    in the format are left out.

    Args:
        texts: The metrics of each bookie, by its id.
    """
    families: dict[str, _Family] = {}
    for bookie_id, text in texts.items():
        label = f'{LABEL}="{_quoted(bookie_id)}"'
        family: _Family | None = None
        for line in text.split("\n"):
            if head := _HEAD.match(line):
                family = families.setdefault(head[2], _Family())
                family.heads.setdefault(head[1], line)
            elif family is not None and (sample := _SAMPLE.fullmatch(line)):
                # A metric that has a label of this name keeps it under another one.
                others = _OWN_LABEL.sub(rf'\1exported_{LABEL}="', sample[2] or "")
                labels = f"{label},{others}" if others else label
                family.samples.append(f"{sample[1]}{{{labels}}} {sample[3]}")
    lines = [
        line for family in families.values() for line in (*family.heads.values(), *family.samples)
    ]
    return "\n".join(lines) + "\n" if lines else ""


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
