"""The log of reads that failed, with few lines for many reads that fail for one reason."""

from __future__ import annotations

from collections.abc import Callable

from quire._runtime.event_log import EventLog
from quire._runtime.shortages import no_descriptor
from quire.errors import DamagedError, StorageError

SAME_FILE_S = 60.0
"""Seconds between two lines about reads of the same damaged file."""
NO_DESCRIPTOR = "no file descriptor"
"""The key of reads for which no file descriptor was left, instead of the name of a file."""
FILES_MAX = 1_000
"""The number of damaged files for which it is remembered when they were last in the log."""


class ReadFailures:
    """The log of failed reads, with at most one line for each damaged file in `SAME_FILE_S`.

    A reader may read thousands of damaged entries in a second. Reads for which no file descriptor
    is left share one line, too. Files of two data directories with the same name share one line.
    The event `damage_found` names the directory.
    """

    def __init__(self, log: EventLog, monotonic: Callable[[], float]) -> None:
        self._log = log
        self._monotonic = monotonic
        self._logged_s: dict[str, float] = {}
        """When the last line about each file was written, the oldest first."""
        self._more: dict[str, int] = {}
        """The number of failed reads of each file since its last line."""

    def add(self, error: StorageError) -> None:
        """Log a failed read, unless its file was in the log during the last `SAME_FILE_S`.

        The next line about the file has the number of reads that were left out, as `left_out`.
        """
        file = error.file if isinstance(error, DamagedError) else ""
        if error.__cause__ is not None and no_descriptor(error.__cause__):
            file = NO_DESCRIPTOR
        if not file:
            self._log("read_failed", error=str(error))
            return
        now_s = self._monotonic()
        last_s = self._logged_s.get(file)
        if last_s is not None and now_s - last_s < SAME_FILE_S:
            self._more[file] = self._more.get(file, 0) + 1
            return
        left_out = self._more.pop(file, 0)
        more = {"left_out": left_out} if left_out else {}
        self._log("read_failed", error=str(error), **more)
        self._logged_s.pop(file, None)
        self._logged_s[file] = now_s
        while len(self._logged_s) > FILES_MAX:
            oldest = next(iter(self._logged_s))
            del self._logged_s[oldest]
            self._more.pop(oldest, None)
