"""The commands `quire cluster rebalance`, and `pause` and `resume` for jobs that copy replicas."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from quire._runtime.names.process_name import process_name
from quire._runtime.units import counted
from quire.cli.common.completion import complete_bookies
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.moves import (
    LINES_MAX,
    LISTED_MAX,
    dry_run_of_moves,
    no_check_option,
    parallel_option,
    rate_option,
    run_job,
    say_first,
    say_what_was_skipped,
)
from quire.cli.common.options import (
    FiniteRange,
    asynchronous,
    check_bookie,
    json_option,
    metadata_option,
    password_option,
    placement_option,
    size_option,
)
from quire.cli.common.output import print_json, time_text
from quire.cli.common.progress import JobBar
from quire.cli.common.tls import tls_options
from quire.replication.autorecovery.settings import TARGET_SPREAD_PERCENT
from quire.replication.marks.pauses import CLUSTER, KINDS, Pause, Pauses

if TYPE_CHECKING:
    from quire.client import Client
    from quire.replication import ReplicationLocks
    from quire.replication.moves.rebalance import Rebalanced


# -- rebalance --------------------------------------------------------------------------------


@click.command()
@metadata_option
@dry_run_of_moves
@no_check_option
@click.option(
    "--target-spread",
    type=FiniteRange(min=0),
    metavar="PERCENT",
    default=TARGET_SPREAD_PERCENT,
    show_default=True,
    help="Stop when the fullest bookie has at most this much more than the emptiest, in percent of "
    "the mean.",
)
@size_option("--max-bytes", "Copy at most this many bytes, for example 10g. [default: no limit]")
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="The seed of the random choice among equally good moves.",
)
@placement_option
@parallel_option
@rate_option
@password_option
@tls_options
@json_option("Print the plan and the result as one JSON object, without progress.")
def rebalance(
    uri: str,
    dry_run: bool,
    no_check: bool,
    target_spread: float,
    max_bytes: int | None,
    seed: int,
    parallel: int,
    rate: float | None,
    password: bytes,
    as_json: bool,
) -> int:
    """Move entries from the fullest bookies to the emptiest.

    Use this after adding a bookie. The command copies replicas of closed ledgers, then updates the
    metadata; bookies delete the replicas that they no longer need by themselves. It is safe to
    interrupt the command and to run it again. The command first checks whether it can succeed. The
    exit status is 1 if it cannot, or if moves of the plan were not done.
    """

    async def work(client: Client, locks: ReplicationLocks, progress: JobBar) -> Rebalanced:
        from quire.replication.moves.rebalance import RebalanceOptions
        from quire.replication.moves.rebalance import rebalance as run

        options = RebalanceOptions(
            target_spread, max_bytes, parallel, rate, password, check=not no_check
        )
        return await run(
            client, locks, random.Random(seed), dry_run=dry_run, options=options, progress=progress
        )

    result = run_job(
        uri, work, as_json=as_json, kind="rebalance", target="cluster", counted="replicas"
    )
    from quire.replication.moves.rebalance import what_blocks
    from quire.replication.moves.remaining import lines_of

    if as_json:
        print_json(result.as_json(LISTED_MAX))
    else:
        click.echo("\n".join(_lines(result)))
        if why := what_blocks(result.plan):
            say(why)
        say_first(lines_of(result.left))
        if result.left:
            say("The moves that were made stay. To make the others, run the same command again")
        say_what_was_skipped(result.unreadable, result.unreadable_count)
    return EXIT_ERROR if result.left else 0


def _lines(result: Rebalanced) -> list[str]:
    plan = result.plan
    lines = []
    if result.dry_run:
        lines += [
            f"ledger {one.ledger}, segment {one.segment_first}: {one.source} to {one.target}, "
            f"{counted(one.entries, 'entry')}, about {counted(one.size_bytes, 'byte')}"
            for one in plan.moves[:LINES_MAX]
        ]
        if len(plan.moves) > LINES_MAX:
            lines.append(f"... and {counted(len(plan.moves) - LINES_MAX, 'replica')} more")
    lines += [
        f"{bookie}: {counted(size, 'byte')}, {plan.after[bookie]:,} after this plan"
        for bookie, size in plan.before.items()
    ]
    lines.append(
        f"spread {plan.spread_before:.1f} %, {plan.spread_after:.1f} % after this plan: "
        f"{counted(len(plan.moves), 'replica')}, about {counted(plan.size_bytes, 'byte')}"
    )
    if not result.dry_run:
        lines.append(
            f"{counted(result.moved, 'replica')} moved, {counted(result.entries, 'entry')} "
            f"({counted(result.bytes, 'byte')}) copied; {len(result.left):,} left"
        )
    return lines


# -- pause ------------------------------------------------------------------------------------


def _target(kind: str, bookie: str | None) -> str:
    if (kind == "rebalance") == (bookie is not None):
        what = (
            "applies to the whole cluster: leave BOOKIE out"
            if bookie is not None
            else "requires a BOOKIE"
        )
        raise click.UsageError(f"{kind} {what}")
    if bookie is not None:
        check_bookie(bookie)
    return CLUSTER if bookie is None else bookie


@click.command()
@metadata_option
@click.argument("kind", type=click.Choice(KINDS), required=False)
@click.argument("bookie", required=False, shell_complete=complete_bookies)
@json_option("Print one JSON object per paused job.")
@asynchronous
async def pause(uri: str, kind: str | None, bookie: str | None, as_json: bool) -> None:
    """Pause a job, or list the paused jobs.

    A job is the recovery or decommissioning of BOOKIE, or rebalance. Without arguments, the paused
    jobs are listed. The job notices the pause within seconds, on whichever machine it runs: it
    completes the ledgers in progress and then waits until `quire cluster resume`, even if it is
    started again. To pause autorecovery, use `quire autorecovery disable`.
    """
    import quire
    from quire.replication.moves.recover import check_known

    target = _target(kind, bookie) if kind is not None else None

    changed = None
    async with quire.connect(uri) as client:
        pauses = Pauses(client.metadata)
        if kind is not None and target is not None:
            if kind != "rebalance":
                await check_known(client, target)
            one = Pause(kind, target, process_name(), client.clock.now_ms())
            changed = await pauses.pause(one)
        found = await pauses.all()
    if changed is False:
        say(f"{kind} {target} was paused already")
    if as_json:
        for one in found:
            print_json(asdict(one))
    elif kind is None:
        for one in found:
            click.echo(f"{one.kind} {one.target}, by {one.by or 'an unknown process'}, since "
                       f"{time_text(one.at_ms) or 'an unknown time'}")  # fmt: skip


@click.command()
@metadata_option
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("bookie", required=False, shell_complete=complete_bookies)
@asynchronous
async def resume(uri: str, kind: str, bookie: str | None) -> None:
    """Resume a paused job: the recovery or decommissioning of BOOKIE, or rebalance.

    A job that is running continues within seconds.
    """
    import quire

    target = _target(kind, bookie)
    async with quire.connect(uri) as client:
        if not await Pauses(client.metadata).resume(kind, target):
            say(f"{kind} {target} was not paused")
