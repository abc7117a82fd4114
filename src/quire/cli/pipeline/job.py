"""The parts that the commands `quire pipeline NAME` share: the cluster, Spark, and the output.

A command of it looks like this:

    @click.command()
    @job_options
    @namespace_option
    def example(job: PipelineJob, path: str) -> int | None:
        from quire.spark import jobs

        with job.session(target=path) as (spark, progress):
            result = jobs.example(spark, job.cluster, path, progress=progress)
        job.show(result.as_json(), f"{result.records} records")

`job.session` raises one error that says what went wrong, never a stack of Spark's.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.retry import Backoff, Retry
from quire.cli.common.options import composed, json_option, key_values, metadata_option, password_of
from quire.cli.common.output import diverted, print_json
from quire.cli.common.progress import StepBar
from quire.cli.common.tls import client_config, tls_options
from quire.config import ClientConfig
from quire.errors import QuireError

if TYPE_CHECKING:
    from quire.config import ClientConfig
    from quire.replication.marks.job_announcements import JobStatus
    from quire.spark.jobs import ClusterOptions

PASSWORD_VARIABLE = "QUIRE_PASSWORD"
MASTER = "local[*]"
LOG_NAME = "spark.log"
RETRY_BACKOFF = Backoff(10.0, 10.0)
"""The pauses between two attempts to reach an unreachable metadata store."""
END_TIMEOUT_S = 5.0
"""A job that has ended waits so long to be told of no more; else that goes with its session."""


@dataclass(frozen=True, slots=True)
class PipelineJob:
    """One run of one command: what its options say, and how it is run and shown."""

    name: str
    cluster: ClusterOptions
    master: str | None
    settings: Mapping[str, str]
    log: Path | None
    as_json: bool

    @contextmanager
    def session(self, target: str) -> Iterator[tuple[Any, StepBar]]:
        """A session of Spark, and what a job calls as its `progress`.

        The session is the active one, that of spark-submit, or one that is made for this job and
        stopped after it. What Spark says meanwhile goes to a file, which is removed when all went
        well. `target`, what the job works on, is shown in the list of jobs that run.

        Any failure becomes a QuireError with one sentence and the name of that file.
        """
        from quire.spark.failures import one_error
        from quire.spark.session import job_session

        bar = StepBar(shown=not self.as_json)
        where = self.cluster.metadata, ClientConfig(tls=self.cluster.tls)
        with _scratch(self.log) as (directory, log):
            try:
                with (
                    told(*where, f"pipeline {self.name}", target, bar.far),
                    job_session(
                        f"quire pipeline {self.name}",
                        master=self.master,
                        settings=self.settings,
                        scratch=str(directory),
                        starting=functools.partial(diverted, log),
                    ) as spark,
                    bar as progress,
                ):
                    yield spark, progress
            except Exception as error:
                raise one_error(error, self.name, lambda: _kept(log, directory)) from error

    def show(self, result: Mapping[str, Any], line: str) -> None:
        """On standard output: with --json the result, else the line."""
        if self.as_json:
            print_json(result)
        else:
            click.echo(line)


# -- options ----------------------------------------------------------------------------------


_OPTIONS = (
    password_of(
        f"Of the ledgers. Others on this machine see command lines: the variable "
        f"{PASSWORD_VARIABLE} is safer. [default: {PASSWORD_VARIABLE}, else none]",
        envvar=PASSWORD_VARIABLE,
    ),
    click.option(
        "--master",
        metavar="URL",
        help=f"Where Spark runs: local[N], spark://HOST:PORT, sc://HOST:PORT (Spark Connect), ... "
        f"[default: what spark-submit says, else {MASTER}]",
    ),
    key_values(
        "--conf", "settings", help_text="A setting of Spark. May be repeated.", distinct=False
    ),
    click.option(
        "--spark-log",
        "log",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Where to keep what Spark says. [default: a temporary file, kept if the job fails]",
    ),
    json_option("The result as one JSON object; no progress."),
)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--metadata, --tls-..., --password, --master, --conf, --spark-log and --json; the command gets
    them as `job`. Stands directly above the function, or above its other options."""

    @functools.wraps(command)
    def called(
        *arguments: Any,
        uri: str,
        password: bytes,
        master: str | None,
        settings: dict[str, str],
        log: Path | None,
        as_json: bool,
        **more: Any,
    ) -> Any:
        from quire.spark.session import need_spark

        need_spark()
        context = click.get_current_context()
        cluster = cluster_options(uri, password)
        job = PipelineJob(context.info_name or "", cluster, master, settings, log, as_json)
        return command(*arguments, job=job, **more)

    return composed(metadata_option, tls_options, *_OPTIONS)(called)


def cluster_options(uri: str, password: bytes = b"") -> ClusterOptions:
    """The cluster that the options of the command at hand name."""
    from quire.spark.jobs import ClusterOptions

    return ClusterOptions(uri, password, client_config().tls)


# -- what Spark says --------------------------------------------------------------------------


@contextmanager
def _scratch(log: Path | None) -> Iterator[tuple[Path, Path]]:
    """A directory for this run, and the file for what Spark says: in there, unless one is named."""
    with tempfile.TemporaryDirectory(prefix="quire-pipeline-", ignore_cleanup_errors=True) as made:
        yield Path(made), log or Path(made, LOG_NAME)


def _kept(log: Path, directory: Path) -> Path | None:
    """The log, where it survives the directory; None: Spark has said nothing that was caught."""
    if not log.exists() or log.stat().st_size == 0:
        return None
    if log.parent != directory:
        return log
    handle, name = tempfile.mkstemp(prefix="quire-pipeline-", suffix=".log")
    with os.fdopen(handle, "wb") as file:
        file.write(log.read_bytes())
    return Path(name)


# -- among the jobs that run ------------------------------------------------------------------


@contextmanager
def told(
    uri: str, config: ClientConfig, kind: str, target: str, far: Callable[[], JobStatus]
) -> Iterator[None]:
    """List the job among those that run on this cluster, while the context is entered.

    This uses the loop of the blocking client and a client of its own, because the job has this
    thread. The job neither waits for it nor fails with it; a store that cannot be reached is tried
    again.
    """
    from quire.blocking.background import call

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(_tell(uri, config, kind, target, far))

    async def end() -> None:
        telling.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await asyncio.gather(telling, return_exceptions=True)

    telling = call(begin())
    try:
        yield
    finally:
        call(end())


async def _tell(
    uri: str, config: ClientConfig, kind: str, target: str, far: Callable[[], JobStatus]
) -> None:
    import quire
    from quire.cli.common.options import default_name
    from quire.replication.marks.job_announcements import announced

    retry = Retry(RETRY_BACKOFF, random.Random())
    while True:
        try:
            async with (
                quire.connect(uri, config=config) as client,
                announced(client.metadata, kind, target, default_name(), client.clock.now_ms, far),
            ):
                await asyncio.Event().wait()
        except QuireError:
            await retry.pause()
