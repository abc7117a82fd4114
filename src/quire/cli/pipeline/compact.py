"""`quire pipeline compact`."""

from __future__ import annotations

from typing import Any

import click

from quire._runtime.units import counted
from quire.cli.common.options import dry_run_option, flag
from quire.cli.pipeline.job import PipelineJob, job_options
from quire.cli.stream.options import name_argument, namespace_option, stream_callback


@click.command()
@name_argument("stream", "STREAM")
@click.option("--key", "field", metavar="FIELD", help="The key: a field of a JSON object.")
@click.option("--key-prefix", "prefix", metavar="TEXT", help="The key: the record up to this text.")
@click.option("--key-sql", "sql", metavar="EXPR", help="The key: an expression of the columns.")
@click.option(
    "--tombstone",
    "tombstone_field",
    metavar="FIELD",
    help="Records in which this field is missing, or null, remove their key.",
)
@click.option(
    "--tombstone-sql",
    metavar="EXPR",
    help="Records for which this is true remove their key. [default: with --key-prefix, those "
    "with nothing behind it]",
)
@click.option("--to", metavar="DIR", help="The table: a directory, or a URI of a store.")
@click.option(
    "--to-stream", metavar="NAME", callback=stream_callback,
    help="The stream that receives the changes.",
)  # fmt: skip
@flag("--full", "Read all of the stream, not only what is new.")
@flag("--skip-keyless", "Leave out records without key.")
@dry_run_option("Change nothing; say how many records would be read.")
@namespace_option
@job_options
def compact(
    job: PipelineJob,
    path: str,
    stream: str,
    to: str | None,
    to_stream: str | None,
    full: bool,
    skip_keyless: bool,
    dry_run: bool,
    **key_options: Any,
) -> None:
    """Keep the latest record of each key of a stream, as a table of Parquet files or as another
    stream.

    A run brings it up to what is acknowledged now, and reads what is new only.
    """
    from quire.spark.jobs.compact import RecordKey, compact, preview_compact

    if (to is None) == (to_stream is None):
        raise click.UsageError("where to? Give --to DIR or --to-stream NAME")
    key = RecordKey(**key_options)
    where: dict[str, Any] = {"to": to, "to_stream": to_stream, "namespace": path, "full": full}
    if dry_run:
        found = preview_compact(job.cluster, stream, key, **where)
        job.show(
            found.as_json(),
            f"{counted(found.records, 'record')} of {stream} would be read, from {found.start} "
            f"to {found.end}, for {found.target}",
        )
        return
    where["skip_keyless"] = skip_keyless
    with job.session(f"{path}/{stream}") as (spark, progress):
        result = compact(spark, job.cluster, stream, key, progress=progress, **where)
    if not result.changed:
        line = f"nothing new in {stream} behind {result.end}: {result.target} is up to date"
    else:
        kept = counted(result.rows, "key" if to is not None else "record")
        line = f"{counted(result.records, 'record')} of {stream} read, up to {result.end}; {kept}"
        line += f"{'' if to is not None else ' appended'}: {result.target}"
    job.show(result.as_json(), line)
