"""Lines of progress on a terminal's standard error; nothing elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from quire.cli.common.groups import say

if TYPE_CHECKING:
    from rich import progress

    from quire.replication.marks.pauses import Pause, PauseGate
    from quire.replication.marks.running import JobStatus

REFRESHES_PER_S = 4
REFRESHES_PER_S = 4


class Progress:
    """`with Progress("read", total=1000) as progress: progress.advance(entries, size_bytes)`.

    `total` counts entries (or what `counted` says), or bytes with `in_bytes`; None: not known.
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
        self._what = what
        self._counted = counted
        self._total = total
        self._in_bytes = in_bytes
        self._shown = shown and sys.stderr.isatty()
        self._bar: progress.Progress | None = None
        self._task: progress.TaskID | None = None
        self.entries = 0
        self.size_bytes = 0

    def __enter__(self) -> Progress:
        if self._shown:
            # Imported here: a script that pipes needs none of it.
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.TextColumn("{task.fields[entries]:,} " + self._counted),
                *(
                    [progress.TextColumn("{task.fields[megabytes]:,.1f} MB")]
                    if self._counted == "entries"
                    else []
                ),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
                refresh_per_second=REFRESHES_PER_S,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=self._total, entries=0, megabytes=0.0)
        return self

    def advance(self, entries: int, size_bytes: int) -> None:
        self.entries += entries
        self.size_bytes += size_bytes
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task,
                completed=self.size_bytes if self._in_bytes else self.entries,
                entries=self.entries,
                megabytes=self.size_bytes / 1e6,
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


# -- jobs that copy ---------------------------------------------------------------------------


class JobBar:
    """On a terminal's standard error, nothing elsewhere: what jobs of `quire.replication` call as
    their `progress`."""

    def __init__(self, counted: str = "ledgers", *, shown: bool = True) -> None:
        self._counted = counted
        self._shown = shown and sys.stderr.isatty()
        self._bar: progress.Progress | None = None
        self._task: progress.TaskID | None = None
        self._ledgers = self._ledgers_total = 0
        self._bytes = self._bytes_total = 0
        self._step = ""
        self._paused = False
        self.gate: PauseGate | None = None
        """Where the job waits while it is paused."""

    def __enter__(self) -> JobBar:
        if self._shown:
            # Imported here: a script that pipes needs none of it.
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.SpinnerColumn(),
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.TextColumn("{task.fields[text]}"),
                progress.TransferSpeedColumn(),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
                refresh_per_second=REFRESHES_PER_S,
                transient=True,
            )
            self._bar.start()
        return self

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
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._bytes, text=self._text())

    async def may_go_on(self) -> None:
        if self.gate is not None:
            await self.gate.passes()

    def paused(self, found: Pause | None) -> None:
        """Told on standard error, also where there is no bar."""
        self._paused = found is not None
        if found is None:
            say("the job goes on")
        else:
            say(
                f"the job is paused, by {found.by}; it goes on after: "
                f"quire cluster resume {found.kind}"
                + ("" if found.kind == "rebalance" else f" {found.target}")
            )

    def far(self) -> JobStatus:
        from quire.replication.marks.running import JobStatus

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
