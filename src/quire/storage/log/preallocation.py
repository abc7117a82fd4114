"""Preallocate segment files, and decide whether there is space for adds.

Two files are kept ready: the *next* segment in full size, and after it a small *reserve*. When the
next segment is taken, the reserve is extended and becomes the next segment, and a new reserve is
created. If that fails for lack of space, the store takes no more adds, but fences and the adds of
recoveries can still use the reserve.

Free space near a threshold goes up and down with every segment. So adds are refused as soon as less
than `min_free_bytes` are free, or a segment cannot be prepared. They are accepted again when
`free_bytes_to_resume` are free, and `read_only_dwell_s` have passed.

A segment file proves that all segments with lower numbers were begun. So a start treats a missing
segment before a preallocated file as a loss.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from quire._runtime.shortages import no_descriptor
from quire.storage.config import StorageConfig
from quire.storage.interfaces import Disk
from quire.storage.log.job_queue import JobQueue
from quire.storage.segment.segment import LOG_DIRECTORY, LogSegment, segment_name

FULL_DISK = {errno.ENOSPC, errno.EDQUOT}
NO_FILES = {errno.EMFILE, errno.ENFILE}


def is_full(error: Exception) -> bool:
    """Return whether the error means that the disk, or the user's quota, is full."""
    return isinstance(error, OSError) and error.errno in FULL_DISK


def may_pass(error: Exception) -> bool:
    """Return whether the error may go away by itself and says nothing bad about the disk.

    It means that there was no space, or no free file descriptor in the process or on the machine.
    Nothing was written, and the caller tries again later.
    """
    return is_full(error) or (isinstance(error, OSError) and error.errno in NO_FILES)


def prepare(disk: Disk, number: int, size: int) -> LogSegment:
    """Create a preallocated, empty segment file of `size` bytes, and return the segment.

    The directory entry is durable on return. If a file with this name exists, its content is
    discarded. The caller knows that this segment was never begun, or that its content was copied
    elsewhere.

    If this raises `OSError`, a new file is removed again, and a file that existed before is kept,
    but empty.
    """
    name = segment_name(number)
    new = not disk.exists(name)
    file = disk.create(name) if new else disk.open(name)
    try:
        if not new:
            file.truncate(0)
        file.preallocate(size)
        file.sync()
        disk.sync_directory(LOG_DIRECTORY)
    except OSError:
        # Keep a file that existed before. Without it, later prepared files would make a start
        # believe that a segment was lost.
        if not new:
            with suppress(OSError):
                file.truncate(0)
        file.close()
        if new:
            disk.remove(name)
        raise
    return LogSegment(number, file, size)


