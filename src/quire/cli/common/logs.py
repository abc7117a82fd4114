"""The log of a command or a server: the options `--log-level` and `--log-format`, and its handler.

A server (`quire bookie start`, for example) writes its events, and the records of libraries, as
lines of an `EventWriter`. Its level is `info` and its format `json`, unless something else was
chosen. Other commands write the records as lines `warning: text` from the level `warning` on. With
`--log-format json` they are JSON instead, and so are the messages of the command itself.

An option overrides the environment, which overrides the file. The choice is state of the process,
as the loggers of Python are.
"""

from __future__ import annotations

import logging
import os
import sys
import unicodedata
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click

from quire._runtime.event_log import FORMATS, LEVELS, EventWriter, extra_fields

DEBUG_VARIABLE = "QUIRE_DEBUG"
Command = TypeVar("Command", bound=Callable[..., Any])
QUIET = logging.CRITICAL + 1


@dataclass(frozen=True, slots=True)
class LogChoice:
    """The level and the format that were chosen for a log. Empty means that none was."""

    level: str = ""
    format: str = ""

    def over(self, other: LogChoice) -> LogChoice:
        """Return this choice, with what it leaves open taken from the other."""
        return LogChoice(self.level or other.level, self.format or other.format)


_option = LogChoice()
"""The choice of the command line."""
_configured = LogChoice()
"""The choice of the environment and the configuration file."""
_handler: logging.Handler | None = None
"""The handler that this module has added to the root logger."""


def choice() -> LogChoice:
    """Return the chosen level and format, where options override the environment and the file.

    The text is '' for what nobody has chosen.
    """
    return _option.over(_configured)


def export_choice(environment: MutableMapping[str, str]) -> None:
    """Set the environment variables by which child processes get the effective choice."""
    chosen = choice()
    if chosen.level:
        environment["QUIRE_LOG_LEVEL"] = chosen.level
    if chosen.format:
        environment["QUIRE_LOG_FORMAT"] = chosen.format


def begin() -> None:
    """Set the log up for a new command, before its options are known."""
    global _option, _configured, _handler
    _option = _configured = LogChoice()
    root = logging.getLogger()
    if _handler is not None:  # Another command ran in this process.
        root.removeHandler(_handler)
        root.setLevel(logging.WARNING)
        logging.getLogger("quire").setLevel(logging.NOTSET)
        _handler = None
    if os.environ.get(DEBUG_VARIABLE):
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
        return
    logging.getLogger("kazoo").setLevel(QUIET)
    if not root.handlers:  # Otherwise the program that runs the command has its own.
        _install(_CommandHandler(), LogChoice("warning"))


def configure(level: str | None, format: str | None) -> None:
    """Set the level and the format that the environment and the configuration file choose.

    None means no choice. The options of the command line override both.
    """
    global _configured
    _configured = LogChoice(level or "", format or "")
    _apply()


def server_log(**labels: object) -> EventWriter:
    """Return the event log of a server, to which the records of libraries go as well.

    `labels` are fields of every event.
    """
    chosen = choice().over(LogChoice("info", "json"))
    log = EventWriter(chosen.level, chosen.format, labels=labels)
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    _install(_ServerHandler(log), chosen)
    logging.getLogger("kazoo").setLevel(logging.NOTSET)
    return log


def write_message(level: str, text: str) -> bool:
    """Write a message of the command as JSON, if JSON is the chosen format.

    Return False if it is not: the caller then writes the message. `level` is only a field of the
    JSON. A message is a result of the command, so it is written whatever level the log has.
    """
    if choice().format != "json":
        return False
    EventWriter("debug", "json").write(level, "message", {"message": text})
    return True


def log_options(command: Command) -> Command:
    """Declare `--log-level` and `--log-format` on a command or on the function of one."""
    for name in reversed(_OPTIONS):
        click.option(name, **_OPTIONS[name])(command)
    return command


def add_log_options(command: click.Command) -> None:
    """Let a command, or all commands of a group, accept the two options without showing them."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            add_log_options(inner)
    elif not any(one.name == "log_level" for one in command.params):
        for name, attributes in _OPTIONS.items():
            click.option(name, hidden=True, **attributes)(command)


def _keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    global _option
    if value is None or context.resilient_parsing:
        return
    assert parameter.name is not None
    _option = replace(_option, **{parameter.name.removeprefix("log_"): value})
    _apply()


_OPTIONS: dict[str, dict[str, Any]] = {
    "--log-level": {
        "type": click.Choice(list(LEVELS)),
        "callback": _keep,
        "expose_value": False,
        "help": "The lowest level of the log on standard error. [default: info for servers, "
        "warning for other commands]",
    },
    "--log-format": {
        "type": click.Choice(FORMATS),
        "callback": _keep,
        "expose_value": False,
        "help": "The format of the log on standard error: JSON, one object a line, or text. "
        "[default: json for servers, console for other commands]",
    },
}


def _apply() -> None:
    chosen = choice()
    if chosen != LogChoice():
        handler = _CommandHandler() if _handler is None else _handler
        _install(handler, chosen.over(LogChoice("warning")))


def _install(handler: logging.Handler, chosen: LogChoice) -> None:
    """Add the handler to the root logger, and set the levels of loggers.

    The chosen level applies to Quire's own loggers. Other libraries log warnings and errors, and
    everything if the level is `debug`. kazoo repeats what Quire reports itself, so it is silent in
    commands.
    """
    global _handler
    root, everything = logging.getLogger(), chosen.level == "debug"
    if _handler is not None and _handler is not handler:
        root.removeHandler(_handler)
    if handler not in root.handlers:
        root.addHandler(handler)
    _handler = handler
    handler.setLevel(LEVELS[chosen.level])
    logging.getLogger("quire").setLevel(LEVELS[chosen.level])
    if everything:
        root.setLevel(logging.DEBUG)
        logging.getLogger("kazoo").setLevel(logging.NOTSET)


class _CommandHandler(logging.Handler):
    """A handler that writes each record as one line of a command, without a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        level = _level_name(record)
        if choice().format == "json":
            EventWriter("debug", "json").write(level, _event_name(record), _fields(record))
        else:
            print_line(f"{record.levelname.lower()}: {_message(record)}")


class _ServerHandler(logging.Handler):
    """A handler that makes an event of each record (`_event_name`)."""

    def __init__(self, log: EventWriter) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = _level_name(record)
        self._log.write(level, _event_name(record), _fields(record))


def _level_name(record: logging.LogRecord) -> str:
    names = [name for name, number in LEVELS.items() if number <= record.levelno]
    return names[-1] if names else "debug"


def _event_name(record: logging.LogRecord) -> str:
    """Return the name that a record of Quire gives its event, or else the record's level."""
    return str(getattr(record, "event", _level_name(record)))


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text += f": {record.exc_info[1]!r}"
    return text


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = {"logger": record.name, "message": _message(record)}
    for name, value in extra_fields(record).items():
        if name not in ("time", "level", "event"):
            fields.setdefault(name, value)
    return fields


def printable(text: str) -> str:
    """Return the text with escapes in place of its control and format characters.

    A terminal obeys such characters. A text that somebody else has stored could clear the screen,
    or show something else than there is.
    """
    if text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode("ascii") if unicodedata.category(one)[0] == "C" else one
        for one in text
    )


def print_line(text: str) -> None:
    """Print `text` as one line on standard error."""
    try:
        print(printable(" ".join(text.split())), file=sys.stderr, flush=True)
    except OSError:
        pass  # standard error is closed
