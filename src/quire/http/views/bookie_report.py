"""The report of a bookie about itself, which its HTTP server gives and other servers read.

It says why the bookie accepts no entries, and what is in its data directories.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from quire.http.views.untrusted import taken
from quire.storage.stats import DirectoryState

if TYPE_CHECKING:
    from quire.bookie.server import Bookie

PATH = "/api/v1/quire/self"
"""The route of the report."""

_SEGMENTS = {"state": str, "segments": int, "file_bytes": int, "live_bytes": int}
_DIRECTORY = {
    "path": str,
    "state": str,
    "reason": str,
    "free_bytes": int | None,
    "total_bytes": int | None,
    "ledgers": int | None,
    "prepared_bytes": int,
    "segments": [_SEGMENTS],
}
_STORE = {
    "ledgers": int,
    "segment_bytes": int,
    "live_bytes": int,
    "segments_to_seal": int,
    "damaged_segments": int,
    "damaged_ledgers": int,
    "compactions": int,
    "compaction_freed_bytes": int,
    "last_error": str,
}
_CERTIFICATE = {"path": str, "own": bool, "expires_ms": int}
_SHAPE: dict[str, Any] = {
    "id": str,
    "version": str,
    "python": str,
    "started_ms": int,
    "now_ms": int,
    "state": str,
    "loading_percent": int,
    "held_readonly": bool,
    "unwritable": [{"why": str, "directory": str, "details": str}],
    "directories": [_DIRECTORY],
    "min_free_bytes": int,
    "store": _STORE,
    "connections": int,
    "garbage_collection": {"enabled": bool, "switched_off": bool, "went_back": bool},
    "compaction_suspended": [str],
    "certificates": [_CERTIFICATE],
    "command": [str],
    "working_directory": str,
}


def bookie_report(bookie: Bookie, version: str, started_ms: int) -> dict[str, Any]:
    """Return the report of a bookie. This asks the system for the free space of the disks.

    Args:
        bookie: The bookie.
        version: The version of Quire that it runs.
        started_ms: When its process started, in milliseconds since 1970.
    """
    state = "writable" if bookie.writable else "read-only"
    found: dict[str, Any] = {
        "id": bookie.bookie_id,
        "version": version,
        "python": platform.python_version(),
        "started_ms": started_ms,
        "now_ms": bookie.now_ms(),
        "state": state if bookie.recovered else "loading",
        "loading_percent": bookie.loading_percent,
        "held_readonly": bookie.held_readonly,
        "unwritable": [
            {**asdict(one), "details": details} for one, details in bookie.explain_unwritable()
        ],
        "directories": [],
        "min_free_bytes": bookie.config.min_free_bytes,
        "store": None,
        "connections": len(bookie.service.connections),
        "garbage_collection": None,
        "compaction_suspended": [],
        "certificates": [asdict(one) for one in bookie.certificates()],
        "command": list(bookie.start_command.words),
        "working_directory": bookie.start_command.working_directory,
    }
    spaces = {path: (total, free) for path, total, free in bookie.spaces()}
    if not bookie.recovered:
        found["directories"] = [
            _directory(DirectoryState(path, "loading", "", 0, None), spaces, []) for path in spaces
        ]
        return found
    segments: dict[str, list[dict[str, Any]]] = {}
    for one in bookie.store.segment_totals():
        described = asdict(one)
        segments.setdefault(described.pop("path"), []).append(described)
    found["directories"] = [
        _directory(one, spaces, segments.get(one.path, [])) for one in bookie.store.directories()
    ]
    stats = asdict(bookie.store.stats())
    found["store"] = {name: stats[name] for name in _STORE}
    if (guard := bookie.collection) is not None:
        found["garbage_collection"] = {
            "enabled": guard.enabled,
            "switched_off": guard.switched_off,
            "went_back": guard.went_back,
        }
    held = bookie.store.compaction_suspended
    kinds = ("minor", "major")
    found["compaction_suspended"] = [one for one in kinds if held and getattr(held, one)]
    return found


def _directory(
    found: DirectoryState,
    spaces: Mapping[str, tuple[int, int]],
    segments: list[dict[str, Any]],
) -> dict[str, Any]:
    total, free = spaces.get(found.path, (None, None))
    return {
        "path": found.path,
        "state": found.state,
        "reason": found.reason,
        "free_bytes": free,
        "total_bytes": total,
        "ledgers": found.ledgers,
        "prepared_bytes": found.prepared_bytes,
        "segments": segments,
    }


def read_report(text: str) -> dict[str, Any]:
    """Return the report in the answer of another process. Raises ValueError (see `taken`)."""
    found: dict[str, Any] = taken(text, _SHAPE)
    return found
