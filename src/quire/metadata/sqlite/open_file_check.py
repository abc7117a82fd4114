"""A check that an open SQLite file is still the one that its path names.

SQLite silently continues to read and write a file that was deleted or replaced. Such writes go to a
file without a name, and vanish with the last process that has it open. So the device and the inode
of the file are compared before a write, after its commit, and after each read. The same applies to
`-wal` and `-shm`, which contain the newest commits: nobody may remove them while a connection is
open.

A file that was moved away and comes back to its path is the same file, and is used again. A file
that replaced it is never used: this process must be restarted to open it.
"""

from __future__ import annotations

import os
from pathlib import Path

from quire.errors import MetadataUnavailableError, nothing_done
from quire.metadata.common import logger

LOG_SUFFIX = "-wal"
SIDE_FILES = (LOG_SUFFIX, "-shm")
"""The suffixes of SQLite's write-ahead log and of the log's index, next to the file."""

Inode = tuple[int, int]
"""The device and the inode of a file."""


class OpenFileCheck:
    """The files that the names of one open database refer to.

    All calls run on the database's thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._known: dict[str, Inode] = {}
        self._told = False

    def opened(self, before: os.stat_result | None) -> bool:
        """Record the file as the open one, after it was opened and read.

        Args:
            before: The file that the path named before the open, or None if the file was created.

        Returns:
            False if the path names another file now, so that it is unknown which one is open.
        """
        stat = os.stat(self._path)
        if before is not None and (before.st_dev, before.st_ino) != (stat.st_dev, stat.st_ino):
            return False
        self._known = {self._path: (stat.st_dev, stat.st_ino)}
        if stat.st_nlink > 1:
            logger.warning(
                "the metadata file %s has %d names. Use only one of them, because each name has a "
                "write-ahead log of its own",
                self._path,
                stat.st_nlink,
            )
        return True

    def check(self, *, after_commit: bool = False) -> None:
        """Check that each name still refers to the open file.

        Args:
            after_commit: Whether a commit came before, which the file may or may not have now.

        Raises:
            MetadataUnavailableError: A file was deleted or replaced. Nothing was changed, unless
                this is a check after a commit: the outcome of the commit is then unknown.
            OSError: A file cannot be examined.
        """
        for name in (self._path, *(self._path + side for side in SIDE_FILES)):
            known = self._known.get(name)
            try:
                stat = os.stat(name)
            except FileNotFoundError:
                if known is not None:
                    raise self._gone(f"{name} was deleted or moved away", after_commit) from None
                continue
            found = (stat.st_dev, stat.st_ino)
            if self._known.setdefault(name, found) != found:
                raise self._gone(f"{name} was replaced by another file", after_commit)
        if self._told:
            self._told = False
            logger.warning("the metadata file %s is back and is used again", self._path)

    def _gone(self, what: str, after_commit: bool) -> MetadataUnavailableError:
        outcome = (
            "The outcome of the last change is unknown"
            if after_commit
            else "Nothing was changed. What the file contains now is unknown"
        )
        error = MetadataUnavailableError(
            f"{what} while the metadata file {self._path} was in use. {outcome}",
            remedy="Move the same file back to its path, with its -wal and -shm files, and it "
            "is used again. To use another file, such as a backup, stop all processes of the "
            "cluster first (docs/guides/repair/disaster-recovery.md)",
        )
        if not after_commit:
            nothing_done(error)
        if not self._told and self._known:
            self._told = True
            logger.error("%s", error)
        return error
