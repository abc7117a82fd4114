"""Delete a bookie's files from a data directory, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from quire.storage.directory import CURRENT_DIRECTORY, IDENTITY_NAME, IGNORED_NAMES
from quire.storage.interfaces import Disk
from quire.storage.segment.segment import LOG_DIRECTORY

OUR_DIRECTORIES = (CURRENT_DIRECTORY, LOG_DIRECTORY)


@dataclass(frozen=True, slots=True)
class ErasePlan:
    """The files of a bookie to delete from a data directory, and the names that stay."""

    files: tuple[str, ...]
    """The paths of the files in the data directory, in the order in which they are deleted."""
    size_bytes: int
    """The size of the files together, including preallocated space."""
    kept: tuple[str, ...]
    """The names in the data directory that do not belong to a bookie, and are kept."""


def plan_erase(disk: Disk, cookie_name: str) -> ErasePlan:
    """Plan the deletion of a bookie's files. Nothing is deleted yet.

    The cookie, `cookie_name`, is deleted first and the directory's own id last. If the deletion is
    interrupted, no bookie starts on the rest, which can be deleted later. Raises `OSError` if the
    directory cannot be read.
    """
    kept = set(disk.list()) - IGNORED_NAMES - set(OUR_DIRECTORIES)
    names: list[str] = []
    size = 0
    for directory in OUR_DIRECTORIES:
        for name in disk.list(directory):
            full = f"{directory}/{name}"
            try:
                file = disk.open(full)
            except IsADirectoryError:
                kept.add(full)
                continue
            try:
                size += file.size()
            finally:
                file.close()
            names.append(full)
    order = {cookie_name: 0, IDENTITY_NAME: 2}
    names.sort(key=lambda name: (order.get(name, 1), name))
    return ErasePlan(tuple(names), size, tuple(sorted(kept)))


def erase(disk: Disk, plan: ErasePlan) -> None:
    """Delete the files of a plan. The deletion is durable on return.

    The caller must hold the disk's lock. After an `OSError`, some of the files are left.
    """
    before = ""
    for at, name in enumerate(plan.files):
        directory = name.rpartition("/")[0]
        if before and directory != before:
            disk.sync_directory(before)
        disk.remove(name)
        before = directory
        if at == 0:
            disk.sync_directory(directory)
    if before:
        disk.sync_directory(before)
