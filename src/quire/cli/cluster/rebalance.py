"""`quire cluster rebalance`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.job_progress import JobBar
from quire.cli.common.move_options import (
    LINES_MAX,
    LISTED_MAX,
    dry_run_option,
    parallel_option,
    rate_option,
    run_job,
    say_what_was_skipped,
)
from quire.cli.common.options import (
    FiniteRange,
    Size,
    json_option,
    metadata_option,
    password_option,
    placement_option,
)
from quire.cli.common.output import print_json
from quire.cli.common.tls import tls_options
from quire.replication.autorecovery.settings import TARGET_SPREAD_PERCENT

if TYPE_CHECKING:
    from quire.client import Client
    from quire.replication import ReplicationLocks
    from quire.replication.moves.rebalance import Rebalanced


@click.command()
@metadata_option
@dry_run_option
@click.option(
    "--target-spread",
    type=FiniteRange(min=0),
    metavar="PERCENT",
    default=TARGET_SPREAD_PERCENT,
    show_default=True,
    help="Enough when the fullest has so much more than the emptiest, in percent of the mean.",
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    type=Size(1),
    help="Copy at most so much: 10g. [default: all]",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Chooses among moves that are as good."
)
@placement_option
@parallel_option
@rate_option
@password_option
@tls_options
@json_option("The plan and the result as one JSON object; no progress.")
def rebalance(
    uri: str,
    dry_run: bool,
    target_spread: float,
    max_bytes: int | None,
    seed: int,
    parallel: int,
    rate: float | None,
    password: bytes,
    as_json: bool,
) -> int:
    """Move entries from the fullest bookies to the emptiest, after one was added.

    Replicas of closed ledgers are copied, then named in the metadata; bookies drop what is not
    theirs any more by themselves. Safe to interrupt and to run again. Exit status 1 if moves of the
    plan were not done.
    """

    async def work(client: Client, locks: ReplicationLocks, progress: JobBar) -> Rebalanced:
        from quire.replication.moves.rebalance import RebalanceOptions
        from quire.replication.moves.rebalance import rebalance as run

        options = RebalanceOptions(target_spread, max_bytes, parallel, rate, password)
        return await run(
            client,
            locks,
            random.Random(seed),
            dry_run=dry_run,
            options=options,
            progress=progress,
        )

    result = run_job(
        uri, work, as_json=as_json, kind="rebalance", target="cluster", counted="replicas"
    )
    if as_json:
        print_json(result.as_json(LISTED_MAX))
    else:
        click.echo("\n".join(_lines(result)))
        for left in result.left[:LINES_MAX]:
            say(f"ledger {left.ledger}: {left.why}")
        say_what_was_skipped(result.unreadable, result.unreadable_count)
    return EXIT_ERROR if result.left else 0


def _lines(result: Rebalanced) -> list[str]:
    plan = result.plan
    lines = []
    if result.dry_run:
        lines += [
            f"ledger {one.ledger}, segment {one.segment_first}: {one.source} to {one.target}, "
            f"{counted(one.entries, 'entry')}, {one.size_bytes} bytes"
            for one in plan.moves[:LINES_MAX]
        ]
        if len(plan.moves) > LINES_MAX:
            lines.append(f"... and {len(plan.moves) - LINES_MAX} more")
    lines += [
        f"{bookie}: {size} bytes, {plan.after[bookie]} by this plan"
        for bookie, size in plan.before.items()
    ]
    lines.append(
        f"spread {plan.spread_before:.1f} %, {plan.spread_after:.1f} % by this plan: "
        f"{counted(len(plan.moves), 'replica')}, {plan.size_bytes} bytes"
    )
    if not result.dry_run:
        lines.append(
            f"{counted(result.moved, 'replica')} moved, {counted(result.entries, 'entry')} "
            f"({result.bytes} bytes) copied; {len(result.left)} left"
        )
    return lines
