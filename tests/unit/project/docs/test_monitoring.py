"""The monitoring guide names metrics, events and paths that exist.

The rules for Prometheus in `deploy/` are those of its table.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[4]
GUIDES = ROOT / "docs" / "guides" / "cluster"
RULES = ROOT / "deploy" / "prometheus" / "quire.rules.yml"
PAGE = (GUIDES / "monitoring.md").read_text(encoding="utf-8")
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
HTTP = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
METRIC = re.compile(r"\b(?:quire|bookie|bookkeeper|process)_(?:[a-z]+_)?\w+[a-z0-9S]\b")
MADE_OF_A_STATE = {"directory_read_only", "directory_failed"}
"""Events whose names the bookie derives from a directory's state."""


@pytest.mark.parametrize(
    "name",
    ["monitoring.md", "tuning.md", "../repair/full-disk.md", "security-checklist.md"],
)
def test_each_documented_metric_exists(name: str) -> None:
    text = (GUIDES / name).read_text(encoding="utf-8")
    named = {re.sub(r"_bucket$", "", one) for one in METRIC.findall(text)}
    assert named
    missing = [one for one in sorted(named) if f"`{one}`" not in METRICS]
    assert missing == []


def test_each_row_of_the_page_has_an_alert_rule_in_the_same_order() -> None:
    [group] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rows = re.findall(r"^\| \d+ \| ([^|]+) \|", PAGE, re.MULTILINE)
    assert len(rows) == len(group["rules"]) == 12
    for row, rule in zip(rows, group["rules"], strict=True):
        named = METRIC.findall(re.sub(r"_bucket\b", "", rule["expr"]))
        assert set(METRIC.findall(row)) <= set(named), row
    (listed,) = re.findall(r"has a rule for each row.*", PAGE)
    assert [rule["alert"] for rule in group["rules"]] == re.findall(r"`(Quire\w+)`", listed)
    assert [rule["labels"]["severity"] for rule in group["rules"]] == ["page"] * 5 + ["ticket"] * 7


def test_each_documented_event_is_logged() -> None:
    events = PAGE.split("## 6. ")[1]
    named = set(re.findall(r"`([a-z]+_[a-z_]+)`", events))
    assert len(named) > 10
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "src" / "quire").rglob("*.py")
        if path.name != "event_log.py"  # It names the level of each.
    )
    assert {one for one in named if f'"{one}"' not in source} == MADE_OF_A_STATE


def test_each_documented_path_is_served() -> None:
    paths = set(re.findall(r"^\| `(/[\w/]+)` \|", PAGE, re.MULTILINE))
    assert len(paths) == 5
    assert [path for path in paths if path not in HTTP] == []
