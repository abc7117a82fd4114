"""Groups of lazily imported commands, and the messages and exit statuses of errors."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from quire._runtime.shortages import reason_of, too_low
from quire.cli.common import logs
from quire.cli.common.logs import DEBUG_VARIABLE
from quire.cli.common.signals import NOTHING_BEGUN, SignalReceived

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_SOON = 3
"""The exit status of `quire explain --exit-code` if the worst problem is a warning."""
EXIT_WRONG = 4
"""The exit status of `quire explain --exit-code` if something is wrong now."""
EXIT_NO_METADATA = 5
"""The exit status of `quire explain --exit-code` if the metadata store does not answer, so that the
state of the cluster is not known."""
EXIT_INTERRUPTED = 130
"""The exit status after Ctrl-C: 128 + SIGINT, as shells report it."""
EXIT_BROKEN_PIPE = 141
"""The exit status if the reader of standard output has closed it: 128 + SIGPIPE, as shells report
it."""

CONFIG_VARIABLE = "QUIRE_CONFIG"
"""The environment variable that names the configuration file. The option `--config` keeps its value
under the same key in the context of a command."""


def commands(table: str, below: str = "") -> dict[str, tuple[str, str]]:
    """Parse a table of commands for `LazyGroup`.

    Each line has a command's name, the `module:attribute` that defines it, and its line of help.
    Module names are relative to `quire.cli`, or to its subpackage `below`.
    """
    rows = (line.split(maxsplit=2) for line in table.strip().splitlines())
    where = f"quire.cli.{below}." if below else "quire.cli."
    return {name: (where + place, " ".join(text.split())) for name, place, text in rows}


OPTIONS_MANY = 12
"""The least number of options of a command that its help divides into sections."""
SECTIONS = {
    "Ledger options": (
        "--ensemble", "--write-quorum", "--ack-quorum", "--digest", "--placement", "--password",
        "--password-file", "--assume-liars",
    ),
    "HTTP options": ("--http", "--http-*"),
    "TLS options": ("--tls-*",),
    "Spark options": ("--master", "--conf", "--table-format", "--checkpoint"),
    "General options": ("--metadata", "--json", "--log-*", "--help"),
}  # fmt: skip
"""The options in each section of a long help, by the title of the section. A name may end in "*".
The command's own options are in a section before them."""
RENAMED = "quire_renamed_options"
"""The name of the attribute of a command's function that has the former names of options, as the
decorator `renamed` sets it."""

Function = TypeVar("Function", bound=Callable[..., Any])


def renamed(**former: str) -> Callable[[Function], Function]:
    """Accept former names of options: `@renamed(last="last-entry")` lets --last mean --last-entry.

    A warning names the new one. Apply this decorator directly above the function.
    """

    def mark(function: Function) -> Function:
        setattr(function, RENAMED, {f"--{old}": f"--{new}" for old, new in former.items()})
        return function

    return mark


class QuireCommand(click.Command):
    """A command that accepts former names of options, and whose long help has sections."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        former: dict[str, str] = getattr(self.callback, RENAMED, {})
        end = args.index("--") if "--" in args else len(args)
        for at, word in enumerate(args[:end]):
            name, equals, value = word.partition("=")
            if name in former:
                if not ctx.resilient_parsing:
                    warn(f"{name} is deprecated: use {former[name]}")
                args = [*args[:at], former[name] + equals + value, *args[at + 1 :]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An error of a TLS file also says which setting names the file."""
        from quire.errors import TlsConfigError

        try:
            return super().invoke(ctx)
        except TlsConfigError as error:
            if named := _settings_of(str(error.args[0]), ctx):
                error.args = (f"{error.args[0]} (named by {' and '.join(named)})", *error.args[1:])
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Options": [], **{name: [] for name in SECTIONS}}
        shown = [
            (_section_of(one), row)
            for one in self.get_params(ctx)
            if (row := one.get_help_record(ctx)) is not None
        ]
        for section, row in shown:
            rows[section if len(shown) >= OPTIONS_MANY else "Options"].append(row)
        for section, found in rows.items():
            if found:
                with formatter.section(section):
                    formatter.write_dl(found)


def _section_of(parameter: click.Parameter) -> str:
    for section, names in SECTIONS.items():
        if any(fnmatchcase(name, known) for known in names for name in parameter.opts):
            return section
    return "Options"


