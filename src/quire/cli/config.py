"""The commands `quire config show` and `quire config check`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quire.cli.common.configuration import configuration_file, configured
from quire.cli.common.groups import EXIT_ERROR, fail, warn
from quire.cli.common.options import flag, json_option
from quire.cli.common.output import print_json

if TYPE_CHECKING:
    from quire.configuration.fields import ConfigKey
    from quire.configuration.layers import Configuration


@click.command()
@flag("--origin", "Add a comment to each value that says where it comes from.")
@flag("--changed", "Show only keys that a file, a variable or an option sets.")
@json_option("Print one JSON object: file, values, origins.")
def show(origin: bool, changed: bool, as_json: bool) -> None:
    """Show the effective value of every key, and where it comes from.

    The output is TOML, and can be used as a configuration file. It does not include the options of
    single commands, which override the configuration.
    """
    found = configured()
    path = configuration_file(os.environ)
    if as_json:
        from quire.configuration.fields import IN_MILLISECONDS

        names = [name for name in found.values if _wanted(found, name, changed)]
        former = {old: new for old, new in IN_MILLISECONDS.items() if new in names}
        print_json(
            {
                "file": None if path is None else str(path),
                "values": {name: found.values[name] for name in names}
                | {old: round(1000 * found.values[new]) for old, new in former.items()},
                "origins": {name: found.origins[name] for name in names}
                | {old: found.origins[new] for old, new in former.items()},
            }
        )
        return
    if origin:
        click.echo(f"# file: {path or 'none'}")
    for line in toml_lines(found, changed=changed, origin=origin):
        click.echo(line)


def toml_lines(found: Configuration, *, changed: bool, origin: bool) -> Iterator[str]:
    """Yield the lines of a TOML file with the configured values.

    With `changed` they are only those that a file, a variable or an option sets. With `origin` a
    comment says where each value comes from.
    """
    from quire.configuration.fields import keys
    from quire.configuration.layers import DEFAULT

    table = ""
    for name, value in found.values.items():
        here = name.rpartition(".")[0]
        present = here in found.tables and _is_optional(here)
        wanted = _wanted(found, name, changed)
        if here != table and (wanted or present):
            table = here
            # An optional table differs from a missing one even if it is empty.
            yield f"\n[{here}]" + (f"  # {found.tables[here]}" if origin and present else "")
        if wanted:
            text = _as_line(keys()[name], value, given=found.origins[name] != DEFAULT)
            yield f"{text}  # {found.origins[name]}" if origin else text


def _as_line(key: ConfigKey, value: object, *, given: bool) -> str:
    """Return the line of a key. `given` says whether a source set the value, even to nothing."""
    from quire.configuration.values import NONE, as_toml

    last = key.name.rpartition(".")[2]
    if value is not None:
        return f"{last} = {as_toml(value)}"
    if not given:
        return f"# {last}: not set"
    return f"{last} = {as_toml(NONE if key.kind in ('boolean', 'integer', 'number') else '')}"


def _is_optional(table: str) -> bool:
    """Return whether this is a table that differs from an empty one if it is missing."""
    from quire.configuration.fields import inner_tables

    inner = inner_tables().get(table)
    return inner is not None and inner.optional


def _wanted(found: Configuration, name: str, changed: bool) -> bool:
    """Return whether a key is shown. Keys of an optional table are shown only if it is present."""
    from quire.configuration.layers import DEFAULT

    table = name.rpartition(".")[0]
    if _is_optional(table) and table not in found.tables:
        return False
    return not changed or found.origins[name] != DEFAULT


def _uri_problems(found: Configuration) -> Iterator[str]:
    """Yield the problem of the metadata URI, if it cannot be used."""
    from quire.configuration.layers import DEFAULT
    from quire.errors import MetadataURIError
    from quire.metadata.uri import parse_uri

    origin = found.origins["metadata"]
    if origin != DEFAULT and found.metadata:
        try:
            parse_uri(found.metadata)
        except MetadataURIError as error:
            yield f"{origin}: metadata: {error}"


def _directory_problems(found: Configuration) -> Iterator[str]:
    """Yield the problem of the bookie's data directories, if they cannot be used together."""
    from quire.bookie.options import check_directories
    from quire.errors import UsageError

    directories = found.values["bookie.directories"]
    if directories:
        try:
            check_directories(directories)
        except UsageError as error:
            yield f"{found.origins['bookie.directories']}: bookie.directories: {error}"


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@json_option("Print one JSON object: file, problems, warnings.")
def check(file: str, as_json: bool) -> int | None:
    """Report the problems of a configuration file, one per line.

    The exit status is 1 if there are problems. The command examines only the file, and whether two
    data directories are the same: no environment variable, no certificate, no cluster.
    """
    from quire.configuration.layers import file_layer, merged

    found = merged([file_layer(Path(file))])
    problems = [*found.problems, *_uri_problems(found), *_directory_problems(found)]
    if as_json:
        print_json({"file": file, "problems": list(problems), "warnings": list(found.warnings)})
        return EXIT_ERROR if problems else None
    for warning in found.warnings:
        warn(warning)
    for problem in problems:
        fail(problem)
    if problems:
        return EXIT_ERROR
    click.echo(f"{file}: no problems")
    return None
