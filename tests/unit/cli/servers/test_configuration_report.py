"""The effective configuration that servers show: values, origins, and no secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest

from quire.cli.common.configuration import assignments_layer, configured
from quire.cli.common.groups import CONFIG_VARIABLE
from quire.cli.common.options import placement_option
from quire.cli.common.tls import tls_options
from quire.cli.servers.effective import effective_settings
from quire.cli.servers.http import fill_options, http_options, settings_of
from quire.configuration import report as report_module
from quire.configuration.fields import keys
from quire.configuration.layers import environment_layer, merged, toml_layer
from quire.configuration.report import HIDDEN, report

URI = "sqlite:////tmp/m.db"


def shown(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["key"]: one for one in found["keys"]}


def test_the_report_has_every_key_of_its_tables_and_no_other() -> None:
    found = report(merged([]), ("", "bookie"), "/etc/q.toml")
    assert found["file"] == "/etc/q.toml"
    names = {one["key"] for one in found["keys"]}
    assert names == {one for one in keys() if one == "metadata" or one.startswith("bookie.")}
    assert all(one["meaning"] for one in found["keys"])
    assert not any(one["changed"] for one in found["keys"])


def test_the_report_shows_value_default_and_origin() -> None:
    file = toml_layer({"bookie": {"port": 31810}}, "q.toml", {"bookie.port": 2})
    environment = environment_layer({"QUIRE_BOOKIE_GC_INTERVAL_S": "15m"})
    found = shown(report(merged([file, environment]), ("bookie",)))
    port, interval = found["bookie.port"], found["bookie.gc_interval_s"]
    assert (port["value"], port["default"], port["origin"]) == ("31810", "3181", "q.toml:2")
    assert (interval["value"], interval["unit"]) == ("900.0", "seconds")
    assert interval["origin"] == "QUIRE_BOOKIE_GC_INTERVAL_S"
    assert {one["key"] for one in found.values() if one["changed"]} == {
        "bookie.port", "bookie.gc_interval_s",
    }  # fmt: skip


def test_keys_of_an_absent_table_do_not_apply() -> None:
    found = shown(report(merged([]), ("bookie",)))
    assert not found["bookie.tls.certificate"]["applies"]
    assert found["bookie.port"]["applies"]
    tls = toml_layer({"bookie": {"tls": {"certificate": "c.pem"}}}, "q.toml", {})
    assert shown(report(merged([tls]), ("bookie",)))["bookie.tls.certificate"]["applies"]


@dataclass(frozen=True)
class Rule:
    secret: bool = False


@dataclass(frozen=True)
class Key:
    name: str
    rule: Rule = field(default_factory=Rule)
    default: Any = ""
    unit: str = ""
    environment: str = "QUIRE_X"
    meaning: str = "A key."


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("http.token", "hunter2", Rule()),
        ("client.tls.key_password", "hunter2", Rule()),
        ("client.anything", "hunter2", Rule(secret=True)),
        ("client.names", ("-----BEGIN PRIVATE KEY-----hunter2",), Rule()),
        ("http.prometheus", "https://me:hunter2@prometheus:9090", Rule()),
        # A password with a slash, which urlsplit reads as a port and a path.
        ("http.prometheus", "http://me:12/hunter2@prometheus:9090", Rule()),
        ("metadata", "zk://me:1/hunter2@one:2181;two:2181/ledgers", Rule()),
        ("client.names", ('//me:a"hunter2 b@one', "//me:hunter2@two"), Rule()),
        ("client.options", {"server": "x://me:hunter2/@one"}, Rule()),
    ],
)
def test_secrets_are_never_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any, rule: Rule
) -> None:
    monkeypatch.setattr(report_module, "keys", lambda: {name: Key(name, rule)})
    found = merged([])
    texts = [value] if isinstance(value, str) else list(getattr(value, "values", lambda: value)())
    given = texts[0]
    told = report(
        type(found)({name: value}, {name: f"--set {name}={given}"}, {}), (name.split(".")[0],)
    )
    if rule.secret or name.endswith(("token", "password")):
        assert told["keys"][0]["value"] == HIDDEN
    assert HIDDEN in told["keys"][0]["value"]
    assert "hunter2" not in str(told)


def test_file_names_are_not_treated_as_secrets() -> None:
    file = toml_layer({"http": {"token_file": "/run/token"}}, "q.toml", {})
    assert shown(report(merged([file]), ("http",)))["http.token_file"]["value"] == '"/run/token"'


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:////data/me@corp/m.db",
        "zk+hierarchical://one:2181;two:2181/ledgers",
        "https://prometheus:9090/prefix",
    ],
)
def test_a_uri_without_credentials_is_shown_completely(uri: str) -> None:
    file = toml_layer({"metadata": uri}, "q.toml", {})
    assert shown(report(merged([file]), ("",)))["metadata"]["value"] == f'"{uri}"'


def run(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, environment: dict[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return what a server with these options shows."""
    for name, value in {CONFIG_VARIABLE: "", **(environment or {})}.items():
        monkeypatch.setenv(name, value)
    told: dict[str, Any] = {}

    @click.command()
    @http_options("--http")
    @tls_options
    @placement_option
    def command() -> None:
        fill_options(configured().http_side("autorecovery").options())
        layer = assignments_layer("--set", "autorecovery", ["open_grace_s=60"])
        told.update(settings_of(URI, "autorecovery", layers=[layer]))

    command.main(arguments, standalone_mode=False)
    return shown(told)


