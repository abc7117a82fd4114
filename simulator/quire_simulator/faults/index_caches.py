"""Faults of the index cache of a bookie that is down: it is lost, older than the log, that of
another directory, or has flipped bits.

These may cost time and nothing else, so the disk does not count as damaged.
"""

from __future__ import annotations

import random

from quire.storage.recovery.index_cache import CACHE_NAME
from quire.storage.segment.segment import LOG_DIRECTORY
from quire_simulator.machine.disk import SimDisk

KEPT_MAX = 8
"""The number of index caches kept for each disk."""
ROTTEN_BITS = (1, 10)


class IndexCaches:
    """The index caches that were seen on each disk, oldest first."""

    def __init__(self) -> None:
        self._kept: dict[str, list[bytes]] = {}

    def look(self, disk: SimDisk) -> None:
        """Keep a copy of the current index cache for later."""
        kept = self._kept.setdefault(disk.path, [])
        if not disk.exists(CACHE_NAME):
            return
        file = disk.open(CACHE_NAME)
        data = file.read(0, file.size())
        file.close()
        if data and data not in kept:
            kept.append(data)
            del kept[:-KEPT_MAX]

    def lose(self, disk: SimDisk) -> None:
        if disk.exists(CACHE_NAME):
            disk.remove(CACHE_NAME)
            disk.sync_directory(LOG_DIRECTORY)

    def put_back(self, disk: SimDisk, chance: random.Random, *, foreign: bool = False) -> None:
        """Restore an earlier index cache, as from a backup, or with `foreign` one of another
        directory.

        Raises:
            OSError: The disk has no room for it. The disk has no index cache then.
        """
        of_others = (one for path, kept in self._kept.items() if path != disk.path for one in kept)
        kept = list(of_others) if foreign else self._kept.get(disk.path)
        if not kept:
            return
        self.lose(disk)
        file = disk.create(CACHE_NAME)
        try:
            file.write([chance.choice(kept)], 0)
            file.sync()
        except OSError:
            disk.remove(CACHE_NAME)
            raise
        finally:
            file.close()
            disk.sync_directory(LOG_DIRECTORY)

    def rot(self, disk: SimDisk, chance: random.Random) -> None:
        if disk.exists(CACHE_NAME) and (size := disk.written_bytes(CACHE_NAME)):
            for _ in range(chance.choice(ROTTEN_BITS)):
                disk.flip_bit(CACHE_NAME, chance.randrange(size))
