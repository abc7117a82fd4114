"""The alerts and Grafana dashboards in `deploy/` ask for metrics and labels that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

ROOT = Path(__file__).parents[4]
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
RULES = ROOT / "deploy" / "prometheus" / "quire.rules.yml"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus gives every series."""
OVER_TIME = {"rate", "increase"}

Row = tuple[str, set[str]]
"""The kind of a metric, and its labels."""


def known() -> dict[str, Row]:
    """Return the metrics of the reference, which a test compares with what servers answer."""
    rows = re.findall(r"^\| `(\w+)`(?: \(([^)]+)\))? \| (\w+) \|", METRICS, re.MULTILINE)
    found = {name: (kind, set(filter(None, labels.split(", ")))) for name, labels, kind in rows}
    for name, (kind, labels) in [*found.items()]:
        if kind == "histogram":
            found[f"{name}_bucket"] = ("counter", {*labels, "le"})
            found[f"{name}_sum"] = found[f"{name}_count"] = ("counter", labels)
    return {**found, "up": ("gauge", set())}


KNOWN = known()


def faults_of(query: str) -> list[str]:
    """Return what is wrong with a query. A query that Prometheus refuses is a ValueError."""
    faults: list[str] = []
    counted: set[str] = set()
    nodes: list[Any] = []
    # The variables of Grafana are no durations and no expressions for Prometheus.
    tree = promql_parser.parse(query.replace("$__rate_interval", "1m"))
    promql_parser.walk(tree, lambda node: nodes.append(node) or True)
    selectors = [one for one in nodes if isinstance(one, promql_parser.VectorSelector)]
    for one in nodes:
        if isinstance(one, promql_parser.Call) and one.func.name in OVER_TIME:
            counted |= {arg.vector_selector.name for arg in one.args}
    labels: set[str] = set()
    for one in selectors:
        kind, its = KNOWN.get(one.name, (None, set()))
        labels |= its
        if kind is None:
            faults.append(f"no metric {one.name}")
            continue
        if (kind == "counter") != (one.name in counted):
            faults.append(f"{one.name} is a {kind}")
        asked = {matcher.name for matcher in one.matchers.matchers}
        faults += [f"{one.name} has no label {name}" for name in asked - its - OF_PROMETHEUS]
    for one in nodes:
        if isinstance(one, promql_parser.AggregateExpr) and one.modifier is not None:
            grouped = set(one.modifier.labels)
            faults += [f"nothing has a label {name}" for name in grouped - labels - OF_PROMETHEUS]
    return faults


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def panels(path: Path) -> Iterator[dict[str, Any]]:
    for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] != "row":
            yield panel


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("quire_bookie_ads_total", "no metric quire_bookie_ads_total"),
        ("quire_bookie_adds_total > 1", "quire_bookie_adds_total is a counter"),
        ("rate(quire_storage_ledgers[5m])", "quire_storage_ledgers is a gauge"),
        ('quire_cluster_problems{kind="bad"}', "quire_cluster_problems has no label kind"),
        ("sum by (rack) (quire_cluster_problems)", "nothing has a label rack"),
    ],
)
def test_faults_of_a_metric_query_are_found(query: str, fault: str) -> None:
    assert faults_of(query) == [fault]
    with pytest.raises(ValueError, match="unexpected"):
        faults_of(query + ")")


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_uses_only_existing_metrics(rule: dict[str, Any]) -> None:
    assert faults_of(rule["expr"]) == []
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert {*rule["annotations"]} == {"summary", "description", "runbook_url"}
    named = {*re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])} - OF_PROMETHEUS
    assert named <= set().union(*(KNOWN[one][1] for one in KNOWN if one in rule["expr"]))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_links_to_its_section_of_the_troubleshooting_page(rule: dict[str, Any]) -> None:
    url = rule["annotations"]["runbook_url"].removeprefix("{{ $externalLabels.docs_url }}/")
    page, _, anchor = url.partition("#")
    text = (ROOT / "docs" / page.replace(".html", ".md")).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert page == "guides/troubleshooting.html"
    assert anchor == rule["alert"].lower()
    assert rule["alert"] in headings


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_uses_only_existing_metrics(path: Path) -> None:
    found = {
        panel["title"]: faults
        for panel in panels(path)
        for target in panel["targets"]
        if (faults := faults_of(target["expr"]))
    }
    assert found == {}
    legends = {
        name
        for panel in panels(path)
        for target in panel["targets"]
        for name in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
        if not any(name in KNOWN[one][1] for one in KNOWN if one in target["expr"])
    }
    assert legends <= {*OF_PROMETHEUS}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_the_panels_of_a_dashboard_do_not_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_dashboards_match_their_table() -> None:
    script = ROOT / "scripts" / "grafana-dashboards"
    done = subprocess.run(
        [sys.executable, str(script), "--check"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert len(DASHBOARDS) == 3
