"""The configuration: precedence of layers, refusals, and the generated page."""

from __future__ import annotations

import json
import os
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import quire as quire_package
from quire.bookie.options import check_directories
from quire.cli.common.configuration import assignments_layer, checked, configuration_file
from quire.cli.main import cli
from quire.cli.servers.http import DEFAULT_ADDRESS
from quire.config import BookieConfig, ClientConfig, TlsClientConfig, TlsServerConfig
from quire.configuration.fields import TABLES, ConfigKey, inner_tables, keys
from quire.configuration.layers import (
    Configuration,
    environment_layer,
    file_layer,
    merged,
    toml_layer,
)
from quire.configuration.values import as_toml, value_of
from quire.errors import UsageError
from quire.replication.autorecovery.settings import AutorecoverySettings
from quire.testing._process import _environment

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CONFIG", "")
    monkeypatch.delenv("QUIRE_METADATA", raising=False)


def quire(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def from_toml(text: str) -> Configuration:
    return merged([toml_layer(tomllib.loads(text), "q.toml", {})])


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Any]:
    path = tmp_path / "quire.toml"

    def write(text: str) -> Path:
        path.write_text(text)
        return path

    return write  # type: ignore[return-value]


# -- keys -------------------------------------------------------------------------------------


def test_every_key_is_explained_and_has_its_own_variable() -> None:
    assert [name for name, key in keys().items() if not key.meaning.endswith(".")] == []
    assert [name for name, table in inner_tables().items() if not table.meaning] == []
    assert len({key.environment for key in keys().values()}) == len(keys()) > 100


def test_an_empty_configuration_has_the_defaults() -> None:
    found = merged([])
    assert found.bookie() == BookieConfig()
    assert found.client() == ClientConfig()
    assert found.autorecovery() == AutorecoverySettings()
    assert set(found.origins.values()) == {"default"}
    assert found.problems == []


def test_number_keys_name_their_unit_or_what_they_count() -> None:
    assert keys()["bookie.segment_bytes"].unit == "bytes"
    assert keys()["bookie.compact_bytes_per_s"].unit == "bytes/s"
    assert keys()["bookie.seal_idle_s"].unit == "seconds"
    assert keys()["bookie.gc_interval_s"].unit == "seconds"
    assert keys()["bookie.max_connections"].unit == ""


# -- layers -----------------------------------------------------------------------------------


def test_options_override_the_environment_and_that_overrides_the_file(file: Any) -> None:
    low = file_layer(
        file("[bookie]\nsegment_bytes = 1000000\nmax_connections = 1\nmax_long_polls = 2\n")
    )
    middle = environment_layer(
        {"QUIRE_BOOKIE_MAX_CONNECTIONS": "3", "QUIRE_BOOKIE_MAX_LONG_POLLS": "4", "HOME": "/"}
    )
    high = assignments_layer("--set", "bookie", ["max_long_polls=5"])
    found = merged([low, middle, high])
    config = found.bookie()
    assert (config.segment_bytes, config.max_connections, config.max_long_polls) == (1000000, 3, 5)
    assert found.origins["bookie.segment_bytes"].endswith("quire.toml:2")
    assert found.origins["bookie.max_connections"] == "QUIRE_BOOKIE_MAX_CONNECTIONS"
    assert found.origins["bookie.max_long_polls"] == "--set max_long_polls=5"
    assert found.origins["bookie.max_queued_bytes"] == "default"


def test_an_optional_table_applies_only_if_it_is_given() -> None:
    assert from_toml("[client]").client().tls is None
    assert from_toml("[client.tls]").client().tls == TlsClientConfig()
    found = merged([environment_layer({"QUIRE_CLIENT_TLS_CA": "/ca.pem"})])
    assert found.client().tls == TlsClientConfig(ca="/ca.pem")
    found = from_toml("[client.placement]\nmin_racks = 3")
    assert found.client().placement.min_racks == 3


