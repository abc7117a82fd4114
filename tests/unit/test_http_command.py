"""What the command line makes of the options about HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.admin.main import cli

TOKEN = "0123456789abcdef"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    return ended.value.code, capsys.readouterr().err


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = f"sqlite:///{tmp_path}/m.db"
    bookie = ["bookie", "--metadata", uri, "--dir", str(tmp_path / "b"), "--port", "0"]
    short, good = tmp_path / "short", tmp_path / "good"
    short.write_text("short")
    good.write_text(TOKEN)
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


def test_a_token_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri, missing = f"sqlite:///{tmp_path}/m.db", str(tmp_path / "missing")
    status, text = refused(capsys, "http", "--metadata", uri, "--http-token-file", missing)
    assert status == 1
    assert missing in text
