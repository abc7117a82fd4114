"""`--log-level` and `--log-format` of servers and commands, and the loggers of the library."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from quire._runtime.event_log import LEVELS, EventWriter, level_of
from quire.cli.common import logs
from quire.cli.common.groups import LazyGroup, RootGroup, fail, say, warn
from quire.cli.main import cli
from quire.metadata.zookeeper.kazoo_handler import QuietLogger
from tests.support.cli import ALL

ROOT = Path(__file__).resolve().parents[4]
GUIDE = (ROOT / "docs" / "guides" / "cluster" / "logging.md").read_text(encoding="utf-8")
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "src" / "quire").rglob("*.py")
}
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
MADE_OF_A_STATE = {"directory_read_only", "directory_failed"}
"""Events whose names the bookie derives from a directory's state."""
SERVERS = {("bookie", "start"), ("autorecovery", "start"), ("http",), ("ui",), ("local",)}


@click.command()
def talk() -> None:
    """Write one line of each kind."""
    for level in LEVELS.values():
        logging.getLogger("quire.client").log(level, "ours %d", level, extra={"ledger": 7})
        logging.getLogger("someone.else").log(level, "theirs %d", level)
    say("it is done")
    warn("look out")


@click.command()
def fall() -> None:
    fail("it fell")


@click.command()
def serve() -> None:
    """Log as a server does."""
    log = logs.server_log()
    log("serving", bookie="b1", ledgers=[1, 2])
    log("read_only", why="the disk is full")
    logging.getLogger("quire.client").info("ours", extra={"event": "it_was", "ledger": 7})
    logging.getLogger("someone.else").info("theirs")
    logging.getLogger("someone.else").warning("theirs")