def test_a_client_ca_asks_for_client_certificates_by_default() -> None:
    found = from_toml("[bookie.tls]\ncertificate = 'b.pem'\nca = 'ca.pem'")
    assert found.bookie().tls == TlsServerConfig(
        "b.pem", ca="ca.pem", client_certificates="required"
    )
    said = from_toml(
        "[bookie.tls]\ncertificate = 'b.pem'\nca = 'ca.pem'\nclient_certificates = 'none'"
    )
    assert said.bookie().tls == TlsServerConfig("b.pem", ca="ca.pem")
    assert "needs certificate" in from_toml("[bookie.tls]\nca = 'ca.pem'").problems[0]


def test_an_empty_environment_variable_counts_as_unset() -> None:
    assert environment_layer({"QUIRE_BOOKIE_PORT": "", "QUIRE_BOOKIE_X": ""}).given == {}
    assert environment_layer({"QUIRE_BOOKIE_X": ""}).problems == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[bookie]\nsegmentbytes = 1", "q.toml: [bookie] has no key 'segmentbytes'; did you mean "
         "segment_bytes?"),
        ("[client]\nsegment_bytes = 1", "did you mean bookie.segment_bytes?"),
        ("segment_bytes = 1", "did you mean bookie.segment_bytes?"),
        ("[http]\nhttp_read_only = true", "has no key 'http_read_only'; did you mean read_only?"),
        ("[bookie]\nread_only = true", "has no key 'read_only'; did you mean http_read_only?"),
        ("[bookies]\nport = 1", "there is no key or table 'bookies'; did you mean bookie?"),
        ("[client.tls]\nkey = 'a'", "[client.tls] has no key 'key'"),
        ("bookie = 1", "bookie is a table: write [bookie]"),
        ("[bookie]\nport = 70000", "bookie.port: 70000 is not 0 to 65535"),
        ("[bookie]\nport = true", "true is not a whole number"),
        ("[bookie]\nport = 2026-11-27", "2026-11-27 is not a whole number"),
        ("[bookie]\nbookiePort = 1", "has no key 'bookiePort', and no key of Quire has such a "
         "name. To translate Apache's bk_server.conf, use `quire bookie conf"),
        ("[bookie]\nmax_frame_bytes = '2GiB'", "is not 16384 to 1073741824 (bytes)"),
        ("[bookie]\nport = 'x'", "'x' is not a whole number"),
        ("[bookie]\nmax_connections = 1.5", "1.5 is not a whole number"),
        ("[bookie]\nseal_idle_s = 0", "0 is not 0.001 or more"),
        ("[bookie]\nsegment_bytes = 100", "100 is not 0, or 16384 or more"),
        ("[bookie]\ngc_interval_s = 0", "0 is not 0.001 or more"),
        ("[bookie]\ngc_interval_s = inf", "inf is not 0.001 or more"),
        ("[bookie]\ngc_interval_s = nan", "nan is not 0.001 or more"),
        ("[bookie]\ngc_interval_s = '5 minutes'", "use seconds, or 500ms, 30s, 15m, 12h, 7d"),
        ("[bookie]\nsegment_bytes = '64x'", "use bytes, or 512KiB, 64MiB, 1GiB"),
        ("[bookie]\ncompact_minor_ratio = 20", "20 is not 0 to 1"),
        ("[bookie]\ntls_required = 'maybe'", "'maybe' is neither true nor false"),
        ("[bookie]\nauthorized_roles = [1]", "[1] is not a list of strings"),
        ("[bookie]\nbind = 1", "1 is not a string"),
        ("[client]\nledger_metadata_version = 1", "1 is not one of 2, 3"),
        ("[client.placement]\noptions = {a = 1}", "is not a table of strings"),
        ("[bookie.tls]\ncertificate = 'a'\nclient_certificates = 'yes'",
         "none, optional, required"),
    ],
)  # fmt: skip
def test_an_invalid_configuration_is_reported_in_one_line(text: str, problem: str) -> None:
    [found] = from_toml(text).problems
    assert problem in found
    assert found.startswith("q.toml")
    assert "\n" not in found
    with pytest.raises(click.UsageError):
        checked(from_toml(text))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"bookiePort=3181\nzkServers=localhost:2181\n", ":2: this is not TOML (Invalid value). To "
         "translate Apache's bk_server.conf, use `quire bookie conf --toml FILE`"),
        (b"[bookie]\nbind = 127.0.0.1\n", ":2: '127.0.0.1' is not a value of TOML ("),
        (b"[bookie]\nport = 1\nport = 2\n", ":3: this sets a key or a table that was set before"),
        (b"[bookie]\n[client]\n[bookie]\n", ":3: this sets a key or a table that was set before"),
        (b"[bookie\nport = 1\n", ":1: this is not TOML: Expected ']'"),
        (b"[bookie]\nbind = '\xe4'\n", ":2: this is not UTF-8 text: save the file as UTF-8"),
        (b"\xff\xfe[\0b\0", ":1: this is not UTF-8 text: save the file as UTF-8"),
        (b"a = '", ": "),
    ],
)  # fmt: skip
def test_a_file_that_is_not_toml_is_a_problem_with_its_line(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    """The messages of the parser said neither what was meant nor what to do."""
    path = tmp_path / "q.toml"
    path.write_bytes(content)
    [found] = file_layer(path).problems
    assert found.startswith(f"{path}{problem}")
    assert "\n" not in found


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    """Editors on Windows write a byte order mark."""
    path = tmp_path / "q.toml"
    path.write_bytes(b"\xef\xbb\xbf[bookie]\nport = 4000\n")
    found = merged([file_layer(path)])
    assert (found.problems, found.values["bookie.port"]) == ([], 4000)


def test_config_check_examines_the_metadata_uri(file: Any) -> None:
    bad = quire("config", "check", str(file("metadata = 'zookeper://h:2181/ledgers'\n")))
    assert bad.exit_code == 1
    assert "quire.toml:1: metadata: the metadata URI 'zookeper://" in bad.stderr
    assert quire("config", "check", str(file("metadata = 'zk://h:2181/ledgers'\n"))).exit_code == 0


@pytest.mark.parametrize("second", ["{one}", "{one}/", "{there}/../there/one", "{there}/link"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_directory_that_is_named_twice_is_refused(
    file: Any, tmp_path: Path, second: str, exists: bool
) -> None:
    """`config check` accepted it, and a symbolic link was noticed only by the lock of its disk."""
    there = tmp_path / "there"
    there.mkdir()
    one = there / "one"
    if exists:
        one.mkdir()
    (there / "link").symlink_to("one")
    other = second.format(one=one, there=there)
    directories = [str(one), str(there / "two"), other]
    path = file(f"[bookie]\ndirectories = {directories}\n")
    bad = quire("config", "check", str(path))
    assert bad.exit_code == 1
    also = "" if other == str(one) else f", also as {one}"
    assert bad.stderr == (
        f"error: {path}:2: bookie.directories: the data directory {other} is named twice{also}. "
        "Give each directory once. The bookie keeps a separate log in each of them\n"
    )
    with pytest.raises(UsageError, match="is named twice"):
        check_directories(directories)
    good = file(f"[bookie]\ndirectories = {directories[:2]}\n")
    assert quire("config", "check", str(good)).exit_code == 0


@pytest.mark.parametrize("key", ["port", "gc_interval_s", "max_frame_bytes"])
@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, "1e999", "nan"])
def test_an_enormous_number_is_reported_like_other_problems(
    monkeypatch: pytest.MonkeyPatch, file: Any, key: str, number: str
) -> None:
    """A long one ended each command with an unexpected error."""
    given = number if "e" not in number and "a" not in number else f'"{number}"'
    checked = quire("config", "check", str(file(f"[bookie]\n{key} = {given}\n")))
    monkeypatch.setenv(f"QUIRE_BOOKIE_{key.upper()}", number)
    for found in (checked, quire("config", "show")):
        assert found.exit_code in (1, 2)
        assert "unexpected" not in found.stderr
        assert " is not " in found.stderr


def test_a_data_directory_must_be_utf8(tmp_path: Path) -> None:
    """A new bookie was left half made, because its cookie could not be encoded."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/a\xff")
    with pytest.raises(UsageError, match="is not UTF-8"):
        check_directories([path])
    uri = f"sqlite:///{tmp_path}/metadata.db"
    assert quire("cluster", "init", "--metadata", uri).exit_code == 0
    refused = quire("bookie", "init", "--metadata", uri, "--dir", path)
    assert refused.exit_code == 2
    assert "is not UTF-8" in refused.stderr
    assert not os.path.exists(path)


def test_the_error_says_which_variable_names_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUIRE_CONFIG", "/none.toml")
    found = quire("ledger", "list", "--metadata", "sqlite:////none.db")
    assert found.exit_code == 1
    assert "/none.toml: No such file or directory (QUIRE_CONFIG names this file)" in found.stderr


@pytest.mark.parametrize(
    "words", [("ledger", "list"), ("explain",), ("bookie", "cookie", "show", "--dir", ".")]
)
def test_an_empty_option_does_not_select_the_cluster_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """A script with an unset shell variable worked on another cluster than it meant."""
    monkeypatch.setenv("QUIRE_METADATA", "sqlite:////none.db")
    found = quire(*words, "--metadata", "")
    assert found.exit_code == 2
    assert "--metadata is empty: give the URI of a cluster" in found.stderr


def test_a_problem_names_its_line(file: Any) -> None:
    path = file("# a comment\n\n[bookie]\nport = 1\n\n[ client . tls ]\nkey = 'x'\n")
    [problem] = file_layer(path).problems
    assert problem.startswith(f"{path}:7: [client.tls] has no key 'key'")
    [problem] = file_layer(file("[bookie]\nport = \n")).problems
    assert problem.endswith("quire.toml:2: this is not TOML: Invalid value")
    path.write_bytes(b"\xff")
    assert len(file_layer(path).problems) == 1
    path.write_bytes(b"#" * (1 << 20) + b"\n")
    assert "larger than" in file_layer(path).problems[0]


def test_an_unknown_variable_is_a_problem() -> None:
    [problem] = environment_layer({"QUIRE_BOOKIE_SEGMENTBYTES": "1", "QUIRE_DEBUG": "1"}).problems
    assert problem.startswith("QUIRE_BOOKIE_SEGMENTBYTES: ")
    assert problem.endswith("did you mean QUIRE_BOOKIE_SEGMENT_BYTES?")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("bookie.segment_bytes", "64m", 64 << 20),
        ("bookie.segment_bytes", "64MiB", 64 << 20),
        ("bookie.gc_interval_s", "15m", 900.0),
        ("bookie.scrub_interval_s", "7d", 604_800.0),
        ("bookie.scrub_interval_s", "1w", 604_800.0),
        ("bookie.seal_idle_s", "200ms", 0.2),
        ("autorecovery.lost_bookie_delay_s", "1h", 3600),
        ("autorecovery.bytes_per_s", "none", None),
        ("autorecovery.bytes_per_s", "1g", float(1 << 30)),
        ("client.placement.local_reads", "none", None),
        ("client.placement.local_reads", "1", True),
        ("client.placement.regions", "a, b,", ("a", "b")),
        ("client.placement.options", "a=1,b=2=3", {"a": "1", "b": "2=3"}),
        ("client.placement.locations", "table:/x,y", "table:/x,y"),
        ("client.placement.locations", {"b1": "/r1"}, {"b1": "/r1"}),
        ("bookie.directories", "/a,/b", ("/a", "/b")),
        ("client.tls.ca", "", None),
    ],
)
def test_values_are_parsed_from_text(name: str, text: object, value: object) -> None:
    assert value_of(keys()[name], text) == value


def value_for(key: ConfigKey) -> st.SearchStrategy[Any]:
    words = st.text(min_size=1, max_size=9)
    if key.choices:
        return st.sampled_from(key.choices)
    least = key.rule.limits.least
    return {
        "boolean": st.booleans(),
        "integer": st.integers(int(least), int(min(key.rule.most, 1 << 50))),
        "number": st.floats(least, min(key.rule.most, 1e15)),
        "string": words,
        "strings": st.lists(words, max_size=3).map(tuple),
        "mapping": st.dictionaries(words, words, max_size=3),
        "location": words | st.dictionaries(words, words, max_size=3),
    }[key.kind]


@given(st.data())
def test_a_shown_configuration_can_be_read_again(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(keys())), unique=True, max_size=8))
    values = {name: data.draw(value_for(keys()[name])) for name in chosen}
    if any(name.startswith("bookie.tls.") for name in values):
        values["bookie.tls.certificate"] = "b.pem"
        values.setdefault("bookie.tls.client_certificates", "none")
    text = "".join(f"{name} = {as_toml(value)}\n" for name, value in values.items())
    found = from_toml(text)
    assert found.problems == []
    assert {name: found.values[name] for name in values} == values


# -- where it is, and the commands ------------------------------------------------------------


def test_the_configuration_file_is_found_in_the_documented_order(tmp_path: Path) -> None:
    own = tmp_path / "xdg" / "quire" / "quire.toml"
    own.parent.mkdir(parents=True)
    where = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path)}
    assert configuration_file(where) != own
    own.touch()
    assert configuration_file(where) == own
    assert configuration_file({**where, "QUIRE_CONFIG": "/other"}) == Path("/other")
    assert configuration_file({**where, "QUIRE_CONFIG": ""}) is None
    dotted = tmp_path / ".config" / "quire" / "quire.toml"
    dotted.parent.mkdir(parents=True)
    dotted.touch()
    assert configuration_file({"HOME": str(tmp_path)}) == dotted


def test_config_show_prints_the_effective_configuration(
    file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file("metadata = 'sqlite:////x.db'\n[bookie.tls]\ncertificate = 'b.pem'\n")
    monkeypatch.setenv("QUIRE_CLIENT_READ_TIMEOUT_S", "2")
    shown = quire("--config", str(path), "config", "show").stdout
    again = merged([toml_layer(tomllib.loads(shown), "shown", {})])
    assert again.problems == []
    assert again.bookie().tls == TlsServerConfig("b.pem")
    assert again.client().read_timeout_s == 2.0
    assert "[client.tls]" not in shown
    lines = quire("--config", str(path), "config", "show", "--origin", "--changed").stdout
    assert f"# file: {path}" in lines
    assert f'metadata = "sqlite:////x.db"  # {path}:1' in lines
    assert "read_timeout_s = 2.0  # QUIRE_CLIENT_READ_TIMEOUT_S" in lines
    assert "default" not in lines
    found = json.loads(quire("--config", str(path), "config", "show", "--json").stdout)
    assert found["file"] == str(path)
    assert found["values"]["bookie.port"] == 3181
    assert found["origins"]["bookie.tls.certificate"] == f"{path}:3"


@pytest.mark.parametrize("more", [(), ("--changed",), ("--changed", "--origin")])
def test_config_show_prints_a_file_with_the_same_configuration(
    more: tuple[str, ...], file: Any
) -> None:
    """Also a limit that is switched off, and an empty table of TLS."""
    path = file(
        "[client.tls]\n[client.placement]\nlocal_reads = 'none'\n"
        "[autorecovery]\nbytes_per_s = 'none'\nhttp_token_file = ''\n"
    )
    first = merged([file_layer(path)])
    shown = quire("--config", str(path), "config", "show", *more).stdout
    again = merged([toml_layer(tomllib.loads(shown), "shown", {})])
    assert again.problems == first.problems == []
    assert again.values == first.values
    assert again.autorecovery().bytes_per_s is None
    assert again.client().tls == TlsClientConfig()
    assert again.bookie().tls is None
    if "--origin" in more:
        assert f"[client.tls]  # {path}:1\n" in shown
        assert f'bytes_per_s = "none"  # {path}:5\n' in shown


def test_config_check_lists_all_problems(file: Any) -> None:
    good = quire("config", "check", str(file("[bookie]\nport = 1\n")))
    assert (good.exit_code, good.stderr) == (0, "")
    bad = quire("config", "check", str(file("[bookie]\nprt = 1\n[client]\nread_windows = 0\n")))
    assert bad.exit_code == 1
    assert [line.partition(": ")[0] for line in bad.stderr.splitlines()] == ["error"] * 2
    assert quire("config", "check", "/none").exit_code == 2


def test_an_invalid_file_is_a_one_line_error_for_every_command(file: Any, tmp_path: Path) -> None:
    path = file("[bookie]\nprt = 1\nprt2 = 1\n")
    given = ["--metadata", f"sqlite:///{tmp_path}/none.db"]
    for words in (
        ["ledger", "list"],
        ["ledger", "list", *given],
        ["ledger", "show", "1", *given],
        ["bookie", "start", "--dir", str(tmp_path / "b")],
        ["bookie", "start", "--dir", str(tmp_path / "b"), *given],
    ):
        result = quire("--config", str(path), *words)
        assert result.exit_code == 2
        [line] = result.stderr.splitlines()
        assert line.startswith(f"error: {path}:2: [bookie] has no key 'prt'; did you mean port?")
        assert "1 more" in line
    assert quire("--config", "/none", "ledger", "list").exit_code == 2
    assert not (tmp_path / "b").exists()


def test_the_configuration_file_selects_the_cluster(file: Any, tmp_path: Path) -> None:
    path = file(f"metadata = 'sqlite:///{tmp_path}/none.db'\n")
    result = quire("--config", str(path), "ledger", "list")
    assert (result.exit_code, "none.db" in result.stderr) == (1, True)


def test_a_client_takes_tls_settings_from_the_file(file: Any, tmp_path: Path) -> None:
    from quire.cli.common.tls import client_config

    path = file("[client]\nread_windows = 7\n[client.tls]\nca = 'ca.pem'\n")
    seen: list[ClientConfig] = []
    probe = click.Command("probe", callback=lambda: seen.append(client_config(read_timeout_s=1.0)))
    with click.Context(cli) as root:
        root.meta["QUIRE_CONFIG"] = str(path)
        with click.Context(probe, parent=root) as context:
            context.meta["quire.tls"] = {"tls_cert": "own.pem"}
            context.invoke(probe)
            context.meta["quire.tls"] = {"tls_ca": "system", "tls_any_host_name": True}
            context.invoke(probe)
    assert seen[0].tls == TlsClientConfig(ca="ca.pem", certificate="own.pem")
    assert (seen[0].read_windows, seen[0].read_timeout_s) == (7, 1.0)
    assert seen[1].tls == TlsClientConfig(verify_host_name=False)


def test_the_client_of_a_server_takes_tls_settings_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The --tls-* options of `quire bookie start` belong to its server, not to its clients."""
    from quire.cli.common.tls import client_config

    for name in ("CA", "CERT", "KEY"):
        monkeypatch.setenv(f"QUIRE_TLS_{name}", name.lower())
    seen: list[ClientConfig] = []
    probe = click.Command("probe", callback=lambda: seen.append(client_config()))
    probe.main([], standalone_mode=False)
    assert seen[0].tls == TlsClientConfig("ca", "cert", "key")


# -- the pages --------------------------------------------------------------------------------


def test_the_pages_are_current() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "config-docs"))
    for name, lines in made["PAGES"].items():
        text = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
        assert made["renewed"](text, lines()) == text, "run: make config-docs"
    rows = (
        (ROOT / "docs" / "reference" / "configuration.md")
        .read_text(encoding="utf-8")
        .count("\n| `")
    )
    assert rows >= len(keys())


