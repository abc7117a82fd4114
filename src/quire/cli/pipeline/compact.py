"""`quire pipeline compact`."""

from __future__ import annotations

import click

from quire._runtime.units import counted
from quire.cli.common.options import dry_run_option
from quire.cli.pipeline.job import Job, job_options
from quire.cli.stream.options import name_argument, namespace_option, stream_callback


@click.command()
@name_argument("stream", "STREAM")
@click.option("--key", "key_field", metavar="FIELD", help="The key: a field of a JSON object.")
@click.option("--key-prefix", metavar="TEXT", help="The key: the record up to this text.")
@click.option("--key-sql", metavar="EXPR", help="The key: an expression of the columns.")
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
@click.option("--full", is_flag=True, help="Read all of the stream, not only what is new.")
@click.option("--skip-keyless", is_flag=True, help="Leave out records without key.")
@dry_run_option("Change nothing; say how many records would be read.")
@namespace_option
@job_options
def compact(
    job: Job,
    path: str,
    stream: str,
    key_field: str | None,
    key_prefix: str | None,
    key_sql: str | None,
    tombstone_field: str | None,
    tombstone_sql: str | None,
    to: str | None,
    to_stream: str | None,
    full: bool,
    skip_keyless: bool,
    dry_run: bool,
) -> None:
    """Keep the latest record of each key of a stream, as a table of Parquet files or as another
    stream.

    A run brings it up to what is acknowledged now, and reads what is new only.
    """
    from quire.spark.jobs.compact import Key, compact, preview_compact

    if (to is None) == (to_stream is None):
        raise click.UsageError("where to? Give --to DIR or --to-stream NAME")
    key = Key(key_field, key_prefix, key_sql, tombstone_field, tombstone_sql)
    if dry_run:
        found = preview_compact(
            job.cluster, stream, key, to=to, to_stream=to_stream, namespace=path, full=full
        )
        job.show(
            found.as_json(),
            f"{counted(found.records, 'record')} of {stream} would be read, from {found.start} "
            f"to {found.end}, for {found.target}",
        )
        return
    result = job.run(
        lambda spark, progress: compact(
            spark,
            job.cluster,
            stream,
            key,
            to=to,
            to_stream=to_stream,
            namespace=path,
            full=full,
            skip_keyless=skip_keyless,
            progress=progress,
        ),
        target=f"{path}/{stream}",
    )
    if not result.changed:
        line = f"nothing new in {stream} behind {result.end}: {result.target} is up to date"
    else:
        kept = counted(result.rows, "key" if to is not None else "record")
        line = f"{counted(result.records, 'record')} of {stream} read, up to {result.end}; {kept}"
        line += f"{'' if to is not None else ' appended'}: {result.target}"
    job.show(result.as_json(), line)
