"""`deploy/compose.yaml` without containers: its configuration, secrets and health checks.

A bookie and `quire http` run as processes, with the files of the containers. Only their addresses,
directories and the metadata store are others.
"""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.support.processes.cli import Quire, Running

DEPLOY = Path(__file__).parents[3] / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here")


def health(service: str, port: int, secrets: Path) -> subprocess.CompletedProcess[str]:
    """Run the health check of a service."""
    kind, program, *words = SERVICES[service]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python")
    [option, text] = words
    text = text.replace("localhost:8080", f"localhost:{port}").replace("/run/quire", str(secrets))
    return subprocess.run(
        [sys.executable, option, text], capture_output=True, text=True, timeout=60, check=False
    )


def port_of(server: Running) -> int:
    while line := server.error_line():
        event = json.loads(line)
        if event["event"] == "http_serving":
            return int(event["url"].rpartition(":")[2])
    raise AssertionError("HTTP is not served")


def test_the_processes_of_the_compose_file_form_a_cluster(tmp_path: Path) -> None:
    secrets, prometheus = tmp_path / "secrets", tmp_path / "prometheus"
    secrets.mkdir()
    prometheus.mkdir()
    script = DEPLOY / "compose" / "make-secrets.sh"
    made = ["sh", str(script), str(secrets), str(prometheus)]
    subprocess.run(made, capture_output=True, timeout=60, check=True)
    text = (DEPLOY / "compose" / "quire.toml").read_text(encoding="utf-8")
    for old, new in {
        "zk+hierarchical://zookeeper:2181/ledgers": f"sqlite:///{tmp_path}/metadata.db",
        '"/data"': f'"{tmp_path}/data"',
        "/run/quire": str(secrets),
        "0.0.0.0:8080": "127.0.0.1:0",
        '"0.0.0.0"': '"127.0.0.1"',
    }.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "quire.toml").write_text(text)
    quire = Quire(directory=tmp_path)
    quire.environment |= {"QUIRE_CONFIG": str(tmp_path / "quire.toml"), "QUIRE_METADATA": ""}
    [line] = SERVICES["init"]["command"]
    look, create = (words.split()[1:] for words in line.split(" || "))
    quire(*look).fails(1)
    quire(*create).ok()
    quire(*look).ok()
    quire.environment["QUIRE_BOOKIE_BOOKIE_ID"] = "bookie-1"
    quire.environment["QUIRE_BOOKIE_ADVERTISE"] = "localhost"
    bookie_command = SERVICES["bookie-1"]["command"]
    with (
        quire.start(*bookie_command, "--port", "0") as bookie,
        quire.start(*SERVICES["dashboard"]["command"]) as dashboard,
    ):
        assert bookie.line() == "bookie-1"
        ports = {"bookie-1": port_of(bookie), "dashboard": port_of(dashboard)}
        for service, port in ports.items():
            done = health(service, port, secrets)
            assert done.returncode == 0, done.stderr
        assert health("bookie-1", 1, secrets).returncode != 0
        # A client uses TLS, as the configuration says.
        one = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
        ledger = quire.write(b"a\nb\n", *one)
        assert quire("ledger", "read", ledger).ok() == b"a\nb\n"
        # Prometheus gets the metrics with the token, and nobody without it.
        trusted = ssl.create_default_context(cafile=str(prometheus / "ca.pem"))
        url = f"https://localhost:{ports['bookie-1']}/metrics"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=30, context=trusted)
        token = (prometheus / "token").read_text().strip()
        for name, metric in {"bookie-1": "bookie_SERVER_STATUS 1", "dashboard": "quire_"}.items():
            request = urllib.request.Request(
                f"https://localhost:{ports[name]}/metrics",
                headers={"Authorization": f"Bearer {token}"},
            )
            with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:
                assert re.search(rf"^{metric}", answer.read().decode(), re.MULTILINE), name
