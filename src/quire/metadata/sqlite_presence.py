"""Whether a SQLite file that is open is still the one that its path names.

SQLite goes on reading and writing a file that was deleted or replaced, and says nothing. What is
written then is in a file without a name, and vanishes with the last process that has it open. So
the device and the inode of the file are compared before a write, after its commit, and after each
read. The same holds for `-wal` and `-shm`, in which the newest commits are: while a connection is
open, nobody may remove them.

A file that was moved away and comes back to its path is the same file, and is used on. One that
was replaced is never taken for it: this process has to be started again, and looks at everything
anew then.
"""

from __future__ import annotations

import os
from pathlib import Path

from quire.errors import MetadataUnavailableError
from quire.metadata._common import logger

LOG_SUFFIX = "-wal"
SIDE_FILES = (LOG_SUFFIX, "-shm")
"""SQLite's write-ahead log and its index, beside the file."""

Inode = tuple[int, int]
"""Device and number."""


class SqlitePresence:
    """What the names of one open file refer to. All calls run on the file's thread."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._known: dict[str, Inode] = {}
        self._told = False

    def opened(self, before: os.stat_result | None) -> bool:
        """Take the file as the one that is open, after it was opened and read.

        `before`: what its path named before that; None: nothing, and the file was made. Return
        False if the path names another file now, so that nobody knows which one is open.
        """
        stat = os.stat(self._path)
        if before is not None and (before.st_dev, before.st_ino) != (stat.st_dev, stat.st_ino):
            return False
        self._known = {self._path: (stat.st_dev, stat.st_ino)}
        if stat.st_nlink > 1:
            logger.warning(
                "the metadata file %s has %d names. Open it by one of them only: each name has a "
                "write-ahead log of its own",
                self._path,
                stat.st_nlink,
            )
        return True

    def check(self) -> None:
        """`MetadataUnavailableError`, with a known outcome, unless each name still refers to what
        is open. Takes about 3 us."""
        for name in (self._path, *(self._path + side for side in SIDE_FILES)):
            known = self._known.get(name)
            try:
                stat = os.stat(name)
            except FileNotFoundError:
                if known is not None:
                    raise self._gone(f"{name} was deleted or moved away") from None
                continue
            found = (stat.st_dev, stat.st_ino)
            if self._known.setdefault(name, found) != found:
                raise self._gone(f"{name} was replaced by another file")
        if self._told:
            self._told = False
            logger.warning("the metadata file %s is back, and is used again", self._path)

    def _gone(self, what: str) -> MetadataUnavailableError:
        error = MetadataUnavailableError(
            f"{what} while the metadata file {self._path} was in use: nothing was changed, and "
            "nothing is known of what it held",
            remedy="Put the same file back at its path, with its -wal and -shm, and it is used "
            "again. To use another one, such as a backup, stop all processes of the cluster first "
            "(docs/disaster-recovery.md)",
        )
        error.outcome_known = True
        if not self._told and self._known:
            self._told = True
            logger.error("%s", error)
        return error
