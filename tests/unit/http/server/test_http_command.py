"""The command line's options for HTTP."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from quire.cli.main import cli
from quire.cli.servers import http as http_command
from quire.cli.servers.http import DEFAULT_ADDRESS, PORTS_TRIED
from quire.errors import StartError
from quire.http.server.security import HttpOptions
from quire.metadata import open_metadata

TOKEN = "0123456789abcdef"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    return ended.value.code, capsys.readouterr().err


def test_unsafe_server_options_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{tmp_path}/m.db"
    bookie = ["bookie", "--metadata", uri, "--dir", str(tmp_path / "b"), "--port", "0"]
    short, good = tmp_path / "short", tmp_path / "good"
    short.write_text("short")
    good.write_text(TOKEN)
    short.chmod(0o600)
    good.chmod(0o600)
    for more, said in (
        (["--http", "0.0.0.0:0"], "no token is given"),
        (["--http", "10.0.0.1:0", "--http-token-file", str(good)], "in clear text"),
    ):
        status, text = refused(capsys, *bookie, *more)
        assert (status, text.count("\n")) == (1, 1), text
        assert said in text
    for more in (
        ["--http", "nonsense"],
        ["--http", "127.0.0.1:99999"],
        ["--http-token-file", str(good)],
        ["--http-name", "b7.example"],
        ["--http", "127.0.0.1:0", "--http-token-file", str(short)],
        ["--http", "127.0.0.1:0", "--http-tls-key", str(good)],
    ):
        status, text = refused(capsys, *bookie, *more)
        assert (status, text.count("\n")) == (2, 1), text
        assert TOKEN not in text
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "m.db").exists()


def test_a_missing_token_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri, missing = f"sqlite:///{tmp_path}/m.db", str(tmp_path / "missing")
    status, text = refused(capsys, "http", "--metadata", uri, "--http-token-file", missing)
    assert status == 1
    assert missing in text


@pytest.mark.parametrize(
    ("command", "more", "configured", "ports"),
    [
        ("ui", [], "", PORTS_TRIED),
        ("ui", ["--http", DEFAULT_ADDRESS], "", 1),
        ("ui", [], DEFAULT_ADDRESS, 1),
        ("http", [], "", 1),
    ],
)
def test_only_the_default_port_may_be_replaced_by_the_next_free_one(
    command: str,
    more: list[str],
    configured: str,
    ports: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def serve(
        uri: str, options: HttpOptions, serving: object, ports: int, *, show_token: bool
    ) -> None:
        asked.append((options.port, ports))

    monkeypatch.setattr(http_command, "_http", serve)
    environment = {"QUIRE_HTTP_ADDRESS": configured or None}
    done = CliRunner().invoke(
        cli, [command, "--metadata", f"sqlite:///{tmp_path}/m.db", *more], env=environment
    )
    assert done.exit_code == 0, done.stderr
    assert asked == [(8080, ports)]


async def test_the_next_free_port_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def log(event: str, **fields: object) -> None:
        pass

    uri = f"sqlite:///{tmp_path}/m.db"
    store = await open_metadata(uri, create=True)
    await store.close()
    with socket.socket() as first, click.Context(cli):
        first.bind(("127.0.0.1", 0))
        first.listen()
        port = first.getsockname()[1]
        taken = HttpOptions(port=port)
        async with AsyncExitStack() as stack:
            with pytest.raises(StartError, match=f":{port}: the port is in use"):
                await http_command._served(stack, uri, taken, 1, log)
            server = await http_command._served(stack, uri, taken, 10, log)
            assert port < server.port < port + 10
            others = server.port - port + 1
            with pytest.raises(StartError, match=f"ports {port} to {server.port} are all in use"):
                await http_command._served(stack, uri, taken, others, log)

        class Served(Exception):
            pass

        def serving(url: str) -> None:
            assert url == f"http://127.0.0.1:{port + others - 1}"
            raise Served

        with pytest.raises(Served):
            await http_command._http(uri, taken, serving, 10)
    out, err = capsys.readouterr()
    assert out.startswith("http://127.0.0.1:")
    assert f"port {port} is in use: serving on port {port + others - 1}\n" in err


# -- the token --------------------------------------------------------------------------------


@dataclass
class Started:
    options: HttpOptions
    show_token: bool


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Started | str]:
    """Return a function that starts `quire http` with these options, in a terminal or not."""

    def run(*arguments: str, terminal: bool = False, **environment: str) -> Started | str:
        asked: list[Started] = []

        async def serve(
            uri: str, options: HttpOptions, serving: object, ports: int, *, show_token: bool
        ) -> None:
            asked.append(Started(options, show_token))

        monkeypatch.setattr(http_command, "_http", serve)
        monkeypatch.setattr(http_command, "_terminal", lambda: sys.stderr if terminal else None)
        command = ["http", "--metadata", f"sqlite:///{tmp_path}/m.db", *arguments]
        done = CliRunner().invoke(cli, command, env=environment)
        return asked[0] if asked else done.stderr

    return run


def test_a_token_is_generated_in_a_terminal_only(start: Callable[..., Started]) -> None:
    first, second = start(terminal=True), start(terminal=True)
    assert first.show_token
    assert len(first.options.token) >= 32
    assert first.options.token != second.options.token
    assert first.options.reads_open
    assert not start("--http-reads", "token", terminal=True).options.reads_open
    assert start(terminal=False) == Started(HttpOptions(port=8080), False)


def test_a_token_file_is_never_shown(start: Callable[..., Started], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    for terminal in (True, False):
        given = start("--http-token-file", str(file), terminal=terminal)
        assert given == Started(HttpOptions(port=8080, token=TOKEN), False)
        given = start("--http-token-file", str(file), "--http-reads", "open", terminal=terminal)
        assert given == Started(HttpOptions(port=8080, token=TOKEN, reads_open=True), False)
        given = start(terminal=terminal, QUIRE_HTTP_TOKEN_FILE=str(file), QUIRE_HTTP_READS="open")
        assert given == Started(HttpOptions(port=8080, token=TOKEN, reads_open=True), False)


def test_the_read_only_option_disables_changes(start: Callable[..., Started]) -> None:
    for terminal in (True, False):
        given = start("--http-read-only", terminal=terminal)
        assert given == Started(HttpOptions(port=8080, read_only=True), False)
    given = start("--http-read-only", "--http-reads", "token", terminal=True)
    assert (given.show_token, given.options.reads_open) == (True, False)
    configured = start(QUIRE_HTTP_READ_ONLY="true")
    assert configured.options == HttpOptions(port=8080, read_only=True)


def test_reads_cannot_be_protected_without_a_token(start: Callable[..., str]) -> None:
    assert "--http-reads token requires --http-token-file" in start("--http-reads", "token")


def test_the_token_is_not_on_the_command_line_of_the_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []
    monkeypatch.setattr(click, "launch", launched.append)
    address = http_command.address_with_token("http://127.0.0.1:8080", "a+b/c=d")
    assert address == "http://127.0.0.1:8080/#/?token=a%2Bb%2Fc%3Dd"
    page = tmp_path / "open.html"
    http_command._open_in_browser(address, page)
    assert launched == [page.as_uri()]
    assert f'url={address}"' in page.read_text()
