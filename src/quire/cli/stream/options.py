"""Options and output that the commands for namespaces and streams share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.completion import complete_namespaces, complete_streams
from quire.cli.common.groups import warn
from quire.cli.common.options import Command, checked, key_values, password_of, split_pair
from quire.cli.common.tls import connect
from quire.codec.distributedlog.name import stream_name
from quire.errors import UsageError

if TYPE_CHECKING:
    from quire.streams import DLSN, Namespace
    from quire.streams.read.positions import Start

DEFAULT_NAMESPACE = "/streams"
NAMESPACE_VARIABLE = "QUIRE_NAMESPACE"
PLACES = "earliest, latest, a position (5:12:3), txid:N, time:ISO or seq:N"
"""The ways to name a position in a stream, for the help of options."""

ESCAPES = {r"\n": b"\n", r"\0": b"\0", r"\t": b"\t", r"\r": b"\r"}

Values = dict[str, Any]


def _namespace_path(text: str) -> str:
    from quire.streams.namespace.binding import namespace_path

    return namespace_path(text)


def _stream_name(text: str) -> str:
    return stream_name(text)


path_callback = checked(_namespace_path)
stream_callback = checked(_stream_name)


def namespace_option(
    command: Command, *, names: tuple[str, ...] = ("-n", "--namespace")
) -> Command:
    return click.option(
        *names,
        "path",
        metavar="PATH",
        envvar=NAMESPACE_VARIABLE,
        default=DEFAULT_NAMESPACE,
        callback=path_callback,
        shell_complete=complete_namespaces,
        help=f"The namespace of the stream. [default: {NAMESPACE_VARIABLE}, else "
        f"{DEFAULT_NAMESPACE}]",
    )(command)


def path_argument(command: Command) -> Command:
    return click.argument(
        "path", metavar="PATH", callback=path_callback, shell_complete=complete_namespaces
    )(command)


def name_argument(
    variable: str = "name", metavar: str = "NAME", required: bool = True
) -> Callable[[Command], Command]:
    return click.argument(
        variable, metavar=metavar, required=required, callback=stream_callback,
        shell_complete=complete_streams,
    )  # fmt: skip


password_option: Callable[[Command], Command] = password_of(
    "The password of the ledgers of the namespace's streams."
)


def _delimiter(context: click.Context, parameter: click.Parameter, value: str) -> bytes:
    """Return the byte that a user gave, literally or as an escape."""
    found = ESCAPES.get(value, os.fsencode(value))
    if len(found) != 1:
        raise click.BadParameter(f"{value!r} is neither one byte nor one of {', '.join(ESCAPES)}")
    return found


def delimiter_option(help_text: str) -> Callable[[Command], Command]:
    return click.option(
        "--delimiter", metavar="BYTE", default=r"\n", callback=_delimiter, help=help_text
    )


def _in_utf8(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{text!r} is not UTF-8", context, parameter) from None
    return text


def key_option(help_text: str) -> Callable[[Command], Command]:
    return click.option("--key", metavar="TEXT", callback=_in_utf8, help=help_text)


def _key_separator(context: click.Context, parameter: click.Parameter, text: str | None) -> bytes:
    if text is None:
        return b""
    for escape, character in (("\\t", "\t"), ("\\0", "\0"), ("\\n", "\n"), ("\\r", "\r")):
        text = text.replace(escape, character)
    if not text:
        raise click.BadParameter("the text must not be empty", context, parameter)
    return (_in_utf8(context, parameter, text) or "").encode()


def key_separator_option(help_text: str) -> Callable[[Command], Command]:
    return click.option(
        "--key-separator", "separator", metavar="TEXT", callback=_key_separator, help=help_text
    )


headers_option = key_values(
    "--header",
    "headers",
    form="NAME=VALUE",
    what="header",
    check=_in_utf8,
    help_text="A header of every record. May be repeated.",
)


# -- settings ---------------------------------------------------------------------------------


def _values(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any]:
    from quire.streams.namespace.settings import parse_setting

    values: dict[str, Any] = {}
    for text in texts:
        key, value = split_pair(context, parameter, text)
        try:
            name, setting = parse_setting(key, value)
        except UsageError as error:
            raise click.UsageError(str(error), context) from None
        if name in values:
            raise click.BadParameter(
                f"the setting {name!r} is given twice: give it once", context, parameter
            )
        if name != key:
            warn(f"{key} is deprecated: use {name}, in seconds")
        values[name] = setting
    return values


def set_option(command: Command) -> Command:
    return click.option(
        "--set",
        "values",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_values,
        help="A setting of the stream or namespace; `show` lists all settings. May be repeated.",
    )(command)


def _present_name(name: str) -> str:
    from quire.streams.namespace.settings import DEFAULTS, IN_MILLISECONDS, check_values

    present = IN_MILLISECONDS.get(name, name)
    check_values({present: getattr(DEFAULTS, present, None)})
    if present != name:
        warn(f"{name} is deprecated: use {present}, in seconds")
    return present


def change_arguments(command: Command) -> Command:
    """Add the arguments KEY=VALUE... and the option --unset KEY of the `set` commands."""
    command = click.option(
        "--unset",
        "unset",
        metavar="KEY",
        multiple=True,
        callback=checked(_present_name),
        help="Remove this setting, so that it is inherited again. May be repeated.",
    )(command)
    return click.argument("values", metavar="[KEY=VALUE]...", nargs=-1, callback=_values)(command)


def changes(values: Values, unset: tuple[str, ...]) -> Values:
    if not values and not unset:
        raise click.UsageError("nothing to change: give KEY=VALUE or --unset KEY")
    if both := sorted(values.keys() & set(unset)):
        raise click.UsageError(
            f"the setting {both[0]} cannot be both set and unset: give one of the two"
        )
    return {**values, **dict.fromkeys(unset)}


def sources(settings: Values, own: Values, inherited: Values, owner: str) -> list[Values]:
    """Return each setting and where it comes from: `owner`, "inherited" or "default"."""
    from quire.streams.namespace.settings import IN_MILLISECONDS

    def where(name: str) -> str:
        name = IN_MILLISECONDS.get(name, name)
        if name in own:
            return owner
        return "inherited" if name in inherited else "default"

    return [{"name": n, "value": value, "from": where(n)} for n, value in settings.items()]


def settings_lines(found: list[Values]) -> list[str]:
    from quire.streams.namespace.settings import IN_MILLISECONDS

    shown = [
        (one["name"], str(one["value"]), one["from"])
        for one in found
        if one["name"] not in IN_MILLISECONDS
    ]
    return [f"  {line}" for line in columns([(n, v, f) for n, v, f in shown])]


def columns(rows: list[tuple[str, ...]]) -> list[str]:
    """Return the rows as lines with aligned columns and no trailing blanks."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    ]


