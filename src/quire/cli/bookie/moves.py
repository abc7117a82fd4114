"""`quire bookie recover` and `quire bookie decommission`."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import click

from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.moves import (
    LISTED_MAX,
    done_text,
    move_options,
    planned_text,
    run_job,
    say_what_is_left,
)
from quire.cli.common.options import bookie_argument, flag, run_async
from quire.cli.common.output import print_json
from quire.cli.common.progress import JobBar
from quire.cli.common.tls import connect

if TYPE_CHECKING:
    from quire.client import Client
    from quire.replication import ReplicationLocks
    from quire.replication.moves.decommission import Decommissioned
    from quire.replication.moves.recover import MoveOptions, RecoverResult


# -- recover ----------------------------------------------------------------------------------


@click.command()
@bookie_argument()
@move_options
def recover(bookie: str, uri: str, options: MoveOptions, dry_run: bool, as_json: bool) -> int:
    """Replicate again what a lost BOOKIE held, to other bookies.

    Under the same locks and rules as autorecovery, which may be at it, too. Run again it goes on
    where it was. Exit status 1 if ledgers are left that name the bookie.
    """

    async def work(client: Client, locks: ReplicationLocks, progress: JobBar) -> RecoverResult:
        from quire.replication.moves.recover import recover_bookie

        return await recover_bookie(
            client, locks, bookie, dry_run=dry_run, options=options, progress=progress
        )

    result = run_job(uri, work, as_json=as_json, kind="recover", target=bookie)
    if as_json:
        print_json(result.as_json(LISTED_MAX))
    else:
        click.echo(planned_text(result) if dry_run else done_text(result))
        say_what_is_left(result)
    return 0 if result.complete or dry_run else EXIT_ERROR


# -- decommission -----------------------------------------------------------------------------


@click.command()
@bookie_argument()
@flag(
    "--keep-cookie",
    "Only empty it: it stays read-only, and may be made writable again with --cancel.",
)
@flag("--cancel", "Let a bookie that is being emptied take entries again.")
@move_options
def decommission(
    bookie: str,
    uri: str,
    options: MoveOptions,
    keep_cookie: bool,
    cancel: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Take BOOKIE away for good, with nothing lost. It may live, which is better, or be stopped.

    It becomes read-only, what it holds is copied to others, and when no ledger names it any more
    its cookie is removed and it ends. (An Apache bookie has to be read-only or stopped before.)
    Interrupted it stays read-only; run again it goes on where it was. Exit status 1 if ledgers are
    left that name the bookie.
    """
    if cancel and (keep_cookie or dry_run):
        raise click.UsageError("--cancel goes with neither --keep-cookie nor --dry-run")
    if cancel:
        return _cancel(uri, bookie, as_json)

    async def work(client: Client, locks: ReplicationLocks, progress: JobBar) -> Decommissioned:
        from quire.replication.moves.decommission import decommission as run

        return await run(
            client,
            locks,
            bookie,
            owner=socket.gethostname(),
            now_ms=client.clock.now_ms,
            dry_run=dry_run,
            keep_cookie=keep_cookie,
            options=options,
            progress=progress,
        )

    try:
        found = run_job(uri, work, as_json=as_json, kind="decommission", target=bookie)
    except KeyboardInterrupt:
        if not dry_run:
            say(f"bookie {bookie} stays read-only: go on with the same command, or --cancel")
        raise
    if as_json:
        print_json(found.as_json(LISTED_MAX))
    else:
        click.echo(planned_text(found.moved) if dry_run else _text(found, keep_cookie))
        say_what_is_left(found.moved)
    return 0 if dry_run or found.drained else EXIT_ERROR


def _text(found: Decommissioned, keep_cookie: bool) -> str:
    bookie = found.moved.bookie
    lines = [done_text(found.moved)]
    if found.moved.unreadable_count:
        lines.append(
            f"bookie {bookie} keeps its cookie: ledgers whose metadata cannot be read may name it"
        )
    elif not found.drained:
        lines.append(f"bookie {bookie} is still needed: run this again")
    elif keep_cookie:
        lines.append(f"bookie {bookie} is empty and read-only; --cancel makes it writable again")
    else:
        lines.append(f"bookie {bookie} is decommissioned: its cookie is removed")
        if not found.ended:
            lines.append("It has not ended yet: stop it now")
        lines.append(
            "Erase its directories: they cannot be used again. A new bookie on that machine should "
            "have another id (--bookie-id, or another port)"
        )
    return "\n".join(lines)


def _cancel(uri: str, bookie: str, as_json: bool) -> int:
    async def work() -> bool:
        from quire.replication.moves.decommission import take_back

        async with connect(uri) as client:
            return await take_back(client, bookie)

    taken = run_async(work())
    if as_json:
        print_json({"bookie": bookie, "cancelled": taken})
    else:
        click.echo(
            f"bookie {bookie} may take entries again"
            if taken
            else f"bookie {bookie} was not being emptied"
        )
    return 0
