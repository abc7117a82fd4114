"""Look at the log of a data directory as a start does, without changing anything.

This works whether a bookie runs on the directory or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from quire.errors import LaterStorageError, StorageError
from quire.storage.directory import Identity, read_identity
from quire.storage.interfaces import Disk
from quire.storage.recovery.later_versions import refuse_later_files
from quire.storage.recovery.log_recovery import LogRecovery, RecoveredLog
from quire.storage.recovery.replay import runs_of
from quire.storage.segment.batch import LogBatch
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.segment import LogSegment

LOOKS_MAX = 5
"""The most attempts to read the log of a running bookie. An attempt is repeated if files were
removed or replaced in the meantime, or if something seems to be lost. A group may have been written
while the log was read, so that it seems to be missing before later ones."""

T = TypeVar("T")


def identity_of(disk: Disk) -> Identity:
    """Return the identity of a data directory.

    Raises:
        LaterStorageError: A later version wrote the identity.
        StorageError: The directory is not a bookie's data directory, or its identity is damaged.
        OSError: The identity cannot be read.
    """
    identity = read_identity(disk)
    if identity is None:
        raise StorageError(
            f"the directory {disk.path} is not a data directory of a Quire bookie",
            remedy="Give the directory that the bookie was started with (--dir)",
        )
    return identity


def with_log(disk: Disk, work: Callable[[RecoveredLog, bytes], T]) -> T:
    """Read the log of a data directory, and return the result of `work` on it.

    The call is `work(recovered, directory_id)`.

    `recovered` is the log as a start would find it. The log of a running bookie is seen as it was
    at one moment. If a file is removed or replaced in the meantime, everything is repeated, and
    `work` may be called again. A problem counts only if the previous attempt has found it as well.
    The files of segments that are not sealed are open while `work` runs. If `work` raises
    `FileNotFoundError`, everything is repeated as well. Its other errors reach the caller.

    Raises:
        LaterStorageError: A later version of Quire wrote a part of the directory.
        StorageError: The directory has no log of a bookie, or changes too fast.
        OSError: The disk fails.
    """
    identity = identity_of(disk)
    refuse_later_files(disk)
    before: set[str] = set()
    for left in reversed(range(LOOKS_MAX)):
        catalogue = Catalogue()
        try:
            recovered = LogRecovery(disk, identity, catalogue).run()
            now = set(recovered.problems)
            if left and now - before:
                before = now
                continue
            recovered.problems[:] = [one for one in recovered.problems if one in before]
            _apply_tail(recovered)
            return work(recovered, identity.directory_id)
        except FileNotFoundError:
            continue
        except LaterStorageError:
            raise
        except StorageError:
            # A file may have been replaced in the meantime.
            if not left:
                raise
        finally:
            for segment in catalogue.segments.values():
                if segment.file is not None:
                    segment.file.close()
    raise StorageError(
        f"the log in {disk.path} could not be read, because the bookie changed it during each "
        "attempt",
        remedy="Try again. If that does not help, stop the bookie before you try again",
    )


def _apply_tail(recovered: RecoveredLog) -> None:
    """Add the last group of the log to the index, where it is now.

    A start would write this group again.
    """
    if recovered.tail is None:
        return
    group, replayer = recovered.tail.group, recovered.replayer
    number = group.header.segment
    segment = replayer.catalogue.segments.get(number) or LogSegment(number, None, 0)
    batch = LogBatch((), ())
    batch.buffers = None
    batch.file_offset = group.header.payload_offset
    replayer.apply(batch, runs_of(group), group.table.records, segment)
    if segment.file is not None:
        replayer.find_lacs(segment)
