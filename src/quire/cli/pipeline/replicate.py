"""`quire pipeline replicate`."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted
from quire.cli.common.options import Duration, dry_run_option, flag, password_of
from quire.cli.pipeline.job import PipelineJob, cluster_options, job_options
from quire.cli.stream.options import namespace_option, path_callback, set_option
from quire.errors import MetadataURIError

if TYPE_CHECKING:
    from quire.spark.jobs.replicate import ReplicatePreview, ReplicateResult

PASSWORD_VARIABLE = "QUIRE_TARGET_PASSWORD"
LINE_EACH_S = 10.0
"""Seconds between two lines of a continuous run whose standard error is no terminal."""


def _target(context: click.Context, parameter: click.Parameter, value: str) -> str:
    from quire.metadata.uri import parse_uri

    try:
        parse_uri(value)
    except MetadataURIError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    return value


@click.command()
@click.option(
    "--to", metavar="URI", required=True, callback=_target, help="The metadata of the target."
)
@click.option(
    "--to-namespace", metavar="PATH", callback=path_callback,
    help="Of the copies. [default: as in the source]",
)  # fmt: skip
@password_of(
    f"Of the ledgers of the target. [default: {PASSWORD_VARIABLE}, else none]",
    "--to-password",
    envvar=PASSWORD_VARIABLE,
)
@click.option(
    "--streams",
    metavar="PATTERN",
    default="*",
    help="Which streams: names as of a shell; * matches / too. [default: all]",
)
@flag("--continuous", "Go on, until interrupted.")
@click.option(
    "--for",
    "for_s",
    type=Duration(0.001),
    metavar="SECONDS",
    help="With --continuous: stop after this.",
)
@flag("--keep-truncated", "Keep in the target what the source gives up.")
@flag(
    "--skip-gaps",
    "With --keep-truncated: go on behind what the source gave up before it was copied.",
)
@set_option
@dry_run_option("Change nothing; say what would be copied, and what would be refused.")
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
    """Copy the streams of a namespace to another cluster, byte for byte, at the same positions.

    Run it again to go on, after anything. With --set the copies get other settings than the source
    has (--set ensemble_size=1). It ends with 1 if a stream could not be copied; the others are.
    """
    if for_s is not None and not continuous:
        raise click.UsageError("--for goes together with --continuous")
    if skip_gaps and not keep_truncated:
        raise click.UsageError("--skip-gaps goes together with --keep-truncated")
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
        _until_interrupted(continuous) as stop,
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


def _failed(result: ReplicateResult | ReplicatePreview) -> int | None:
    for one in result.failed:
        click.echo(f"Error: {one.error}", err=True)
    return 1 if result.failed else None


def _plan(plan: ReplicatePreview) -> str:
    lines = [
        f"stream {one.stream}{' (new)' if one.new else ''}: {counted(one.segments, 'segment')}"
        f"{' and what is there of the one in progress' if one.in_progress else ''}, "
        f"{counted(one.records, 'record')}, {one.bytes} bytes; "
        f"{counted(len(one.freed_ledgers), 'ledger')} of the copy would be freed"
        for one in plan.streams
        if not one.error
    ]
    lines.append(
        f"{counted(len(plan.streams) - len(plan.failed), 'stream')}: "
        f"{counted(plan.total('segments'), 'segment')}, "
        f"{counted(plan.total('records'), 'record')}, {plan.total('bytes')} bytes "
        f"would be copied to {plan.target_namespace}"
    )
    return "\n".join(lines)


def _line(result: ReplicateResult) -> str:
    return (
        f"{counted(len(result.streams) - len(result.failed), 'stream')}: "
        f"{counted(result.total('segments'), 'segment')} completed, "
        f"{counted(result.total('entries'), 'entry')}, {result.total('bytes')} bytes copied in "
        f"{result.seconds:.1f} s; {counted(result.total('lag_records'), 'record')}, "
        f"{result.total('lag_bytes')} bytes, {result.lag_seconds:.1f} s behind"
    )


def _lines() -> Any:
    """A line of lag now and then, where there is no progress bar to show it."""
    told_at = 0.0

    def report(result: ReplicateResult) -> None:
        nonlocal told_at
        if sys.stderr.isatty() or time.monotonic() < told_at + LINE_EACH_S:
            return
        told_at = time.monotonic()
        click.echo(_line(result), err=True)

    return report


@contextmanager
def _until_interrupted(continuous: bool) -> Iterator[threading.Event]:
    """Set by the first interruption, which ends a continuous run in order; the second is one.
    (Spark has set a handler of its own when its session was made.)"""
    stop = threading.Event()
    if not continuous:
        yield stop
        return
    kept: dict[signal.Signals, Any] = {}

    def end(number: int, frame: Any) -> None:
        stop.set()
        for one, former in kept.items():
            signal.signal(one, former)

    for one in (signal.SIGINT, signal.SIGTERM):
        kept[one] = signal.signal(one, end)
    try:
        yield stop
    finally:
        for one, former in kept.items():
            signal.signal(one, former)
