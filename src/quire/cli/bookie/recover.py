"""`quire bookie recover`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quire.cli.common.groups import EXIT_ERROR
from quire.cli.common.job_progress import JobBar
from quire.cli.common.move_options import (
    LISTED_MAX,
    done_text,
    move_options,
    planned_text,
    run_job,
    say_what_is_left,
)
from quire.cli.common.options import bookie_argument
from quire.cli.common.output import print_json

if TYPE_CHECKING:
    from quire.client import Client
    from quire.replication import ReplicationLocks
    from quire.replication.moves.recover import MoveOptions, RecoverResult


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
