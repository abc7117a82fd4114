"""Refuse a data directory that a later version of Quire wrote, before anything in it is changed.

A later version that changes a format of the log writes another version into the headers of the
segments. So it is sufficient to check the small files and these headers before a start. Indexes,
groups and records have versions and flags as well, which are checked when they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from quire.codec.log.segment_header import CleanMark
from quire.codec.log.state_records import FormatError
from quire.errors import LaterStorageError, StorageError
from quire.storage.background.quarantine_record import stored_records
from quire.storage.directory import naming, read_identity, read_small_file
from quire.storage.interfaces import Disk
from quire.storage.recovery.incarnation import read_incarnation
from quire.storage.recovery.log_recovery import CLEAN_NAME
from quire.storage.recovery.scan import read_segment_header
from quire.storage.segment.segment import LOG_DIRECTORY, number_of, segment_name


def refuse_later_version(disk: Disk) -> None:
    """Check the small files and the segment headers of a data directory. Nothing is changed.

    A file that is damaged or cannot be read passes.

    Raises:
        LaterStorageError: A later version wrote one of the files.
    """
    refuse_later_files(disk)
    _passing(_check_segments, disk)


def refuse_later_files(disk: Disk) -> None:
    """Check the small files of a data directory. Nothing is changed.

    A file that is damaged or cannot be read passes.

    Raises:
        LaterStorageError: A later version wrote one of the files.
    """
    for check in (_check_mark, _check_identity, _check_records):
        _passing(check, disk)


def _passing(check: Callable[[Disk], None], disk: Disk) -> None:
    try:
        check(disk)
    except LaterStorageError:
        raise
    except (OSError, StorageError):
        pass  # The start reports it.


def _check_mark(disk: Disk) -> None:
    with suppress(FormatError), naming(disk, CLEAN_NAME):
        CleanMark.decode(read_small_file(disk, CLEAN_NAME) or b"")


def _check_identity(disk: Disk) -> None:
    read_identity(disk)
    read_incarnation(disk)


def _check_records(disk: Disk) -> None:
    for _ in stored_records(disk):
        pass


def _check_segments(disk: Disk) -> None:
    identity = read_identity(disk)
    if identity is None:
        return
    for name in sorted(disk.list(LOG_DIRECTORY)):
        number = number_of(f"{LOG_DIRECTORY}/{name}")
        if number is None:
            continue
        file = disk.open(segment_name(number))
        try:
            with naming(disk, segment_name(number)):
                read_segment_header(file, identity.directory_id, number)
        except LaterStorageError:
            raise
        except OSError:
            continue  # One bad sector is no reason to stop here.
        finally:
            file.close()
