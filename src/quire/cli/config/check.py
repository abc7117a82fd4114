"""`quire config check`."""

from __future__ import annotations

from pathlib import Path

import click

from quire.cli.common.groups import EXIT_ERROR, fail
from quire.cli.common.options import json_option, warn
from quire.cli.common.output import print_json


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
