"""Compaction that an operator has suspended, until it is resumed or the bookie is started again;
and the note of it in the data directory, `log/SUSPENDED`, for who looks at a bookie's space from
outside:

    {"minor": true, "major": false, "by": "...", "since_ms": 1700000000000}

The note decides nothing: a start removes it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from quire.errors import StorageError
from quire.storage.directory import read_small_file, remove_small_file, write_small_file
from quire.storage.interfaces import Disk
from quire.storage.segment.segment import LOG_DIRECTORY

NOTE_NAME = f"{LOG_DIRECTORY}/SUSPENDED"
BY_MAX = 200
"""Characters of a name."""


@dataclass(frozen=True, slots=True)
class Suspension:
    minor: bool
    major: bool
    by: str
    since_ms: int
    """Calendar."""

    def describe(self) -> str:
        which = "compaction" if self.minor and self.major else self._kind + " compaction"
        since = datetime.fromtimestamp(self.since_ms // 1000, UTC)
        return f"{which} is suspended by {self.by} since {since:%Y-%m-%dT%H:%M:%SZ}"

    @property
    def _kind(self) -> str:
        return "minor" if self.minor else "major"

    def stops(self, *, minor: bool) -> bool:
        """Whether a segment is left alone that a minor compaction would take, or only a major."""
        return self.major and (self.minor or not minor)


def suspended(
    before: Suspension | None, *, minor: bool, major: bool, by: str, now_ms: int
) -> Suspension | None:
    """With these kinds suspended, too. What is so already keeps its name and time."""
    if not minor and not major:
        return before
    if before is None:
        return Suspension(minor, major, by[:BY_MAX], now_ms)
    return Suspension(before.minor or minor, before.major or major, before.by, before.since_ms)


def resumed(before: Suspension | None, *, minor: bool, major: bool) -> Suspension | None:
    """Without these kinds."""
    if before is None:
        return None
    left = Suspension(
        before.minor and not minor, before.major and not major, before.by, before.since_ms
    )
    return left if left.minor or left.major else None


def write_note(disk: Disk, found: Suspension | None) -> None:
    """Durable on return. `OSError`."""
    if found is None:
        remove_small_file(disk, NOTE_NAME)
    else:
        write_small_file(disk, NOTE_NAME, json.dumps(asdict(found)).encode())


def read_note(disk: Disk) -> Suspension | None:
    """None: there is none, or it makes no sense. `OSError`."""
    try:
        data = read_small_file(disk, NOTE_NAME)
        return None if data is None else Suspension(**json.loads(data))
    except (StorageError, ValueError, TypeError):
        return None
