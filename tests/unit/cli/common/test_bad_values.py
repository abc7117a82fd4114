"""Bad names and options are refused with one clear line before work begins.

`REFUSED` is the table: a command line, and what its error names. Nothing may be opened, bound,
started or created while one runs. `test_every_option_of_free_text_is_in_the_table` fails until a
new option for free text is in the table.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

import click
import pytest
from click.testing import CliRunner

import quire
from quire.bookie.main import BookieOptions, run_bookie
from quire.cli.main import cli
from quire.client import Client
from quire.config import BookieConfig, ClientConfig, PlacementConfig, TlsClientConfig
from quire.errors import TlsConfigError, UsageError
from quire.http.routes.cluster import ClusterRoutes
from quire.http.routes.quire_api import QuireRoutes
from quire.metadata.sqlite.store import SqliteStore
from quire.streams.namespace.namespace import open_namespace
from quire.testing.cluster import LocalCluster
from tests.support.bookies.fake_bookies import FakeCluster, simulated

START = ("bookie", "start", "--dir", "TMP/d")
PUT = ("object", "put", "TMP/file", "n")
BENCHES = ("add", "read", "latency", "tail", "ledgers", "recover", "rereplicate")

REFUSED: list[tuple[tuple[str, ...], str]] = [
    # -- a cluster on this machine
    (("local", "--bookies", "0"), "--bookies"),
    (("local", "--dir", "TMP/d", "--bookies", "3", "--base-port", "65535"), "65537"),
    (("local", "--dir", "TMP/d", "--ui", "nonsense"), "'nonsense'"),
    (("local", "--dir", "TMP/d", "--ui", "127.0.0.1:99999"), "99999"),
    (("local", "--dir", "TMP/d", "--ui", "0.0.0.0:80"), "loopback"),
    (("zookeeper", "--dir", "TMP/z", "--host", "a b"), "'a b'"),
    (("zookeeper", "--dir", "TMP/z", "--host", "h\nx=1"), r"h\nx=1"),
    (("zookeeper", "--dir", "TMP/a\nb"), r"a\nb"),
    # -- bookies: who they are and where
    *(((*START, "--bookie-id", bad), shown) for bad, shown in (
        ("a/b", "'a/b'"), ("readonly", "'readonly'"), ("", "''"), ("x" * 256, "255 bytes"),
    )),
    *(((*START, "--advertise", bad), repr(bad)) for bad in ("a b", "", "[::1]", "h:3181")),
    *(((*START, "--advertise", bad), f"--bind {bad}") for bad in ("0.0.0.0", "::")),
    *(((*START, "--bind", bad), repr(bad)) for bad in ("a b", "", "[::1]", "h:3181")),
    (("bookie", "start", "--dir", ""), "must not be empty"),
    ((*START, "--dir", "TMP/d"), "twice"),
    ((*START, "--dir", "TMP/x/../d"), "twice"),
    (("bookie", "start", "--dir", "TMP/a\tb"), r"a\tb"),
    (("bookie", "start", "--dir", "TMP/a\nb"), r"a\nb"),
    (("bookie", "start", "--dir", "TMP/file"), "TMP/file"),
    ((*START, "--port", "70000"), "70000"),
    *(((*START, "--processes", bad), bad) for bad in ("0", "-1", "many")),
    *(((*START, "--share", bad), repr(bad)) for bad in ("2/2", "1", "x/y")),
    # -- bookies: limits
    *(((*START, "--set", bad), named) for bad, named in (
        ("nonsense=1", "nonsense"), ("min_free_bytes=-1", "-1"),
        ("min_free_bytes=9999999999999999999999", "9999999999999999999999"),
        ("writable_free_bytes=1", "writable_free_bytes"), ("read_only_dwell_s=-1", "-1"),
        ("session_timeout_s=0.01", "session_timeout_s"), ("session_timeout_s=4h", "4h"),
        ("segment_bytes=100", "100"), ("segment_bytes=1x", "'1x'"),
        ("max_frame_bytes=1", "max_frame_bytes"), ("max_frame_bytes=10g", "10g"),
        ("compact_minor_ratio=0.9", "compact_major_ratio"),
        ("compact_major_ratio=0.1", "compact_minor_ratio"), ("gc_interval_s=0", "gc_interval_s"),
        ("compact_minor_interval_s=1e308", "1e308"), ("scrub_interval_s=nan", "nan"),
        ("check_space_s=inf", "inf"), ("max_connections=0", "max_connections"),
        ("stop_timeout_s=-1", "-1"), ("catch_up_bytes_per_s=-5", "-5"),
        ("bookie_id=a/b", "'a/b'"), ("tls_required=true", "no certificate"),
        ("authorized_roles=a", "no certificate"),
    )),
    *(((*START, "--set-autorecovery", bad), bad.partition("=")[0]) for bad in (
        "poll_s=0", "nonsense=0", "open_grace_s=-1",
    )),
    ((*START, "--tls-cert", "TMP/none"), "TMP/none"),
    ((*START, "--tls-authorized-role", "a"), "--tls-cert"),
    ((*START, "--http", "nonsense"), "'nonsense'"),
    ((*START, "--http", "0.0.0.0:80"), "--http-token-file"),
    ((*START, "--http", "127.0.0.1:80", "--http-name", "a b"), "'a b'"),
    ((*START, "--http", "127.0.0.1:3181", "--port", "3181"), "3181"),
    ((*START, "--http", "127.0.0.1:80", "--http-tls-cert", "TMP/file"), "TMP/file"),
    # -- bookies: what is done to them
    (("bookie", "recover", "a/b"), "'a/b'"),
    (("bookie", "recover", ""), "''"),
    (("bookie", "recover", "b", "--grace", "nan"), "nan"),
    (("bookie", "recover", "b", "--grace", "inf"), "inf"),
    (("bookie", "recover", "b", "--bytes-per-s", "0"), "--bytes-per-s"),
    (("bookie", "recover", "b", "--placement", "nonsense"), "'nonsense'"),
    (("bookie", "recover", "b", "--placement", "rack-aware,min_racks=x"), "min_racks"),
    (("bookie", "recover", "b", "--tls-ca", "TMP/none"), "TMP/none"),
    (("bookie", "decommission", "a/b"), "'a/b'"),
    (("bookie", "decommission", "b", "--cancel", "--keep-cookie"), "--keep-cookie"),
    (("bookie", "disk", "replace", "a/b", "TMP/d"), "'a/b'"),
    (("bookie", "disk", "remove", "a/b", "TMP/d"), "'a/b'"),
    (("bookie", "cookie", "show", "a/b"), "'a/b'"),
    (("bookie", "cookie", "create", "a/b", "--dir", "TMP"), "'a/b'"),
    (("bookie", "cookie", "update", "a/b", "--dir", "TMP"), "'a/b'"),
    (("bookie", "cookie", "delete", "a/b"), "'a/b'"),
    (("bookie", "cookie", "generate", "a/b", "--dir", "/d"), "'a/b'"),
    (("bookie", "cookie", "generate", "b", "--dir", "a\tb"), r"a\tb"),
    (("bookie", "cookie", "generate", "b", "--dir", "/d", "--journal-dir", "a\tb"), r"a\tb"),
    (("bookie", "cookie", "generate", "b", "--dir", "/d", "--index-dir", "a\tb"), r"a\tb"),
    (("bookie", "init", "--dir", "TMP/d", "--bookie-id", "a/b"), "'a/b'"),
    (("bookie", "init", "--dir", "TMP/d", "--advertise", "a b"), "'a b'"),
    (("bookie", "init", "--dir", ""), "must not be empty"),
    (("stream", "audit", "--delete", "--dry-run"), "--delete and --dry-run exclude each other"),
    (("stream", "audit", "--dry-run", "--delete"), "--delete and --dry-run exclude each other"),
    (("bookie", "disk", "segment", "TMP", "x"), "'x'"),
    # -- autorecovery, HTTP, the cluster
    (("autorecovery", "start", "--name", "a/b"), "'a/b'"),
    (("autorecovery", "start", "--name", ""), "''"),
    (("autorecovery", "start", "--set", "poll_s=0"), "poll_s"),
    (("autorecovery", "start", "--auditor-only", "--worker-only"), "--worker-only"),
    (("autorecovery", "delay", "-1"), "-1"),
    (("http", "--http", "127.0.0.1:70000"), "70000"),
    (("http", "--http", "127.0.0.1:0", "--http-name", "a b"), "'a b'"),
    (("http", "--http", "127.0.0.1:0", "--http-token-file", "TMP/file"), "TMP/file"),
    (("http", "--http", "127.0.0.1:0", "--prometheus", "nonsense"), "'nonsense'"),
    (("ui", "--prometheus", "http://p:1", "--prometheus-label", "x"), "'x'"),
    (("ui", "--http", "x"), "'x'"),
    (("explain", "cluster", "--server", "127.0.0.1:8080"), "'127.0.0.1:8080'"),
    (("cluster", "init", "--ledger-manager", "flat"), "only applies to ZooKeeper"),
    (("cluster", "locations", "set", "a/b", "/r"), "'a/b'"),
    (("cluster", "locations", "set", "b", ""), "''"),
    (("cluster", "locations", "set", "b", "/RACK"), "/RACK"),
    (("cluster", "locations", "set", "b", "/r\n/x"), r"/r\n/x"),
    (("cluster", "locations", "set", "b", "/r", "--node", "x"), "'x'"),
    (("cluster", "locations", "set", "b", "/r", "--node", "/a//b"), "'/a//b'"),
    (("cluster", "locations", "list", "--node", "x"), "'x'"),
    (("cluster", "locations", "remove", "a/b"), "'a/b'"),
    (("cluster", "rebalance", "--target-spread", "nan"), "nan"),
    (("cluster", "rebalance", "--max-bytes", "0"), "--max-bytes"),
    (("cluster", "pause", "recover"), "BOOKIE"),
    (("cluster", "pause", "recover", "a/b"), "'a/b'"),
    (("cluster", "pause", "rebalance", "b"), "whole cluster"),
    (("cluster", "gc", "accept", "a/b"), "'a/b'"),
    (("cluster", "resume", "recover", "a/b"), "'a/b'"),
    (("explain", "stream", "a//b"), "'a//b'"),
    (("explain", "stream", "x", "--namespace", "/a//b"), "'/a//b'"),
    # -- ledgers
    (("ledger", "write", "--custom", "=x"), "KEY=VALUE"),
    (("ledger", "write", "--custom", "a=1", "--custom", "a=2"), "'a' is given twice"),
    (("ledger", "write", "--explicit-lac", "9999999999999"), "--explicit-lac"),
    (("ledger", "write", "--ensemble", "2"), "--ensemble 2"),
    (("ledger", "write", "--placement", "x=y"), "x=y"),
    (("ledger", "write", "--tls-ca", "TMP/file"), "TMP/file"),
    (("ledger", "read", "1", "--password-file", "TMP/none"), "TMP/none"),
    # -- objects
    (("object", "show", ".."), "'..'"),
    (("object", "delete", "a//b"), "'a//b'"),
    (("dataset", "show", "a/b"), "'a/b'"),
    (("dataset", "delete", ".."), "'..'"),
    (("dataset", "sweep", "a/b"), "'a/b'"),
    (("dataset", "sweep", "--older-than", "-1"), "-1"),
    (("dataset", "sweep", "--older-than", "soon"), "soon"),
    (("dataset", "sweep", "--first", "x"), "'x'"),
    ((*PUT, "--meta", "a=" + "x" * 70_000), "65536"),
    ((*PUT, "--meta", "a=1", "--meta", "a=2"), "'a' is given twice"),
    ((*PUT, "--bucket", "a/b"), "a/b"),
    (("object", "put", "TMP/file", "n" * 600), "512"),
    (("object", "put", "TMP/file", "a\x01b"), r"a\x01b"),
    (("object", "get", "n", "--range", "5-4"), "5-4"),
    (("object", "get", "n", "-o", ""), "--output is empty"),
    (("object", "get", "n", "-o", "TMP"), "is a directory"),
    (("object", "get", "n", "-o", "TMP/no/such/file"), "does not exist"),
    # -- namespaces and settings
    (("namespace", "create", "/a//b"), "/a//b"),
    (("namespace", "create", "/zookeeper/x"), "/zookeeper is used"),
    (("namespace", "create", "/quire/x"), "/quire is used"),
    (("namespace", "create", "/a", "--set", "entry_bytes=5"), "entry_bytes must be from 1024"),
    (
        ("namespace", "create", "/a", "--set", "ensemble_size=5000000000"),
        "ensemble_size must be at most 10,000 bookies",
    ),
    (("namespace", "create", "/a", "--set", "digest=md5"), "'md5'"),
    (("namespace", "create", "/a", "--set", "retention_s=-1"), "retention_s"),
    (("namespace", "set", "/a", "roll_bytes=0"), "roll_bytes"),
    (("namespace", "set", "/a", "roll_bytes=5", "--unset", "roll_bytes"), "both set and unset"),
    (("namespace", "set", "/a", "--unset", "nonsense"), "'nonsense'"),
    # -- benchmarks
    *((("bench", verb, "--size", "6291456"), "--size 6291456") for verb in BENCHES),
    *((("bench", verb, "--ensemble", "2"), "--ensemble 2") for verb in (*BENCHES, "stream write")),
    (("bench", "latency", "--rate", "nan"), "nan"),
    (("bench", "tail", "--rate", "inf"), "inf"),
    (("bench", "tail", "--explicit-lac", "9999999999999"), "--explicit-lac"),
]  # fmt: skip

WITHOUT_CLUSTER = ("local", "zookeeper", "bookie disk segment")


class _Began(BaseException):
    """Work began."""


@pytest.fixture(autouse=True)
def nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def began(*how: Any, **more: Any) -> NoReturn:
        raise _Began

    monkeypatch.setattr(SqliteStore, "open", began)
    monkeypatch.setattr(subprocess, "Popen", began)
    monkeypatch.setattr(socket.socket, "bind", began)
    monkeypatch.setattr(socket.socket, "connect", began)
    for name in ("QUIRE_METADATA", "QUIRE_DEBUG", "QUIRE_CONFIG", "QUIRE_PLACEMENT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "named"), REFUSED, ids=[" ".join(words)[:70] for words, _ in REFUSED]
)
def test_commands_refuse_invalid_values_before_they_begin(
    arguments: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("garbage\n")
    words = [word.replace("TMP", str(tmp_path)) for word in arguments]
    if words[0] == "bench" and " " in words[1]:
        words[1:2] = words[1].split()
    if not " ".join(words).startswith(WITHOUT_CLUSTER):
        words += ["--metadata", f"sqlite:///{tmp_path}/none.db"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code in (1, 2), result.output
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert named.replace("TMP", str(tmp_path)) in line
    assert "unexpected" not in line
    assert result.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# -- the same through Python ------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"placement": PlacementConfig(policy="nonsense")},
        {"placement": PlacementConfig(own_location="/a\n/b")},
        {"tls": TlsClientConfig(ca="/no/such/file")},
    ],
    ids=str,
)
def test_connect_refuses_an_invalid_configuration(bad: dict[str, Any], tmp_path: Path) -> None:
    async def main() -> None:
        await quire.connect(f"sqlite:///{tmp_path}/none.db", config=ClientConfig(**bad))

    with pytest.raises((UsageError, TlsConfigError)):
        simulated(main)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "bad",
    [
        {"ensemble_size": 2},
        {"ensemble_size": 5_000_000_000},  # It took 40 GB of memory.
        {"ensemble_size": 10**23},
        {"ack_quorum": 0},
        {"digest": "md5"},
        {"password": "text"},
        {"custom": {"k": "text"}},
        {"custom": {7: b""}},
        {"custom": {"\ud800": b""}},
        {"custom": {"k": bytes(1_000_000)}},
        {"ledger_id": -1},
        {"ledger_id": 2**63},
    ],
    ids=lambda bad: str(bad)[:40],
)
def test_create_ledger_refuses_invalid_arguments(bad: dict[str, Any]) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            with pytest.raises(UsageError):
                await client.create_ledger(**bad)
            assert not cluster.metadata.ledgers

    simulated(main)


@pytest.mark.parametrize(
    "bad",
    [
        {"directories": ()},
        {"directories": ("/d", "/d/")},
        {"port": -1},
        {"advertise": "::"},
        {"bind": "a b"},
        {"bookie_id": "a/b"},
        {"config": BookieConfig(min_free_bytes=5, writable_free_bytes=4)},
        {"config": BookieConfig(compact_minor_ratio=0.9)},
    ],
    ids=lambda bad: str(bad)[:40],
)
def test_a_bookie_refuses_invalid_options(bad: dict[str, Any], tmp_path: Path) -> None:
    given: dict[str, Any] = {"directories": (str(tmp_path / "d"),), **bad}
    with pytest.raises(UsageError):
        run_bookie(BookieOptions(f"sqlite:///{tmp_path}/none.db", **given))
    assert list(tmp_path.iterdir()) == []


def test_a_local_cluster_refuses_invalid_arguments(tmp_path: Path) -> None:
    for bad in ({"bookies": 0}, {"base_port": 65_535, "bookies": 2}, {"data_directories": 0}):
        with pytest.raises(UsageError):
            LocalCluster(directory=tmp_path / "d", **bad)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        ("/a//b", {}),
        ("/quire", {}),
        ("/zookeeper/a", {}),
        ("/a", {"nonsense": 1}),
        ("/a", {"entry_bytes": 5}),
        ("/a", {"ack_quorum": 4}),
        ("/a", {"digest": 5}),
    ],
)
def test_a_namespace_refuses_invalid_settings(path: str, settings: dict[str, Any]) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            assert isinstance(client, Client)
            with pytest.raises(UsageError):
                await open_namespace(client, path, settings=settings, create=True)
            assert await client.metadata.tree.children("/") == []

    simulated(main)


# -- the same over HTTP -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "body"),
    [
        ("recover", {"bookie_src": ["a/b"]}),
        ("recover", {"bookie_src": ["a", "b"]}),
        ("decommission", {"bookie_src": "readonly"}),
        ("pause", {"kind": "recover", "target": "a/b"}),
        ("pause", {"kind": "rebalance", "target": "b"}),
        ("resume", {"kind": "decommission", "target": "a/b"}),
    ],
)
async def test_http_jobs_refuse_invalid_arguments(handler: str, body: dict[str, Any]) -> None:
    async def connect() -> NoReturn:
        raise _Began

    jobs: Any = None
    ours = QuireRoutes(connect, jobs, cast(Any, None), "x")
    routes = [*ClusterRoutes(connect, jobs, "x").routes(), *ours.routes()]
    [route] = [one for one in routes if one.handler.__name__ == handler and one.changes]
    with pytest.raises(UsageError):
        await route.handler(route.check({}, [], body))


# -- the table is whole -----------------------------------------------------------------------

ANY_TEXT = {
    "--config", "--group", "--hostname", "--instance-id", "--password", "prefix", "--after",
    "--node", "--metadata", "--output", "-o", "path", "--why", "--forget",
}  # fmt: skip
"""Any text is good, or whether it is shows only where it is used."""
OTHERS = ("stream", "pipeline", "shell", "completion")
"""Commands with their own tables: tests/unit/cli/common/test_cli_arguments.py and test_shell.py."""


def _texts(group: click.Group, *path: str) -> Iterator[tuple[str, str]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _texts(command, *path, name)
        elif (*path, name)[0] not in OTHERS:
            for parameter in command.params:
                if parameter.type is click.STRING:
                    yield " ".join((*path, name)), max(parameter.opts, key=len)


def test_every_option_of_free_text_is_in_the_table() -> None:
    lines = [" ".join(words) for words, _ in REFUSED]
    tried = {word for words, _ in REFUSED for word in words if word.startswith("-")}
    missing = []
    for command, name in _texts(cli):
        if name in ANY_TEXT or name in tried:
            continue
        if name.startswith("-") or not any(line.startswith(command) for line in lines):
            missing.append((command, name))
    assert missing == []