def test_the_report_includes_the_options_of_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authorities = tmp_path / "ca.pem"
    authorities.write_text("")
    found = run(
        monkeypatch, "--http", "127.0.0.1:0", "--tls-ca", str(authorities),
        "--placement", "zone-aware,locations=metadata",
    )  # fmt: skip
    changed = {name: one["origin"] for name, one in found.items() if one["changed"]}
    assert changed == {
        "metadata": "--metadata",
        "autorecovery.http": "--http",
        "autorecovery.open_grace_s": "--set open_grace_s=60",
        "client.tls.ca": "--tls-ca",
        "client.placement.policy": "--placement",
        "client.placement.locations": "--placement",
    }
    assert found["autorecovery.http"]["value"] == '"127.0.0.1:0"'


def test_the_report_includes_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "QUIRE_METADATA": URI, "QUIRE_AUTORECOVERY_HTTP": "127.0.0.1:7",
        "QUIRE_PLACEMENT": "any",
    }  # fmt: skip
    found = run(monkeypatch, environment=environment)
    assert found["metadata"]["origin"] == "QUIRE_METADATA"
    assert found["autorecovery.http"]["origin"] == "QUIRE_AUTORECOVERY_HTTP"
    assert found["client.placement.policy"]["origin"] == "QUIRE_PLACEMENT"


def test_a_placement_option_replaces_the_placement_of_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The report had the settings of the file that the process did not use."""
    file = tmp_path / "quire.toml"
    file.write_text(
        '[client.placement]\nmin_racks = 3\nregions = ["a"]\nlocal_reads = true\n'
        'policy = "region-aware"\n'
    )
    found = run(
        monkeypatch, "--placement", "rack-aware,locations=metadata",
        environment={CONFIG_VARIABLE: str(file)},
    )  # fmt: skip
    placement = {
        name.removeprefix("client.placement."): one
        for name, one in found.items()
        if name.startswith("client.placement.")
    }
    assert {name for name, one in placement.items() if one["changed"]} == {"locations"}
    assert all(
        one["value"] == one["default"] for name, one in placement.items() if name != "locations"
    )
    from_file = run(monkeypatch, environment={CONFIG_VARIABLE: str(file)})
    assert from_file["client.placement.min_racks"]["value"] == "3"


def test_an_empty_placement_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script with an unset variable got any bookies."""
    for text in ("", " "):
        with pytest.raises(click.UsageError, match="--placement is empty"):
            run(monkeypatch, "--placement", text)


def test_keys_of_the_http_table_are_reported_under_their_own_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    told: dict[str, Any] = {}

    @click.command()
    def command() -> None:
        options = {
            "http": "127.0.0.1:1", "http_name": ("a",), "http_prometheus": "http://p:1",
            "http_prometheus_label": ("a=b",),
        }  # fmt: skip
        told.update(effective_settings(URI, ("http",), [], options))

    command.main([], standalone_mode=False)
    found = shown(told)
    assert found["http.address"]["origin"] == "--http"
    assert (found["http.name"]["value"], found["http.name"]["origin"]) == ('["a"]', "--http-name")
    assert found["http.prometheus"]["origin"] == "--prometheus"
    assert found["http.prometheus_label"]["origin"] == "--prometheus-label"
