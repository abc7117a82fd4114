"""The commands `quire pipeline offload` and `quire pipeline history`."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted
from quire._runtime.uris import without_credentials
from quire.cli.common.groups import EXIT_ERROR, fail
from quire.cli.common.options import Duration, dry_run_option, flag, key_values, size_option
from quire.cli.pipeline.job import PipelineJob, job_options
from quire.cli.stream.options import (
    PLACES,
    end_place,
    name_argument,
    namespace_option,
    place_option,
)
from quire.errors import JobError

if TYPE_CHECKING:
    from quire.spark.jobs.offload import OffloadResult
    from quire.streams.read.positions import Start

FORMATS = ("parquet", "delta", "iceberg")
COMPRESSIONS = ("zstd", "lz4", "snappy", "gzip", "none")
PARTITIONS = ("date",)
WAIT = "30s"
PATH_EXISTS = "PATH_ALREADY_EXISTS"
"""The class of Spark's error for an output directory that exists."""


# -- offload ----------------------------------------------------------------------------------


@click.command()
@job_options
@namespace_option
@click.argument("streams", metavar="STREAM...", nargs=-1, required=True)
@click.option(
    "--directory",
    required=True,
    metavar="DIR",
    help="The directory for the files: a path or a URI that all Spark executors can reach.",
)
@click.option(
    "--older-than",
    "older_than_s",
    metavar="TIME",
    type=Duration(),
    help="Copy only segments that were closed at least this long ago (500ms, 30s, 15m, 1h). "
    "[default: all]",
)
@size_option(
    "--larger-than",
    "Copy the oldest segments until at most this many bytes are left that were not copied (64m, "
    "10g). With --older-than, a segment is copied if either condition holds.",
)
@flag(
    "--truncate",
    "Truncate the stream up to the verified files, so that bookies free its ledgers.",
)
@click.option(
    "--format",
    type=click.Choice(FORMATS),
    default="parquet",
    show_default=True,
    help="The format. delta and iceberg also add the Parquet files to a table.",
)
@click.option(
    "--table", metavar="NAMESPACE.NAME", help="With --format iceberg: the name of the table."
)
@key_values(
    "--catalog",
    help_text="With --format iceberg: a property of pyiceberg's catalog. May be repeated.",
    distinct=False,
)
@click.option(
    "--partition-by",
    type=click.Choice(PARTITIONS),
    help="Put the records of each date in UTC into a directory of their own.",
)
@click.option(
    "--compression", type=click.Choice(COMPRESSIONS), default="zstd", show_default=True,
    help="The compression of the files.",
)  # fmt: skip
@size_option(
    "--file-size",
    "The approximate size of a file, measured as the bytes of its records in ledgers.",
    name="file_bytes",
    default="128m",
    show_default=True,
)
@size_option(
    "--merge-below",
    "Merge neighbouring Parquet files that are smaller than this (32m). [default: merge none]",
)
@flag("--skip-lost", "Continue after records that are lost, and record what is missing.")
@click.option(
    "--wait", "wait_s", metavar="TIME", default=WAIT, show_default=True,
    type=Duration(), help="How long to wait for another job that offloads the same stream.",
)  # fmt: skip
@dry_run_option("Change nothing; print what would be copied, and how many ledgers freed.")
def offload(
    job: PipelineJob,
    path: str,
    streams: tuple[str, ...],
    directory: str,
    older_than_s: float | None,
    skip_lost: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Copy closed segments of streams to Parquet files.

    STREAM is a name, or a pattern such as 'orders-*'. Each file is read back and compared with the
    data from the bookies before it is published. Run the command again at any time: it continues
    where it stopped, and removes the remains of a run that was killed.
    """
    from quire.spark import jobs

    options |= {"older_than_s": older_than_s or 0.0, "fail_on_data_loss": not skip_lost}
    if dry_run:
        return _preview(job, path, streams, directory, **options)
    with job.session(f"{path}/{','.join(streams)}") as (spark, progress):
        result: OffloadResult = jobs.offload(
            spark, job.cluster, path, streams, directory, progress=progress, **options
        )
    freed = len(result.streams) and f", {counted(result.freed_ledgers, 'ledger')} freed"
    merged = result.merged_files and f", {counted(result.merged_files, 'small file')} merged"
    job.show(
        result.as_json(),
        f"{counted(result.records, 'record')} of {counted(len(result.streams), 'stream')} "
        f"offloaded to {counted(result.files, 'file')}{freed or ''}{merged or ''}",
    )
    for name, error in result.failed.items():
        fail(f"stream {name}: {error}")
    return EXIT_ERROR if result.failed else 0


def _preview(
    job: PipelineJob, path: str, streams: tuple[str, ...], directory: str, **options: Any
) -> int:
    from quire.spark.jobs import preview_offload

    found = preview_offload(job.cluster, path, streams, directory, **options)
    copied = sum(one.ledger_bytes for one in found)
    lines = [
        f"stream {one.stream}: {counted(one.segments, 'segment')} from {one.start} to "
        f"{one.behind}, {counted(one.ledger_bytes, 'byte')}, to {counted(one.files, 'file')}; "
        f"{counted(len(one.freed_ledgers), 'ledger')} would be freed"
        + (f", {counted(one.merged_files, 'small file')} merged" if one.merged_files else "")
        for one in found
        if not one.error
    ]
    failed = [one for one in found if one.error]
    readable = len(found) - len(failed)
    lines.append(f"{counted(readable, 'stream')}: {counted(copied, 'byte')} would be copied")
    result = {"dry_run": True, "ledger_bytes": copied, "streams": [one.as_json() for one in found]}
    job.show(result, "\n".join(lines))
    for one in failed:
        fail(f"stream {one.stream}: {one.error}")
    return EXIT_ERROR if failed else 0


# -- history ----------------------------------------------------------------------------------


@click.command()
@job_options
@namespace_option
@name_argument("name", "STREAM")
@click.option(
    "--directory",
    required=True,
    metavar="DIR",
    help="The directory that the stream was offloaded to.",
)
@place_option("from", f"The position to begin at: {PLACES}. [default: earliest]")
@place_option(
    "to", "Stop before this position. [default: the last acknowledged record]", parse=end_place
)
@flag("--count", "Count the records.")
@flag("--check", "Read every file and compare it with its digests.")
@click.option(
    "--output",
    metavar="DIR",
    help="Write the records to Parquet files in this directory, which must not exist.",
)
@flag("--envelope", "With --output, also write the columns key, headers and event_time.")
def history(
    job: PipelineJob,
    path: str,
    name: str,
    directory: str,
    from_place: Start | None,
    to_place: Start | None,
    count: bool,
    check: bool,
    output: str | None,
    envelope: bool,
) -> int:
    """Inspect and read a stream across its offloaded and live parts.

    By default, the command prints where the offloaded part ends and the live part begins, without
    starting Spark. --count counts the records of both parts, --output writes them to files, and
    --check verifies the offloaded part.
    """
    bounds: dict[str, Any] = {"start": from_place or "earliest", "end": to_place}
    if count + check + (output is not None) > 1:
        raise click.UsageError("--output, --count and --check exclude each other: give one of them")
    reads = count or output is not None
    if (from_place is not None or to_place is not None) and not reads:
        raise click.UsageError("--from and --to require --count or --output")
    if reads:
        from quire.streams.read.positions import check_order

        check_order(bounds["start"], to_place)  # before Spark starts
    if envelope:
        from quire.streams.read.arrow import ALL_COLUMNS

        if output is None:
            raise click.UsageError("--envelope requires --output")
        bounds["columns"] = ALL_COLUMNS
    if check:
        return _check(job, name, directory)
    if not reads:
        _describe(job, path, name, directory)
        return 0
    _read(job, (path, name, directory), bounds, output)
    return 0


def _describe(job: PipelineJob, path: str, name: str, directory: str) -> None:
    from quire.spark.jobs.history import history_facts

    facts = history_facts(job.cluster, path, name, directory)
    if not facts.files:
        line = f"stream {name}: no records are offloaded to {without_credentials(directory)}"
    else:
        line = (
            f"stream {name}: {counted(facts.records, 'record')} from "
            f"{facts.start} to before {facts.boundary} are in {counted(facts.files, 'file')} "
            f"({counted(facts.size_bytes, 'byte')})"
        )
    line += f"; bookies have the records from {facts.live_start} on"
    for gap in facts.gaps:
        line += f"; {gap}"
    job.show(facts.as_json(), line)


def _check(job: PipelineJob, name: str, directory: str) -> int:
    from quire.spark.jobs.history import check_history

    with job.session(name) as (spark, progress):
        wrong: list[str] = check_history(spark, name, directory, progress=progress)
    shown = "all files are intact"
    if wrong:
        shown = counted(len(wrong), "damaged file")
    job.show({"stream": name, "damaged": wrong}, f"stream {name}: {shown}")
    for message in wrong:
        fail(message)
    return EXIT_ERROR if wrong else 0


@contextmanager
def new_directory(output: str | None) -> Iterator[Callable[[], None]]:
    """Raise JobError if the output directory exists already, and remove it if its writing fails.

    The block calls the function that this yields just before it writes the directory. The function
    raises JobError if somebody else has created the directory meanwhile, for example the same
    command, or if another command is about to write it.

    The directory is removed so that the command can be run again after an interruption. That of
    somebody else is not removed: the block fails before it writes, or Spark refuses the path. An
    empty directory is removed and not refused, because a Spark server may create it while it
    cancels a job. Only directories of this machine are checked; Spark itself checks URIs of other
    file systems. Nothing is done if `output` is None.
    """
    begun = False
    with ExitStack() as held:

        def begin() -> None:
            nonlocal begun
            if output is not None:
                held.enter_context(_only_writer(output))
                _refuse_existing(output)
                begun = True

        if output is not None:
            _refuse_existing(output)
        try:
            yield begin
        except BaseException as error:
            if output is not None and begun and not _is_refusal(error):
                shutil.rmtree(output, ignore_errors=True)
            raise


@contextmanager
def _only_writer(output: str) -> Iterator[None]:
    """Raise JobError if another command is in this block for the same directory of this machine.

    Spark checks whether the path exists, and creates it some time later. Two commands that begin at
    the same moment would both write into it. The lock is that of a file beside the directory, and
    ends with the process. Without a file that can be locked there is no lock: Spark may be able to
    write where this process is not.
    """
    path = os.path.realpath(output)
    above = os.path.dirname(path)
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    name = hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:16]
    file = os.path.join(above, f".quire-{name}.lock")
    locked = False
    with ExitStack() as opened:
        while not locked and "://" not in output:
            try:
                descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
                opened.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = _is_still(file, descriptor)
            except BlockingIOError:
                raise JobError(
                    f"another command is writing {output}, and --output writes a new directory",
                    remedy="Name another directory",
                ) from None
            except OSError:
                break
        if locked:
            opened.callback(_unlinked, file)
        yield


def _is_still(file: str, descriptor: int) -> bool:
    """Return whether an open file still has its name. Its former owner may have removed it."""
    try:
        return os.path.samestat(os.stat(file), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _unlinked(file: str) -> None:
    with suppress(OSError):
        os.unlink(file)


def _refuse_existing(output: str) -> None:
    if os.path.exists(output) and not _removed_empty(output):
        raise JobError(
            f"{output} already exists, and --output writes a new directory",
            remedy="Name another directory",
        )


def _is_refusal(error: BaseException) -> bool:
    """Return whether Spark has written nothing, because the path exists."""
    return any(PATH_EXISTS in str(one) for one in (error, error.__cause__))


def _removed_empty(directory: str) -> bool:
    """Remove a directory if it is empty, and return whether that was done."""
    try:
        os.rmdir(directory)
    except OSError:
        return False
    return True


def _read(
    job: PipelineJob, what: tuple[str, str, str], bounds: dict[str, Any], output: str | None
) -> None:
    from quire.spark import jobs

    name = what[1]
    with (
        new_directory(output) as begin,
        job.session(f"{what[0]}/{name}") as (spark, progress),
    ):
        frame = jobs.history(spark, job.cluster, *what, **bounds)
        if output is None:
            frame = frame.select("sequence")
        else:
            progress("write", 0, None)
            begin()
            frame.write.mode("error").parquet(output)
            frame = spark.read.parquet(output)
        records = int(frame.count())
    result = {"stream": name, "records": records}
    if output is None:
        job.show(result, f"{records:,}")
    else:
        shown = without_credentials(output)
        written = f"{counted(records, 'record')} written to {shown}"
        job.show({**result, "output": shown}, written)
