"""An error becomes one line and the exit status that scripts rely on."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import quire.__main__
from quire import errors
from quire.cli.bookie import cookie
from quire.cli.common import groups, logs
from quire.cli.common.groups import EXIT_INTERRUPTED, RootGroup, exit_status
from quire.cli.common.output import print_json
from quire.cli.ledger import manage as ledger
from quire.cli.object import manage as objects
from quire.codec.metadata.cookie import Cookie

ROOT = Path(__file__).parents[4]

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
def test_every_error_prints_one_line_and_has_its_exit_status(
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


def test_quire_debug_shows_the_traceback(
    program: click.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_nothing_is_flushed_into_a_broken_pipe() -> None:
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


def test_clicks_usage_errors_keep_their_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    context = click.Context(click.Command("write"), info_name="write")
    assert exit_status(click.UsageError("no such option.", context)) == 2
    assert capsys.readouterr().err == "error: no such option (see `write --help`)\n"


class Interrupting:
    """A finder of modules that is interrupted by Ctrl-C as it looks for one of them."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(self, name: str, *rest: object) -> None:
        if name == self._module:
            raise KeyboardInterrupt


@pytest.mark.parametrize("module", ["quire.cli.main", "quire.cli.cluster.bookies"])
def test_ctrl_c_during_the_imports_says_what_to_do(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imports take a third of a second, and more on a busy machine."""
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(module), *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["quire", "cluster", "bookies"])
    with pytest.raises(SystemExit) as ended:
        quire.__main__.main()
    assert ended.value.code == EXIT_INTERRUPTED
    said = "interrupted: nothing was begun; run the same command again\n"
    assert capsys.readouterr().err == said
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"quire": "quire.__main__:main"}


@pytest.mark.parametrize(("word", "status"), [("--version", 0), ("--no-such-option", 2)])
@pytest.mark.parametrize(
    "then",
    ["atexit.register(os.kill, os.getpid(), signal.SIGINT)", "sys.late = Late()"],
    ids=["in an exit function", "while Python deletes its modules"],
)
def test_ctrl_c_while_python_ends_keeps_the_output_and_the_status(
    word: str, status: int, then: str
) -> None:
    """`pipeline recover` printed its result, and then a traceback of an exit function.

    Other jobs printed their result, and SIGINT killed them in the last milliseconds.
    """
    program = (
        "import atexit, os, signal, sys; from quire.__main__ import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Late:\n"
        "    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):\n"
        "        kill(pid, number)\n"
        f"{then}\n"
        f"sys.argv = ['quire', '{word}']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status
    assert len((done.stdout + done.stderr).splitlines()) == 1


@pytest.mark.parametrize("descriptor", [0, 1, 2])
def test_a_closed_standard_stream_does_not_crash_a_command(tmp_path: Path, descriptor: int) -> None:
    """Commands ended with SIGABRT or an unexpected AttributeError, as after `quire ... >&-`."""
    environment = {**os.environ, "QUIRE_METADATA": f"sqlite:///{tmp_path}/metadata.db"}
    for words in ("cluster init", "ledger list --json", "config show"):
        done = subprocess.run(
            [sys.executable, "-m", "quire", *words.split()],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
            env=environment, preexec_fn=lambda: os.close(descriptor),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), words


# -- text of others ---------------------------------------------------------------------------


HOSTILE = "a\x1b[2J\x07\u202eb"
SHOWN = "a\\x1b[2J\\x07\\u202eb"


def test_messages_contain_no_terminal_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A name or a reason that somebody else has stored could clear the screen."""
    logs.begin()
    for write in (groups.say, groups.fail):
        write(f"stream {HOSTILE}: täglich ✓")
    assert capsys.readouterr().err.splitlines() == [
        f"stream {SHOWN}: täglich ✓", f"error: stream {SHOWN}: täglich ✓",
    ]  # fmt: skip


def test_stored_control_characters_are_escaped_in_output() -> None:
    described: dict[str, Any] = {
        "ledger_id": 7, "state": "OPEN", "last_entry_id": None, "length": None, "ensemble": 1,
        "write_quorum": 1, "ack_quorum": 1, "digest": None, "ctime": None,
        "custom": {"k": HOSTILE}, "segments": [],
    }  # fmt: skip
    assert f"custom        k={SHOWN}" in ledger._lines(described, ())
    info = {
        "name": "n", "bucket": "b", "bytes": 0, "sha256": "", "ctime": None, "ledger_id": 7,
        "chunks": 0, "chunk_bytes": 1, "metadata": {"k": HOSTILE},
    }  # fmt: skip
    assert f"metadata  k={SHOWN}" in objects._lines(info)
    made = Cookie.of("b1", ["/d"], [f"/{HOSTILE}"], "id")
    assert ("ledger directories", f"/{SHOWN}") in cookie._fields(made)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp437"])
def test_output_that_cannot_be_encoded_is_escaped(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """The command had done its work, and ended with an unexpected error."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
    name = "t\xe4glich-\U0001f600-\udcff"

    @click.command()
    def show() -> None:
        click.echo(name)
        print_json({"name": name})

    program = RootGroup("quire", lazy={})
    program.add_command(show)
    monkeypatch.setattr(program, "get_command", lambda context, word: show)
    with pytest.raises(SystemExit) as ended:
        program.main(["show"])
    assert not ended.value.code
    text, described = written.getvalue().decode(encoding).splitlines()
    assert json.loads(described) == {"name": name}
    assert text.endswith("-\\udcff")
