"""The files in `deploy/`, checked with the tools that use them, and with our own keys."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from quire.bookie.main import EXIT_DISK_FAILED
from quire.cli.main import cli
from quire.config import BookieConfig
from quire.configuration.layers import environment_layer, file_layer, merged, toml_layer

DEPLOY = Path(__file__).parents[4] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
KUBERNETES = ("1.31", "1.37")
"""The oldest and the newest that the manifests are checked for."""


def manifests() -> Iterator[dict[str, Any]]:
    for path in MANIFESTS:
        yield from yaml.safe_load_all(path.read_text())


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for one in manifests():
        if "template" in one.get("spec", {}):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


def bookie_pod() -> dict[str, Any]:
    return next(pod for name, pod in pods() if name == "bookie")


def image_environment() -> dict[str, str]:
    return dict(re.findall(r"(QUIRE_\w+)=(\S+?)(?: \\)?$", DOCKERFILE, re.MULTILINE))


def command_of(words: list[str]) -> click.Command:
    command: click.Command = cli
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, words
        command = found
    assert not isinstance(command, click.Group)
    return command


# -- the image --------------------------------------------------------------------------------


def test_the_dockerfile_has_no_faults() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [str(hadolint), "--no-color", str(DEPLOY / "Dockerfile")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    worse = subprocess.run(
        [str(hadolint), "-"], input="FROM python\nRUN cd /x && pip install y\n",
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert worse.returncode != 0  # It really checks.


def test_the_image_sets_only_existing_configuration_keys() -> None:
    layer = environment_layer(image_environment())
    assert layer.problems == []
    assert set(layer.given) == {"bookie.directories", "bookie.bind", "bookie.http"}
    assert merged([layer]).problems == []
    assert command_of(["bookie", "start"])
    assert "USER 10001:10001" in DOCKERFILE


def test_every_file_that_the_image_copies_is_in_the_build_context() -> None:
    sent = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for name in line.split():
            assert f"!{name}" in sent, name
            assert (DEPLOY.parent / name).exists(), name


def test_runtime_dependencies_are_pinned_to_the_tested_versions() -> None:
    def pins(name: str) -> set[str]:
        text = (DEPLOY.parent / "requirements" / name).read_text()
        assert "--hash=sha256:" in text
        return set(re.findall(r"^[a-z0-9-]+==[^ ;]+", text, re.MULTILINE))

    everything = pins("dev.lock")
    for part in ("runtime.lock", "build.lock"):
        assert pins(part) <= everything, "run: make lock"
        assert len(pins(part)) > 4


# -- Kubernetes -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_manifests_are_valid(version: str) -> None:
    found = list(manifests())
    for one in found:
        kubernetes_validate.validate(one, version, strict=True)
    assert [one["kind"] for one in found] == [
        "ConfigMap", "Job", "Service", "StatefulSet", "PodDisruptionBudget", "Deployment",
    ]  # fmt: skip
    broken = next(one for one in found if one["kind"] == "StatefulSet")
    broken["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def test_the_configuration_of_the_pods_is_valid(tmp_path: Path) -> None:
    text = next(manifests())["data"]["quire.toml"]
    path = tmp_path / "quire.toml"
    path.write_text(text)
    assert merged([file_layer(path)]).problems == []
    for name, pod in pods():
        [container] = pod["containers"]
        variables = {one["name"]: one.get("value", "x") for one in container.get("env", ())}
        assert environment_layer(variables).problems == [], name
        assert command_of(container["args"])
        assert {"name": "configuration", "mountPath": "/etc/quire", "readOnly": True} in container[
            "volumeMounts"
        ]


def test_the_configuration_file_of_the_pods_is_not_overridden(tmp_path: Path) -> None:
    """The image sets variables for its own use, and the file's `http` had no effect."""
    path = tmp_path / "quire.toml"
    path.write_text(next(manifests())["data"]["quire.toml"])
    [container] = bookie_pod()["containers"]
    own = {one["name"]: one.get("value", "x") for one in container["env"]}
    variables = environment_layer({**image_environment(), **own}).given
    assert set(variables) == {"bookie.bookie_id", "bookie.advertise"}
    assert not set(file_layer(path).given) & set(variables)


def test_pods_have_only_the_permissions_that_they_need() -> None:
    for name, pod in pods():
        [container] = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["automountServiceAccountToken"] is False
        # Otherwise a service called quire-bookie would be taken for configuration.
        assert pod["enableServiceLinks"] is False
        assert f"runAsUser: {pod['securityContext']['runAsUser']}".endswith("10001")


def test_bookies_have_time_to_stop_and_probes_use_their_address() -> None:
    pod = bookie_pod()
    assert pod["terminationGracePeriodSeconds"] > BookieConfig().stop_timeout_s
    [container] = pod["containers"]
    address = image_environment()["QUIRE_BOOKIE_HTTP"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        [*python, program] = container[probe]["exec"]["command"]
        assert python == ["python", "-c"]
        assert f"http://{address}/" in program
        assert int(re.findall(r"timeout=(\d+)", program)[0]) < container[probe]["timeoutSeconds"]
    served = (DEPLOY.parent / "src/quire/http/routes/bookie.py").read_text()
    assert "/is_ready" in served


# -- systemd ----------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("quire")
    copies = [tmp_path / unit.name for unit in UNITS]
    for unit, copy in zip(UNITS, copies, strict=True):
        copy.write_text(unit.read_text().replace("/opt/quire/bin/quire", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, copies)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    # It also checks the units of the machine, but only its output about ours counts.
    said = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "quire" in line]
    assert said == []
    copies[0].write_text(copies[0].read_text() + "\n[Service]\nRestrat=always\n")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copies[0])],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Restrat" in done.stderr


def test_systemd_does_not_restart_a_bookie_whose_disk_failed() -> None:
    unit = (DEPLOY / "systemd" / "quire-bookie.service").read_text()
    assert f"RestartPreventExitStatus=2 {EXIT_DISK_FAILED}\n" in unit
    [stop] = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(stop) > BookieConfig().stop_timeout_s
    for path in UNITS:
        [line] = re.findall(
            r"^ExecStart=/opt/quire/bin/quire (.+)$", path.read_text(), re.MULTILINE
        )
        assert command_of(line.removeprefix("--config /etc/quire/quire.toml ").split())


def test_the_example_configuration_is_valid() -> None:
    found = merged([file_layer(DEPLOY / "config" / "quire.toml")])
    assert found.problems == []
    assert found.bookie_process().directories == ("/var/lib/quire/bookie",)
    assert merged([toml_layer({"bookie": {"advertise": "%H"}}, "unit", {})]).problems == []
