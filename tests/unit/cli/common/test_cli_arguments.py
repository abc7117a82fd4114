"""The command line's arguments: accepted values, defaults that scripts rely on, and errors."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from quire.cli.bookie.start import bookie_config
from quire.cli.main import cli
from quire.config import BookieConfig
from tests.support.cli import ALL


@pytest.fixture(autouse=True)
def no_default_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_METADATA", raising=False)
    monkeypatch.delenv("QUIRE_DEBUG", raising=False)


def quire(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


def only_error(result: Result, status: int) -> str:
    """The one line on standard error; nothing else was said."""
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def option(command: tuple[str, ...], name: str) -> click.Option:
    for parameter in ALL[command].params:
        if isinstance(parameter, click.Option) and name in parameter.opts:
            return parameter
    raise AssertionError(f"{' '.join(command)} has no {name}")


def test_every_documented_command_exists() -> None:
    leaves = {
        " ".join(p)
        for p, command in ALL.items()
        if not isinstance(command, click.Group) and p[0] != "shell"  # tests/unit/cli/test_shell.py
    }
    assert leaves == {
        "local", "http", "ui", "bookie start", "bookie recover", "bookie decommission", "zookeeper",
        "cluster init", "cluster bookies", "cluster rebalance", "cluster erase", "explain ledger",
        "cluster pause", "cluster resume", "cluster copies", "explain cluster", "explain stream",
        "cluster gc status", "cluster gc off", "cluster gc on", "cluster gc accept",
        "cluster skip-ids",
        "completion",
        "bookie disk files", "bookie disk segment", "bookie disk ledger", "bookie disk last-mark",
        "bookie disk check", "bookie disk rebuild-index", "bookie disk replace",
        "bookie disk remove", "bookie init", "bookie format",
        "bookie cookie show", "bookie cookie create", "bookie cookie update",
        "bookie cookie delete", "bookie cookie generate",
        "bookie explain space", "bookie scrub", "bookie conf", "config show", "config check",
        "cluster locations list", "cluster locations set", "cluster locations remove",
        "autorecovery start", "autorecovery status", "autorecovery list", "autorecovery enable",
        "autorecovery disable", "autorecovery delay", "autorecovery trigger",
        "ledger write", "ledger read", "ledger list", "ledger show", "ledger delete",
        "ledger recover",
        "dataset list", "dataset show", "dataset delete", "dataset sweep",
        "object put", "object get", "object list", "object show", "object delete",
        "namespace create", "namespace list", "namespace show", "namespace set",
        "stream create", "stream list", "stream show", "stream set", "stream rename",
        "stream delete", "stream write", "stream read", "stream tail", "stream truncate",
        "stream retain", "stream end", "stream audit",
        "bench add", "bench read", "bench latency", "bench ledgers", "bench recover", "bench tail",
        "bench rereplicate", "bench stream",
        "pipeline ingest", "pipeline offload", "pipeline history", "pipeline compact",
        "pipeline replicate", "pipeline audit", "pipeline recover",
    }  # fmt: skip


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    result = quire(*command, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: quire {' '.join(command)}")
    assert result.stderr == ""


def test_the_help_line_in_a_group_equals_that_of_the_command() -> None:
    """The lines of `quire --help` stand apart from the commands, so that these are not loaded."""
    for path, command in ALL.items():
        group = ALL[path[:-1]] if len(path) > 1 else cli
        assert f" {path[-1]} " in group.get_help(click.Context(group)), path
        assert command.get_short_help_str(), path


@pytest.mark.parametrize("command", ["write", "object put", "bench add", "bench recover"])
def test_ledger_options_have_the_documented_defaults(command: str) -> None:
    path = ("ledger", "write") if command == "write" else tuple(command.split())
    defaults = [
        option(path, name).default
        for name in ("--ensemble", "--write-quorum", "--ack-quorum", "--digest")
    ]
    assert defaults == [3, 3, 2, "crc32c"]


def test_the_default_password_is_empty() -> None:
    for command in ("write", "read", "recover"):
        assert option(("ledger", command), "--password").default == ""


TALKING = [
    path
    for path, command in ALL.items()
    if any("--metadata" in parameter.opts for parameter in command.params)
]


PIPELINE_NAMES = {"offload", "history", "compact", "recover"}


def with_arguments(command: tuple[str, ...]) -> list[str]:
    needs_id = command[:1] == ("ledger",) and command[1] in ("read", "show", "delete", "recover")
    needs_name = command[:1] in {("dataset",), ("object",), ("namespace",), ("stream",)} and (
        command[1] not in ("list", "audit")
    )
    return [
        *command,
        *(["1"] if needs_id else []),
        *(["x"] if needs_name else []),
        *(["y"] if "rename" in command else []),
        *(["write"] if command == ("bench", "stream") else []),
        *(["x"] if command[0] == "pipeline" and command[-1] in PIPELINE_NAMES else []),
        *(["--to", "sqlite:////x.db"] if "replicate" in command else []),
        *(["--before", "latest"] if "truncate" in command else []),
        *(["--dir", "x"] if command == ("bookie", "start") else []),
        *(["x"] if command[-1] in ("recover", "decommission") and "bookie" in command else []),
        *(["--dir", "x"] if command == ("bookie", "init") else []),
        *(["--dir", ".", "--delete-cookie"] if command == ("bookie", "format") else []),
        *(["x"] if command[:2] == ("bookie", "cookie") and command[-1] != "show" else []),
        *(["x", "y"] if command[:2] == ("bookie", "disk") else []),
        *(["--dir", "x"] if command == ("bookie", "cookie", "generate") else []),
        *(["1"] if command == ("explain", "ledger") else []),
        *(["x"] if command == ("explain", "stream") else []),
        *(["rebalance"] if command == ("cluster", "resume") else []),
        *(["1"] if command == ("cluster", "skip-ids") else []),
        *(["x"] if "locations" in command and command[-1] in ("set", "remove") else []),
        *(["/a"] if command == ("cluster", "locations", "set") else []),
    ]


MAY_TALK = {("shell",), ("bookie", "disk", "check"), ("bookie", "explain", "space")}


@pytest.mark.parametrize("command", [one for one in TALKING if one not in MAY_TALK], ids=" ".join)
def test_a_command_without_a_cluster_is_refused(command: tuple[str, ...]) -> None:
    line = only_error(quire(*with_arguments(command)), 2)
    assert "--metadata" in line
    assert "QUIRE_METADATA" in line


def test_every_command_that_uses_a_cluster_takes_metadata() -> None:
    local: set[tuple[str, ...]] = {
        ("local",),
        ("zookeeper",),
        ("cluster",),
        ("ledger",),
        ("dataset",),
        ("object",),
        ("bench",),
    }
    local |= {("namespace",), ("stream",), ("pipeline",), ("bookie",), ("explain",)}
    local |= {("autorecovery",), ("cluster", "locations"), ("bookie", "conf"), ("cluster", "gc")}
    local |= {("config",), ("config", "show"), ("config", "check"), ("completion",)}
    local |= {path for path in ALL if path[0] == "shell"} - {("shell",)}
    local |= {("bookie", "explain"), ("bookie", "cookie")}
    local |= {path for path in ALL if path[:2] == ("bookie", "disk")} | {("bookie", "scrub")}
    local -= {("bookie", "disk", one) for one in ("check", "replace", "remove")}
    assert set(TALKING) == set(ALL) - local


@pytest.mark.parametrize("module", ["pyspark", "pyarrow"])
def test_a_pipeline_without_spark_names_the_extra_to_install(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == module else found(name)
    )
    command = ("pipeline", "compact", "x", "--key", "k", "--to", "t", "--metadata", "sqlite:////c")
    line = only_error(quire(*command), 2)
    assert f"No module named '{module}'" in line
    assert 'pip install "quire-log[spark]"' in line


@pytest.mark.parametrize("uri", ["nonsense", "sqlite://host/file", "zk://", "redis://here/ledgers"])
def test_an_invalid_metadata_uri_is_refused(uri: str) -> None:
    assert repr(uri) in only_error(quire("ledger", "list", "--metadata", uri), 2)


def test_the_default_uri_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_METADATA", "nonsense")
    assert "'nonsense'" in only_error(quire("ledger", "list"), 2)
    assert "'zk://'" in only_error(quire("ledger", "list", "--metadata", "zk://"), 2)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nonsense"], "nonsense"),
        (["ledger", "nonsense"], "nonsense"),
        (["ledger", "read"], "ID"),
        (["ledger", "read", "x"], "'x'"),
        (["ledger", "read", "-1"], "-1"),
        (["ledger", "read", "1", "--first-entry", "5", "--last-entry", "4"], "--first-entry 5"),
        (["ledger", "show", str(2**63)], str(2**63)),
        (["ledger", "write", "--digest", "md5"], "md5"),
        (["ledger", "write", "--ensemble", "2"], "--ensemble 2"),
        (["ledger", "write", "--ack-quorum", "4"], "--ack-quorum 4"),
        (["ledger", "write", "--ack-quorum", "0"], "--ack-quorum"),
        (["ledger", "write", "--custom", "novalue"], "novalue"),
        (["object", "put"], "FILE"),
        (["object", "put", "-"], "NAME"),
        (["object", "put", "x", "a//b"], "a//b"),
        (["object", "put", "x", "--bucket", "a/b"], "a/b"),
        (["object", "put", "x", "--meta", "novalue"], "novalue"),
        (["object", "put", "x", "--chunk-bytes", "0"], "--chunk-bytes"),
        (["object", "put", "x", "--ensemble", "2"], "--ensemble 2"),
        (["object", "get", "a/"], "a/"),
        (["object", "get", "a", "--range", "5-4"], "5-4"),
        (["object", "get", "a", "--range", "-4"], "-4"),
        (["object", "show", ".."], ".."),
        (["namespace", "create", "/a//b"], "/a//b"),
        (["namespace", "create", "/a", "--set", "retention=5"], "Did you mean"),
        (["namespace", "set", "/a"], "nothing to change"),
        (["stream", "list", "-n", "/.hidden"], "/.hidden"),
        (["stream", "create", "a//b"], "a//b"),
        (["stream", "create", "a", "--set", "roll_bytes"], "KEY=VALUE"),
        (["stream", "set", "a", "roll_bytes=much"], "'much'"),
        (["stream", "set", "a"], "nothing to change"),
        (["stream", "rename", "a"], "NEW"),
        (["stream", "write", "a", "--set", "roll_bytes=5"], "--create"),
        (["stream", "write", "a", "--delimiter", "ab"], "'ab'"),
        (["stream", "write", "a", "--roll-every", "0"], "--roll-every"),
        (["stream", "write", "a", "--key-separator", ""], "--key-separator"),
        (["stream", "write", "a", "--key", "\ud800"], "is not UTF-8"),
        (["cluster", "gc", "off", "--why", "\ud800"], "is not UTF-8"),
        (["stream", "write", "a", "--header", "=x"], "NAME=VALUE"),
        (["stream", "write", "a", "--header", "n=1", "--header", "n=2"], "'n' is given twice"),
        (["stream", "write", "a", "--format", "json", "--base64"], "--base64"),
        (["stream", "write", "a", "--format", "json", "--key-separator", ":"], "--key-separator"),
        (["stream", "read", "a", "--key-separator", ""], "--key-separator"),
        (["stream", "read", "a", "--from", "nowhere"], "'nowhere'"),
        (["stream", "read", "a", "--from", "seq:x"], "'seq:x'"),
        (["stream", "read", "a", "--from", "txid:"], "'txid:'"),
        (["stream", "read", "a", "--from", "time:noon"], "'time:noon'"),
        (["stream", "read", "a", "--to", "1:2"], "'1:2'"),
        (["stream", "read", "a", "--format", "xml"], "xml"),
        (["stream", "tail", "a", "-n", "-1"], "-1"),
        (["stream", "truncate", "a"], "--before"),
        (["stream", "retain"], "--all"),
        (["stream", "retain", "a", "--all"], "--all"),
        (["stream", "audit", "--older-than", "-1"], "--older-than"),
        (["bench", "add", "--entries", "0"], "--entries"),
        (["bench", "add", "--mode", "some"], "some"),
        (["bench", "add", "--ledgers", "1000000"], "1000000"),
        (["bench", "latency", "--rate", "0"], "--rate"),
        (["bookie", "--port", "70000", "--dir", "x"], "70000"),
        (["bookie"], "--dir"),
        (["bookie", "start"], "--dir"),
        (["bookie", "nonsense"], "nonsense"),
        (["bookie", "recover"], "BOOKIE"),
        (["bookie", "recover", "b:1", "--open-ledgers", "maybe"], "maybe"),
        (["bookie", "recover", "b:1", "--parallel", "0"], "--parallel"),
        (["bookie", "decommission", "b:1", "--bytes-per-s", "fast"], "fast"),
        (["cluster", "rebalance", "--target-spread", "-1"], "--target-spread"),
        (["cluster", "rebalance", "--max-bytes", "much"], "much"),
        (["explain", "ledger", "x"], "'x'"),
    ],
)
def test_invalid_arguments_are_refused(arguments: list[str], named: str, tmp_path: Path) -> None:
    if len(arguments) > 1 or arguments == ["bookie"]:
        arguments = [*arguments, "--metadata", f"sqlite:///{tmp_path}/none.db"]
    assert named in only_error(quire(*arguments), 2)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_cluster_is_not_created(tmp_path: Path) -> None:
    line = only_error(quire("ledger", "list", "--metadata", f"sqlite:///{tmp_path}/none.db"), 1)
    assert f"{tmp_path}/none.db" in line
    assert "quire cluster init" in line
    assert list(tmp_path.iterdir()) == []


def test_without_arguments_the_help_is_printed() -> None:
    result = quire()
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: quire")


def test_the_version_is_printed() -> None:
    result = quire("--version")
    assert (result.exit_code, result.stdout[:6]) == (0, "quire ")


def test_options_of_a_bookie_reach_its_configuration() -> None:
    config = bookie_config(("gc_interval_s=1.5", "segment_bytes=1048576"))
    assert (config.gc_interval_s, config.segment_bytes) == (1.5, 1048576)
    assert bookie_config(()) == BookieConfig()


@pytest.mark.parametrize(
    "setting",
    [
        "nonsense=1",
        "gc_interval_s",
        "segment_bytes=1.5",
        "seal_idle_s=-1",
        "gc_interval_s=nan",
    ],
)
def test_invalid_options_of_a_bookie_are_refused(setting: str) -> None:
    with pytest.raises(click.UsageError, match=setting.partition("=")[0]):
        bookie_config((setting,))


def test_help_loads_no_heavy_modules() -> None:
    program = (
        "import sys\n"
        "from quire.cli.main import cli\n"
        "try:\n    cli.main(['--help'])\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'asyncio', 'kazoo', 'pyspark', 'rich', 'sqlite3', 'uvloop'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ingest", "--stream", "a//b", "x.csv"), "'a//b' cannot be the name of a stream"),
        (
            ("ingest", "--stream-column", "c", "--streams", "a*,<b>", "x.csv"),
            "'<b>' cannot be the name of a stream",
        ),
        (
            ("ingest", "--stream", "a", "--txn-id", "x" * 300, "x.csv"),
            "cannot be the name of a job",
        ),
        (("ingest", "--stream", "a", "--token", "x" * 70, "x.csv"), "70 bytes, but at most 64"),
        (("ingest", "--stream", "a", "--writer-id", "x" * 300, "x"), "cannot be the name of a wri"),
        (
            ("compact", "a", "--key", "k", "--to-stream", "b//c"),
            "'b//c' cannot be the name of a st",
        ),
        (
            ("replicate", "--to", "memory://other", "--to-namespace", "//x//y"),
            "cannot be the path of a namespace",
        ),
    ],
)
def test_names_are_checked_before_a_pipeline_begins(
    arguments: tuple[str, ...], message: str
) -> None:
    result = quire("pipeline", *arguments, "--metadata", "memory://nowhere")
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())


def test_the_name_of_a_subscription_is_checked_first() -> None:
    result = quire("stream", "read", "s", "--subscription", "a/b", "--metadata", "memory://nowhere")
    assert "'a/b' cannot be the name of a subscription" in only_error(result, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--count", "--check"),
        ("--check", "--count"),
        ("--output", "x", "--count"),
        ("--output", "x", "--check"),
    ],
)
def test_history_refuses_more_than_one_action(arguments: tuple[str, ...]) -> None:
    where = ("--directory", "d", "--metadata", "memory://nowhere")
    result = quire("pipeline", "history", "s", *where, *arguments)
    assert "--output, --count and --check exclude each other" in only_error(result, 2)


@pytest.mark.parametrize(
    "command", ["ledger read", "ledger show", "ledger delete", "ledger recover", "explain ledger"]
)
@pytest.mark.parametrize("ledger_id", ["abc", "1.5", "-1", str(2**63)])
def test_an_invalid_ledger_id_is_explained(command: str, ledger_id: str) -> None:
    uri = ("--metadata", "sqlite:////nowhere")
    said = only_error(quire(*command.split(), *uri, "--", ledger_id), 2)
    assert f"{ledger_id!r} is not a ledger id. An id is a whole number from 0 to 2^63 - 1" in said


def test_invalid_numbers_are_explained_in_plain_words() -> None:
    uri = ("--metadata", "sqlite:////nowhere")
    whole = only_error(quire("bench", "add", *uri, "--entries", "x"), 2)
    assert "'x' is not a whole number" in whole
    number = only_error(quire("bench", "latency", *uri, "--rate", "x"), 2)
    assert "'x' is not a number" in number


def test_only_a_long_help_has_sections() -> None:
    long = quire("ledger", "write", "--help").stdout
    order = ["\nOptions:", "--custom", "\nLedger options:", "--ensemble", "\nTLS options:",
             "--tls-ca", "\nGeneral options:", "--metadata"]  # fmt: skip
    places = [long.index(one) for one in order]
    assert places == sorted(places)
    assert quire("ledger", "list", "--help").stdout.count("ptions:\n") == 1
    for path, command in ALL.items():
        if isinstance(command, click.Group):
            continue
        shown = quire(*path, "--help").stdout
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.opts[-1] in shown, (path, parameter.opts)
