"""The metadata of a snapshot: a position in the log, and the number of commands that led to it."""

from __future__ import annotations

from dataclasses import dataclass

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.name import stream_name
from quire.errors import LaterStreamError, StreamDamagedError, UsageError, later_json
from quire.streams.objects.format import ObjectInfo, check_name

BUCKET = "state-machines"
"""The bucket of the objects that are snapshots."""
POSITION_KEY = "position"
"""The key in the metadata of a snapshot for the position at which reading continues."""
APPLIED_KEY = "applied"
LIFE_KEY = "life"
"""The key in the metadata of a snapshot for the id of the stream's life (`StreamMetadata.life_id`).

Snapshots of earlier versions lack it.
"""
SNAPSHOT_KEYS = (POSITION_KEY, APPLIED_KEY, LIFE_KEY)
"""The keys in the metadata of a snapshot. A snapshot that has any other key is from a later
version.
"""
_REMEDY = "Restore the object from a copy, or give the new state machine another name"


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """The metadata of a snapshot, decoded."""

    position: DLSN
    """The position at which reading continues after the snapshot."""
    applied: int
    """The number of commands that were applied to reach the state in the snapshot."""
    life: str | None
    """The id of the life of the stream, or None for a snapshot of an earlier version."""


def snapshot_name(namespace: str, name: str) -> str:
    """Return the name of the object with the snapshot of a state machine.

    Args:
        namespace: The path of the namespace.
        name: The name of the machine's stream.

    Raises:
        UsageError: The name of the object would be too long.
    """
    return check_name(f"{namespace.strip('/')}/{stream_name(name)}")


def snapshot_info(snapshot: ObjectInfo) -> SnapshotInfo:
    """Return what the metadata of a snapshot says.

    Raises:
        LaterStreamError: A later version of Quire wrote the snapshot.
        StreamDamagedError: The metadata is not that of a snapshot.
    """
    what = f"the snapshot of state machine {snapshot.name} (object {BUCKET}/{snapshot.name})"
    if message := later_json(what, dict(snapshot.metadata), SNAPSHOT_KEYS, key=""):
        raise LaterStreamError(message)
    try:
        return SnapshotInfo(
            DLSN.parse(snapshot.metadata[POSITION_KEY]),
            int(snapshot.metadata[APPLIED_KEY]),
            snapshot.metadata.get(LIFE_KEY),
        )
    except (KeyError, ValueError, UsageError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else error.args[0]
        raise StreamDamagedError(
            f"the metadata of {what} cannot be decoded: {why}",
            remedy=_REMEDY,
        ) from error
