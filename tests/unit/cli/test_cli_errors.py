"""An error becomes one line and the exit status that scripts rely on."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from quire import errors
from quire.cli.common.groups import RootGroup, exit_status

RAISED: list[BaseException] = []


@pytest.fixture
def program() -> Iterator[click.Group]:
    """Return a similar program with one command, which raises what RAISED contains."""
    yield RootGroup("quire", lazy={"fail": (f"{__name__}:fail", "Fail.")})
    RAISED.clear()


@click.command()
def fail() -> None:
    raise RAISED[0]


CASES = [
    (errors.NoSuchLedgerError("ledger 7 does not exist"), 1, "error: ledger 7 does not exist"),
    (errors.UsageError("no such digest"), 2, "error: no such digest"),
    (errors.StartError("port 1 is in use", remedy="Choose"), 1, "error: port 1 is in use. Choose"),
    (errors.ReadError("two\nlines\n  of it"), 1, "error: two lines of it"),
    (
        errors.WriteError("failed", causes={"b1": "gone"}),
        1,
        "error: failed (b1: gone)",
    ),
    (
        ExceptionGroup("several", [ValueError("x"), errors.ReadError("ours")]),
        1,
        "error: ours",
    ),
    (
        ExceptionGroup("several", [ExceptionGroup("in", [errors.UsageError("ours")])]),
        2,
        "error: ours",
    ),
    (KeyboardInterrupt(), 130, "interrupted"),
    (click.Abort(), 130, "interrupted"),
    (PermissionError(errno.EACCES, "Permission denied", "/d"), 1, "error: /d: Permission denied"),
    (
        RuntimeError("a bug"),
        1,
        "error: unexpected RuntimeError: a bug (set QUIRE_DEBUG=1 to see the traceback)",
    ),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, None),
    (SystemExit(3), 3, None),
    (SystemExit(), 0, None),
    (click.exceptions.Exit(4), 4, None),
]


@pytest.mark.parametrize(("error", "status", "line"), CASES, ids=lambda value: repr(value)[:40])
def test_errors(
    program: click.Group,
    error: BaseException,
    status: int,
    line: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("QUIRE_DEBUG", raising=False)
    RAISED.append(error)
    result = CliRunner().invoke(program, ["fail"])
    assert result.exit_code == status
    assert result.stdout == ""
    assert result.stderr.splitlines() == ([] if line is None else [line])


def test_debugging_shows_the_stack(program: click.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_DEBUG", "1")
    RAISED.append(errors.ReadError("it failed"))
    result = CliRunner().invoke(program, ["fail"])
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1] == "error: it failed"


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root, kazoo = logging.getLogger(), logging.getLogger("kazoo")
    handlers, level, kazoo_level = list(root.handlers), root.level, kazoo.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    kazoo.setLevel(kazoo_level)


def test_a_closed_standard_error_is_no_error() -> None:
    program = (
        "import sys, os\n"
        "from quire.cli.common.groups import exit_status\n"
        "from quire.errors import ReadError\n"
        "os.close(2)\n"
        "sys.exit(exit_status(ReadError('nobody listens')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 1


def test_after_a_broken_pipe_nothing_is_flushed_into_it() -> None:
    """Otherwise the interpreter complains when it ends."""
    program = (
        "import sys\n"
        "from quire.cli.common.groups import exit_status\n"
        "sys.stdout.write('x' * 100)\n"
        "try:\n    sys.stdout.flush()\n"
        "except OSError as error:\n    sys.exit(exit_status(error))\n"
    )
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=write,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_exit_status_of_a_usage_error_of_click(capsys: pytest.CaptureFixture[str]) -> None:
    context = click.Context(click.Command("write"), info_name="write")
    assert exit_status(click.UsageError("no such option.", context)) == 2
    assert capsys.readouterr().err == "error: no such option (see `write --help`)\n"
