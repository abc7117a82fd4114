"""Preallocated segments, and the decision whether there is space for adds.

Two segments are kept: the *next* one in full size, and after it a small *reserve*. When the next
one is taken, the reserve is extended and becomes the next one, and another reserve is created. If
that fails for lack of space the store takes no more adds, but fences and recovery adds can still
use the reserve.

Free space near a threshold goes up and down with every segment. So adds end at once when less than
`min_free_bytes` is free, or a segment cannot be prepared. They begin again only once
`free_bytes_to_resume` are free, and not before `read_only_dwell_s` have passed.

A file with a number proves that the segments before it were begun. At a restart, a missing segment
before a preallocated one is a loss.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from quire.storage.config import StorageConfig
from quire.storage.interfaces import Disk
from quire.storage.log.job_queue import JobQueue
from quire.storage.segment.segment import LOG_DIRECTORY, LogSegment, segment_name

FULL_DISK = {errno.ENOSPC, errno.EDQUOT}
NO_FILES = {errno.EMFILE, errno.ENFILE}


def is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in FULL_DISK


def may_pass(error: Exception) -> bool:
    """Whether it says nothing against the disk: there was no room, or the process, or the machine,
    had no file descriptor left. Nothing was done then, and it is tried again."""
    return is_full(error) or (isinstance(error, OSError) and error.errno in NO_FILES)


def prepare(disk: Disk, number: int, size: int) -> LogSegment:
    """A preallocated, empty segment file, its directory entry durable. What is there under that
    name was never begun, or has been copied elsewhere, and is thrown away."""
    name = segment_name(number)
    new = not disk.exists(name)
    if new:
        file = disk.create(name)
    else:
        file = disk.open(name)
        file.truncate(0)
    try:
        file.preallocate(size)
        file.sync()
        disk.sync_directory(LOG_DIRECTORY)
    except OSError:
        # One that was there stays: files prepared behind it would tell of a segment that was lost.
        if not new:
            with suppress(OSError):
                file.truncate(0)
        file.close()
        if new:
            disk.remove(name)
        raise
    return LogSegment(number, file, size)


class PreallocatedSegments:
    """Used on the event loop."""

    def __init__(
        self,
        disk: Disk,
        jobs: JobQueue,
        config: StorageConfig,
        monotonic: Callable[[], float],
        changed: Callable[[], None],
        broken: Callable[[Exception], None],
    ) -> None:
        """`changed` is called when a segment is prepared or `space` may have changed; `broken`
        when a file could not be prepared for another reason than space."""
        self._disk = disk
        self._jobs = jobs
        self._segment_bytes = config.segment_bytes
        self.reserve_bytes = min(config.reserve_bytes, config.segment_bytes)
        """Of a reserve, not of what is left of it."""
        self._min_free_bytes = config.min_free_bytes
        self._writable_free_bytes = config.free_bytes_to_resume
        self._dwell_s = config.read_only_dwell_s
        self._monotonic = monotonic
        self._changed = changed
        self._broken = broken
        self._ready: list[LogSegment] = []
        self._busy = False
        self._checking = False
        self._free_enough = True
        self._prepared = True
        self.space = True
        """Whether the store takes adds."""
        self._short_since_s = float("-inf")
        """The monotonic time at which `space` became False. There is no dwell after a start without
        space."""
        self.closed = False
        """Set before the maintenance is stopped: nothing more is prepared."""
        self.next_number = 0
        self.free_bytes = 0
        """When it was last looked at."""
        self.held_bytes = 0
        """Of the free space: somebody else is to have it."""
        self.error: str = ""
        """Why there is no space."""

    @property
    def prepared_number(self) -> int:
        """The number of the segment that `take` would return; 0 if none is ready."""
        return self._ready[0].number if self._ready else 0

    def capacity(self) -> int:
        """Of the segment that `take` would return; 0 where none is ready."""
        return self._ready[0].capacity if self._ready else 0

    def take(self) -> LogSegment:
        segment = self._ready.pop(0)
        self.ensure()
        return segment

    def note_shortage(self, reason: str) -> None:
        """Found before the maintenance ran."""
        self._prepared = self.space = False
        self.error = reason

    def ensure(self) -> None:
        """Prepare what lacks, one after the other."""
        if self._busy or self.closed:
            return
        if self._ready and self._ready[0].capacity < self._segment_bytes:
            self._busy = True
            work = partial(self._extend, self._ready[0])
            self._jobs.run(work, self._on_prepared, urgent=True)
        elif len(self._ready) < 2:
            self._busy = True
            work = partial(prepare, self._disk, self.next_number, self.reserve_bytes)
            self._jobs.run(work, self._on_prepared, urgent=True)

    def look(self) -> None:
        """Before the start: how it begins. Blocks, and calls nobody. `OSError`."""
        self.free_bytes = free = self._disk.free_bytes()
        self._free_enough = free >= self._min_free_bytes
        if not self._free_enough:
            self.error = f"{free} bytes are free, less than {self._min_free_bytes}"
            self.space = False

    def check(self) -> None:
        """Look at the free space again, and retry what failed for lack of it."""
        if self._checking or self.closed:
            return
        self._checking = True
        self._jobs.run(self._disk.free_bytes, self._on_free, urgent=True)

    def close(self) -> None:
        """Behind the last job. Prepared files stay, for the next start on a full disk."""
        for segment in self._ready:
            if segment.file is not None:
                segment.file.close()
        self._ready.clear()

    def _extend(self, segment: LogSegment) -> LogSegment:
        assert segment.file is not None
        # Some file systems keep what a failed attempt took: do not try what cannot succeed.
        free = self._disk.free_bytes()
        left = free - self.held_bytes - (self._segment_bytes - segment.capacity)
        if left < self._min_free_bytes:
            raise OSError(errno.ENOSPC, f"{free} bytes are free")
        segment.file.preallocate(self._segment_bytes)
        segment.file.sync()
        return segment

    def _on_prepared(self, segment: LogSegment | None, error: Exception | None) -> None:
        self._busy = False
        if segment is not None:
            self._take_in(segment)
            if self.capacity() >= self._segment_bytes:
                self._prepared = True
            self._decide()
            self._changed()
            self.ensure()
            return
        assert error is not None
        if not may_pass(error):
            self._broken(error)
        elif self._prepared:
            self._prepared = False
            self.error = f"no room for another segment of the log ({error})"
            self._decide()
            self._changed()

    def _take_in(self, segment: LogSegment) -> None:
        if segment.number < self.next_number:
            # Extended; it may have been taken meanwhile, and then has simply become larger.
            segment.capacity = self._segment_bytes
        else:
            self._ready.append(segment)
            self.next_number += 1

    def _on_free(self, free: int | None, error: Exception | None) -> None:
        self._checking = False
        self.free_bytes = free or 0
        enough = free is not None and free >= self._min_free_bytes + self.held_bytes
        if enough != self._free_enough:
            self._free_enough = enough
            self.error = (
                f"{free} bytes are free, less than {self._min_free_bytes}"
                if error is None
                else f"the free space cannot be found out ({error})"
            )
        if self._decide():
            self._changed()
        if not self._prepared:
            self.ensure()

    def _decide(self) -> bool:
        """Set `space`, and return whether that changed it."""
        enough = self._free_enough and self._prepared
        now_s = self._monotonic()
        if self.space:
            if enough:
                return False
            self.space = False
            self._short_since_s = now_s
            return True
        if not enough:
            return False
        wanted = self._writable_free_bytes + self.held_bytes
        left_s = self._short_since_s + self._dwell_s - now_s
        if self.free_bytes < wanted:
            self.error = f"{self.free_bytes} bytes are free, and adds are taken again at {wanted}"
        elif left_s > 0:
            self.error = f"there was too little space, and adds are taken again in {left_s:.0f} s"
        else:
            self.error = ""
            self.space = True
        return self.space
