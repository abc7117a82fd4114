"""The command `python -m quire_simulator.exploration`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from quire.cli.common.groups import EXIT_ERROR, Program, say
from quire_simulator.exploration.bounds import FULL, QUICK, Bounds, Rollback
from quire_simulator.exploration.search import Result, Search
from quire_simulator.exploration.text import bounds_line, result_lines

Command = TypeVar("Command", bound=Callable[..., Any])

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
DEFAULTS = Bounds()
SETS = {"quick": QUICK, "full": FULL}


class _Explore(Program, click.Command):
    """A separate program with the error output and exit statuses of `quire`."""


def _count(name: str, text: str, least: int = 0) -> Callable[[Command], Command]:
    default = getattr(DEFAULTS, name.replace("-", "_"))
    return click.option(
        f"--{name}", type=click.IntRange(least), default=default, show_default=True, help=text
    )


@click.command("python -m quire_simulator.exploration", cls=_Explore, context_settings=SETTINGS)
@click.option(
    "--set", "chosen", type=click.Choice(list(SETS)),
    help="Run the searches of this set one after the other. The other bounds do not apply then.",
)  # fmt: skip
@click.option("--only", metavar="NAME", help="Run only this search of the set.")
@_count("bookies", "Bookies of the cluster.", 1)
@_count("ensemble", "Ensemble size of the ledger.", 1)
@_count("write-quorum", "Write quorum of the ledger.", 1)
@_count("ack-quorum", "Ack quorum of the ledger.", 1)
@_count("entries", "Entries that the writer appends, at most.", 1)
@_count("recoverers", "Clients that recover the ledger.")
@_count("losses", "How often the writer may lose a member.")
@_count("recovery-losses", "How often each recovery may lose a member.")
@_count("rollbacks", "How often a disk may go back in time, 0 or 1.")
@click.option(
    "--rollback", type=click.Choice([one.value for one in Rollback]),
    default=DEFAULTS.rollback.value, show_default=True, help="Whether its bookie notices.",
)  # fmt: skip
@click.option("--late-answers", is_flag=True, help="Answers to the writer are steps of their own.")
@click.option("--no-symmetry", is_flag=True, help="Tell bookies apart by their names.")
@click.option("--states-max", type=click.IntRange(1), help="Stop after about so many states.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def explore(
    chosen: str | None, only: str | None, rollback: str, no_symmetry: bool,
    states_max: int | None, quiet: bool, **bounds: Any,
) -> None:  # fmt: skip
    """Visit every state of the replication protocol within some bounds.

    The search is breadth-first, so a violated property is shown with a shortest trace. The status
    is 1 if a property is violated.
    """
    searches = {"": Bounds(**bounds, rollback=Rollback(rollback), symmetry=not no_symmetry)}
    if chosen is not None:
        searches = dict(SETS[chosen])
        if only is not None:
            searches = {name: one for name, one in searches.items() if name == only}
            if not searches:
                raise click.UsageError(f"the set {chosen} has no search {only!r}")
    failed = False
    for name, one in searches.items():
        say(f"{name}: {bounds_line(one)}" if name else bounds_line(one))
        result = Search(one).run(states_max, None if quiet else _progress)
        for line in result_lines(result):
            say(f"  {line}")
        failed |= result.violation is not None
    if failed:
        raise SystemExit(EXIT_ERROR)


def _progress(result: Result) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r  depth {result.depth}, {result.states:,} states", nl=False, err=True)