def _settings_of(message: str, ctx: click.Context) -> list[str]:
    """Return the options, variables and keys whose value is a path in this message."""
    found: dict[str, str] = dict(ctx.meta.get(FILE_SETTINGS, {}))
    typed: dict[str, Any] = {}
    for kept in ctx.meta.values():
        if isinstance(kept, dict):
            typed |= {name: value for name, value in kept.items() if isinstance(name, str)}
    for option in ctx.command.params:
        name = str(option.name)
        value = ctx.params.get(name, typed.get(name))
        if isinstance(value, str) and ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT:
            found[value] = str(option.envvar)
        elif isinstance(value, str) and value not in found:
            found[value] = option.opts[0]
    words = re.split(r"[\s:,]+", message)
    return sorted({setting for value, setting in found.items() if value in words})


FILE_SETTINGS = "quire.file_settings"
"""The key in the `meta` of a command's context for the places of configured values, by value."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called.

    `lazy` maps the name of a command to its 'module:attribute' and its line of help.
    """

    def __init__(self, *arguments: Any, lazy: Mapping[str, tuple[str, str]], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        try:
            command = getattr(import_module(module), attribute)
        except KeyboardInterrupt:  # An import takes seconds on a busy machine.
            raise SignalReceived(signal.SIGINT, NOTHING_BEGUN) from None
        assert isinstance(command, click.Command)
        if type(command) is click.Command:
            command.__class__ = QuireCommand  # so that no command has to name its class
        logs.add_log_options(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._lazy.items()])


class DefaultGroup(LazyGroup):
    """A group with a `default` command, which runs if the first argument is an option.

    The options that print the help of the group are an exception. With `alone`, the default
    command also runs if there are no arguments.
    """

    def __init__(self, *arguments: Any, default: str, alone: bool = False, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.default = default
        """The name of the default command."""
        self._alone = alone

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and self._alone:
            args = [self.default]
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


class Program(click.Command):
    """A program that reports every error as one line on standard error and an exit status.

    A command returns its exit status, or None for 0.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        logs.begin()
        _never_fail_to_encode()
        try:
            if why := too_low():
                raise click.ClickException(why)
            status = super().main(args, prog_name or self.name, complete_var, False, **extra)
            sys.stdout.flush()
        except BaseException as error:  # noqa: BLE001 - the end of the program
            status = exit_status(error)
        sys.exit(status)

    def invoke(self, ctx: click.Context) -> Any:
        # Caught here because click would replace these exceptions before `main` sees them.
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, OSError) as error:
            return exit_status(error)


class RootGroup(Program, LazyGroup):
    """The root group of the `quire` program."""


def exit_status(error: BaseException) -> int:
    """Print on standard error, in one line, what happened, and return the exit status for it.

    Nothing is printed for an exit that was asked for, or for a broken pipe. If QUIRE_DEBUG is set,
    the traceback is printed first.
    """
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
    if isinstance(error, SignalReceived):
        say(str(error))
        return error.status
    if isinstance(error, KeyboardInterrupt | click.Abort):
        say("interrupted")
        return EXIT_INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.ctx.get_help(), err=True)
        return error.exit_code
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        fail(_plain(error.format_message()).rstrip(".") + hint)
        return error.exit_code
    if isinstance(error, QuireError):
        fail(str(error))
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_ERROR
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        fail(where + reason_of(error))
        return EXIT_ERROR
    fail(
        f"unexpected {type(error).__name__}: {error} (set {DEBUG_VARIABLE}=1 to see the traceback)"
    )
    return EXIT_ERROR


def _plain(message: str) -> str:
    """Return a message of click in which plain words replace click's names of types."""
    for word, plain in _TYPES.items():
        message = message.replace(f"is not a valid {word}", f"is not {plain}")
    return message


_TYPES = {
    "integer range": "a whole number",
    "integer": "a whole number",
    "float range": "a number",
    "float": "a number",
}
"""The plain words for click's names of types, by name. Longer names come first."""


def say(text: str) -> None:
    """Print `text` as one line on standard error."""
    if not logs.write_message("info", text):
        logs.print_line(text)


def warn(text: str) -> None:
    """Print a warning as one line on standard error."""
    if not logs.write_message("warning", text):
        click.echo(f"warning: {text}", err=True)


def fail(text: str) -> None:
    """Print an error as one line on standard error."""
    if not logs.write_message("error", text):
        logs.print_line(f"error: {text}")


def _never_fail_to_encode() -> None:
    """Let standard output escape the characters that its encoding lacks.

    Otherwise a name or a path ends a command with an error, although it has done its work.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _innermost(error: BaseException) -> BaseException:
    """Return the error inside nested exception groups: the first `QuireError`, else the first."""
    from quire.errors import QuireError

    while isinstance(error, BaseExceptionGroup):
        ours = error.subgroup(QuireError)
        error = (ours or error).exceptions[0]
    return error


def _forget_stdout() -> None:
    """Redirect standard output to /dev/null, so that the interpreter does not flush into the broken
    pipe when it ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
