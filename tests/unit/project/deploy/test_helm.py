"""The Helm chart in `deploy/helm`: what it renders is valid, and our programs accept it.

`scripts/render-chart` renders it into `chart/` beside this file, so that these tests need no helm.
Where helm is installed, further tests render the chart again and compare.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from quire.config import BookieConfig
from quire.configuration.layers import Configuration, environment_layer, file_layer, merged
from tests.support.docs.page_runner import parse_quire

ROOT = Path(__file__).parents[4]
CHART = ROOT / "deploy" / "helm" / "quire"
RENDERED = Path(__file__).with_name("chart")
SETS = ["default", "racks", "tls"]
KUBERNETES = ("1.31", "1.37")
OPERATOR = "monitoring.coreos.com/v1"
ADDRESSES = {"POD_NAME": "quire-bookie-0", "POD_IP": "10.0.0.7"}
"""The values that Kubernetes gives a pod about itself."""

Manifest = dict[str, Any]


def script() -> Any:
    loader = SourceFileLoader("render_chart", str(ROOT / "scripts" / "render-chart"))
    spec = spec_from_loader("render_chart", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def manifests(name: str) -> list[Manifest]:
    text = (RENDERED / f"{name}.yaml").read_text(encoding="utf-8")
    return [one for one in yaml.safe_load_all(text) if one]


def of_kind(name: str, kind: str) -> list[Manifest]:
    return [one for one in manifests(name) if one["kind"] == kind]


def pods(name: str) -> Iterator[tuple[str, Manifest]]:
    for one in manifests(name):
        if "template" in one.get("spec", {}):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


def variables(container: Manifest) -> dict[str, str]:
    """Return the environment of a container, with references to other variables resolved."""
    found = dict(ADDRESSES)
    for one in container.get("env", ()):
        if "value" in one:
            found[one["name"]] = re.sub(r"\$\((\w+)\)", lambda m: found[m[1]], one["value"])
    return found


def image_environment() -> dict[str, str]:
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    return dict(re.findall(r"(QUIRE_\w+)=(\S+?)(?: \\)?$", text, re.MULTILINE))


def configuration(name: str, container: Manifest, tmp_path: Path) -> Configuration:
    """Return the effective configuration of a container."""
    [one] = of_kind(name, "ConfigMap")
    path = tmp_path / "quire.toml"
    path.write_text(one["data"]["quire.toml"], encoding="utf-8")
    layer = environment_layer({**image_environment(), **variables(container)})
    return merged([file_layer(path), layer])


def commands(container: Manifest) -> Iterator[list[str]]:
    """Yield the words of each command of `quire` that a container runs."""
    if "args" in container:
        yield container["args"]
        return
    shell, option, text = container["command"]
    assert (shell, option) == ("sh", "-ec")
    for line in text.splitlines():
        for part in line.split(" || "):
            program, *words = part.split()
            assert program == "quire"
            yield words


def test_the_rendered_copy_matches_the_chart() -> None:
    assert (
        sorted(path.stem for path in RENDERED.glob("*.yaml")) == SETS == sorted(script().values())
    )
    told = (RENDERED / "chart.sha256").read_text(encoding="utf-8")
    assert told == script().digest(), "the chart has changed: run scripts/render-chart"


def _left_out(schema: Any, values: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of the values that the schema permits and `values` lacks."""
    for name, more in schema.get("properties", {}).items():
        if name not in values:
            yield prefix + name
        elif "properties" in more:
            yield from _left_out(more, values[name], f"{prefix}{name}.")


