"""The space on the disk of a SQLite metadata file, as far as this machine can see it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from quire._runtime.units import size_text
from quire.errors import MetadataURIError
from quire.metadata.uri import parse_uri

FULL_BYTES = 1024 * 1024
"""The free bytes below which the disk counts as full. A commit needs a few pages in the log, and a
checkpoint as many in the file."""


@dataclass(frozen=True, slots=True)
class MetadataDisk:
    """The disk of a metadata file."""

    path: str
    free_bytes: int
    """The bytes that this process may still write."""
    total_bytes: int

    @property
    def full(self) -> bool:
        return self.free_bytes < FULL_BYTES

    def __str__(self) -> str:
        left = f"{size_text(self.free_bytes)} of {size_text(self.total_bytes)} free"
        return f"{self.path}: {left}"


def metadata_disk(uri: str) -> MetadataDisk | None:
    """Return the disk of the metadata file at `uri`, or None for another store. It may block."""
    try:
        path = parse_uri(uri).path
    except MetadataURIError:
        return None
    return disk_of(Path(path)) if path else None


def disk_of(path: Path) -> MetadataDisk | None:
    """Return the disk of a file that exists or is to be created, or None if that is not known."""
    whole = path.absolute()
    for place in (whole, whole.parent):
        try:
            found = os.statvfs(place)
        except OSError:
            continue
        blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
        return MetadataDisk(str(whole), blocks * found.f_frsize, found.f_blocks * found.f_frsize)
    return None
