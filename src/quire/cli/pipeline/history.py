"""`quire pipeline history`: what was offloaded of a stream and what was not, as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted, plural
from quire.cli.common.groups import EXIT_ERROR, fail
from quire.cli.pipeline.common import Job, job_options
from quire.cli.stream.options import PLACES, name_argument, namespace_option, place_option

if TYPE_CHECKING:
    from quire.streams.read.positions import Start


@click.command()
@job_options
@namespace_option
@name_argument()
@click.option("--directory", required=True, metavar="DIR", help="Where the stream is offloaded to.")
@place_option("from", f"The first record: {PLACES}. [default: earliest]")
@place_option("to", "Before this place. [default: what is acknowledged now]")
@click.option("--count", "action", flag_value="count", help="Count the records.")
@click.option(
    "--check", "action", flag_value="check", help="Read every file and compare it with its digests."
)
@click.option(
    "--output",
    metavar="DIR",
    help="Write the records to Parquet files here; DIR must not exist.",
)
def history(
    job: Job,
    path: str,
    name: str,
    directory: str,
    from_place: Start | None,
    to_place: Start | None,
    action: str | None,
    output: str | None,
) -> int:
    """Tell where the offloaded part of a stream ends, and the live part begins; count both, write
    both to files, or check the offloaded part.

    Without --count, --check and --output no Spark is started.
    """
    bounds = {"start": from_place or "earliest", "end": to_place}
    if output is not None and action is not None:
        raise click.UsageError("--output, --count and --check exclude each other")
    if (from_place is not None or to_place is not None) and (action == "check" or (
        action is None and output is None
    )):  # fmt: skip
        raise click.UsageError("--from and --to are for --count and --output")
    if action == "check":
        return _check(job, name, directory)
    if action is None and output is None:
        _describe(job, path, name, directory)
        return 0
    _read(job, (path, name, directory), bounds, output)
    return 0


def _describe(job: Job, path: str, name: str, directory: str) -> None:
    from quire.spark.jobs.history import history_facts

    facts = history_facts(job.cluster, path, name, directory)
    if not facts.files:
        line = f"stream {name}: nothing is offloaded to {directory}"
    else:
        line = (
            f"stream {name}: {facts.records:,} {plural('record', facts.records)} from "
            f"{facts.start} to before {facts.boundary} are in {counted(facts.files, 'file')} "
            f"({facts.size_bytes:,} bytes)"
        )
    line += f"; bookies have it from {facts.live_start} on"
    for gap in facts.gaps:
        line += f"; {gap}"
    job.show(facts.as_json(), line)


def _check(job: Job, name: str, directory: str) -> int:
    from quire.spark.jobs.history import check_history

    wrong: list[str] = job.run(
        lambda spark, progress: check_history(spark, name, directory, progress=progress),
        target=name,
    )
    shown = "all files are as they were written"
    if wrong:
        shown = counted(len(wrong), "damaged file")
    job.show({"stream": name, "damaged": wrong}, f"stream {name}: {shown}")
    for message in wrong:
        fail(message)
    return EXIT_ERROR if wrong else 0


def _read(job: Job, what: tuple[str, str, str], bounds: dict[str, Any], output: str | None) -> None:
    from quire.spark import jobs

    def work(spark: Any, progress: Any) -> int:
        frame = jobs.history(spark, job.cluster, *what, **bounds)
        if output is None:
            frame = frame.select("sequence")
            return int(frame.count())
        progress("write", 0, None)
        frame.write.mode("error").parquet(output)
        return int(spark.read.parquet(output).count())

    name = what[1]
    records = job.run(work, target=f"{what[0]}/{name}")
    result = {"stream": name, "records": records}
    if output is None:
        job.show(result, f"{records:,}")
    else:
        written = f"{records:,} {plural('record', records)} written to {output}"
        job.show({**result, "output": output}, written)
