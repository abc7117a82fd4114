"""Taking away what a bookie keeps in a data directory, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from quire.storage.directory import CURRENT_DIRECTORY, IDENTITY_NAME, IGNORED_NAMES
from quire.storage.interfaces import Disk
from quire.storage.segment.segment import LOG_DIRECTORY

OUR_DIRECTORIES = (CURRENT_DIRECTORY, LOG_DIRECTORY)


@dataclass(frozen=True, slots=True)
class ErasePlan:
    files: tuple[str, ...]
    """In the order in which they go."""
    size_bytes: int
    """Of the files, preallocated parts included."""
    kept: tuple[str, ...]
    """What lies beside them, and is not ours."""


def plan_erase(disk: Disk, cookie_name: str) -> ErasePlan:
    """The cookie goes first and the directory's own id last: whenever it is interrupted, what is
    left is refused by a start, and can be erased. `OSError`."""
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
    """Durable on return. Hold the disk's lock. `OSError`: some of it is left then."""
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
