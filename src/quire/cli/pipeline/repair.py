"""The commands `quire pipeline audit` and `quire pipeline recover`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, fail
from quire.cli.common.moves import LINES_MAX, done_text, planned_text, say_what_is_left
from quire.cli.common.options import (
    Duration,
    LedgerId,
    bookie_argument,
    dry_run_option,
    flag,
    size_option,
)
from quire.cli.pipeline.job import PipelineJob, job_options
from quire.cli.stream.options import namespace_option
from quire.replication.autorecovery.settings import OPEN_GRACE_S

if TYPE_CHECKING:
    from quire.replication import Finding
    from quire.spark.jobs.audit import AuditResult


# -- audit ------------------------------------------------------------------------------------


@click.command()
@click.option(
    "--ledger",
    "ledgers",
    metavar="ID",
    type=LedgerId(),
    multiple=True,
    help="Audit only this ledger. May be repeated. [default: all ledgers of the cluster]",
)
@click.option(
    "--streams",
    metavar="PATTERN",
    help="Audit only the ledgers of the streams whose names match this shell pattern; * also "
    "matches /.",
)
@namespace_option
@size_option(
    "--rate",
    "Read at most this many bytes per second from each bookie, for example 20m. [default: no "
    "limit]",
)
@flag(
    "--repair",
    "Rewrite wrong replicas from intact ones, and replace bookies that do not answer.",
)
@job_options
def audit(
    job: PipelineJob,
    path: str,
    ledgers: tuple[int, ...],
    streams: str | None,
    rate: float | None,
    repair: bool,
) -> int:
    """Read every replica of every entry, and report what is wrong.

    The command reads each replica from the bookie that should have it, checks its digest, and
    compares it with the others. It prints a line for each range of entries that is missing, short,
    damaged, different, or on a bookie that does not answer. Short means that the bookie lacks the
    end of a segment that an ack quorum of others has, so it may never have received it. The exit
    status is 1 if there is such a range; with --repair, if one could not be repaired. It is also 1
    if the metadata of a ledger or stream cannot be read; these are listed.
    """
    if ledgers and streams is not None:
        raise click.UsageError("--ledger and --streams exclude each other: give one of them")

    from quire.spark.jobs.audit import audit as run

    target = "cluster" if streams is None else f"{path}/{streams}"
    with job.session(target) as (spark, progress):
        result = run(
            spark,
            job.cluster,
            ledgers=ledgers or None,
            streams=streams,
            namespace=path,
            bytes_per_second_per_bookie=rate,
            repair=repair,
            progress=progress,
        )
    job.show(result.as_json(), _text(result))
    for unread in result.unreadable[:LINES_MAX]:
        fail(unread)
    left = result.findings if result.repair is None else result.repair.left
    return EXIT_ERROR if left or result.unreadable else 0


def _text(result: AuditResult) -> str:
    lines = [_line(one) for one in result.findings[:LINES_MAX]]
    if len(result.findings) > LINES_MAX:
        lines.append(
            f"... and {counted(len(result.findings) - LINES_MAX, 'range')} more (--json has all)"
        )
    replicas = f"{counted(result.entries, 'replica')} of entries ({counted(result.bytes, 'byte')})"
    read = f"{counted(result.ledgers, 'ledger')}, {replicas}"
    if result.clean:
        return f"{read}: no problems"
    kinds = ", ".join(f"{count} {kind}" for kind, count in result.kinds.items())
    lines.append(f"{read} are intact; ranges with problems: {kinds or 'none'}")
    if result.unreadable:
        lines.append(f"not audited, because they cannot be read: {len(result.unreadable)}")
    repair = result.repair
    if repair is not None:
        lines += [f"not repaired: {_line(one)}" for one in repair.left[:LINES_MAX]]
        lines.append(
            f"repaired: {counted(repair.written_back, 'entry')} written back, "
            f"{counted(repair.moved, 'segment')} moved to other bookies; "
            f"{counted(len(repair.left), 'range')} not repaired"
        )
    return "\n".join(lines)


def _line(one: Finding) -> str:
    detail = f" ({one.detail})" if one.detail else ""
    return f"ledger {one.ledger}, {one.first}-{one.last}, {one.bookie}: {one.kind}{detail}"


# -- recover ----------------------------------------------------------------------------------


@click.command()
@bookie_argument()
@dry_run_option("Change nothing; print which ledgers would be copied, and about how many bytes.")
@flag(
    "--even-if-alive",
    "Also accept a bookie that is still registered, and empty it. Its replicas are copied from it "
    "too.",
)
@click.option(
    "--grace",
    "open_grace_s",
    type=Duration(),
    metavar="SECONDS",
    default=OPEN_GRACE_S,
    show_default=True,
    help="How long to wait for the writer of an open ledger to replace the bookie, in seconds or "
    "with a unit. If the ledger does not change in that time, its writer is fenced, and the ledger "
    "is closed.",
)
@flag("--leave-open", "Never fence a writer; leave open ledgers as they are.")
@size_option(
    "--rate",
    "Write at most this many bytes per second in each Spark task, for example 20m. [default: no "
    "limit]",
    name="bytes_per_second",
)
@job_options
def recover(job: PipelineJob, bookie: str, leave_open: bool, **options: Any) -> int:
    """Re-replicate the data of a lost BOOKIE to other bookies, with Spark.

    The command does the same as `quire bookie recover`, in the tasks of a Spark job. It uses the
    same locks and rules as autorecovery, which may run at the same time. If it is interrupted, run
    it again: it continues where it stopped. The exit status is 1 if ledgers with replicas on BOOKIE
    are left.
    """

    from quire.spark.jobs.recover import recover as run

    with job.session(bookie) as (spark, progress):
        result = run(
            spark, job.cluster, bookie, fence_open=not leave_open, progress=progress, **options
        )
    dry_run = options["dry_run"]
    text = planned_text(result) if dry_run else done_text(result, open_skipped=leave_open)
    job.show(result.as_json(), text)
    if not job.as_json:
        say_what_is_left(result, open_skipped=leave_open, repeat=True)
    return 0 if result.complete or dry_run else EXIT_ERROR
