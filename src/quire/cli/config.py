"""`quire config show` and `check`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quire.cli.common.groups import EXIT_ERROR, fail, warn
from quire.cli.common.options import flag, json_option
from quire.cli.common.output import print_json

if TYPE_CHECKING:
    from quire.configuration.layers import Configuration


@click.command()
@flag("--origin", "Say of each value where it comes from.")
@flag("--changed", "Only what is not the default.")
@json_option("One JSON object: file, values, origins.")
def show(origin: bool, changed: bool, as_json: bool) -> None:
    """Show the effective value of every key, as TOML that can be the configuration.

    Options of single commands, which count most, are not in it.
    """
    from quire.cli.common.configuration import configuration_file, configured

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
    """Return whether a key is shown; those of an optional table need the table to be there."""
    from quire.configuration.fields import inner_tables
    from quire.configuration.layers import DEFAULT

    table = inner_tables().get(name.rpartition(".")[0])
    if table is not None and table.optional and table.name not in found.tables:
        return False
    return not changed or found.origins[name] != DEFAULT


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@json_option("One JSON object: file, problems, warnings.")
def check(file: str, as_json: bool) -> int | None:
    """Say what is wrong with a configuration file: one line for each problem, and status 1.

    Nothing else is looked at: no environment, no certificate, no cluster.
    """
    from quire.configuration.layers import file_layer, merged

    found = merged([file_layer(Path(file))])
    problems = found.problems
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
