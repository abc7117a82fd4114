"""Suspend compaction until an operator resumes it or the bookie is restarted.

A note in the data directory, `log/SUSPENDED`, tells tools that read the directory about the
suspension:

    {"minor": true, "major": false, "by": "...", "since_ms": 1700000000000}

The note has no effect on the bookie, and a start removes it.
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
"""The most characters of an operator's name that a suspension keeps."""


@dataclass(frozen=True, slots=True)
class Suspension:
    """The kinds of compaction that are suspended, by whom, and since when."""

    minor: bool
    major: bool
    by: str
    since_ms: int
    """The Unix time in milliseconds at which compaction was suspended."""

    def describe(self) -> str:
        """Return the suspension in words, for messages and reports."""
        which = "compaction" if self.minor and self.major else self._kind + " compaction"
        since = datetime.fromtimestamp(self.since_ms // 1000, UTC)
        return f"{which} is suspended by {self.by} since {since:%Y-%m-%dT%H:%M:%SZ}"

    @property
    def _kind(self) -> str:
        return "minor" if self.minor else "major"

    def stops(self, *, minor: bool, major: bool) -> bool:
        """Return whether this suspension prevents the compaction of a segment.

        `minor` means that a minor compaction would take the segment, and `major` that a major one
        would. At least one of the two must be True.
        """
        return (self.minor or not minor) and (self.major or not major)


def suspended(
    before: Suspension | None, *, minor: bool, major: bool, by: str, now_ms: int
) -> Suspension | None:
    """Return the suspension `before` with the given kinds added, or None if nothing is suspended.

    `by` is the name of the operator, and `now_ms` the Unix time in milliseconds. An existing
    suspension keeps its name and time.
    """
    if not minor and not major:
        return before
    if before is None:
        return Suspension(minor, major, by[:BY_MAX], now_ms)
    return Suspension(before.minor or minor, before.major or major, before.by, before.since_ms)


def resumed(before: Suspension | None, *, minor: bool, major: bool) -> Suspension | None:
    """Return the suspension `before` without the given kinds, or None if nothing is left."""
    if before is None:
        return None
    left = Suspension(
        before.minor and not minor, before.major and not major, before.by, before.since_ms
    )
    return left if left.minor or left.major else None


def write_note(disk: Disk, found: Suspension | None) -> None:
    """Write the note of a suspension, or remove the note if there is no suspension.

    The change is durable on return. Raises `OSError` if that fails.
    """
    if found is None:
        remove_small_file(disk, NOTE_NAME)
    else:
        write_small_file(disk, NOTE_NAME, json.dumps(asdict(found)).encode())


def read_note(disk: Disk) -> Suspension | None:
    """Return the suspension in the note, or None if there is none or it cannot be understood.

    Raises `OSError` if the file cannot be read.
    """
    try:
        data = read_small_file(disk, NOTE_NAME)
        return None if data is None else Suspension(**json.loads(data))
    except (StorageError, ValueError, TypeError):
        return None
