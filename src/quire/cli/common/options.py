"""Options and arguments that several commands share, and how commands run coroutines."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import click
from click.core import ParameterSource

from quire._runtime.secret_files import exposure_of
from quire.cli.common.completion import complete_bookies, complete_ledgers
from quire.cli.common.groups import EXIT_INTERRUPTED, say, warn

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from quire.config import PlacementConfig

CLEAN_UP_LIMIT_S = 10.0
"""Seconds that an interrupted command may take to clean up, before its process is ended."""

P = ParamSpec("P")
T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

METADATA_VARIABLE = "QUIRE_METADATA"
WHICH_CLUSTER = f"no cluster is given: use --metadata URI, or set {METADATA_VARIABLE}"
PLACEMENT_VARIABLE = "QUIRE_PLACEMENT"
PASSWORD_VARIABLE = "QUIRE_PASSWORD"
SECRET_BYTES_MAX = 64 * 1024
"""The largest number of bytes in a file with a password."""
LEDGER_ID_MAX = 2**63 - 1
ENTRY_ID_MAX = 2**31 - 2
EXPLICIT_LAC_MAX_S = 3_600
LEDGER_MANAGERS = ("hierarchical", "longhierarchical", "flat")
DIGESTS = ("crc32c", "crc32", "hmac", "dummy")


def _uri(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """Return the URI of --metadata or of the configuration. Raises UsageError if it is invalid."""
    from quire.errors import MetadataURIError
    from quire.metadata.uri import parse_uri

    if value:
        _check_configuration()
    elif context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--metadata is empty: give the URI of a cluster", context)
    value = value or _configured_uri()
    if not value:
        raise click.UsageError(WHICH_CLUSTER, context)
    try:
        parse_uri(value)
    except MetadataURIError as error:
        raise click.UsageError(str(error), context) from None
    return value


def _check_configuration() -> None:
    from quire.cli.common.configuration import check_base

    check_base()


def _configured_uri() -> str:
    from quire.cli.common.configuration import configured

    return configured().metadata


def checked(check: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return an option callback that passes the value, or each of several, through `check`.

    If `check` returns None, the value stays as it is. A UsageError from `check` ends the command
    before it does anything.
    """

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        from quire.errors import UsageError

        def one(text: str) -> Any:
            found = check(text)
            return text if found is None else found

        try:
            if value is None or isinstance(value, str):
                return None if value is None else one(value)
            return tuple(one(text) for text in value)
        except UsageError as error:
            raise click.BadParameter(str(error), context, parameter) from None

    return callback


class FiniteRange(click.FloatRange):
    """A range of numbers that excludes `nan` and `inf`."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return float(number)


class Size(click.IntRange):
    """A size in bytes, in the syntax of the configuration: 65536, 512k, 64MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from quire._runtime.units import parse_size

        try:
            number = parse_size(str(value), least=-math.inf)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return int(super().convert(number, param, ctx))


class LedgerId(click.IntRange):
    """The id of a ledger."""

    name = "ledger id"

    def __init__(self) -> None:
        super().__init__(0, LEDGER_ID_MAX)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            self.fail(
                f"{value!r} is not a ledger id. An id is a whole number from 0 to 2^63 - 1; `quire "
                "ledger list` lists those of the cluster",
                param,
                ctx,
            )

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return complete_ledgers(ctx, param, incomplete)


class Duration(click.FloatRange):
    """A duration in seconds, in the syntax of the configuration: 90, 500ms, 15m, 1d."""

    name = "time"

    def __init__(
        self,
        min: float = 0,
        max: float | None = None,
        *,
        plain: Literal["s", "ms"] = "s",
        whole: bool = False,
    ) -> None:
        """Accept `min` to `max` seconds; with `whole`, only whole seconds.

        `plain` is the unit of a number that is given without a unit, and of the range that help and
        errors show.
        """
        scale = 1_000 if plain == "ms" else 1
        super().__init__(min * scale, None if max is None else max * scale)
        self._scale = scale
        self._plain = plain
        self._whole = whole

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from quire._runtime.units import parse_duration

        try:
            number = parse_duration(str(value), self._plain, least=-math.inf)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._whole and not number.is_integer():
            self.fail(f"{value!r} is not a whole number of seconds", param, ctx)
        super().convert(number * self._scale, param, ctx)  # refuses what is out of range
        return int(number) if self._whole else float(number)