# -- places in a stream -----------------------------------------------------------------------


def place(text: str) -> Start:
    """Parse a position in a stream. Raises UsageError if the text is not one."""
    from quire.streams.read.positions import parse_start

    return parse_start(text)


def end_place(text: str) -> Start:
    """Parse the position in a stream at which something ends.

    Raises UsageError if the text is not one.
    """
    from quire.streams.read.positions import parse_start

    return parse_start(text, end=True)


def place_option(
    name: str, help_text: str, *, parse: Callable[[str], Start] = place, **more: Any
) -> Callable[[Command], Command]:
    """Return an option for a place in a stream. `parse` is `end_place` if reading ends there."""
    return click.option(
        f"--{name}", f"{name}_place", metavar="PLACE", callback=checked(parse), help=help_text,
        **more,
    )  # fmt: skip


async def end_if_beyond(opened: Namespace, name: str, place: Start) -> DLSN | None:
    """Return the end of the stream if it has no record at or after `place`, else None.

    For the place `latest`, the result is None, because a user who names it means the end.
    """
    from quire.streams import LATEST

    if place == LATEST:
        return None
    begin, end = await opened.find(name, place), await opened.find(name, LATEST)
    return end if begin >= end else None


# -- opening ----------------------------------------------------------------------------------


@asynccontextmanager
async def namespace(
    uri: str, path: str, password: bytes = b"", *, make: bool = False
) -> AsyncIterator[Namespace]:
    """Open a namespace, and close it at the end of the context.

    With `make`, the default namespace is created if it does not exist. Others are not, because
    their path may be mistyped. Raises NoSuchNamespaceError, and the errors of `quire.connect`.
    """
    from quire.streams.namespace.namespace import open_namespace

    async with connect(uri) as client:
        if make and path == DEFAULT_NAMESPACE:
            opened = await open_namespace(client, path, password=password, create=True)
        else:
            opened = await open_namespace(client, path, password=password)
        async with opened:
            yield opened


async def is_topic(opened: Namespace, name: str) -> bool:
    """Return whether a name is that of a topic, also of one whose deletion was interrupted."""
    return name in await opened.topics(name)
