"""`quire pipeline recover`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.move_options import LINES_MAX, done_text, planned_text
from quire.cli.common.options import Duration, Size, bookie_argument
from quire.cli.pipeline.common import Bar, Job, job_options
from quire.replication.autorecovery.settings import OPEN_GRACE_S

if TYPE_CHECKING:
    from quire.spark.jobs.recover import RecoverResult


@click.command()
@bookie_argument()
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would move.")
@click.option(
    "--even-if-alive", is_flag=True, help="Empty a bookie that is registered, too: it is read from."
)
@click.option(
    "--grace",
    "open_grace_s",
    type=Duration(),
    metavar="SECONDS",
    default=OPEN_GRACE_S,
    show_default=True,
    help="How long the writer of an open ledger has to replace the bookie by itself. A ledger to "
    "which nothing happens in that time is fenced and closed.",
)
@click.option("--leave-open", is_flag=True, help="Never fence a ledger; leave those that are open.")
@click.option(
    "--rate",
    metavar="SIZE",
    type=Size(1),
    help="Write at most so many bytes a second in each task: 20m. [default: no bound]",
)
@job_options
def recover(
    job: Job,
    bookie: str,
    dry_run: bool,
    even_if_alive: bool,
    open_grace_s: float,
    leave_open: bool,
    rate: float | None,
) -> int:
    """Replicate again what a lost BOOKIE held, to other bookies.

    Under the same locks and rules as autorecovery, which may be at it, too. Run again it goes on
    where it was. Exit status 1 if ledgers are left that name the bookie.
    """

    def work(spark: Any, progress: Bar) -> RecoverResult:
        from quire.spark.jobs.recover import recover as run

        return run(
            spark,
            job.cluster,
            bookie,
            dry_run=dry_run,
            even_if_alive=even_if_alive,
            open_grace_s=open_grace_s,
            fence_open=not leave_open,
            bytes_per_second=rate,
            progress=progress,
        )

    result = job.run(work, target=bookie)
    job.show(result.as_json(), planned_text(result) if dry_run else done_text(result))
    if not job.as_json:
        for left in result.failed[:LINES_MAX]:
            say(f"ledger {left.ledger}: {left.why}")
    return 0 if result.complete or dry_run else EXIT_ERROR
