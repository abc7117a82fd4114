"""`deploy/compose.yaml`: everything in it exists, and our own programs accept what it gives them.

There is no container engine in the tests. If `docker compose` is installed, it reads the file too,
which needs no engine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire.configuration.layers import environment_layer, file_layer, merged
from tests.support.docs.page_runner import parse_quire

DEPLOY = Path(__file__).parents[4] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
QUIRE = {name: one for name, one in SERVICES.items() if one["image"].startswith("quire:")}
BOOKIES = ["bookie-1", "bookie-2", "bookie-3"]
KEYS = {
    "build", "cap_add", "cap_drop", "command", "depends_on", "entrypoint", "environment",
    "healthcheck", "image", "network_mode", "ports", "read_only", "restart", "security_opt",
    "stop_grace_period", "user", "volumes",
}  # fmt: skip
"""The keys of a service that the file uses. They are of the Compose specification."""


def mounts(service: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Return the source, the target and whether it is read-only, for each volume of a service."""
    found = []
    for one in service.get("volumes", ()):
        source, target, *mode = one.split(":")
        found.append((source, target, mode == ["ro"]))
    return found


def configuration() -> Any:
    return merged([file_layer(DEPLOY / "compose" / "quire.toml")])


def test_the_compose_file_has_the_services_of_a_complete_cluster() -> None:
    assert set(SERVICES) == {
        "secrets", "zookeeper", "init", *BOOKIES, "autorecovery", "dashboard", "prometheus",
        "grafana",
    }  # fmt: skip
    assert set(COMPOSE) == {"name", "x-quire", "x-healthy", "x-bookie", "services", "volumes"}
    for name, one in SERVICES.items():
        assert set(one) <= KEYS, name


def test_images_are_named_by_version() -> None:
    for name, one in SERVICES.items():
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", one["image"]), name
        if name in QUIRE:
            build = one["build"]
            assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")


def test_every_command_line_is_a_valid_quire_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CONFIG", str(DEPLOY / "compose" / "quire.toml"))
    parsed = 0
    for one in QUIRE.values():
        if "entrypoint" not in one:
            parse_quire(list(one["command"]))
            parsed += 1
    [line] = SERVICES["init"]["command"]
    for part in line.split(" || "):
        program, *words = part.split()
        assert program == "quire"
        parse_quire(words)
        parsed += 1
    assert parsed == 7
    with pytest.raises(Exception, match="No such option"):
        parse_quire(["bookie", "start", "--no-such-option"])


def test_the_configuration_is_valid() -> None:
    found = configuration()
    assert found.problems == []
    for name, one in QUIRE.items():
        layer = environment_layer(one.get("environment", {}))
        assert layer.problems == [], name
        assert merged([file_layer(DEPLOY / "compose" / "quire.toml"), layer]).problems == []
    assert found.metadata == "zk+hierarchical://zookeeper:2181/ledgers"
    assert found.bookie().tls_required
    ids = [SERVICES[name]["environment"]["QUIRE_BOOKIE_BOOKIE_ID"] for name in BOOKIES]
    hosts = [SERVICES[name]["environment"]["QUIRE_BOOKIE_ADVERTISE"] for name in BOOKIES]
    assert ids == hosts == BOOKIES


def test_every_file_and_volume_that_is_mounted_exists() -> None:
    used = set()
    for name, one in SERVICES.items():
        targets = [target for _, target, _ in mounts(one)]
        assert len(set(targets)) == len(targets), name
        for source, target, read_only in mounts(one):
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
                assert read_only, (name, target)
            else:
                used.add(source)
    assert used == set(COMPOSE["volumes"])
    for name in BOOKIES:
        assert (name, "/data", False) in mounts(SERVICES[name])


def test_services_wait_for_their_dependencies() -> None:
    for name, one in SERVICES.items():
        for other, how in one.get("depends_on", {}).items():
            if how["condition"] == "service_completed_successfully":
                assert SERVICES[other].get("restart", "no") == "no", (name, other)
            else:
                assert how["condition"] == "service_healthy"
                assert "test" in SERVICES[other]["healthcheck"], (name, other)
    for name in (*BOOKIES, "autorecovery", "dashboard"):
        assert "init" in SERVICES[name]["depends_on"]


