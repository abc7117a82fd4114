"""The command `quire pipeline compact`."""

from __future__ import annotations

from typing import Any

import click

from quire._runtime.units import counted
from quire.cli.common.options import dry_run_option, flag
from quire.cli.pipeline.job import PipelineJob, job_options
from quire.cli.stream.options import name_argument, namespace_option, stream_callback


@click.command()
@name_argument("stream", "STREAM")
@click.option(
    "--key", "field", metavar="FIELD", help="Use this field of the record, a JSON object, as key."
)
@click.option(
    "--key-prefix", "prefix", metavar="TEXT", help="Use the record up to this text as key."
)
@click.option(
    "--key-sql", "sql", metavar="EXPR", help="Use this SQL expression of the columns as key."
)
@flag("--record-key", "Use the key with which the record was appended.", name="own")
@click.option(
    "--tombstone",
    "tombstone_field",
    metavar="FIELD",
    help="A record in which this field is missing or null removes its key.",
)
@click.option(
    "--tombstone-sql",
    metavar="EXPR",
    help="A record for which this SQL expression is true removes its key. [default: with "
    "--key-prefix, a record that has nothing after the prefix; with --record-key, an empty record]",
)
@click.option("--to", metavar="DIR", help="The directory, or URI, of the table to write.")
@click.option(
    "--to-stream", metavar="NAME", callback=stream_callback,
    help="The stream that receives the changes, instead of a table.",
)  # fmt: skip
@flag("--full", "Read the whole stream, not only new records.")
@flag("--skip-keyless", "Ignore records without a key. [default: fail]")
@dry_run_option("Change nothing; print how many records would be read.")
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
    """Keep the latest record of each key of a stream.

    The result is a table of Parquet files, or another stream. Each run reads only the records that
    are new since the last one, up to those that are acknowledged now.
    """
    from quire.spark.jobs.compact import RecordKey, compact, preview_compact

    if (to is None) == (to_stream is None):
        raise click.UsageError("give exactly one target: --to DIR or --to-stream NAME")
    key = RecordKey(**{**key_options, "own": key_options["own"] or None})
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
        line = f"no new records in {stream} after {result.end}: {result.target} is up to date"
    else:
        kept = counted(result.rows, "key" if to is not None else "record")
        line = f"{counted(result.records, 'record')} of {stream} read, up to {result.end}; {kept}"
        line += f"{'' if to is not None else ' appended'}: {result.target}"
    job.show(result.as_json(), line)
