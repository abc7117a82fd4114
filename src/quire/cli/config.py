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
    """Yield the lines of a TOML file with the configured values."""
    from quire.configuration.values import as_toml

    table = ""
    for name, value in found.values.items():
        here, _, last = name.rpartition(".")
        if not _wanted(found, name, changed):
            continue
        if here != table:
            table = here
            yield f"\n[{here}]"
        source = f"  # {found.origins[name]}" if origin else ""
        yield (
            f"# {last}: not set{source}" if value is None else f"{last} = {as_toml(value)}{source}"
        )


def _wanted(found: Configuration, name: str, changed: bool) -> bool:
    """Return whether a key is shown. Keys of an optional table are shown only if it is present."""
    from quire.configuration.fields import inner_tables
    from quire.configuration.layers import DEFAULT

    table = inner_tables().get(name.rpartition(".")[0])
    if table is not None and table.optional and table.name not in found.tables:
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