def test_values_yaml_lists_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert [*_left_out(schema, values)] == ["global"], "Helm itself has `global`"


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", SETS)
def test_the_manifests_are_valid(name: str, version: str) -> None:
    kinds = []
    for one in manifests(name):
        kinds.append(one["kind"])
        if one["apiVersion"] != OPERATOR:
            kubernetes_validate.validate(one, version, strict=True)
    wanted = {"ConfigMap", "Job", "Service", "StatefulSet", "PodDisruptionBudget", "Deployment"}
    assert set(kinds) == wanted | ({"PodMonitor"} if name == "tls" else set())
    broken = of_kind(name, "StatefulSet")[0]
    broken["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


@pytest.mark.parametrize("name", SETS)
def test_every_container_has_a_valid_command_and_configuration(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = set()
    for pod_name, pod in pods(name):
        [container] = pod["containers"]
        found = configuration(name, container, tmp_path)
        assert found.problems == [], pod_name
        monkeypatch.setenv("QUIRE_CONFIG", str(tmp_path / "quire.toml"))
        for words in commands(container):
            parse_quire(list(words))
            parsed.add(tuple(words[:2]))
    wanted = {("bookie", "start"), ("autorecovery", "start"), ("cluster", "init"), ("http",)}
    if name == "racks":
        wanted |= {("cluster", "locations")}
    assert parsed == wanted | {("cluster", "bookies")}


@pytest.mark.parametrize("name", SETS)
def test_pods_have_only_the_permissions_that_they_need(name: str) -> None:
    for _, pod in pods(name):
        [container] = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        for volume in pod["volumes"]:
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440, "Quire refuses other modes."
        mounted = {one["name"] for one in container["volumeMounts"]}
        claims = {"data", "data-1", "data-2"}
        assert mounted - claims == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("name", SETS)
def test_bookies_have_their_own_disks_and_names_and_time_to_stop(name: str, tmp_path: Path) -> None:
    [service] = [one for one in of_kind(name, "Service") if one["spec"].get("clusterIP") == "None"]
    for one in of_kind(name, "StatefulSet"):
        spec = one["spec"]
        pod = spec["template"]["spec"]
        [container] = pod["containers"]
        assert pod["terminationGracePeriodSeconds"] > BookieConfig().stop_timeout_s
        assert spec["serviceName"] == service["metadata"]["name"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        assert service["spec"]["selector"].items() <= labels.items()
        found = configuration(name, container, tmp_path)
        paths = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        claims = [one["metadata"]["name"] for one in spec["volumeClaimTemplates"]]
        assert list(found.bookie_process().directories) == [paths[claim] for claim in claims]
        assert found.bookie_process().bookie_id == ADDRESSES["POD_NAME"]
        assert found.bookie_process().advertise == "quire-bookie-0.quire-bookies.logs.svc"
    [budget] = of_kind(name, "PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_without_tls_http_listens_on_loopback_only(tmp_path: Path) -> None:
    for name in ("default", "racks"):
        for _, pod in pods(name):
            [container] = pod["containers"]
            found = configuration(name, container, tmp_path)
            for address in (
                found.http_side("bookie").http,
                found.http_side("autorecovery").http,
                found.http().address,
            ):
                assert address == "127.0.0.1:8080"
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe in container:
                    [*python, program] = container[probe]["exec"]["command"]
                    assert python == ["python", "-c"]
                    assert "http://127.0.0.1:8080/" in program


def test_with_tls_requests_by_every_name_are_accepted(tmp_path: Path) -> None:
    named = {}
    for pod_name, pod in pods("tls"):
        [container] = pod["containers"]
        found = configuration("tls", container, tmp_path)
        assert found.bookie().tls_required
        assert found.bookie().tls is not None
        named[pod_name] = (
            set(found.http_side("bookie").http_name)
            | set(found.http_side("autorecovery").http_name)
            | set(found.http().name)
        )
        files = {
            value
            for value in found.values.values()
            if isinstance(value, str) and value.startswith("/run/quire/")
        }
        mounted = [one["mountPath"] for one in container["volumeMounts"]]
        assert all(any(file.startswith(f"{path}/") for path in mounted) for file in files)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                [header] = container[probe]["httpGet"]["httpHeaders"]
                assert header["value"] in named[pod_name]
        assert ADDRESSES["POD_IP"] in named[pod_name] or "init" in pod_name  # for Prometheus
    assert "quire-bookie-0.quire-bookies.logs.svc" in named["quire-bookie"]
    assert {"quire-http.logs.svc", "quire.example.net"} <= named["quire-http"]


def test_prometheus_finds_the_pods_under_the_job_names_of_the_rules() -> None:
    jobs = {}
    pods_by_labels = [
        one["spec"]["template"]["metadata"]["labels"]
        for one in manifests("tls")
        if "template" in one.get("spec", {})
    ]
    for one in of_kind("tls", "PodMonitor"):
        selector = one["spec"]["selector"]["matchLabels"]
        assert sum(selector.items() <= labels.items() for labels in pods_by_labels) == 1
        [endpoint] = one["spec"]["podMetricsEndpoints"]
        assert (endpoint["port"], endpoint["scheme"]) == ("http", "https")
        job = next(rule for rule in endpoint["relabelings"] if rule["targetLabel"] == "job")
        jobs[one["metadata"]["name"]] = job["replacement"]
    collected = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert set(jobs.values()) == {one["job_name"] for one in collected["scrape_configs"]}


def test_each_rack_has_its_bookies_and_their_locations() -> None:
    sets = of_kind("racks", "StatefulSet")
    ids = {
        f"{one['metadata']['name']}-{number}": one["spec"]["template"]["spec"]["nodeSelector"]
        for one in sets
        for number in range(one["spec"]["replicas"])
    }
    [job] = of_kind("racks", "Job")
    [container] = job["spec"]["template"]["spec"]["containers"]
    set_to = {words[3]: words[4] for words in commands(container) if words[1] == "locations"}
    assert set_to.keys() == ids.keys()
    for bookie, location in set_to.items():
        assert ids[bookie]["topology.kubernetes.io/zone"][-1] == location[-1]
    # Kubernetes would otherwise stop one bookie of each rack at the same time.
    assert {one["spec"]["updateStrategy"]["type"] for one in sets} == {"OnDelete"}
    assert "updateStrategy" not in of_kind("default", "StatefulSet")[0]["spec"]


def test_the_chart_has_quires_version() -> None:
    import quire

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == quire.__version__


# -- with helm --------------------------------------------------------------------------------


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["helm", *words], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.helm
@pytest.mark.parametrize("name", SETS)
def test_helm_lint_accepts_the_chart(name: str) -> None:
    options = script().values()[name]
    done = helm("lint", "--strict", str(CHART), "--kube-version", "1.31.0", *options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.helm
def test_helm_renders_the_stored_copy() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "render-chart"), "--check"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.helm
@pytest.mark.parametrize(
    ("values", "told"),
    [
        (["tls.enabled=true"], "tls.secret names the Secret"),
        (["tls.enabled=true", "tls.secret=x"], "http.tokenSecret names the Secret"),
        (["podMonitor.enabled=true"], "podMonitor needs tls.enabled"),
        (["bookie.replica=3"], "replica"),
        (["metadata.uri=sqlite:///x.db"], "metadata"),
        (["bookie.storage.size=much"], "size"),
    ],
)
def test_helm_refuses_values_that_cannot_work(values: list[str], told: str) -> None:
    options = [word for value in values for word in ("--set", value)]
    done = helm("template", "quire", str(CHART), "--kube-version", "1.31.0", *options)
    assert done.returncode != 0
    assert told in done.stderr
