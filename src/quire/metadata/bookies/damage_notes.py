"""Notes of bookies about damage that they found on their disks, also after it was repaired.

A note is a node below the under-replication tree, one for each bookie with damage. It tells people
which disk to look at. No decision about data depends on it, and Apache's programs do not read it.

The bookie deletes a note `REPAIRED_KEPT_MS` after the entries were restored, or when it no longer
has the directory. `forget_bookie` deletes the notes of a bookie that was removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from quire.codec.metadata.stored_json import stored_json
from quire.metadata.bookies.nodes import (
    delete_node,
    node_path,
    read_node,
    read_nodes,
    refuse_later,
    write_node,
)
from quire.metadata.interface import MetadataStore, Versioned

NODE = "quire-damage"
NOTES_MAX = 16
"""The number of damaged files of one bookie that have a note. Files whose entries are not restored
come first, and then the newest."""
LEDGERS_NAMED_MAX = 8
"""The number of ledgers that one note names."""
REPAIRED_KEPT_MS = 24 * 3_600_000
"""Milliseconds for which a note is kept after the entries were restored."""
BOOKIES_READ_MAX = 100
"""The number of bookies whose notes `damage_notes` reads. If more bookies have notes, those with
the last ids are left out."""
_WHAT = "the note about damage"
_NAMES = ("found",)
_FIELDS = ("directory", "file", "found_ms", "ledgers", "named", "entries", "repaired_ms", "blocks")


@dataclass(frozen=True, slots=True)
class FoundDamage:
    """One damaged file of a bookie, or the loss of a part of a directory."""

    directory: str
    """The path of the data directory."""
    file: str
    """The name of the segment file in the directory. Empty if files of the log are missing."""
    found_ms: int
    """The Unix time in milliseconds at which the damage was found."""
    ledgers: int = 0
    """The number of ledgers that lack entries because of the damage, or did before they were
    restored."""
    named: tuple[int, ...] = ()
    """The ids of some ledgers that lack or lacked entries, at most `LEDGERS_NAMED_MAX`."""
    entries: int = 0
    """The number of entries that are or were missing, as far as it is known."""
    repaired_ms: int | None = None
    """The Unix time in milliseconds at which the bookie noticed that it has the missing entries
    again, or that their ledgers were deleted. None if entries are still missing."""
    blocks: int = 0
    """The number of damaged blocks of the file. 0 if only its header or its index is damaged, or if
    an earlier version wrote the note."""

    @property
    def path(self) -> str:
        """The path of the damaged file, or of the directory if files are missing."""
        return f"{self.directory}/{self.file}" if self.file else self.directory

    def expired(self, now_ms: int) -> bool:
        """Return whether the note is too old to be shown."""
        return self.repaired_ms is not None and now_ms - self.repaired_ms > REPAIRED_KEPT_MS


def encode(found: Iterable[FoundDamage]) -> bytes:
    """Return the value of the node with these notes."""
    return json.dumps({"found": [asdict(one) for one in found]}).encode()


def decode(data: bytes) -> tuple[FoundDamage, ...]:
    """Return the notes in the value of a node.

    Raises:
        LaterMetadataError: A later version of Quire wrote the notes.
        ValueError: The value has no notes.
    """
    value = stored_json(data)
    refuse_later(_WHAT, value, _NAMES)
    try:
        return tuple(_decoded(one) for one in value["found"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is not a list of notes about damage ({error!r})") from None


def _decoded(one: Mapping[str, Any]) -> FoundDamage:
    refuse_later(_WHAT, one, _FIELDS)
    repaired_ms = one["repaired_ms"]
    return FoundDamage(
        str(one["directory"]),
        str(one["file"]),
        int(one["found_ms"]),
        int(one["ledgers"]),
        tuple(map(int, one["named"])),
        int(one["entries"]),
        None if repaired_ms is None else int(repaired_ms),
        int(one.get("blocks", 0)),
    )


def damage_path(uri: str, bookie_id: str) -> str:
    """Return the path of the node with the notes of a bookie."""
    return node_path(uri, NODE, bookie_id)


async def read_damage(
    store: MetadataStore, bookie_id: str
) -> Versioned[tuple[FoundDamage, ...]] | None:
    """Return the notes of a bookie, or None if it has none.

    Raises:
        LaterMetadataError: A later version of Quire wrote the notes.
        MetadataError: The notes cannot be decoded, or the store does not answer.
    """
    return await read_node(store, damage_path(store.uri, bookie_id), decode)


async def write_damage(
    store: MetadataStore, bookie_id: str, found: Iterable[FoundDamage], version: int | None
) -> None:
    """Create the notes of a bookie (version None), or replace those with this version.

    Raises:
        KeyExistsError: The version is None, and the bookie has notes.
        VersionConflictError: The notes' version is not `version`.
        NoSuchKeyError: There are no notes to replace.
        MetadataError: The store fails.
    """
    await write_node(store, damage_path(store.uri, bookie_id), encode(found), version)


async def forget_damage(store: MetadataStore, bookie_id: str) -> None:
    """Delete the notes of a bookie, if it has any. Raises MetadataError if the store fails."""
    await delete_node(store, damage_path(store.uri, bookie_id))


async def damage_notes(store: MetadataStore, now_ms: int) -> dict[str, tuple[FoundDamage, ...]]:
    """Return the notes of bookies that are not too old, by the bookie's id.

    Only the first `BOOKIES_READ_MAX` bookies with notes are read, in the order of their ids. Notes
    that cannot be decoded are left out. Raises MetadataError if the store fails.
    """
    notes = await read_nodes(store, NODE, decode, BOOKIES_READ_MAX)
    current = (
        (bookie, tuple(one for one in stored.value if not one.expired(now_ms)))
        for bookie, stored in notes.items()
    )
    return {bookie: found for bookie, found in current if found}
