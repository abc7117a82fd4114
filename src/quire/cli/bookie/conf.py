"""The command `quire bookie conf`, and the option `--bk-server-conf` of `quire bookie start`."""

from __future__ import annotations

import getpass
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.configuration import BELOW, checked
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.options import Command, file_option, flag, json_option
from quire.cli.common.output import print_json

if TYPE_CHECKING:
    from quire.cli.apache.conf import KeyLine

_LINES = "quire.bk_server_conf"
_FILE = click.Path(exists=True, dir_okay=False)


@click.command()
@click.argument("file", type=_FILE)
@flag("--toml", "Print the equivalent configuration file of Quire.", name="as_toml")
@json_option("Print one JSON object per key.")
def conf(file: str, as_toml: bool, as_json: bool) -> int | None:
    """Show how Quire translates each key of FILE, Apache's bk_server.conf.

    A key is taken (it sets a key of Quire's configuration), implied (Quire always behaves that
    way), ignored (it has no effect on Quire) or refused. The exit status is 1 if a key is refused:
    a bookie does not start with such a file.
    """
    from quire.cli.apache.conf import as_layer
    from quire.configuration.layers import merged

    if as_toml and as_json:
        raise click.UsageError("--toml and --json exclude each other: give one of them")
    lines = read(file)
    layer = as_layer(lines, file)
    if as_toml:
        from quire.cli.config import toml_lines

        found = checked(merged([layer]))
        click.echo("\n".join(toml_lines(found, changed=True, origin=True)))
        return None
    for one in lines:
        if as_json:
            print_json(_as_json(one))
        else:
            click.echo(_as_text(one))
    problems = merged([layer]).problems
    for problem in problems:
        say(f"refused: {problem}")
    return EXIT_ERROR if problems else None


def bk_server_conf_option(command: Command) -> Command:
    """Add the option for Apache's configuration, which Quire's own configuration overrides."""

    def keep(context: click.Context, parameter: click.Parameter, file: str | None) -> None:
        if file is None:
            return
        from quire.cli.apache.conf import as_layer

        context.meta[_LINES] = lines = read(file)
        context.meta[BELOW] = as_layer(lines, file)

    return file_option(
        "--bk-server-conf",
        "Read Apache's configuration file. Options, environment variables and Quire's own "
        "configuration override it. `quire bookie conf FILE` shows how each key is translated.",
        is_eager=True,
        expose_value=False,
        callback=keep,
    )(command)


def announce(log: Any) -> None:
    """Log one event that says how the keys of the file were translated, if there is a file."""
    lines: list[KeyLine] = click.get_current_context().meta.get(_LINES, [])
    if not lines:
        return
    log(
        "bk_server_conf",
        taken={
            key: value
            for one in lines
            if one.outcome.verdict == "taken"
            for key, value in one.outcome.keys.items()
        },
        implied=[one.name for one in lines if one.outcome.verdict == "implied"],
        ignored={one.name: one.outcome.why for one in lines if one.outcome.verdict == "ignored"},
    )


def read(file: str) -> list[KeyLine]:
    """Return the translated keys of a file. Raises `click.UsageError` for an invalid file."""
    from quire.cli.apache.conf import FILE_BYTES_MAX, parse_properties, translate
    from quire.cli.apache.rules import HostFacts

    with Path(file).open("rb") as opened:
        raw = opened.read(FILE_BYTES_MAX + 1)
    if len(raw) > FILE_BYTES_MAX:
        raise click.UsageError(
            f"{file} is larger than {FILE_BYTES_MAX} bytes, so it cannot be a bk_server.conf: "
            "give Apache's configuration file"
        )
    try:
        return translate(
            parse_properties(raw.decode()), HostFacts(_own_host, getpass.getuser, _disk_bytes)
        )
    except ValueError as error:
        raise click.UsageError(f"{file} cannot be used as a bk_server.conf: {error}") from None


def _own_host(by_name: bool, short: bool) -> str:
    try:
        if not by_name:
            return socket.gethostbyname(socket.gethostname())
        name = socket.getfqdn()
    except OSError:
        return ""
    return name.partition(".")[0] if short else name


def _disk_bytes(directory: str) -> int | None:
    """Return the size, in bytes, of the disk of a directory, or None if it is not known.

    If the directory does not exist, its nearest existing parent decides.
    """
    place = Path(directory).absolute()
    for one in (place, *place.parents):
        try:
            return shutil.disk_usage(one).total
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _as_text(one: KeyLine) -> str:
    outcome = one.outcome
    given = f"{one.name}={one.value}" if one.name else "(not in the file)"
    taken = outcome.keys.items() if outcome.verdict == "taken" else ()
    keys = ", ".join(f"{key} = {value}" for key, value in taken)
    rest = ": ".join(part for part in (keys, outcome.why) if part)
    return f"{outcome.verdict:8} {given}" + (f" -> {rest}" if keys else f": {rest}" if rest else "")


def _as_json(one: KeyLine) -> dict[str, Any]:
    return {
        "name": one.name,
        "value": one.value,
        "line": one.line or None,
        "verdict": one.outcome.verdict,
        "why": one.outcome.why,
        "keys": dict(one.outcome.keys) if one.outcome.verdict == "taken" else {},
    }
