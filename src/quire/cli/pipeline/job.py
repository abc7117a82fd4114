"""The code that the commands `quire pipeline NAME` share: the cluster, Spark, and the output.

A command looks like this:

    @click.command()
    @job_options
    @namespace_option
    def example(job: PipelineJob, path: str) -> int | None:
        from quire.spark import jobs

        with job.session(target=path) as (spark, progress):
            result = jobs.example(spark, job.cluster, path, progress=progress)
        job.show(result.as_json(), counted(result.records, "record"))

If the job fails, `job.session` raises one error that says what went wrong, without the stack trace
of Spark.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.names.process_name import process_name
from quire._runtime.retry import Backoff, Retry
from quire.cli.common.groups import say
from quire.cli.common.options import (
    PLACEMENT_VARIABLE,
    composed,
    json_option,
    key_values,
    metadata_option,
    password_of,
)
from quire.cli.common.output import diverted, print_json
from quire.cli.common.progress import StepBar
from quire.cli.common.signals import NOTHING_BEGUN, SignalReceived, raising_signals
from quire.cli.common.tls import client_config, tls_options
from quire.config import ClientConfig
from quire.errors import QuireError

if TYPE_CHECKING:
    from quire.replication.marks.job_announcements import JobStatus
    from quire.spark.jobs import ClusterOptions

MASTER = "local[*]"
LOG_NAME = "spark.log"
RUN_AGAIN = "run the same command again"
"""The advice after a signal that ended a job."""
COMPLETE = "the job was complete"
"""The advice of a command after a signal that only prevented it from printing its result."""
RETRY_BACKOFF = Backoff(10.0, 10.0)
"""The pauses between two attempts to reach an unreachable metadata store."""
END_TIMEOUT_S = 5.0
"""Seconds that a job which has ended waits for its announcement to be removed. Otherwise the
announcement disappears with the session of the metadata store."""


@dataclass(slots=True)
class PipelineJob:
    """One run of a command: its options, and how it is run and its result is printed."""

    name: str
    cluster: ClusterOptions
    master: str | None
    settings: Mapping[str, str]
    log: Path | None
    as_json: bool
    advice: str = field(default=NOTHING_BEGUN, init=False)
    """The advice of the command after Ctrl-C that comes before or after the session."""

    @contextmanager
    def session(self, target: str, advice: str = RUN_AGAIN) -> Iterator[tuple[Any, StepBar]]:
        """Yield a Spark session, and the `progress` argument of the job.

        The session is the active one, that of spark-submit, or one that is created for this job and
        stopped after it. The output of Spark goes to a log file, which is removed if the job
        succeeds. `target`, the object that the job works on, is shown in the list of running jobs.

        Any failure becomes a QuireError with one sentence and the name of the log file. Ctrl-C,
        SIGTERM and SIGHUP end the job and its Java process. `advice` says what to do then.
        """
        from quire.spark.failures import messages_in, one_error, py4j_messages_in, text_kept
        from quire.spark.java import JavaProcesses
        from quire.spark.session import job_session

        bar, java = StepBar(shown=not self.as_json), JavaProcesses()
        where = self.cluster.metadata, ClientConfig(tls=self.cluster.tls)
        # Java ends first, so that no call that the end of the job makes can wait for the job.
        with (
            raising_signals(java.terminate, advice),
            _scratch(self.log) as (directory, log),
            py4j_messages_in(log),
        ):
            try:
                with (
                    told(*where, f"pipeline {self.name}", target, bar.far),
                    job_session(
                        f"quire pipeline {self.name}",
                        master=self.master,
                        settings=self.settings,
                        scratch=str(directory),
                        starting=lambda: self._starting(log),
                        java=java,
                    ) as spark,
                    messages_in(log),
                    text_kept(),
                    bar as progress,
                ):
                    yield spark, progress
            except Exception as error:
                single = one_error(error, self.name, lambda: _kept(log, directory))
                if single is error:
                    raise
                raise single from error
        self.advice = COMPLETE

    def _starting(self, log: Path) -> AbstractContextManager[None]:
        """Print that Spark starts, which takes a while, and send its output to the log."""
        if not self.as_json:
            say("starting Spark ...")
        return diverted(log)

    def show(self, result: Mapping[str, Any], line: str) -> None:
        """Print `result` as JSON with --json, else `line`."""
        if self.as_json:
            print_json(result)
        else:
            click.echo(line)


# -- options ----------------------------------------------------------------------------------


_OPTIONS = (
    password_of("The password of the ledgers."),
    click.option(
        "--master",
        metavar="URL",
        help=f"The Spark master: local[N], spark://HOST:PORT, sc://HOST:PORT (Spark Connect), ... "
        f"[default: that of spark-submit, else {MASTER}]",
    ),
    key_values(
        "--conf",
        "settings",
        help_text="A configuration property of Spark. May be repeated.",
        distinct=False,
    ),
    click.option(
        "--spark-log",
        "log",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The file for the log of Spark. [default: a temporary file, which is kept if the job "
        "fails]",
    ),
    json_option("Print the result as one JSON object, without progress."),
)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --metadata, --tls-..., --password, --master, --conf, --spark-log and --json.

    The command receives them as `job`. Apply this decorator directly above the function, or above
    its other options.
    """

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
        try:
            return command(*arguments, job=job, **more)
        except SignalReceived:
            raise
        except KeyboardInterrupt:
            raise SignalReceived(signal.SIGINT, job.advice) from None

    return composed(metadata_option, tls_options, *_OPTIONS)(called)


def cluster_options(uri: str, password: bytes = b"") -> ClusterOptions:
    """Return the cluster at `uri`, with the TLS options and the placement of the current command.

    Raises click.UsageError for invalid options.
    """
    from quire.spark.jobs import ClusterOptions

    tls = client_config().tls  # this also checks the placement
    return ClusterOptions(uri, password, tls, os.environ.get(PLACEMENT_VARIABLE, ""))


# -- what Spark says --------------------------------------------------------------------------


@contextmanager
def _scratch(log: Path | None) -> Iterator[tuple[Path, Path]]:
    """Yield a temporary directory for this run, and the log file.

    The log file is `log`, or a file in the directory if `log` is None.
    """
    with tempfile.TemporaryDirectory(prefix="quire-pipeline-", ignore_cleanup_errors=True) as made:
        yield Path(made), log or Path(made, LOG_NAME)


def _kept(log: Path, directory: Path) -> Path | None:
    """Return the path of the log, which is copied if it is in the temporary directory.

    Return None if the log is empty.
    """
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
    """List the job among the running jobs of the cluster, while the context is entered.

    This uses the event loop of the blocking client and a client of its own, because the job
    occupies this thread. The job neither waits for the announcement nor fails with it. If the
    metadata store cannot be reached, the announcement is tried again.
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
    from quire.replication.marks.job_announcements import announced

    retry = Retry(RETRY_BACKOFF, random.Random())
    while True:
        try:
            async with (
                quire.connect(uri, config=config) as client,
                announced(client.metadata, kind, target, process_name(), client.clock.now_ms, far),
            ):
                await asyncio.Event().wait()
        except QuireError:
            await retry.pause()
