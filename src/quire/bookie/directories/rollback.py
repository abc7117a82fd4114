"""Detection of data directories that went back in time.

A directory that was restored from an older copy, or whose newest files were deleted, has the right
cookie and the right id. It would deny entries that its bookie has acknowledged since. So the bookie
keeps a mark of each directory in the metadata store (`metadata.bookies.directories.LogMark`):

- The *incarnation* is a number that rises at each start, and a random value. The directory has the
  same in `current/INCARNATION`. The directory is written first, then the store, and only then does
  the bookie serve. So a crash in between leaves a directory that is ahead, which is fine.
- The *position* of the log is its newest segment file and its last group. It is reported at each
  start, within `LOOK_S` of a new segment, every `log_position_interval_s` while the log grows, and
  at a clean stop.

A directory that is behind is treated as one that lost a segment. The log records the loss from this
start on. The bookie answers "unknown" for entries that the log lacks, and autorecovery restores
them (`damage`, `complete_ledger`). A store that was itself restored from an older copy has marks
that are behind, which proves nothing.

A rollback goes unnoticed if it only undoes what was written after the last report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from quire._runtime.event_log import EventLog
from quire._runtime.units import counted
from quire.errors import (
    CookieError,
    KeyExistsError,
    LaterStorageError,
    MetadataError,
    NoSuchKeyError,
    QuireError,
    StorageError,
    VersionConflictError,
)
from quire.metadata.bookies.directories import (
    BookieDirectories,
    LogMark,
    read_directories,
    write_directories,
)
from quire.metadata.interface import MetadataStore, Versioned
from quire.storage.directories import LedgerDirectories, Store
from quire.storage.directory import read_identity
from quire.storage.interfaces import Disk
from quire.storage.log.preallocation import may_pass
from quire.storage.recovery.incarnation import (
    INCARNATION_NAME,
    NONCE_BYTES,
    ExpectedLog,
    Incarnation,
    LogPosition,
    read_incarnation,
    write_incarnation,
)

LOOK_S = 1.0
"""Seconds between two checks for a new segment of the log. The position of a busy log is reported
at most this often."""
REPORT_ATTEMPTS = 5
"""The number of attempts to write a report, if other processes keep changing the record of the
directories."""
LAST_REPORT_S = 2.0
"""The most seconds that a clean stop waits until its last report is stored."""


@dataclass(slots=True)
class Known:
    """One data directory, with its id and the mark that this process has written for it."""

    directory_id: str
    incarnation: int
    """The number of the latest start of the directory: the higher of the numbers that the directory
    and the metadata store have."""
    mark: LogMark | None = None
    """The mark of the directory that this process last wrote to the metadata store, or None."""


def why_behind(mark: LogMark, here: Incarnation | None) -> str:
    """Return why a directory counts as lost or as gone back in time, or "" if it does not.

    `mark` is the directory's mark in the metadata store, and `here` is the incarnation in the
    directory. A mark can also say that the directory is lost. The log is not compared. The text
    continues a sentence that begins with the path.
    """
    if mark.lost:
        return mark.lost
    if here is None:
        return (
            f"went back in time: it has no {INCARNATION_NAME}, but its bookie has started it "
            f"{counted(mark.incarnation, 'time')}"
        )
    if here.number < mark.incarnation:
        return (
            f"went back in time: it was started {counted(here.number, 'time')}, but its bookie has "
            f"started it {counted(mark.incarnation, 'time')}"
        )
    if here.number == mark.incarnation and here.nonce != mark.nonce:
        return "is not the directory that its bookie started last, but another copy of it"
    return ""


def expected_of(mark: LogMark | None, here: Incarnation | None) -> ExpectedLog:
    """Return how far the log of a directory must reach, given its mark and its incarnation.

    Nothing is expected if there is no mark, or if the mark is older than the directory. If the mark
    shows that the directory is lost or went back in time, the result says why (see `why_behind`).
    """
    if mark is None:
        return ExpectedLog()  # the bookie was last started by an earlier version
    if why := why_behind(mark, here):
        return ExpectedLog(LogPosition(mark.newest_file, 0), why)
    if here is not None and here.number > mark.incarnation:
        return ExpectedLog()  # the store is behind: it proves nothing
    return ExpectedLog(LogPosition(mark.newest_file, mark.end_group))


def expected_in(disk: Disk, known: BookieDirectories) -> ExpectedLog:
    """Return how far the log in this directory must reach, according to its mark in `known`.

    This works while a bookie runs on the directory. Nothing is expected of a directory that was
    never formatted or has no mark. Raises StorageError if the directory's identity is damaged,
    LaterStorageError if a later version wrote it, and OSError if it cannot be read.
    """
    identity = read_identity(disk)
    mark = None if identity is None else known.marks.get(identity.name)
    if mark is None:
        return ExpectedLog()
    try:
        here = read_incarnation(disk)
    except LaterStorageError:
        raise
    except StorageError as error:
        return ExpectedLog(LogPosition(mark.newest_file, 0), f"counts as lost: {error}")
    return expected_of(mark, here)


class Rollbacks:
    """The marks of one bookie's data directories in the metadata store.

    Call `check`, then `begin`, then `run`, and `last` at the end.
    """

    def __init__(
        self,
        store: Store,
        metadata: MetadataStore,
        bookie_id: str,
        log: EventLog,
        monotonic: Callable[[], float],
        interval_s: float,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._bookie_id = bookie_id
        self._log = log
        self._monotonic = monotonic
        self._interval_s = interval_s
        self._found: Versioned[BookieDirectories] | None = None
        self._known: dict[str, Known] = {}
        """The directories that can be used, by path."""
        self._disks: dict[str, Disk] = {}
        self._failing = False
        self._replaced = False
        """Whether another process has started a directory of this bookie. If so, this process
        reports nothing more."""
        self.reported_s = 0.0
        """The monotonic time in seconds up to which the position of the log was reported."""
        self.found = 0
        """The number of directories that had gone back in time when this process started."""

    async def check(self, disks: Sequence[Disk]) -> None:
        """Tell the bookie's store how far the log of each of these directories must reach.

        Call this before the log is read. A directory that cannot be read is not used. If it is the
        only one of the bookie, this raises StorageError. Raises LaterStorageError if a later
        version of Quire wrote a directory, and MetadataError if the metadata store fails.
        """
        self._found = found = await read_directories(self._metadata, self._bookie_id)
        value = BookieDirectories() if found is None else found.value
        for disk in disks:
            try:
                self._check(disk, value)
            except OSError as error:
                self._put_aside(disk, f"cannot be read: {error}")

    def _check(self, disk: Disk, value: BookieDirectories) -> None:
        identity = read_identity(disk)
        assert identity is not None  # the directory was checked
        self._store.expect(disk.path, expected_in(disk, value))
        try:
            here = read_incarnation(disk)
        except LaterStorageError:
            raise
        except StorageError:
            here = None
        mark = value.marks.get(identity.name)
        highest = max(here.number if here else 0, mark.incarnation if mark else 0)
        self._known[disk.path] = Known(identity.name, highest)
        self._disks[disk.path] = disk

    async def begin(self, random_bytes: Callable[[int], bytes], went_back: Sequence[str]) -> None:
        """Give each directory that was read a new incarnation, and log what has gone back in time.

        `went_back` has a sentence for each directory that went back in time. `random_bytes` returns
        the given number of random bytes.

        Call this after the log was read and before anything is served. The incarnation is durable
        in the directory and in the metadata store on return. A full directory keeps its incarnation
        if it is not behind. Raises CookieError if another process has changed the record meanwhile,
        StorageError if no directory can be written, and MetadataError if the metadata store fails.
        """
        for why in went_back:
            self._log(
                "directory_went_back", bookie=self._bookie_id, why=why,
                what="missing entries count as lost until autorecovery has copied them back",
            )  # fmt: skip
        self.found = len(went_back)
        for path, position in self._store.positions().items():
            known = self._known.get(path)
            if known is None:
                continue
            made: Incarnation | None
            made = Incarnation(known.incarnation + 1, random_bytes(NONCE_BYTES).hex())
            try:
                write_incarnation(self._disks[path], made)
            except OSError as error:
                if may_pass(error):  # on a full disk the number stays; the position still counts
                    self._log("incarnation_not_written", directory=path, error=str(error))
                    made = self._unchanged(path)
                else:
                    self._put_aside(self._disks[path], f"cannot be written: {error}")
                    continue
            if made is not None:
                known.mark = _mark(made, position)
        states = self._store.directories()
        if all(one.state == "failed" for one in states):
            raise StorageError(states[0].reason, remedy="Check the disk")
        try:
            await self._write(self._found)
        except (KeyExistsError, NoSuchKeyError, VersionConflictError):
            raise CookieError(
                f"bookie {self._bookie_id} was not started: another process has started it, or "
                "has changed its directories, at the same time",
                remedy="Stop the other process, and start this bookie again",
            ) from None
        self.reported_s = self._monotonic()

    def _unchanged(self, path: str) -> Incarnation | None:
        """Return the incarnation that a directory keeps because no new one could be written to it.

        Return None if the directory is behind its mark or has no incarnation that can be read. The
        mark then stays unchanged.
        """
        disk, known = self._disks[path], self._known[path]
        mark = None if self._found is None else self._found.value.marks.get(known.directory_id)
        try:
            here = read_incarnation(disk)
        except (OSError, StorageError):
            return None
        return here if mark is None or not why_behind(mark, here) else None

    def _put_aside(self, disk: Disk, why: str) -> None:
        error = StorageError(
            f"the data directory {disk.path} {why}",
            remedy="Check the disk, and start the bookie again",
        )
        if not isinstance(self._store, LedgerDirectories):
            raise error
        self._store.refuse(disk.path, error)

    # -- reports ----------------------------------------------------------------------------------

    @property
    def unreported_s(self) -> float:
        """Seconds since the reported position was last up to date, or 0 if it is up to date."""
        return self._monotonic() - self.reported_s if self._moved() else 0.0

    def _moved(self) -> dict[str, LogMark]:
        """Return the new marks of directories whose logs moved since the last report, by path."""
        moved = {}
        for path, position in self._store.positions().items():
            known = self._known.get(path)
            if known is not None and known.mark is not None:
                newest = max(position.newest_file, known.mark.newest_file)
                mark = replace(known.mark, newest_file=newest, end_group=position.end_group)
                if mark != known.mark:
                    moved[path] = mark
        return moved

    def _due(self, moved: Mapping[str, LogMark]) -> bool:
        if self._interval_s and self._monotonic() - self.reported_s >= self._interval_s:
            return bool(moved)
        for path, mark in moved.items():
            before = self._known[path].mark
            if before is not None and mark.newest_file > before.newest_file:
                return True
        return False

    async def look(self) -> None:
        """Report the position of the log, if that is due.

        The bookie calls this every `LOOK_S`. If the metadata store cannot be reached, the next call
        tries again.
        """
        if self._replaced:
            return
        moved = self._moved()
        if not moved:
            self.reported_s = self._monotonic()
        elif self._due(moved):
            await self.report()

    async def last(self) -> None:
        """Report the end of a log that was stopped cleanly.

        After `LAST_REPORT_S` without an answer, this gives up and logs that.
        """
        try:
            async with asyncio.timeout(LAST_REPORT_S):
                await self.report()
        except TimeoutError:
            self._log("log_position_not_reported", bookie=self._bookie_id, error="no answer")

    async def report(self) -> bool:
        """Report the position of the log, and return whether the metadata store has it now.

        Errors are logged. Safe to cancel.
        """
        began_s = self._monotonic()
        moved = self._moved()
        if not moved or self._replaced:
            return not self._replaced
        before = {path: self._known[path].mark for path in moved}
        try:
            for _ in range(REPORT_ATTEMPTS):
                for path, mark in moved.items():
                    self._known[path].mark = mark
                try:
                    await self._write(self._found)
                except (NoSuchKeyError, VersionConflictError):
                    if not await self._reload(before):
                        return False
                else:
                    break
            else:
                raise MetadataError(
                    f"the end of the log of bookie {self._bookie_id} was not reported: other "
                    f"processes changed the record of its directories {REPORT_ATTEMPTS} times in "
                    "a row",
                    remedy="The bookie tries again by itself. Make sure that only one process "
                    "uses its id and its directories",
                )
        except asyncio.CancelledError:
            self._take_back(before)
            raise
        except QuireError as error:
            self._take_back(before)
            if not self._failing:
                self._log(
                    "log_position_not_reported", bookie=self._bookie_id, error=str(error),
                    what="until a report succeeds, a restored copy may go unnoticed",
                )  # fmt: skip
            self._failing = True
            return False
        if self._failing:
            self._log("log_position_reported", bookie=self._bookie_id)
        self._failing = False
        self.reported_s = began_s
        return True

    def _take_back(self, before: Mapping[str, LogMark | None]) -> None:
        """Forget marks whose write has failed, or may have, so that they are reported again."""
        for path, old in before.items():
            self._known[path].mark = old

    async def _reload(self, before: Mapping[str, LogMark | None]) -> bool:
        """Read the record of the directories again. Return False if another process owns it now."""
        self._found = found = await read_directories(self._metadata, self._bookie_id)
        for path, mark in before.items():
            known = self._known[path]
            now = None if found is None else found.value.marks.get(known.directory_id)
            if mark is None or now is None or (now.incarnation, now.nonce) != (
                mark.incarnation, mark.nonce,
            ):  # fmt: skip
                self._replaced = True
                self._log("log_position_not_mine", bookie=self._bookie_id, directory=path)
                return False
        return True

    async def _write(self, found: Versioned[BookieDirectories] | None) -> None:
        """Write the marks of this process into the record that was `found`."""
        value = BookieDirectories() if found is None else found.value
        made = {
            known.directory_id: known.mark
            for known in self._known.values()
            if known.mark is not None
        }
        value = replace(value, marks={**value.marks, **made})
        version = None if found is None else found.version
        written = await write_directories(self._metadata, self._bookie_id, value, version)
        self._found = Versioned(value, written)


def _mark(made: Incarnation, position: LogPosition) -> LogMark:
    return LogMark(made.number, made.nonce, position.newest_file, position.end_group)
