"""The command `quire pipeline replicate`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, fail, say
from quire.cli.common.options import Duration, dry_run_option, flag, password_of
from quire.cli.common.signals import stopping_signals
from quire.cli.pipeline.job import PipelineJob, cluster_options, job_options
from quire.cli.stream.options import namespace_option, path_callback, set_option
from quire.errors import MetadataURIError

if TYPE_CHECKING:
    from quire.spark.jobs.replicate import ReplicateResult
    from quire.spark.jobs.replicate_preview import ReplicatePreview

PASSWORD_VARIABLE = "QUIRE_TARGET_PASSWORD"
LINE_EACH_S = 10.0
"""Seconds between two lines of a continuous run, if standard error is not a terminal."""


def _target(context: click.Context, parameter: click.Parameter, value: str) -> str:
    from quire.metadata.uri import parse_uri

    try:
        parse_uri(value)
    except MetadataURIError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    return value


@click.command()
@click.option(
    "--to",
    metavar="URI",
    required=True,
    callback=_target,
    help="The metadata store of the target cluster.",
)
@click.option(
    "--to-namespace", metavar="PATH", callback=path_callback,
    help="The namespace of the copies. [default: that of the source]",
)  # fmt: skip
@password_of(
    "The password of the ledgers of the target.", "--to-password", envvar=PASSWORD_VARIABLE
)
@click.option(
    "--streams",
    metavar="PATTERN",
    default="*",
    help="Copy only streams whose names match this shell pattern; * also matches /. [default: all]",
)
@flag("--continuous", "Keep copying until interrupted.")
@click.option(
    "--for",
    "for_s",
    type=Duration(0.001),
    metavar="SECONDS",
    help="With --continuous: stop after this time.",
)
@flag("--keep-truncated", "Keep records in the target that the source truncates.")
@flag(
    "--skip-gaps",
    "With --keep-truncated: continue after records that the source truncated before they were "
    "copied.",
)
@set_option
@dry_run_option("Change nothing; print what would be copied, and what would be refused.")
@namespace_option
@job_options
def replicate(
    job: PipelineJob,
    path: str,
    to: str,
    to_namespace: str | None,
    to_password: bytes,
    streams: str,
    continuous: bool,
    for_s: float | None,
    keep_truncated: bool,
    skip_gaps: bool,
    values: dict[str, Any],
    dry_run: bool,
) -> int | None:
    """Copy streams to another cluster, once or continuously.

    The copies have the same records at the same positions, byte for byte. However a run ended, run
    the command again to continue. --set gives the copies settings that differ from the source, for
    example --set ensemble_size=1. Once the target has all partitions of a topic, the topic is
    created there, too. The exit status is 1 if a stream could not be copied; the others are copied
    all the same.
    """
    if for_s is not None and not continuous:
        raise click.UsageError("--for requires --continuous")
    if skip_gaps and not keep_truncated:
        raise click.UsageError("--skip-gaps requires --keep-truncated")
    from quire.spark import jobs

    target = cluster_options(to, to_password)
    looked: dict[str, Any] = {
        "streams": streams,
        "target_namespace": to_namespace,
        "truncation": not keep_truncated,
        "on_gap": "skip" if skip_gaps else "raise",
    }
    if dry_run:
        plan = jobs.preview_replicate(job.cluster, target, path, **looked)
        job.show(plan.as_json(), _plan(plan))
        return _failed(plan)

    with (
        job.session(f"{path}/{streams}") as (spark, progress),
        stopping_signals(_ending) if continuous else nullcontext() as stop,
    ):
        result = jobs.replicate(
            spark,
            job.cluster,
            target,
            path,
            continuous=continuous,
            stop=stop,
            for_s=for_s,
            settings=values,
            report=_lines() if continuous else None,
            progress=progress,
            **looked,
        )
    job.show(result.as_json(), _line(result))
    return _failed(result)


def _ending() -> None:
    say("ending: what is being copied is completed first. To end at once, interrupt once more")


def _failed(result: ReplicateResult | ReplicatePreview) -> int | None:
    for error in dict.fromkeys(one.error for one in result.failed):  # that of a topic only once
        fail(error)
    return EXIT_ERROR if result.failed else None


def _plan(plan: ReplicatePreview) -> str:
    lines = [
        f"stream {one.stream}{' (new)' if one.new else ''}: {counted(one.segments, 'segment')}"
        f"{' and a part of the one in progress' if one.in_progress else ''}, "
        f"{counted(one.records, 'record')}, {counted(one.bytes, 'byte')}; "
        f"{counted(len(one.freed_ledgers), 'ledger')} of the copy would be freed"
        for one in plan.streams
        if not one.error
    ]
    lines.append(
        f"{counted(len(plan.streams) - len(plan.failed), 'stream')}: "
        f"{counted(plan.total('segments'), 'segment')}, "
        f"{counted(plan.total('records'), 'record')}, {counted(plan.total('bytes'), 'byte')} "
        f"would be copied to {plan.target_namespace}{_topics(plan.topics, 'would be created')}"
    )
    return "\n".join(lines)


def _line(result: ReplicateResult) -> str:
    failed = len(result.failed)
    not_known = f" (without that of {counted(failed, 'failed stream')})" if failed else ""
    return (
        f"{counted(len(result.streams) - failed, 'stream')}: "
        f"{counted(result.total('segments'), 'segment')} completed, "
        f"{counted(result.total('entries'), 'entry')}, {counted(result.total('bytes'), 'byte')} "
        f"copied in {result.seconds:.1f} s; {counted(result.total('lag_records'), 'record')}, "
        f"{counted(result.total('lag_bytes'), 'byte')}, {result.lag_seconds:.1f} s behind"
        f"{not_known}{_topics(result.topics, 'created')}"
    )


def _topics(names: Sequence[str], done: str) -> str:
    if not names:
        return ""
    return f"; topic{'s' if len(names) > 1 else ''} {', '.join(names)} {done}"


def _lines() -> Any:
    """Return a function that prints the lag periodically, if no progress bar shows it."""
    told_at = 0.0

    def report(result: ReplicateResult) -> None:
        nonlocal told_at
        if sys.stderr.isatty() or time.monotonic() < told_at + LINE_EACH_S:
            return
        told_at = time.monotonic()
        say(_line(result))

    return report