def check_bookie(bookie_id: str) -> None:
    """Raise UsageError if no bookie can have this id."""
    from quire.codec.metadata.registration import check_bookie_id

    check_bookie_id(bookie_id)


def bookie_argument(*, required: bool = True) -> Callable[[Command], Command]:
    """Return the argument BOOKIE. Its value is '' if it is optional and not given."""

    def callback(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
        if value is None:
            return ""
        return str(checked(check_bookie)(context, parameter, value))

    return click.argument(
        "bookie", metavar="BOOKIE", required=required, callback=callback,
        shell_complete=complete_bookies,
    )  # fmt: skip


def option(
    flags: str, help_text: str, name: str | None = None, **more: Any
) -> Callable[[Command], Command]:
    """Return an option. `flags` are separated by blanks; `name` is the name of the parameter."""
    names = [*flags.split(), name] if name is not None else flags.split()
    return click.option(*names, help=help_text, **more)


flag = functools.partial(option, is_flag=True)
file_option = functools.partial(option, type=click.Path(dir_okay=False), metavar="FILE")
size_option = functools.partial(option, type=Size(1), metavar="SIZE")


def metadata_option(command: Command) -> Command:
    return click.option(
        "--metadata",
        "uri",
        metavar="URI",
        envvar=METADATA_VARIABLE,
        callback=_uri,
        help=f"The metadata store of the cluster: sqlite:///FILE or "
        f"zk+hierarchical://HOST:PORT/ledgers. [default: {METADATA_VARIABLE}]",
    )(command)


def optional_metadata_option(help_text: str) -> Callable[[Command], Command]:
    """Return the option --metadata of a command that can do without a cluster.

    `uri` is None if no cluster is given.
    """
    return click.option(
        "--metadata",
        "uri",
        metavar="URI",
        envvar=METADATA_VARIABLE,
        callback=lambda context, parameter, value: (
            _uri(context, parameter, value) if value is not None or _configured_uri() else None
        ),
        help=f"{help_text} [default: {METADATA_VARIABLE}]",
    )


def ledger_manager_option(command: Command) -> Command:
    return click.option(
        "--ledger-manager",
        type=click.Choice(LEDGER_MANAGERS),
        help="How ledgers are laid out in ZooKeeper. This cannot be changed later. [default: what "
        "the URI names, else hierarchical]",
    )(command)


def ledger_argument(command: Command) -> Command:
    return click.argument("ledger_id", metavar="ID", type=LedgerId())(command)


def password_of(
    help_text: str, flags: str = "--password", envvar: str = PASSWORD_VARIABLE
) -> Callable[[Command], Command]:
    """Return the options for a password: itself, or a file that holds it.

    The command receives bytes, which are empty without a password. The password comes from the
    option or from the file, or else from the environment variable. The option and the file exclude
    each other. A password that is given as an option works, with a warning, because other users of
    the machine can see command lines.
    """
    name = flags.lstrip("-").replace("-", "_")

    def from_file(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.meta[f"{__name__}.{name}"] = _secret_in(value, context)

    def chosen(context: click.Context, parameter: click.Parameter, value: str) -> bytes:
        found: bytes | None = context.meta.get(f"{__name__}.{name}")
        source = context.get_parameter_source(name)
        if source is click.core.ParameterSource.COMMANDLINE and value:
            if found is not None:
                raise click.UsageError(f"give {flags} or {flags}-file, not both", context)
            warn(
                f"other users of this machine can see {flags}: use {flags}-file or {envvar} instead"
            )
        return os.fsencode(value) if found is None else found

    def add(command: Command) -> Command:
        command = click.option(
            f"{flags}-file", metavar="FILE", is_eager=True, expose_value=False, callback=from_file,
            help=f"A file with the password of {flags}. A newline at its end is not part of it.",
        )(command)  # fmt: skip
        return option(
            flags, f"{help_text} [default: {envvar}, else none]",
            default="", metavar="TEXT", callback=chosen, envvar=envvar,
        )(command)  # fmt: skip

    return add


def _secret_in(path: str, context: click.Context) -> bytes:
    """Return the secret in a file. Raises click.UsageError if the file must not be used."""
    if problem := exposure_of(path):
        raise click.UsageError(problem, context)
    try:
        with open(path, "rb") as file:
            found = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise click.UsageError(
            f"the password file {path} cannot be read: {error.strerror}", context
        ) from None
    if len(found) > SECRET_BYTES_MAX:
        raise click.UsageError(
            f"the password file {path} has more than {SECRET_BYTES_MAX} bytes. Name a file that "
            "has nothing but the password",
            context,
        )
    return found.removesuffix(b"\n").removesuffix(b"\r")


password_option: Callable[[Command], Command] = password_of(
    "The password that the ledgers were created with."
)


def liars_option(command: Command) -> Command:
    return click.option(
        "--assume-liars",
        type=click.IntRange(0, 2**31 - 1),
        default=0,
        metavar="COUNT",
        help="Tolerate this many bookies of an ensemble that return false answers (Byzantine "
        "bookies): ask more bookies, and accept only what enough of them agree on. Must be less "
        "than the ack quorum. [default: 0]",
    )(command)


def placement_option(command: Command) -> Command:
    """Add the option --placement. `wanted_placement` returns its value."""

    def keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None and not value.strip():
            # An unset variable of a script must not mean "any bookies".
            raise click.UsageError("--placement is empty: give a policy, or leave it out", context)
        context.meta[PLACEMENT_VARIABLE] = value

    return click.option(
        "--placement",
        metavar="POLICY[,NAME=VALUE...]",
        expose_value=False,
        callback=keep,
        help="How to choose bookies for new replicas, for example "
        "rack-aware,min_racks=2,locations=metadata. A setting that is left out has its default, "
        f"also if the configuration file sets it. [default: {PLACEMENT_VARIABLE}, else "
        "[client.placement] of the configuration file, else any bookies on different hosts]",
    )(command)


def wanted_placement(context: click.Context) -> PlacementConfig | None:
    """Return the placement that `--placement` or the environment selects, or None.

    Raises `click.UsageError` if it is invalid.
    """
    from quire.core.placement.settings import parse_placement
    from quire.errors import UsageError

    text = context.meta.get(PLACEMENT_VARIABLE) or os.environ.get(PLACEMENT_VARIABLE)
    if not text:
        return None
    try:
        return parse_placement(text)
    except UsageError as error:
        raise click.UsageError(str(error), context) from None


def dry_run_option(help_text: str) -> Callable[[Command], Command]:
    return click.option("--dry-run", is_flag=True, help=help_text)


def yes_option(help_text: str = "Do not ask for confirmation.") -> Callable[[Command], Command]:
    return click.option("--yes", is_flag=True, help=help_text)


def confirmed(question: str, yes: bool, otherwise: str = "nothing was deleted") -> bool:
    """Ask the user, and return whether to proceed.

    The user is not asked if `yes` is set or standard input is not a terminal: the result is True.
    If the user says no, print `otherwise`.
    """
    if yes or not sys.stdin.isatty() or asked(question):
        return True
    say(otherwise)
    return False


def asked(question: str) -> bool:
    """Ask the user on the terminal, and return whether the answer is yes.

    Raises `click.Abort` after Ctrl-C. The handler of an event loop would run only after the answer.
    """
    if threading.current_thread() is not threading.main_thread():
        return click.confirm(question, err=True)
    handler, descriptor = signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return click.confirm(question, err=True)
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.set_wakeup_fd(descriptor)


def split_pair(
    context: click.Context, parameter: click.Parameter, text: str, form: str = "KEY=VALUE"
) -> tuple[str, str]:
    """Return the key and the value of a text of the form KEY=VALUE.

    Raises click.BadParameter for any other text. Its message calls the form `form`.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not of the form {form}", context, parameter)
    return key, value


def key_values(
    *names: str,
    help_text: str,
    distinct: bool = True,
    form: str = "KEY=VALUE",
    what: str = "key",
    check: Callable[[click.Context, click.Parameter, str], object] | None = None,
) -> Callable[[Command], Command]:
    """Return an option KEY=VALUE that may be repeated. Its value is a dictionary of strings.

    With `distinct`, a key that is given twice is an error. `form` is how the help and errors name
    KEY=VALUE, and `what` is how they name a key. `check` raises an error for a bad text.
    """

    def parsed(
        context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
    ) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for text in texts:
            key, value = split_pair(context, parameter, text, form)
            if check is not None:
                check(context, parameter, text)
            if distinct and key in pairs:
                raise click.BadParameter(
                    f"the {what} {key!r} is given twice: give it once", context, parameter
                )
            pairs[key] = value
        return pairs

    return click.option(*names, metavar=form, multiple=True, callback=parsed, help=help_text)


def kept(place: str) -> dict[str, Any]:
    """Return arguments for `click.option` that make it store its value in the command's context.

    The command does not receive the value: it is in the dictionary `context.meta[place]`.
    """

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        context.meta.setdefault(place, {})[parameter.name] = value

    return {"expose_value": False, "callback": keep}


def composed(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return one decorator that declares several options. The help has them in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def json_option(help_text: str) -> Callable[[Command], Command]:
    return click.option("--json", "as_json", is_flag=True, help=help_text)


quorum_options: Callable[[Command], Command] = composed(
    click.option(
        "--ensemble",
        "ensemble_size",
        type=click.IntRange(min=1),
        default=3,
        show_default=True,
        help="The ensemble size: the number of bookies that entries are striped over.",
    ),
    click.option(
        "--write-quorum",
        type=click.IntRange(min=1),
        default=3,
        show_default=True,
        help="The number of bookies that each entry is written to.",
    ),
    click.option(
        "--ack-quorum",
        type=click.IntRange(min=1),
        default=2,
        show_default=True,
        help="The number of bookies that must have an entry on disk before it is acknowledged.",
    ),
    click.option(
        "--digest",
        type=click.Choice(DIGESTS, case_sensitive=False),
        default="crc32c",
        show_default=True,
        help="The checksum of each entry. hmac also authenticates the writer by the password; "
        "dummy means no checksum.",
    ),
)
"""The options --ensemble, --write-quorum, --ack-quorum and --digest, named as the arguments of
`create_ledger`."""


def check_quorums(ensemble: int, write_quorum: int, ack_quorum: int) -> None:
    if not ensemble >= write_quorum >= ack_quorum:
        raise click.UsageError(
            f"--ensemble {ensemble}, --write-quorum {write_quorum} and --ack-quorum {ack_quorum} "
            "do not fit: the ensemble must be at least as large as the write quorum, and the write "
            "quorum at least as large as the ack quorum"
        )


def asynchronous(command: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Turn a coroutine function into a command, which runs the coroutine with `run_async`.

    Apply this decorator first: directly above the function, below those that declare options.
    """

    @functools.wraps(command)
    def called(*arguments: P.args, **options: P.kwargs) -> T:
        return run_async(command(*arguments, **options))

    return called


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine and return its result.

    Ctrl-C cancels the coroutine. KeyboardInterrupt is raised once it has cleaned up. If that takes
    longer than `CLEAN_UP_LIMIT_S`, the process ends at once.
    """
    from quire._runtime.heap import keep_heap

    keep_heap()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_interruptible(work))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_interruptible(work))


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; Ctrl-C cancels it, and ends the process if it takes too long to clean up."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            last_resort = threading.Timer(CLEAN_UP_LIMIT_S, os._exit, (EXIT_INTERRUPTED,))
            last_resort.daemon = True
            last_resort.start()
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await work
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
