"""Looking at the log of a data directory as a start would, without changing anything, whether a
bookie runs on it or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from quire.errors import StorageError
from quire.storage.directory import Identity, read_identity
from quire.storage.interfaces import Disk
from quire.storage.recovery.log_recovery import LogRecovery, RecoveredLog
from quire.storage.recovery.replay import runs_of
from quire.storage.segment.batch import LogBatch
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.segment import LogSegment

LOOKS_MAX = 5
"""How often a look begins again, because files went or were replaced meanwhile, or something seems
to be lost: a group that was not there when its place was read, and then lay behind the last."""

T = TypeVar("T")


def identity_of(disk: Disk) -> Identity:
    """`StorageError` where it is no data directory of ours; `OSError`."""
    identity = read_identity(disk)
    if identity is None:
        raise StorageError(
            f"{disk.path} holds no data of a Quire bookie", remedy="Name its data directory"
        )
    return identity


def with_log(disk: Disk, work: Callable[[RecoveredLog, bytes], T]) -> T:
    """`work(what a start would find, the directory's id)`, once more where a file goes meanwhile:
    of a bookie that runs it is a moment of its log. Of what is lost only that is told which was so
    in the look before. Files are open while it works.

    `StorageError` where the directory holds no log of ours, or changes too fast; `OSError`."""
    identity = identity_of(disk)
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
        except StorageError:
            # Another file may have taken the place of one just now.
            if not left:
                raise
        finally:
            for segment in catalogue.segments.values():
                if segment.file is not None:
                    segment.file.close()
    raise StorageError(
        f"{disk.path} changes faster than it can be looked at", remedy="Try it again"
    )


def _apply_tail(recovered: RecoveredLog) -> None:
    """The last group, which a start would write again, counts where it is."""
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
