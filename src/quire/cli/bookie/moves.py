"""The commands `quire bookie recover` and `quire bookie decommission`."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import click

from quire._runtime.names.in_commands import command_with
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.moves import (
    LISTED_MAX,
    done_text,
    how_to_go_on,
    move_options,
    planned_text,
    run_job,
    say_what_is_left,
)
from quire.cli.common.options import bookie_argument, flag, run_async
from quire.cli.common.output import print_json
from quire.cli.common.progress import JobBar
from quire.cli.common.tls import connect
from quire.errors import JobError, QuireError, UsageError

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
    """Re-replicate the data of a lost BOOKIE to other bookies.

    The command copies the missing replicas from the other bookies of each ledger. It uses the same
    locks and rules as autorecovery, which may run at the same time. If it is interrupted, run it
    again: it continues where it stopped. It first checks whether any ledger can be recovered now.
    The exit status is 1 if none can, or if ledgers with replicas on BOOKIE are left.
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
        skipped = _leaves_open(options)
        click.echo(planned_text(result) if dry_run else done_text(result, open_skipped=skipped))
        say_what_is_left(result, open_skipped=skipped, repeat=True)
    return 0 if result.complete or dry_run else EXIT_ERROR


# -- decommission -----------------------------------------------------------------------------


@click.command()
@bookie_argument()
@flag(
    "--keep-cookie",
    "Only empty the bookie. It stays registered and read-only; --cancel makes it writable again.",
)
@flag("--cancel", "Stop emptying the bookie, and let it accept entries again.")
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
    """Empty BOOKIE, then remove it from the cluster, without losing replicas.

    BOOKIE becomes read-only and its replicas are copied to other bookies. When no ledger uses it
    any more, its cookie is removed and its process ends. Leave it running if you can, because its
    replicas are copied from it too; it may also be stopped. (An Apache bookie must be read-only or
    stopped first.) The command first checks whether the other bookies can take all replicas. If it
    is interrupted or fails, BOOKIE stays read-only: run the command again to continue, or with
    --cancel to make BOOKIE writable. The exit status is 1 if ledgers with replicas on BOOKIE are
    left.
    """
    if cancel and (keep_cookie or dry_run):
        raise click.UsageError("--cancel cannot be combined with --keep-cookie or --dry-run")
    if cancel:
        return _cancel(uri, bookie, as_json)

    location = ""

    async def work(client: Client, locks: ReplicationLocks, progress: JobBar) -> Decommissioned:
        from quire.http.views.bookie_list import locations
        from quire.replication.moves.decommission import decommission as run

        nonlocal location
        location = (await locations(client.metadata)).get(bookie, "")
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
            say(f"bookie {bookie} stays read-only: {how_to_go_on(bookie)}")
        raise
    except (UsageError, JobError):
        raise  # nothing was changed, or the message says what was
    except QuireError:
        if not dry_run:
            say(f"bookie {bookie} may be read-only now: {how_to_go_on(bookie)}")
        raise
    if as_json:
        print_json(found.as_json(LISTED_MAX))
    else:
        skipped = _leaves_open(options)
        click.echo(
            planned_text(found.moved) if dry_run else _text(found, keep_cookie, skipped, location)
        )
        say_what_is_left(found.moved, open_skipped=skipped)
    return 0 if dry_run or found.drained else EXIT_ERROR


def _leaves_open(options: MoveOptions) -> bool:
    from quire.replication.moves.recover import OpenLedgers

    return options.open_ledgers is OpenLedgers.SKIP


def _text(found: Decommissioned, keep_cookie: bool, open_skipped: bool, location: str = "") -> str:
    """Return what was done, and what is left to do. `location` is that of the bookie, or ""."""
    bookie = found.moved.bookie
    lines = [done_text(found.moved, open_skipped=open_skipped)]
    if found.moved.unreadable_count:
        lines.append(
            f"bookie {bookie} keeps its cookie, because ledgers whose metadata cannot be read may "
            "have replicas on it"
        )
    elif not found.drained:
        lines.append(
            f"ledgers still have replicas on bookie {bookie}, which stays read-only: "
            f"{how_to_go_on(bookie)}"
        )
    elif keep_cookie:
        lines.append(
            f"bookie {bookie} is empty and read-only. To make it writable again, run: "
            f"{command_with('quire bookie decommission', bookie, '--cancel')}"
        )
    else:
        lines.append(f"bookie {bookie} is decommissioned: its cookie is removed")
        if not found.ended:
            lines.append("Its process is still running: stop it now")
        lines.append(
            "Erase its directories: they cannot be used again. Give a new bookie on that machine "
            "another id (--bookie-id, or another port)"
        )
        if location:
            remove = command_with("quire cluster locations remove", bookie)
            lines.append(f"Its location {location} is still in the table. To remove it: {remove}")
    return "\n".join(lines)


def _cancel(uri: str, bookie: str, as_json: bool) -> int:
    async def work() -> bool:
        from quire.replication.moves.decommission import take_back
        from quire.replication.moves.recover import refuse_gone

        async with connect(uri) as client:
            taken = await take_back(client, bookie)
            if not taken:
                await refuse_gone(client, bookie)
            return taken

    taken = run_async(work())
    if as_json:
        print_json({"bookie": bookie, "cancelled": taken})
    else:
        click.echo(
            f"bookie {bookie} may accept entries again"
            if taken
            else f"bookie {bookie} was not being emptied; nothing was changed"
        )
    return 0
