"""Disks that fill at the worst moment: as a fence, a LAC, a force, a compaction or a record begins.

A disk that is full for a while mostly fills between two such moments.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from quire.bookie.server import Bookie
from quire.storage.directory import CURRENT_DIRECTORY
from quire.storage.segment.segment import LOG_DIRECTORY
from quire_simulator.machine.disk import SimDisk

CALLS = {"full at fence": "fence", "full at LAC": "write_explicit_lac", "full at force": "force"}
"""The moments that begin with a call of the bookie's store."""
FILES = {
    "full at compaction": f"{LOG_DIRECTORY}/compaction",
    "full at directory record": f"{CURRENT_DIRECTORY}/",
    "full at index cache": f"{LOG_DIRECTORY}/INDEX",
}
"""The moments at which a file is changed, with the beginning of its name."""
ROOM_LEFT_BYTES = (0, 0, 512, 4_096, 70_000)
"""The choices for the space that is left."""
SKIPPED_MAX = 6
"""The most operations on such a file that still succeed."""


class FullMoment:
    """A fault that waits for its moment and then fills a disk. `end` gives it up."""

    def __init__(self, kind: str, disk: SimDisk, chance: random.Random) -> None:
        self.come = False
        """Whether the disk was filled."""
        self._disk = disk
        self._room = chance.choice(ROOM_LEFT_BYTES)
        self._beginning = FILES.get(kind, "")
        self._skipped = chance.randint(0, SKIPPED_MAX)
        self._call = CALLS.get(kind, "")
        self._ended = False

    def watch(self, bookie: Bookie | None) -> None:
        """Wait for the moment from now on. The store of `bookie` is watched if a call is meant."""
        if self._beginning:
            self._disk.before_change = self._changes
        elif bookie is not None:
            call: Callable[..., object] = getattr(bookie.store, self._call)

            def watched(*arguments: object) -> object:
                self._fill()
                return call(*arguments)

            setattr(bookie.store, self._call, watched)

    def end(self) -> None:
        self._ended = True
        self._disk.before_change = None

    def _changes(self, name: str) -> None:
        if name.startswith(self._beginning):
            if self._skipped:
                self._skipped -= 1
            else:
                self._fill()

    def _fill(self) -> None:
        if not self.come and not self._ended:
            self.come = True
            self._disk.capacity_bytes -= max(0, self._disk.free_bytes() - self._room)