@pytest.fixture(autouse=True)
def logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("QUIRE_LOG_LEVEL", "QUIRE_LOG_FORMAT", "QUIRE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    names = ("", "kazoo", "quire")
    before = {name: logging.getLogger(name).level for name in names}
    root = logging.getLogger()
    handlers = list(root.handlers)
    yield
    logs.begin()
    root.handlers[:] = handlers
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def run(*words: str, **environment: str) -> list[str]:
    """Run a command of a program like `quire`, and return its lines on standard error."""
    place = f"{__name__}:"
    lazy = {name: (place + name, f"{name}.") for name in ("talk", "fall", "serve")}
    program = RootGroup("quire", lazy=lazy, params=list(cli.params), callback=cli.callback)
    root = logging.getLogger()
    others = [one for one in root.handlers if type(one).__module__ != logs.__name__]
    for handler in others:  # pytest has handlers of its own.
        root.removeHandler(handler)
    result = CliRunner().invoke(program, words, env={"QUIRE_CONFIG": "", **environment})
    root.handlers += others
    assert result.stdout == ""
    return result.stderr.splitlines()


# -- commands ---------------------------------------------------------------------------------


def test_a_command_shows_warnings_as_short_lines() -> None:
    assert run("talk") == [
        "warning: ours 30", "warning: theirs 30", "error: ours 40", "error: theirs 40",
        "it is done", "warning: look out",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [["--log-level", "info", "talk"], ["talk", "--log-level=info"]])
def test_the_level_is_chosen_before_or_after_the_name(words: list[str]) -> None:
    lines = run(*words)
    assert lines[:3] == ["info: ours 20", "warning: ours 30", "warning: theirs 30"]


def test_debug_shows_everything_and_error_only_errors() -> None:
    assert run("talk", "--log-level", "debug")[:2] == ["debug: ours 10", "debug: theirs 10"]
    assert run("talk", "--log-level", "error")[:2] == ["error: ours 40", "error: theirs 40"]
    # What one command chose does not count for the next one.
    assert run("talk")[0] == "warning: ours 30"


def test_json_covers_the_messages_of_the_command() -> None:
    found = [json.loads(line) for line in run("talk", "--log-format", "json")]
    assert all(re.fullmatch(STAMP, one.pop("time")) for one in found)
    assert found[0] == {
        "level": "warning", "event": "warning", "logger": "quire.client", "message": "ours 30",
        "ledger": 7,
    }  # fmt: skip
    assert found[-2:] == [
        {"level": "info", "event": "message", "message": "it is done"},
        {"level": "warning", "event": "message", "message": "look out"},
    ]
    [fallen] = [json.loads(line) for line in run("fall", "--log-format", "json")]
    assert (fallen["level"], fallen["message"]) == ("error", "it fell")


def test_an_option_overrides_the_environment_and_that_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "quire.toml"
    file.write_text('[log]\nlevel = "info"\nformat = "json"\n')
    with_file = {"QUIRE_CONFIG": str(file)}
    assert json.loads(run("talk", **with_file)[0])["message"] == "ours 20"
    chosen = {**with_file, "QUIRE_LOG_FORMAT": "console"}
    assert run("talk", **chosen)[0] == "info: ours 20"
    assert run("talk", "--log-level", "error", **chosen)[0] == "error: ours 40"


def test_an_invalid_variable_is_reported() -> None:
    [line] = run("talk", QUIRE_LOG_FORMAT="jsn")
    assert line.startswith("error: QUIRE_LOG_FORMAT: log.format: 'jsn' is not one of json, console")


def test_every_command_accepts_the_log_options_and_servers_document_them() -> None:
    for path, command in ALL.items():
        if isinstance(command, click.Group) or path[0] == "shell":
            continue  # Verbs of Apache have Apache's options; `quire --log-level X shell` works.
        hidden = {
            one.opts[0]: one.hidden
            for one in command.params
            if isinstance(one, click.Option) and one.opts[0].startswith("--log-")
        }
        shown = path in SERVERS
        assert hidden == {"--log-level": not shown, "--log-format": not shown}, path


def test_a_command_looked_up_twice_has_the_options_once() -> None:
    group = LazyGroup("g", lazy={"talk": (f"{__name__}:talk", "Talk.")})
    command = group.get_command(click.Context(group), "talk")
    assert command is group.get_command(click.Context(group), "talk")
    assert command is not None
    assert [one.name for one in command.params].count("log_level") == 1


def test_servers_started_by_a_command_get_its_log_settings() -> None:
    environment: dict[str, str] = {"QUIRE_LOG_LEVEL": "info"}
    run("talk", "--log-level", "debug", "--log-format", "console")
    logs.export_choice(environment)
    assert environment == {"QUIRE_LOG_LEVEL": "debug", "QUIRE_LOG_FORMAT": "console"}


# -- servers ----------------------------------------------------------------------------------


def test_a_server_writes_its_events_and_library_records_as_json() -> None:
    found = [json.loads(line) for line in run("serve")]
    assert all(re.fullmatch(STAMP, one.pop("time")) for one in found)
    assert found == [
        {"level": "info", "event": "serving", "bookie": "b1", "ledgers": [1, 2]},
        {"level": "warning", "event": "read_only", "why": "the disk is full"},
        {"level": "info", "event": "it_was", "logger": "quire.client", "message": "ours",
         "ledger": 7},
        {"level": "warning", "event": "warning", "logger": "someone.else", "message": "theirs"},
    ]  # fmt: skip


def test_a_server_writes_readable_text_on_request() -> None:
    lines = run("serve", "--log-format", "console")
    assert all(re.match(STAMP + " ", line) for line in lines)
    assert [line.split(maxsplit=1)[1] for line in lines] == [
        "INFO    serving bookie=b1 ledgers=1,2",
        'WARNING read_only why="the disk is full"',
        "INFO    it_was logger=quire.client message=ours ledger=7",
        "WARNING warning logger=someone.else message=theirs",
    ]


def test_the_log_level_of_a_server_applies_to_events_and_records() -> None:
    found = [json.loads(line)["event"] for line in run("serve", "--log-level", "warning")]
    assert found == ["read_only", "warning"]
    assert run("serve", "--log-level", "error") == []


def test_a_value_in_text_is_one_word_or_quoted() -> None:
    to = io.StringIO()
    write = EventWriter(format="console", to=to)
    write("it", a="x y", b="", c=0.25, d={"k": 1}, e=None, f="two\nlines")
    assert to.getvalue().split(" ", 1)[1] == (
        'INFO    it a="x y" b="" c=0.25 d={"k": 1} e=None f="two\\nlines"\n'
    )


# -- the guide --------------------------------------------------------------------------------


def rows(name: str) -> dict[str, str]:
    table = GUIDE.partition(f"<!-- {name} -->")[2].partition("<!-- end -->")[0]
    found = dict(re.findall(r"^\| `([\w.]+)` \| (.+) \|$", table, re.MULTILINE))
    assert found
    return found


def test_the_guide_lists_the_level_of_each_event() -> None:
    listed = {
        event: level
        for level, text in rows("levels").items()
        for event in re.findall(r"`(\w+)`", text)
    }
    assert {event: level_of(event) for event in listed} == listed
    elsewhere = "".join(
        text for name, text in SOURCES.items() if not name.endswith("_runtime/event_log.py")
    )
    made_here = {*MADE_OF_A_STATE, "log_interrupted"}  # the log itself writes that event
    assert {one for one in listed if f'"{one}"' not in elsewhere} == made_here
    named = set(
        re.findall(r"^        \"(\w+)\",", SOURCES["src/quire/_runtime/event_log.py"], re.M)
    )
    assert named == set(listed)


def test_the_guide_lists_every_logger() -> None:
    found: set[str] = set()
    for path, text in SOURCES.items():
        found |= set(re.findall(r'getLogger\("(quire\..+?)"\)', text))
        if "getLogger(__name__)" in text:
            found.add(path.removeprefix("src/").removesuffix(".py").replace("/", "."))
    assert set(rows("loggers")) == found


# -- the library ------------------------------------------------------------------------------


def test_a_program_without_logging_configuration_prints_nothing() -> None:
    program = (
        "import logging, sys, quire\n"
        "logging.getLogger('quire.client').warning('look out')\n"
        "assert not logging.getLogger().handlers\n"
        "if sys.argv[1:]:\n"
        "    logging.basicConfig()\n"
        "    logging.getLogger('quire.client').warning('look out')\n"
    )

    def said(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", program, *words],
            capture_output=True, text=True, timeout=60, check=True,
        ).stderr  # fmt: skip

    assert said() == ""
    assert said("configured") == "WARNING:quire.client:look out\n"


def test_requests_to_zookeeper_are_logged_without_their_content() -> None:
    """They contain passwords of ledgers, of the session and of identities."""

    class SetData:
        path = "/ledgers/00/L0001"

        def __repr__(self) -> str:
            return "SetData(data=b'topsecret')"

    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger = logging.getLogger("quire.tests.zookeeper")
    logger.propagate, handler = False, Keep()
    logger.addHandler(handler)
    logger.setLevel(1)
    quiet: Any = QuietLogger(logger, {})
    quiet.debug("Sending request(xid=%s): %s", 3, SetData())
    quiet.debug("Received response(xid=%s): %r", 3, (b"topsecret", 1))
    quiet.debug("Received error(xid=%s) %r", 3, ValueError("no node"))
    quiet.log(5, "session_passwd: %s", "topsecret")
    quiet.warning("Cannot connect to %s", "zk1:2181")
    quiet.error("Unhandled")
    assert [(one.levelname, one.getMessage()) for one in records] == [
        ("DEBUG", "Sending request(xid=3): SetData(path='/ledgers/00/L0001')"),
        ("DEBUG", "Received response(xid=3): tuple"),
        ("DEBUG", "Received error(xid=3) ValueError('no node')"),
        ("DEBUG", "Cannot connect to zk1:2181"),
        ("ERROR", "Unhandled"),
    ]


class Disk(io.StringIO):
    """A file whose disk is full until it is not."""

    full = True

    def flush(self) -> None:
        if self.full:
            self.seek(0)
            self.truncate()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_log_that_cannot_be_written_does_not_end_the_caller() -> None:
    """The error ended the garbage collection of a bookie for ever, which would free the disk."""
    disk = Disk()
    log = EventWriter(to=disk)
    log("one")
    log("two")
    assert log.unwritten == 2
    disk.full = False
    log("three")
    log("four")
    written = [json.loads(line) for line in disk.getvalue().splitlines()]
    assert [one["event"] for one in written] == ["three", "log_interrupted", "four"]
    assert (written[1]["count"], written[1]["level"]) == (2, "warning")
    disk.close()
    log("five")
    assert log.unwritten == 1


def test_a_process_without_standard_error_logs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    EventWriter()("one")
