"""`quire pipeline audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, fail
from quire.cli.common.options import LEDGER_ID_MAX, Size
from quire.cli.pipeline.common import Bar, Job, job_options
from quire.cli.stream.options import namespace_option

if TYPE_CHECKING:
    from quire.replication import Finding
    from quire.spark.jobs.audit import AuditResult

LINES_MAX = 100
"""Findings that are printed; with --json all are."""


@click.command()
@click.option(
    "--ledger",
    "ledgers",
    metavar="ID",
    type=click.IntRange(0, LEDGER_ID_MAX),
    multiple=True,
    help="This ledger only. May be repeated. [default: all of the cluster]",
)
@click.option(
    "--streams",
    metavar="PATTERN",
    help="The ledgers of these streams only: names as of a shell; * matches / too.",
)
@namespace_option
@click.option(
    "--rate",
    metavar="SIZE",
    type=Size(1),
    help="Read at most so many bytes a second of each bookie: 20m. [default: no bound]",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Write back what is wrong, from replicas that are right; replace bookies that do not "
    "answer.",
)
@job_options
def audit(
    job: Job,
    path: str,
    ledgers: tuple[int, ...],
    streams: str | None,
    rate: float | None,
    repair: bool,
) -> int:
    """Read every replica of every entry from the bookie that should have it.

    Digests are checked, and replicas are compared. The command prints a line for each range of
    entries that is missing, short, damaged, different, or on a bookie that does not answer. Short
    means that an ack quorum has the range and this bookie never got it. The exit status is 1 if
    there is such a range; with --repair, if one could not be repaired. Ledgers and streams whose
    metadata cannot be read are named; then the status is 1 as well.
    """
    if ledgers and streams is not None:
        raise click.UsageError("--ledger and --streams exclude each other")

    def work(spark: Any, progress: Bar) -> AuditResult:
        from quire.spark.jobs.audit import audit as run

        return run(
            spark,
            job.cluster,
            ledgers=ledgers or None,
            streams=streams,
            namespace=path,
            bytes_per_second_per_bookie=rate,
            repair=repair,
            progress=progress,
        )

    result = job.run(work, target="cluster" if streams is None else f"{path}/{streams}")
    job.show(result.as_json(), _text(result))
    for unread in result.unreadable[:LINES_MAX]:
        fail(unread)
    left = result.findings if result.repair is None else result.repair.left
    return EXIT_ERROR if left or result.unreadable else 0


def _text(result: AuditResult) -> str:
    lines = [_line(one) for one in result.findings[:LINES_MAX]]
    if len(result.findings) > LINES_MAX:
        lines.append(f"... and {len(result.findings) - LINES_MAX} more (--json has all)")
    replicas = f"{counted(result.entries, 'replica')} of entries ({result.bytes} bytes)"
    read = f"{counted(result.ledgers, 'ledger')}, {replicas}"
    if result.clean:
        return f"{read}: all right"
    kinds = ", ".join(f"{count} {kind}" for kind, count in result.kinds.items())
    lines.append(f"{read} are right; ranges that are not: {kinds or 'none'}")
    if result.unreadable:
        lines.append(f"not audited, because they cannot be read: {len(result.unreadable)}")
    repair = result.repair
    if repair is not None:
        lines += [f"left: {_line(one)}" for one in repair.left[:LINES_MAX]]
        lines.append(
            f"repaired: {counted(repair.written_back, 'entry')} written back, "
            f"{counted(repair.moved, 'segment')} moved to other bookies; "
            f"{counted(len(repair.left), 'range')} left"
        )
    return "\n".join(lines)


def _line(one: Finding) -> str:
    detail = f" ({one.detail})" if one.detail else ""
    return f"ledger {one.ledger}, {one.first}-{one.last}, {one.bookie}: {one.kind}{detail}"
