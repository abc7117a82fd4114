"""Progress bars on standard error. They are drawn only on a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from quire.cli.common.groups import say

if TYPE_CHECKING:
    from rich import progress

    from quire.replication.marks.job_announcements import JobStatus
    from quire.replication.marks.pauses import Pause, PauseGate

REFRESHES_PER_S = 4


class _Line:
    """A progress line that is drawn while its context is entered, if stderr is a terminal."""

    refreshes_per_s = REFRESHES_PER_S

    def __init__(self, shown: bool) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._bar: progress.Progress | None = None
        self._task: progress.TaskID | None = None

    @property
    def drawn(self) -> bool:
        """Whether the line is drawn now."""
        return self._bar is not None

    def _columns(self, progress: ModuleType) -> Iterator[progress.ProgressColumn]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        if self._shown:
            # Imported here, because scripts whose output is piped do not need it.
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                *self._columns(progress),
                console=Console(stderr=True),
                refresh_per_second=self.refreshes_per_s,
                transient=True,
            )
            self._bar.start()
        return self

    def _update(self, **fields: Any) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, **fields)

    def _elapsed_s(self) -> float:
        """Return the seconds since the current task began, or 0 if nothing is drawn."""
        if self._bar is None or self._task is None:
            return 0.0
        return next(one.elapsed or 0.0 for one in self._bar.tasks if one.id == self._task)

    def __exit__(self, *about: object) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()


class ProgressBar(_Line):
    """A bar: `with ProgressBar("read", total=1000) as progress: progress.advance(entries, bytes)`.

    `total` is the number of entries (or of what `counted` names), or of bytes with `in_bytes`. It
    is None if it is not known.
    """

    def __init__(
        self,
        what: str,
        *,
        total: int | None = None,
        in_bytes: bool = False,
        shown: bool = True,
        counted: str = "entries",
    ) -> None:
        super().__init__(shown)
        self._what = what
        self._counted = counted
        self._total = total
        self._in_bytes = in_bytes
        self.entries = 0
        self.size_bytes = 0

    def _columns(self, progress: ModuleType) -> Iterator[progress.ProgressColumn]:
        yield progress.TextColumn("{task.description}")
        yield progress.BarColumn()
        yield progress.TextColumn("{task.fields[entries]:,} " + self._counted)
        if self._counted == "entries":
            yield progress.TextColumn("{task.fields[megabytes]:,.1f} MB")
        yield progress.TextColumn("{task.fields[rate]}")
        yield progress.TimeElapsedColumn()
        yield progress.TimeRemainingColumn()

    def __enter__(self) -> Self:
        super().__enter__()
        if self._bar is not None:
            self._task = self._bar.add_task(
                self._what, total=self._total, entries=0, megabytes=0.0, rate=""
            )
        return self

    def _rate(self) -> str:
        """Return the mean rate so far: of bytes if they are known, else of what is counted."""
        seconds = self._elapsed_s()
        if not seconds:
            return ""
        if self.size_bytes:
            return f"{self.size_bytes / 1e6 / seconds:,.1f} MB/s"
        return f"{self.entries / seconds:,.0f}/s"

    def advance(self, entries: int, size_bytes: int) -> None:
        self.entries += entries
        self.size_bytes += size_bytes
        self._update(
            completed=self.size_bytes if self._in_bytes else self.entries,
            entries=self.entries,
            megabytes=self.size_bytes / 1e6,
            rate=self._rate(),
        )


class RateBar(_Line):
    """A progress line that shows a count, its mean rate and the time left.

    It is drawn only once a second, because drawing takes CPU time from the work that it shows.
    """

    refreshes_per_s = 1

    def __init__(self, *, shown: bool = True) -> None:
        super().__init__(shown)
        self._step: tuple[str, int] | None = None

    def _columns(self, progress: ModuleType) -> Iterator[progress.ProgressColumn]:
        yield progress.TextColumn("{task.description}")
        yield progress.BarColumn()
        yield progress.TextColumn("{task.fields[text]}")

    def show(self, what: str, total: int, done: int, seconds: float) -> None:
        """Show that `done` of `total` were done in the step `what`, which began `seconds` ago."""
        if self._bar is None:
            return
        if self._step != (what, total):
            self._step = what, total
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=total or None, text="")
        text = f"{done:,} of {total:,}"
        if done and seconds:
            left = timedelta(seconds=round(seconds / done * max(total - done, 0)))
            text += f", {done / seconds:,.0f}/s, {left} left"
        self._update(completed=done, text=text)


class JobBar(_Line):
    """A progress line for a job of `quire.replication.moves`, which gets it as `progress`.

    It shows ledgers, bytes, the rate and the time left.
    """

    def __init__(self, counted: str = "ledgers", *, shown: bool = True) -> None:
        super().__init__(shown)
        self._counted = counted
        self._ledgers = self._ledgers_total = 0
        self._bytes = self._bytes_total = 0
        self._step = ""
        self._paused = False
        self.gate: PauseGate | None = None
        """The gate at which the job waits while it is paused."""

    def _columns(self, progress: ModuleType) -> Iterator[progress.ProgressColumn]:
        yield progress.SpinnerColumn()
        yield progress.TextColumn("{task.description}")
        yield progress.BarColumn()
        yield progress.TextColumn("{task.fields[text]}")
        yield progress.TransferSpeedColumn()
        yield progress.TimeElapsedColumn()
        yield progress.TimeRemainingColumn()

    def begin(self, what: str, ledgers: int, size_bytes: int) -> None:
        self._step = what
        self._ledgers, self._ledgers_total = 0, ledgers
        self._bytes, self._bytes_total = 0, size_bytes
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=size_bytes or None, text="")

    def done(self, ledgers: int, size_bytes: int) -> None:
        self._ledgers += ledgers
        self._bytes += size_bytes
        self._update(completed=self._bytes, text=self._text())

    async def may_go_on(self) -> None:
        if self.gate is not None:
            await self.gate.passes()

    def paused(self, found: Pause | None) -> None:
        """Print on standard error that the job is paused or resumed, even if no bar is shown."""
        self._paused = found is not None
        if found is None:
            say("the job is resumed")
        else:
            say(
                f"the job is paused by {found.by}; to resume it, run: "
                f"quire cluster resume {found.kind}"
                + ("" if found.kind == "rebalance" else f" {found.target}")
            )

    def far(self) -> JobStatus:
        from quire.replication.marks.job_announcements import JobStatus

        return JobStatus(
            self._step, self._ledgers_total, self._ledgers, self._bytes_total, self._bytes,
            self._paused,
        )  # fmt: skip

    def _text(self) -> str:
        text = f"{self._ledgers:,}"
        if self._ledgers_total:
            text += f" of {self._ledgers_total:,}"
        text += f" {self._counted}"
        if self._bytes_total:
            text += f", {self._bytes / 1e6:,.1f} of {self._bytes_total / 1e6:,.1f} MB"
        return text


class StepBar(_Line):
    """The progress of a Spark job, which may call it from any thread."""

    def __init__(self, *, shown: bool = True) -> None:
        super().__init__(shown)
        self._lock = threading.Lock()
        self._step = ""
        self._what = ""

    def _columns(self, progress: ModuleType) -> Iterator[progress.ProgressColumn]:
        yield progress.SpinnerColumn()
        yield progress.TextColumn("{task.description}")
        yield progress.BarColumn()
        yield progress.TextColumn("{task.fields[counted]}")
        yield progress.TimeElapsedColumn()
        yield progress.TimeRemainingColumn()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        counted = f"{done:,}" if not total else f"{done:,} of {total:,}"
        with self._lock:
            self._step = f"{what}: {counted}"
            if self._bar is not None and what != self._what:
                # The rate and the time left are those of the step.
                if self._task is not None:
                    self._bar.remove_task(self._task)
                self._task = self._bar.add_task(what, total=None, counted="")
            self._what = what
            if seconds := self._elapsed_s():
                counted += f", {done / seconds:,.0f}/s"
            self._update(completed=done, total=total, counted=counted)

    def far(self) -> JobStatus:
        """Return the current step, for the list of running jobs."""
        from quire.replication.marks.job_announcements import JobStatus

        with self._lock:
            return JobStatus(self._step)

    def __exit__(self, *about: object) -> None:
        with self._lock:
            super().__exit__(*about)