class PreallocatedSegments:
    """The preallocated segment files of one directory. They belong to the event loop."""

    def __init__(
        self,
        disk: Disk,
        jobs: JobQueue,
        config: StorageConfig,
        monotonic: Callable[[], float],
        changed: Callable[[], None],
        broken: Callable[[Exception], None],
    ) -> None:
        """Create the object, without preparing a file yet.

        `changed` is called when a segment was prepared or `space` may have changed. `broken` is
        called when a file could not be prepared, and the reason is not a lack of space or of file
        descriptors.
        """
        self._disk = disk
        self._jobs = jobs
        self._segment_bytes = config.segment_bytes
        self.reserve_bytes = min(config.reserve_bytes, config.segment_bytes)
        """The size of a full reserve in bytes. The rest of a reserve that was used may be
        smaller."""
        self._min_free_bytes = config.min_free_bytes
        self._writable_free_bytes = config.free_bytes_to_resume
        self._dwell_s = config.read_only_dwell_s
        self._monotonic = monotonic
        self._changed = changed
        self._broken = broken
        self._ready: list[LogSegment] = []
        self._busy = False
        self._checking = False
        self._shortage = ""
        """The reason in words why the free space at the last check was too little, or ""."""
        self._not_prepared = ""
        """The reason in words why the next segment could not be prepared, or ""."""
        self.unreachable = False
        """Whether the file system did not say at the last check how much space is free, for example
        because the directory was deleted. That is no lack of space."""
        self.space = True
        """Whether there is enough space for ordinary adds."""
        self._short_since_s = float("-inf")
        """The monotonic time in seconds at which `space` became False. It is minus infinity after a
        start without space, so that adds need not wait for `read_only_dwell_s`."""
        self.closed = False
        """Whether the maintenance worker is about to be stopped. If so, no more files are
        prepared."""
        self.next_number = 0
        self.free_bytes = 0
        """The free bytes of the disk when they were last checked."""
        self.held_bytes = 0
        """The part of the free bytes that is set aside for the output of a compaction."""
        self.error: str = ""
        """The reason in words why there is no space for ordinary adds, or ""."""

    @property
    def prepared_number(self) -> int:
        """The number of the segment that `take` would return, or 0 if none is ready."""
        return self._ready[0].number if self._ready else 0

    @property
    def ready_bytes(self) -> int:
        """The size of the prepared files together."""
        return sum(one.capacity for one in self._ready)

    def capacity(self) -> int:
        """Return the bytes of the segment that `take` would return, or 0 if none is ready."""
        return self._ready[0].capacity if self._ready else 0

    def take(self) -> LogSegment:
        """Return the next segment, which must be ready, and begin to prepare another one.

        `capacity` says whether a segment is ready.
        """
        segment = self._ready.pop(0)
        self.ensure()
        return segment

    def note_shortage(self, reason: str) -> None:
        """Record a lack of space that a start has found, before the maintenance worker runs."""
        self.space = False
        self.error = self._not_prepared = reason

    def ensure(self) -> None:
        """Prepare the missing files in the background, one after the other."""
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
        """Check the free space at a start, before the event loop is involved.

        This blocks and calls no callback. It may raise `OSError`.
        """
        self.free_bytes = free = self._disk.free_bytes()
        self._shortage = self._shortage_of(free)
        if self._shortage:
            self.error = self._shortage
            self.space = False

    def _shortage_of(self, free: int) -> str:
        """Return in words why `free` bytes of free space are too few, or "" if they are enough."""
        wanted = self._min_free_bytes + self.held_bytes
        if free >= wanted:
            return ""
        held = f", of which {self.held_bytes} are set aside for a compaction"
        return f"{free} bytes are free, less than {wanted}{held if self.held_bytes else ''}"

    def check(self) -> None:
        """Check the free space in the background, and retry what failed for lack of space."""
        if self._checking or self.closed:
            return
        self._checking = True
        self._jobs.run(self._disk.free_bytes, self._on_free, urgent=True)

    def close(self) -> None:
        """Close the prepared files after the last job. They stay on the disk for the next start."""
        for segment in self._ready:
            if segment.file is not None:
                segment.file.close()
        self._ready.clear()

    def _extend(self, segment: LogSegment) -> LogSegment:
        assert segment.file is not None
        # Some file systems do not give back what a failed attempt has allocated. So do not attempt
        # what cannot succeed.
        free = self._disk.free_bytes()
        wanted = self._min_free_bytes + self.held_bytes + self._segment_bytes - segment.capacity
        if free < wanted:
            raise OSError(errno.ENOSPC, f"{free} bytes are free, less than {wanted}")
        segment.file.preallocate(self._segment_bytes)
        segment.file.sync()
        return segment

    def _on_prepared(self, segment: LogSegment | None, error: Exception | None) -> None:
        self._busy = False
        if segment is not None:
            self._take_in(segment)
            if self.capacity() >= self._segment_bytes:
                self._not_prepared = ""
            self._decide()
            self._changed()
            self.ensure()
            return
        assert error is not None
        if not may_pass(error):
            self._broken(error)
        else:
            changed = not self._not_prepared
            self._not_prepared = no_descriptor(error) or (
                f"there is no space for another segment of the log ({error})"
            )
            self._decide()
            if changed:
                self._changed()

    def _take_in(self, segment: LogSegment) -> None:
        if segment.number < self.next_number:
            # The file was extended. If it was taken in the meantime, the segment simply becomes
            # larger.
            segment.capacity = self._segment_bytes
        else:
            self._ready.append(segment)
            self.next_number += 1

    def _on_free(self, free: int | None, error: Exception | None) -> None:
        self._checking = False
        self.free_bytes = free or 0
        before = self.unreachable
        self.unreachable = free is None
        if free is None:
            self._shortage = f"the free space could not be determined ({error})"
        else:
            self._shortage = self._shortage_of(free)
        if self._decide() or before != self.unreachable:
            self._changed()
        if self._not_prepared:
            self.ensure()

    def _decide(self) -> bool:
        """Update `space` and `error`, and return whether `space` changed."""
        reason = self._shortage or self._not_prepared
        if reason:
            self.error = reason
        now_s = self._monotonic()
        if self.space:
            if not reason:
                return False
            self.space = False
            self._short_since_s = now_s
            return True
        if reason:
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
