"""Names in milliseconds work for one more release, with a warning."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import quire
from quire.cli.main import cli
from quire.config import BookieConfig, ClientConfig
from quire.configuration.fields import IN_MILLISECONDS, keys
from quire.configuration.layers import environment_layer, file_layer, merged
from quire.errors import MetadataError, UsageError
from quire.metadata import open_metadata
from quire.streams.namespace.settings import (
    DEFAULTS,
    StreamSettings,
    current_names,
    decode_settings,
    encode_settings,
    parse_setting,
)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ClientConfig, "explicit_lac_interval"),
        (ClientConfig, "long_poll"),
        (BookieConfig, "max_long_poll"),
        (BookieConfig, "seal_idle"),
        (BookieConfig, "session_timeout"),
        (StreamSettings, "retention"),
        (StreamSettings, "roll_interval"),
    ],
)
def test_a_limit_can_be_set_and_read_under_its_former_name(kind: type[Any], name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{name}_ms is deprecated.* Use {name}_s"):
        made = kind(**{f"{name}_ms": 1_500})
    assert made == kind(**{f"{name}_s": 1.5})
    assert f"{name}_ms" not in asdict(made)
    with pytest.warns(DeprecationWarning, match=f"Use {name}_s"):
        assert getattr(made, f"{name}_ms") == 1_500
    with pytest.warns(DeprecationWarning, match=f"Use {name}_s"):
        assert replace(made, **{f"{name}_ms": 250}) == kind(**{f"{name}_s": 0.25})


def test_no_limit_is_declared_in_milliseconds() -> None:
    for kind in (ClientConfig, BookieConfig, StreamSettings):
        assert [one.name for one in fields(kind) if one.name.endswith("_ms")] == []
    assert not [name for name in keys() if name.endswith("_ms")]
    assert set(IN_MILLISECONDS.values()) <= set(keys())


async def test_open_metadata_accepts_the_former_name_of_the_session_timeout(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/q.db"
    with pytest.warns(DeprecationWarning, match="session_timeout_ms"):
        store = await open_metadata(uri, create=True, session_timeout_ms=4_000)
    await store.close()


# -- configuration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"), [("30_000", 30.0), ("'15s'", 15.0), ("1_500.0", 1.5), ("'2000'", 2.0)]
)
def test_a_configuration_file_may_use_the_former_name(
    tmp_path: Path, value: str, seconds: float
) -> None:
    path = tmp_path / "q.toml"
    path.write_text(f"[bookie]\nsession_timeout_ms = {value}\n")
    found = merged([file_layer(path)])
    assert found.problems == []
    assert found.warnings == [
        f"{path}:2: bookie.session_timeout_ms is deprecated: use bookie.session_timeout_s, "
        "in seconds"
    ]
    assert found.bookie().session_timeout_s == seconds
    assert found.origins["bookie.session_timeout_s"] == f"{path}:2"
    with pytest.warns(DeprecationWarning, match="session_timeout_s"):
        quire.load_config(path)


def test_an_environment_variable_may_use_the_former_name() -> None:
    found = merged([environment_layer({"QUIRE_CLIENT_LONG_POLL_MS": "250"})])
    assert (found.client().long_poll_s, len(found.warnings)) == (0.25, 1)


@pytest.mark.parametrize("value", ["'soon'", "true", "[]", "1"])
def test_an_invalid_value_is_a_problem_under_the_former_name_too(
    tmp_path: Path, value: str
) -> None:
    path = tmp_path / "q.toml"
    path.write_text(f"[bookie]\nsession_timeout_ms = {value}\n")
    [problem] = merged([file_layer(path)]).problems
    assert problem.startswith(f"{path}:2: bookie.session_timeout_s: ")


def test_both_names_at_once_are_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "q.toml"
    path.write_text("[bookie]\nseal_idle_ms = 5\nseal_idle_s = 1\n")
    [problem] = merged([file_layer(path)]).problems
    assert problem.endswith("are names of the same key; give bookie.seal_idle_s only")


def test_a_later_layer_wins_whatever_name_it_uses(tmp_path: Path) -> None:
    path = tmp_path / "q.toml"
    path.write_text("[bookie]\nseal_idle_s = 1\n")
    later = environment_layer({"QUIRE_BOOKIE_SEAL_IDLE_MS": "5"})
    assert merged([file_layer(path), later]).bookie().seal_idle_s == 0.005


def test_a_command_warns_once_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "q.toml"
    path.write_text("[client]\nlong_poll_ms = 100\n")
    result = CliRunner().invoke(cli, ["--config", str(path), "config", "show", "--changed"])
    assert result.exit_code == 0
    [line] = result.stderr.splitlines()
    assert line.startswith(f"warning: {path}:2: client.long_poll_ms is deprecated")
    assert "long_poll_s = 0.1" in result.stdout
    result = CliRunner().invoke(cli, ["config", "check", str(path)])
    assert (result.exit_code, len(result.stderr.splitlines())) == (0, 1)


def test_the_json_of_config_show_keeps_the_former_names(tmp_path: Path) -> None:
    path = tmp_path / "q.toml"
    path.write_text("[client]\nlong_poll_s = 0.1\n")
    result = CliRunner().invoke(cli, ["--config", str(path), "config", "show", "--json"])
    found = json.loads(result.stdout)
    assert found["values"]["client.long_poll_s"] == 0.1
    assert found["values"]["client.long_poll_ms"] == 100
    assert found["origins"]["client.long_poll_ms"] == f"{path}:2"


# -- settings of streams ----------------------------------------------------------------------


def test_settings_are_stored_under_their_former_names() -> None:
    stored = encode_settings({"retention_s": 350, "roll_interval_s": 0.001, "ack_quorum": 2})
    assert json.loads(stored) == {
        "ack_quorum": 2, "quire": 1, "retention_ms": 350_000, "roll_interval_ms": 1,
    }  # fmt: skip
    assert decode_settings(stored, "x") == {
        "retention_s": 350.0, "roll_interval_s": 0.001, "ack_quorum": 2,
    }  # fmt: skip
    for ms in (1, 77, 350_001, 2**40 + 1):
        seconds = decode_settings(b'{"quire": 1, "retention_ms": %d}' % ms, "x")
        assert json.loads(encode_settings(seconds))["retention_ms"] == ms


@pytest.mark.parametrize("value", [b"true", b'"1"', b"1.5", b"null"])
def test_a_stored_time_that_is_no_number_is_refused(value: bytes) -> None:
    with pytest.raises(MetadataError):
        decode_settings(b'{"quire": 1, "retention_ms": %s}' % value, "x")


def test_programs_may_set_settings_by_their_former_names() -> None:
    with pytest.warns(DeprecationWarning, match="retention_ms is deprecated.* Use retention_s"):
        assert DEFAULTS.with_values({"retention_ms": 1_500}).retention_s == 1.5
    with pytest.warns(DeprecationWarning, match="Use retention_s"):
        assert current_names({"retention_ms": None}) == {"retention_s": None}
    with pytest.warns(match="Use retention_s"), pytest.raises(UsageError, match="of type int"):
        current_names({"retention_ms": "1d"})


def test_settings_printed_as_json_have_both_names() -> None:
    shown = StreamSettings(retention_s=1.5).as_json()
    assert (shown["retention_s"], shown["retention_ms"]) == (1.5, 1_500)
    assert shown["roll_interval_ms"] == 7_200_000


@pytest.mark.parametrize(
    ("text", "seconds"), [("86400000", 86_400.0), ("1d", 86_400.0), ("1.5", 0.0015)]
)
def test_a_command_accepts_a_former_name(text: str, seconds: float) -> None:
    assert parse_setting("retention_ms", text) == ("retention_s", seconds)