def test_the_example_on_the_page_is_a_valid_configuration() -> None:
    text = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    example = text.partition("```toml\n")[2].partition("```")[0]
    found = from_toml(example)
    assert found.problems == []
    assert found.bookie().min_free_bytes == 2 << 30
    assert {name.partition(".")[0] for name, one in found.origins.items() if one != "default"} == {
        "metadata", *(table for table in TABLES if table)
    }  # fmt: skip


# -- for programs -----------------------------------------------------------------------------


def test_load_config_returns_the_client_settings(
    file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program loads only the file, because the environment is for commands."""
    monkeypatch.setenv("QUIRE_METADATA", "sqlite:////elsewhere.db")
    monkeypatch.setenv("QUIRE_CLIENT_READ_TIMEOUT_S", "9")
    path = file(
        'metadata = "sqlite:////m.db"\n[client]\nread_timeout_s = "2s"\n'
        '[client.placement]\npolicy = "any"\n[client.tls]\n[bookie]\nport = 0\n'
    )
    loaded = quire_package.load_config(path)
    assert loaded.metadata == "sqlite:////m.db"
    assert loaded.client.read_timeout_s == 2.0
    assert loaded.client.placement.policy == "any"
    assert loaded.client.tls == TlsClientConfig()
    assert quire_package.load_config(str(file(""))) == quire_package.LoadedConfig(
        "", ClientConfig()
    )


def test_load_config_names_the_problem_and_its_line(file: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"quire.toml:2: \[bookie\] has no key 'prt'") as caught:
        quire_package.load_config(file("[bookie]\nprt = 1\n"))
    assert "quire config check" in caught.value.remedy
    assert "did you mean port? `quire config check" in str(caught.value)
    with pytest.raises(UsageError, match=r"missing\.toml cannot be read: No such file"):
        quire_package.load_config(tmp_path / "missing.toml")


# -- over HTTP --------------------------------------------------------------------------------


def test_each_http_server_takes_its_address_from_its_table() -> None:
    """Three tables for three kinds of processes; options count more."""
    found = from_toml(
        '[bookie]\nhttp = "127.0.0.1:1"\n[autorecovery]\nhttp = "127.0.0.1:2"\n'
        'http_name = ["a"]\n[http]\naddress = "127.0.0.1:3"\nbookies_token_file = "/t"\n'
    )
    assert found.problems == []
    assert found.http_side("bookie").options()["http"] == "127.0.0.1:1"
    side = found.http_side("autorecovery").options()
    assert (side["http"], side["http_name"]) == ("127.0.0.1:2", ("a",))
    own = found.http().options()
    assert (own["http"], own["http_bookies_token_file"]) == ("127.0.0.1:3", "/t")
    of_dashboards = {"http_prometheus", "http_prometheus_label"}
    assert set(own) == {*side, *of_dashboards}, "an option is missing in one of the tables"
    assert from_toml("").http().options()["http"] == DEFAULT_ADDRESS


def test_the_environment_does_not_configure_a_local_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token or a certificate for this machine's servers went to its dashboard."""
    names = [f"QUIRE_{table.upper()}_X" for table in TABLES if table not in ("", "log")]
    for name in names:
        monkeypatch.setenv(name, "1")
    assert not set(names) & set(_environment())


def test_an_error_of_a_tls_file_names_the_setting_that_selects_it(
    file: Any, tmp_path: Path
) -> None:
    """Variables of an earlier exercise were left in a shell, and nobody saw that."""

    def failure(*words: str, **environment: str) -> str:
        uri = f"sqlite:///{tmp_path}/c.db"
        CliRunner().invoke(cli, ["cluster", "init", "--metadata", uri])
        done = CliRunner().invoke(
            cli, ["explain", "--metadata", uri, *words], env={"QUIRE_CONFIG": "", **environment}
        )
        assert done.exit_code == 1, done.output
        return done.output

    missing = f"the TLS file {tmp_path}/ca cannot be read"
    ca = f"{tmp_path}/ca"
    assert f"{missing}: No such file or directory (named by --tls-ca)" in failure("--tls-ca", ca)
    assert "(named by QUIRE_TLS_CA)" in failure(QUIRE_TLS_CA=ca)
    path = tmp_path / "quire.toml"
    path.write_text(f'[client.tls]\nca = "{ca}"\n')
    assert f"(named by client.tls.ca, {path}:2)" in failure(QUIRE_CONFIG=str(path))
