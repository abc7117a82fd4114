"""Room for one compaction, preallocated: so that space comes back on a disk that has none left.

The output of a compaction is written into this file, which then takes the place of a segment; from
what that gives back the next reserve is made. As long as the reserve lacks, its size is not counted
as free: the store takes no more adds rather than fill that room too."""

from __future__ import annotations

import errno
from contextlib import suppress

from quire.storage.background.job import Chore, Tools
from quire.storage.background.rewrite import SPARE_NAME
from quire.storage.segment.segment import LOG_DIRECTORY


class Reserve(Chore):
    def __init__(self, tools: Tools, size_bytes: int) -> None:
        super().__init__(tools)
        self._wanted_bytes = size_bytes
        self._busy = False
        self._given = False
        """To the log, until there is space again."""
        self.size_bytes = 0
        """What is there."""

    def keep(self, *, wanted: bool) -> None:
        """Make it, in the background, where it lacks and there is room."""
        if self._spares.space:
            self._given = False
        if self._busy or self._given or self.size_bytes >= self._wanted_bytes:
            return
        if not wanted:
            self._spares.held_bytes = 0
            return
        self._spares.held_bytes = self._wanted_bytes
        self._busy = True
        self._maintenance.run(self._make, self._on_made)

    def used(self) -> None:
        """A compaction takes it. What that gives back is for the next one first."""
        self.size_bytes = 0
        self._spares.held_bytes = self._wanted_bytes

    def release(self) -> None:
        """Give the room to the log, which has none left to log a deletion."""
        if self._busy or self._given or not self.size_bytes:
            return
        self._given = self._busy = True
        self._spares.held_bytes = 0
        self._maintenance.run(self._remove, self._on_removed, urgent=True)

    def _make(self) -> int:
        disk, size = self._disk, self._wanted_bytes
        new = not disk.exists(SPARE_NAME)
        file = disk.create(SPARE_NAME) if new else disk.open(SPARE_NAME)
        try:
            lacking = size - file.size()
            if lacking > 0:
                # Some file systems keep what a failed attempt took.
                free = disk.free_bytes()
                if free < lacking:
                    raise OSError(errno.ENOSPC, f"{free} bytes are free")
                file.preallocate(size)
            file.sync()
            disk.sync_directory(LOG_DIRECTORY)
            return file.size()
        finally:
            file.close()

    def _on_made(self, size: int | None, error: Exception | None) -> None:
        self._busy = False
        if size is not None:
            self.size_bytes = size
            self._spares.held_bytes = 0
        self._look_at(error)

    def _remove(self) -> None:
        with suppress(FileNotFoundError):
            self._disk.remove(SPARE_NAME)
        self._disk.sync_directory(LOG_DIRECTORY)

    def _on_removed(self, _: None, error: Exception | None) -> None:
        self._busy = False
        self.size_bytes = 0
        self._look_at(error)
        self._spares.check()
