"""`quire config check`."""

from __future__ import annotations

from pathlib import Path

import click

from quire.admin.groups import EXIT_ERROR, fail


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
def check(file: str) -> int | None:
    """Say what is wrong with a configuration file: one line for each problem, and status 1.

    Nothing else is looked at: no environment, no certificate, no cluster.
    """
    from quire.admin.configuration import file_layer, merged

    problems = merged([file_layer(Path(file))]).problems
    for problem in problems:
        fail(problem)
    if problems:
        return EXIT_ERROR
    click.echo(f"{file}: no problems")
    return None