def test_the_published_ports_are_the_listening_ports() -> None:
    found = configuration()
    listening = {"prometheus": "9090", "grafana": "3000", "dashboard": found.http().address[-4:]}
    published = {name: one["ports"] for name, one in SERVICES.items() if "ports" in one}
    assert published == {
        name: [f"127.0.0.1:{port}:{port}"] for name, port in listening.items()
    }  # Only this machine reaches them.
    variable = SERVICES["bookie-1"]["environment"]["QUIRE_BOOKIE_HTTP"]
    assert found.http_side("bookie").http == found.http_side("autorecovery").http == variable


def test_prometheus_scrapes_every_process() -> None:
    collected = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    standard = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    jobs = {one["job_name"]: one for one in collected["scrape_configs"]}
    # The rules and dashboards name these jobs.
    assert set(jobs) == {one["job_name"] for one in standard["scrape_configs"]}
    assert collected["rule_files"] == standard["rule_files"]
    targets = {
        target
        for one in jobs.values()
        for static in one["static_configs"]
        for target in static["targets"]
    }
    assert targets == {f"{name}:8080" for name in (*BOOKIES, "autorecovery", "dashboard")}
    found = configuration()
    named = {*found.http_side("bookie").http_name, *found.http_side("autorecovery").http_name}
    assert {target.removesuffix(":8080") for target in targets} <= named | set(found.http().name)
    directory = next(t for s, t, _ in mounts(SERVICES["prometheus"]) if s == "prometheus-secrets")
    for one in jobs.values():
        assert one["scheme"] == "https"
        assert one["authorization"]["credentials_file"] == f"{directory}/token"
        assert one["tls_config"]["ca_file"] == f"{directory}/ca.pem"


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    [source] = yaml.safe_load((DEPLOY / "compose/grafana/source.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["type"] == "prometheus"
    [provider] = yaml.safe_load((DEPLOY / "compose/grafana/dashboards.yaml").read_text())[
        "providers"
    ]
    mounted = {target: source for source, target, _ in mounts(SERVICES["grafana"])}
    dashboards = DEPLOY / mounted[provider["options"]["path"]]
    assert len(list(dashboards.glob("*.json"))) == 3


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here")
def test_the_secrets_are_created_once_and_match_the_configuration(tmp_path: Path) -> None:
    quire, prometheus = tmp_path / "quire", tmp_path / "prometheus"
    quire.mkdir()
    prometheus.mkdir()
    script = [word for word in SERVICES["secrets"]["entrypoint"] if word.endswith(".sh")]
    [source] = [s for s, target, _ in mounts(SERVICES["secrets"]) if target == script[0]]

    def make() -> str:
        return subprocess.run(
            ["sh", str(DEPLOY / source), str(quire), str(prometheus)],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip

    assert make() == "the secrets are made\n"
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert make() == "the secrets exist\n"
    assert before == {path: path.read_bytes() for path in before}
    assert {path.stat().st_mode & 0o777 for path in before} == {0o400}
    named = {
        value
        for value in configuration().values.values()
        if isinstance(value, str) and value.startswith("/run/quire/")
    }
    assert {path.name for path in quire.iterdir()} == {Path(one).name for one in named}
    assert {path.name for path in prometheus.iterdir()} == {"token", "ca.pem"}
    names = subprocess.run(
        ["openssl", "x509", "-in", str(quire / "cert.pem"), "-noout", "-ext", "subjectAltName"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert set(re.findall(r"DNS:([\w-]+)", names)) == {
        *BOOKIES, "autorecovery", "dashboard", "localhost",
    }  # fmt: skip
    strict = ["openssl", "verify", "-x509_strict", "-CAfile", str(quire / "ca.pem")]
    done = subprocess.run([*strict, str(quire / "cert.pem")], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_docker_compose_accepts_the_file() -> None:
    """The test checks nothing without Docker's compose plugin."""
    if shutil.which("docker") is None:
        return
    compose = ["docker", "compose", "-f", str(DEPLOY / "compose.yaml")]
    if subprocess.run([*compose[:2], "version"], capture_output=True, check=False).returncode:
        return
    done = subprocess.run(
        [*compose, "config", "--quiet"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
