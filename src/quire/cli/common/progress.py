"""A line of progress on a terminal's standard error; nothing elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich import progress

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
