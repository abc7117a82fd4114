"""What the commands `quire pipeline NAME` share: which cluster, which Spark, what is shown.

A command of it looks like this:

    @click.command()
    @job_options
    @namespace_option
    def example(job: Job, path: str) -> int | None:
        from quire.spark import jobs

        result = job.run(
            lambda spark, progress: jobs.example(spark, job.cluster, path, progress=progress),
            target=path,
        )
        job.show(result.as_json(), f"{result.records} records")

`job.run` raises one error that says what went wrong, never a stack of Spark's.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quire.cli.common.options import json_option, key_values, metadata_option
from quire.cli.common.output import diverted, print_json
from quire.cli.common.tls import client_config, tls_options
from quire.config import ClientConfig
from quire.errors import QuireError

if TYPE_CHECKING:
    from rich import progress

    from quire.config import ClientConfig
    from quire.replication.marks.running import JobStatus
    from quire.spark.jobs import ClusterOptions

T = TypeVar("T")
PASSWORD_VARIABLE = "QUIRE_PASSWORD"
MASTER = "local[*]"
REFRESHES_PER_S = 4
LOG_NAME = "spark.log"
RETRY_S = 10.0
"""Between two attempts to reach a metadata store that cannot be reached."""
END_TIMEOUT_S = 5.0
"""A job that has ended waits so long to be told of no more; else that goes with its session."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one command: what its options say, and how it is run and shown."""

    name: str
    cluster: ClusterOptions
    master: str | None
    settings: Mapping[str, str]
    log: Path | None
    as_json: bool

    def run(self, work: Callable[[Any, Bar], T], *, target: str) -> T:
        """`work(spark, progress)` in the active session, in that of spark-submit, or in one that
        is made for it and stopped behind it. What Spark says meanwhile goes to a file, which is
        removed when all went well. `target`, what it works on, is told with the jobs that run.

        QuireError: one sentence of what went wrong, and the name of that file."""
        from quire.spark.failures import one_error
        from quire.spark.session import job_session

        bar = Bar(shown=not self.as_json)
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
                    return work(spark, progress)
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
    click.option(
        "--password",
        envvar=PASSWORD_VARIABLE,
        default="",
        metavar="TEXT",
        callback=lambda context, parameter, value: os.fsencode(value),
        help=f"Of the ledgers. Others on this machine see command lines: the variable "
        f"{PASSWORD_VARIABLE} is safer. [default: {PASSWORD_VARIABLE}, else none]",
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
        job = Job(context.info_name or "", cluster, master, settings, log, as_json)
        return command(*arguments, job=job, **more)

    wrapped: Callable[..., Any] = called
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return metadata_option(tls_options(wrapped))


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


# -- progress ---------------------------------------------------------------------------------


class Bar:
    """A line of progress on a terminal's standard error; nothing elsewhere. Called as jobs call
    their `progress`, from any thread."""

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._bar: progress.Progress | None = None
        self._task: progress.TaskID | None = None
        self._lock = threading.Lock()
        self._step = ""

    def __enter__(self) -> Bar:
        if self._shown:
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.SpinnerColumn(),
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.TextColumn("{task.fields[counted]}"),
                progress.TimeElapsedColumn(),
                console=Console(stderr=True),
                refresh_per_second=REFRESHES_PER_S,
                transient=True,
            )
            self._bar.start()
        return self

    def __call__(self, what: str, done: int, total: int | None) -> None:
        counted = f"{done:,}" if not total else f"{done:,} of {total:,}"
        with self._lock:
            self._step = f"{what}: {counted}"
            if self._bar is None:
                return
            if self._task is None:
                self._task = self._bar.add_task(what, total=None, counted="")
            self._bar.update(
                self._task, description=what, completed=done, total=total, counted=counted
            )

    def far(self) -> JobStatus:
        """For whoever looks at the jobs that run. What is counted differs from job to job."""
        from quire.replication.marks.running import JobStatus

        with self._lock:
            return JobStatus(self._step)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()


# -- among the jobs that run ------------------------------------------------------------------


@contextmanager
def told(
    uri: str, config: ClientConfig, kind: str, target: str, far: Callable[[], JobStatus]
) -> Iterator[None]:
    """While this is open, the job is among those that run on this cluster. On the loop behind the
    blocking client and with a client of its own, because the job has this thread. The job neither
    waits for it nor fails with it: a store that cannot be reached is asked again."""
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
    from quire.replication.marks.running import announced

    while True:
        try:
            async with (
                quire.connect(uri, config=config) as client,
                announced(client.metadata, kind, target, default_name(), client.clock.now_ms, far),
            ):
                await asyncio.Event().wait()
        except QuireError:
            await asyncio.sleep(RETRY_S)
