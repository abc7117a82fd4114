"""The command `quire pipeline ingest`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted
from quire.cli.common.groups import say
from quire.cli.common.options import Duration, checked, composed, flag, key_values
from quire.cli.common.signals import stopping_signals
from quire.cli.pipeline.job import RUN_AGAIN, PipelineJob, job_options
from quire.cli.stream.options import namespace_option, stream_callback
from quire.codec.distributedlog.control_record import check_token

if TYPE_CHECKING:
    from quire.spark.jobs.ingest import Files, IngestTarget

UNKNOWN = (
    "it is unknown whether the rows were appended, so look at the stream before you run the "
    "command again"
)
"""The advice after a signal if the stream does not recognise the rows."""


def _streams(text: str) -> str:
    from quire.spark.streams.write_options import parse_streams

    parse_streams(text)
    return text


def _token(text: str) -> str:
    return check_token(text)


def _job_name(text: str) -> str:
    from quire.streams.publish.published import check_key_name

    return check_key_name(text, "a job")


def _writer_name(text: str) -> str:
    from quire.streams.publish.published import check_key_name

    return check_key_name(text, "a writer")


_SOURCE = (
    click.argument("paths", metavar="[PATH]...", nargs=-1),
    click.option("--table", metavar="NAME", help="Read this table or view instead of files."),
    click.option(
        "--format",
        "format_name",
        metavar="NAME",
        help="The format of the files: csv, json, orc, parquet, text, or another one that Spark "
        "knows. [default: by the file's suffix]",
    ),
    key_values(
        "--option",
        "options",
        help_text="An option of Spark's reader, for example inferSchema=true. May be repeated.",
        distinct=False,
    ),
    click.option(
        "--schema",
        metavar="DDL",
        help='The schema of the files, for example "id BIGINT, name STRING".',
    ),
)
_TARGET = (
    click.option(
        "--stream", metavar="NAME", callback=stream_callback, help="The stream to write."
    ),
    click.option(
        "--stream-column", metavar="COLUMN", help="The column that names the stream of each row."
    ),
    click.option(
        "--streams",
        metavar="NAME,...",
        callback=checked(_streams),
        help="With --stream-column: the names or patterns of the streams that may be written. "
        "[default: all that occur]",
    ),
    flag("--create", "Create streams that do not exist."),
    click.option(
        "--value-column",
        metavar="COLUMN",
        help="The column that becomes the record. [default: the only column, else all columns as a "
        "JSON object]",
    ),
    click.option(
        "--order-by",
        metavar="COLUMN",
        help="Sort the rows by this column. With --follow and --available-now, sort the rows of "
        "each Spark partition, which may have at most 256 MiB.",
    ),
    click.option(
        "--token", envvar="QUIRE_TOKEN", default="", metavar="TEXT", callback=checked(_token),
        help="The fencing token of the streams. [default: QUIRE_TOKEN]",
    ),
)  # fmt: skip
_ONCE = (
    click.option(
        "--txn-id",
        metavar="ID",
        callback=checked(_job_name),
        help="The id of this run. Data that was published under the same id is not appended again. "
        "[default: derived from path, size and time of each file; for a table: none]",
    ),
    flag("--again", "Append the files even if they were ingested before."),
)
_FOLLOW = (
    flag("--follow", "Continue with new files as they arrive, until interrupted."),
    flag("--available-now", "Ingest the files that --checkpoint does not list yet, and stop."),
    click.option(
        "--checkpoint",
        metavar="DIR",
        help="The directory that records which files were read. Required with --follow and "
        "--available-now.",
    ),
    click.option(
        "--writer-id",
        metavar="NAME",
        callback=checked(_writer_name),
        help="The name under which the streams remember what this writer has appended.",
    ),
    flag("--takeover", "Let the writer begin with a new checkpoint, and forget the old one."),
    click.option(
        "--interval",
        "interval_s",
        type=Duration(),
        metavar="SECONDS",
        help="With --follow: the time between two searches for new files. [default: none]",
    ),
)


@click.command()
@composed(*_SOURCE, *_TARGET, *_ONCE, *_FOLLOW)
@namespace_option
@job_options
def ingest(
    job: PipelineJob,
    path: str,
    paths: tuple[str, ...],
    table: str | None,
    format_name: str | None,
    options: dict[str, str],
    schema: str | None,
    stream: str | None,
    stream_column: str | None,
    streams: str | None,
    create: bool,
    value_column: str | None,
    order_by: str | None,
    token: str,
    follow: bool,
    available_now: bool,
    checkpoint: str | None,
    **how: Any,
) -> None:
    """Append the rows of files and tables to streams.

    Each row becomes one record: one of its columns, or all columns as a JSON object. The rows of a
    run become visible in each stream at once. Several streams do not change together. Files that
    have not changed since an earlier run are not appended again, except with --again.
    """
    if (table is None) == (not paths):
        raise click.UsageError("give exactly one source: PATH... or --table NAME")
    if follow and available_now:
        raise click.UsageError("--follow and --available-now exclude each other: give one of them")
    if (follow or available_now) != (checkpoint is not None):
        raise click.UsageError(
            "--checkpoint is needed with --follow or --available-now, and only with these two"
        )
    from quire.spark.jobs.ingest import Files, IngestTarget

    given = tuple(name.strip() for name in streams.split(",")) if streams else ()
    target = IngestTarget(
        stream, path, stream_column, given, value_column, order_by, create, token
    )  # fmt: skip
    files = Files(paths, format_name, options, schema)
    if checkpoint is None:
        _batch(job, files, table, target, **how)
    elif table is not None:
        raise click.UsageError("a table cannot be followed: give the PATH of a directory")
    else:
        how |= {"checkpoint": checkpoint, "available_now": available_now}
        _follow(job, files, target, **how)


def _named(target: IngestTarget) -> str:
    return f"{target.namespace}/{target.stream or ','.join(target.streams) or '*'}"


def _batch(
    job: PipelineJob,
    files: Files,
    table: str | None,
    target: IngestTarget,
    *,
    txn_id: str | None,
    again: bool,
    writer_id: str | None,
    takeover: bool,
    interval_s: float | None,
) -> None:
    if writer_id is not None or takeover or interval_s is not None:
        raise click.UsageError(
            "--writer-id, --takeover and --interval require --follow or --available-now"
        )
    if again and txn_id is not None:
        raise click.UsageError("--again and --txn-id exclude each other: give one of them")
    from quire.spark.jobs.ingest import content_id, ingest, read_listed

    once = txn_id
    known = txn_id is not None or (table is None and not again)
    with job.session(_named(target), RUN_AGAIN if known else UNKNOWN) as (spark, progress):
        if table is not None:
            frame = spark.table(table)
        else:
            frame, listing = read_listed(spark, files)
            once = txn_id or (None if again else content_id(files, listing, target))
        result = ingest(spark, job.cluster, frame, target, txn_id=once, progress=progress)
    names = ", ".join(one.stream for one in result.streams) or "no stream"
    if result.repeated:
        line = f"nothing appended: {names} has this batch already (transaction {result.txn_id})"
    else:
        records = counted(result.records, "record")
        line = f"{records} appended to {names} (transaction {result.txn_id})"
    job.show(result.as_json(), line)


def _follow(
    job: PipelineJob,
    files: Files,
    target: IngestTarget,
    *,
    txn_id: str | None,
    again: bool,
    **how: Any,
) -> None:
    if txn_id is not None or again:
        raise click.UsageError(
            "--txn-id and --again cannot be combined with --follow or --available-now"
        )
    if how["available_now"] and how["interval_s"] is not None:
        raise click.UsageError("--interval requires --follow: --available-now searches only once")
    from quire.spark.jobs.ingest import follow

    with (
        job.session(_named(target)) as (spark, progress),
        # With --available-now the rest would be missing, so that a signal is not the normal end.
        nullcontext() if how["available_now"] else stopping_signals(_ending) as stop,
    ):
        result = follow(spark, job.cluster, files, target, progress=progress, stop=stop, **how)
    batches = counted(result.batches, "micro-batch")
    job.show(result.as_json(), f"{counted(result.records, 'record')} appended in {batches}")


def _ending() -> None:
    say("ending: the next run writes a micro-batch again that is not complete")
