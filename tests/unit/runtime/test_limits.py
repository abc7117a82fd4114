"""Settings are checked when they are constructed: each field, its type and its range."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest

import quire
from quire._runtime.limits import PositiveInt, check_fields, rules_of
from quire.codec.log.state_records import BLOCK_BYTES
from quire.config import (
    FRAME_BYTES_LEAST,
    SEGMENT_BYTES_LEAST,
    BookieConfig,
    ClientConfig,
    PlacementConfig,
    TlsClientConfig,
    TlsServerConfig,
)
from quire.configuration.fields import keys
from quire.configuration.layers import file_layer, merged
from quire.errors import QuireError, UsageError
from quire.metadata import ZooKeeperOptions
from quire.replication.autorecovery.settings import AutorecoverySettings
from quire.streams import StreamSettings

NEEDED: dict[type[Any], dict[str, Any]] = {TlsServerConfig: {"certificate": "b.pem"}}
PUBLIC = (
    AutorecoverySettings, BookieConfig, ClientConfig, PlacementConfig, StreamSettings,
    TlsClientConfig, TlsServerConfig, ZooKeeperOptions,
)  # fmt: skip
FIELDS = [(kind, one.name) for kind in PUBLIC for one in fields(kind)]


@pytest.mark.parametrize(
    ("kind", "name"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS]
)
def test_every_field_refuses_another_type_when_it_is_constructed(
    kind: type[Any], name: str
) -> None:
    for wrong in (object(), b"bytes"):
        with pytest.raises(UsageError) as refused:
            kind(**{**NEEDED.get(kind, {}), name: wrong})
        assert isinstance(refused.value, ValueError)
        assert name in str(refused.value)


@pytest.mark.parametrize(
    ("name", "wrong", "allowed"),
    [
        ("max_unacked_bytes", 0, "a whole number, 1 or more (bytes)"),
        ("max_unacked_bytes", "64MiB", "a whole number, 1 or more (bytes)"),
        ("max_unacked_bytes", 1.5, "a whole number, 1 or more (bytes)"),
        ("max_unacked_bytes", True, "a whole number, 1 or more (bytes)"),
        ("max_unforced_bytes", 0, "a whole number, 1 or more (bytes)"),
        ("quarantine_errors", -1, "a whole number, 0 or more"),
        ("read_timeout_s", float("nan"), "a number, 0.001 or more (seconds)"),
        ("add_timeout_s", 1e10, "a number, 0.001 to 1000000000 (seconds)"),
        ("ledger_metadata_version", 1, "2 or 3"),
        ("quarantine_liars", "yes", "True or False"),
        ("placement", None, "a PlacementConfig"),
        ("tls", "ca.pem", "a TlsClientConfig, or None"),
    ],
)
def test_the_error_names_the_field_the_value_and_the_allowed_values(
    name: str, wrong: Any, allowed: str
) -> None:
    with pytest.raises(UsageError) as refused:
        ClientConfig(**{name: wrong})
    assert str(refused.value) == f"ClientConfig.{name} cannot be {wrong!r}. Use {allowed}"


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [
        (PlacementConfig, "regions", "east"),
        (PlacementConfig, "locations", {"bookie": 1}),
        (PlacementConfig, "min_racks", -1),
        (BookieConfig, "segment_bytes", 4_096),
        (BookieConfig, "compact_major_ratio", 1.5),
        (BookieConfig, "session_timeout_s", 0.0),
        (TlsServerConfig, "client_certificates", "maybe"),
        (AutorecoverySettings, "ledger_check_percent", 101),
        (StreamSettings, "ack_quorum", "2"),
        (StreamSettings, "roll_interval_s", float("inf")),
    ],
)
def test_all_settings_refuse_invalid_values(kind: type[Any], name: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match=name):
        kind(**{**NEEDED.get(kind, {}), name: wrong})


def test_a_changed_copy_of_the_settings_is_checked() -> None:
    with pytest.raises(UsageError, match="read_windows"):
        replace(ClientConfig(), read_windows=0)


def test_whole_numbers_are_accepted_for_seconds() -> None:
    assert ClientConfig(read_timeout_s=3).read_timeout_s == 3
    assert BookieConfig(segment_bytes=0).segment_bytes == 0
    assert PlacementConfig(regions=("east", "west")).regions == ("east", "west")


def test_the_configuration_file_has_the_same_bounds(tmp_path: Path) -> None:
    """The class and the key accept and refuse the same values at their limits."""
    path = tmp_path / "q.toml"
    for name, key in keys().items():
        if key.kind not in ("integer", "number") or key.choices:
            continue
        table, _, last = name.rpartition(".")
        limits = key.rule.limits
        below = limits.least - 1 if key.kind == "integer" else limits.least / 2 - 0.001
        for value, good in ((limits.least, True), (below, False)):
            given = "certificate = 'b.pem'\n" if table == "bookie.tls" else ""
            path.write_text(f"[{table}]\n{given}{last} = {value}\n")
            found = merged([file_layer(path)])
            fits = good or (value == 0 and limits.or_zero)
            assert (found.problems == []) == fits, (name, value, found.problems)
            if found.problems == []:
                assert key.rule.accepts(found.values[name])
            else:
                assert not key.rule.accepts(value)


def test_a_secret_is_not_shown() -> None:
    @dataclass(frozen=True)
    class Secret:
        windows: PositiveInt = 1
        password: str = field(default="", repr=False)

    assert rules_of(Secret)["password"].secret
    with pytest.raises(UsageError) as refused:
        check_fields(Secret(password=b"hunter2"), UsageError)  # type: ignore[arg-type]
    assert "hunter2" not in str(refused.value)


def test_a_field_of_a_type_without_a_rule_is_named() -> None:
    @dataclass(frozen=True)
    class Ports:
        by_name: dict[str, int] = field(default_factory=dict)

    with pytest.raises(TypeError, match=r"Ports\.by_name has the type dict\[str, int\]"):
        rules_of(Ports)


def test_bounds_given_in_blocks_equal_the_block_size() -> None:
    assert FRAME_BYTES_LEAST == SEGMENT_BYTES_LEAST == 4 * BLOCK_BYTES


async def test_connect_refuses_a_config_of_another_type() -> None:
    with pytest.raises(UsageError, match="config"):
        await quire.connect("sqlite:////tmp/none.db", config={"read_windows": 1})  # type: ignore[arg-type]


def test_every_refusal_is_an_error_of_quire() -> None:
    with pytest.raises(QuireError):
        ZooKeeperOptions(digest=5)  # type: ignore[arg-type]
