"""Groups of commands that are imported only when they are asked for, and what becomes of errors."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells say it."""
EXIT_BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader of our output has closed it."""

DEBUG_VARIABLE = "QUIRE_DEBUG"
CONFIG_VARIABLE = "QUIRE_CONFIG"
"""Also the place in the context of a command where the option `--config` keeps its value."""


def commands(table: str, below: str = "") -> dict[str, tuple[str, str]]:
    """Read a table of commands for `LazyGroup`.

    Each line has a command's name, the `module:attribute` where it is, and its line of help.
    Modules are named within `quire.cli`, or within its room `below`.
    """
    rows = (line.split(maxsplit=2) for line in table.strip().splitlines())
    where = f"quire.cli.{below}." if below else "quire.cli."
    return {name: (where + place, " ".join(text.split())) for name, place, text in rows}


class LazyGroup(click.Group):
    """`lazy` maps the name of a command to 'module:attribute' and the line of help for it."""

    def __init__(self, *arguments: Any, lazy: Mapping[str, tuple[str, str]], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._lazy.items()])


class DefaultGroup(LazyGroup):
    """A group that is a command as well: where its first argument is an option of that command
    (`default`), and none of the group, the command is meant. `alone`: also without arguments."""

    def __init__(self, *arguments: Any, default: str, alone: bool = False, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._default = default
        self._alone = alone

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and self._alone:
            args = [self._default]
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = [self._default, *args]
        return super().parse_args(ctx, args)


class Program(click.Command):
    """A whole program: whatever goes wrong becomes one line on standard error and an exit
    status. A command returns its exit status, or None for 0."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        _quiet_logs()
        try:
            status = super().main(args, prog_name or self.name, complete_var, False, **extra)
            sys.stdout.flush()
        except BaseException as error:  # noqa: BLE001 - the end of the program
            status = exit_status(error)
        sys.exit(status)

    def invoke(self, ctx: click.Context) -> Any:
        # Here and not in `main`, where click has already made something else of them.
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, OSError) as error:
            return exit_status(error)


class RootGroup(Program, LazyGroup):
    """The program `quire` with all its commands."""


def exit_status(error: BaseException) -> int:
    """Says what happened, in one line, and gives the exit status for it."""
    from quire.errors import QuireError, UsageError

    error = _innermost(error)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else EXIT_ERROR if error.code else 0
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        _forget_stdout()
        return EXIT_BROKEN_PIPE
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        say("interrupted")
        return EXIT_INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.ctx.get_help(), err=True)
        return error.exit_code
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        fail(error.format_message().rstrip(".") + hint)
        return error.exit_code
    if isinstance(error, QuireError):
        fail(str(error))
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_ERROR
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        fail(where + (error.strerror or str(error)))
        return EXIT_ERROR
    fail(f"unexpected {type(error).__name__}: {error} ({DEBUG_VARIABLE}=1 shows where)")
    return EXIT_ERROR


def say(text: str) -> None:
    """One line on standard error, whatever `text` holds."""
    try:
        print(" ".join(text.split()), file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody listens


def warn(text: str) -> None:
    """Print one line of warning on standard error."""
    click.echo(f"warning: {text}", err=True)


def fail(text: str) -> None:
    say(f"error: {text}")


def _innermost(error: BaseException) -> BaseException:
    """Return the error inside groups of errors: the first of ours, else the first."""
    from quire.errors import QuireError

    while isinstance(error, BaseExceptionGroup):
        ours = error.subgroup(QuireError)
        error = (ours or error).exceptions[0]
    return error


def _forget_stdout() -> None:
    """So that nothing is flushed into the broken pipe when the interpreter ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass


class _OneLine(logging.Handler):
    """Warnings of libraries as single lines; without the stack unless debugging."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        say(f"{record.levelname.lower()}: {text}")


def _quiet_logs() -> None:
    """Keep the logs of libraries short: a failure is one line, and kazoo's lost connections are for
    debugging."""
    root = logging.getLogger()
    if os.environ.get(DEBUG_VARIABLE):
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
        return
    if not root.handlers:
        root.addHandler(_OneLine(logging.WARNING))
    logging.getLogger("kazoo").setLevel(logging.CRITICAL + 1)
