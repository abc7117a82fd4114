"""`quire pipeline recover`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quire.admin.groups import EXIT_ERROR, say
from quire.admin.pipeline import Bar, Job, job_options
from quire.admin.pipeline_audit import bytes_per_second

if TYPE_CHECKING:
    from quire.spark.jobs.recover import RecoverResult

OPEN_GRACE_S = 30.0
LINES_MAX = 100


@click.command()
@click.argument("bookie")
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would move.")
@click.option(
    "--even-if-alive", is_flag=True, help="Empty a bookie that is registered, too: it is read from."
)
@click.option(
    "--grace",
    "open_grace_s",
    type=click.FloatRange(min=0),
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
    callback=bytes_per_second,
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

    result = job.run(work)
    job.show(result.as_json(), _text(result))
    if not job.as_json:
        for left in result.failed[:LINES_MAX]:
            say(f"ledger {left.ledger}: {left.why}")
    return 0 if result.complete or dry_run else EXIT_ERROR


def _text(result: RecoverResult) -> str:
    if result.dry_run:
        entries = sum(one.entries for one in result.moves)
        size = sum(one.bytes for one in result.moves)
        waiting = sum(one.open for one in result.moves)
        lines = [
            f"ledger {one.ledger}: {one.fragments} segments, {one.entries} entries, "
            f"{one.bytes} bytes" + (", still open" if one.open else "")
            for one in result.moves[:LINES_MAX]
        ]
        if len(result.moves) > LINES_MAX:
            lines.append(f"... and {len(result.moves) - LINES_MAX} more (--json has all)")
        lines.append(
            f"{len(result.moves)} ledgers name {result.bookie}: {entries} entries, {size} bytes "
            f"would be copied; {waiting} of them are open"
        )
        return "\n".join(lines)
    text = (
        f"{result.ledgers} of {len(result.moves)} ledgers do not name {result.bookie} any more: "
        f"{result.fragments} segments replaced, {result.entries} entries ({result.bytes} bytes) "
        "copied"
    )
    for what, ledgers in (
        ("closed, for their writers were gone", result.recovered),
        ("still written", result.open),
        ("worked on by others", result.locked),
        ("failed", result.failed),
    ):
        if ledgers:
            text += f"; {len(ledgers)} {what}"
    return text
