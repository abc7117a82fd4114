"""The bookie's notes in the metadata store about damage on its disks.

The notes follow the state of the store: `follow` compares the notes with the segments that are
damaged now. So a note is also right after a restart, and after a change that nobody reported.
Autorecovery may repair damage within seconds. The note stays for a while and shows people that a
disk may be failing, whether or not the bookie has an HTTP server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from quire._runtime.clock import Clock
from quire.core.ranges import count
from quire.metadata.bookies.damage_notes import (
    LEDGERS_NAMED_MAX,
    NOTES_MAX,
    FoundDamage,
    forget_damage,
    read_damage,
    write_damage,
)
from quire.metadata.interface import MetadataStore
from quire.storage.background.quarantine_record import SegmentDamage
from quire.storage.directories import Store
from quire.storage.segment.segment import segment_name


class DamageNotes:
    """The notes of one bookie, and the state that is kept between two updates."""

    def __init__(
        self,
        store: Store,
        metadata: MetadataStore,
        clock: Clock,
        bookie_id: str,
        directories: Collection[str],
    ) -> None:
        """Create it. `directories` are the paths of all data directories, also of failed ones."""
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._bookie_id = bookie_id
        self._directories = frozenset(directories)
        self._notes: tuple[FoundDamage, ...] = ()
        self._seen: tuple[FoundDamage, ...] = ()
        """Damage that `see` was given and that is not in the notes yet."""
        self._stored: tuple[FoundDamage, ...] | None = None
        """The notes in the metadata store, or None if it is unknown what it has."""
        self._loaded = False
        """Whether the notes of earlier processes have been read."""
        self._following = asyncio.Lock()

    def see(self, directory: str, damage: SegmentDamage) -> None:
        """Remember damage that was found just now, which may be repaired before `follow` is called.

        Nothing is written before the next call of `follow`.
        """
        known = [one for one in self._seen if one.path != _note(directory, damage).path]
        self._seen = (*known[-NOTES_MAX:], _note(directory, damage))

    async def follow(self) -> None:
        """Bring the notes up to date, in the metadata store as well. Safe to cancel.

        Nothing is written if nothing has changed. The next call tries again what failed.

        Raises:
            MetadataError: The metadata store does not answer, another process changed the notes at
                the same time, or a later version of Quire wrote them.
        """
        async with self._following:
            if not self._loaded:
                stored = await read_damage(self._metadata, self._bookie_id)
                self._notes = self._stored = () if stored is None else stored.value
                self._loaded = True
            self._notes = self._updated()
            if self._notes == self._stored:
                return
            wanted = self._notes
            self._stored = None  # until the write has succeeded
            if not wanted:
                await forget_damage(self._metadata, self._bookie_id)
            else:
                present = await read_damage(self._metadata, self._bookie_id)
                version = None if present is None else present.version
                await write_damage(self._metadata, self._bookie_id, wanted, version)
            self._stored = wanted

    def _updated(self) -> tuple[FoundDamage, ...]:
        now_ms = self._clock.now_ms()
        current = self._store.damage()
        lost = {one.path for one in self._store.directories() if one.kind == "lost"}
        seen, self._seen = self._seen, ()
        notes = {one.path: one for one in self._notes}
        for one in (*seen, *_present(current, lost, now_ms)):
            notes[one.path] = _merged(notes.get(one.path), one)
        missing = {
            _note(path, damage).path
            for path, damaged in current.items()
            for damage in damaged
            if damage.ledgers or damage.more
        } | lost
        for path, one in notes.items():
            # What a directory that was not read lacks is unknown.
            if one.directory in current and one.repaired_ms is None and path not in missing:
                notes[path] = replace(one, repaired_ms=now_ms)
        kept = [
            one
            for one in notes.values()
            if one.directory in self._directories and not one.expired(now_ms)
        ]
        kept.sort(key=lambda one: (one.repaired_ms is None, one.found_ms, one.path), reverse=True)
        return tuple(kept[:NOTES_MAX])


def _present(
    current: Mapping[str, Sequence[SegmentDamage]], lost: Collection[str], now_ms: int
) -> list[FoundDamage]:
    """Return a note for each damaged segment, and for each directory that lacks files."""
    found = [_note(path, one) for path, damaged in current.items() for one in damaged]
    return found + [FoundDamage(path, "", now_ms) for path in sorted(lost)]


def _note(directory: str, damage: SegmentDamage) -> FoundDamage:
    return FoundDamage(
        directory,
        segment_name(damage.number),
        damage.found_ms,
        len(damage.ledgers),
        tuple(sorted(damage.ledgers)[:LEDGERS_NAMED_MAX]),
        sum(map(count, damage.ledgers.values())),
        blocks=count(damage.blocks),
    )


def _merged(old: FoundDamage | None, new: FoundDamage) -> FoundDamage:
    """Return the note about damage that has an older note.

    The number of missing entries sinks while they are restored. The note keeps the largest one. If
    the segment was damaged once more after the entries were restored, the note is a new one.
    """
    if old is None:
        return new
    if old.repaired_ms is not None:
        # The record of a segment may stay until the segment is rewritten, without missing entries.
        return new if new.ledgers or not new.file else old
    most = max(old, new, key=lambda one: (one.entries, one.ledgers))
    blocks = max(old.blocks, new.blocks)
    return replace(most, found_ms=min(old.found_ms, new.found_ms), repaired_ms=None, blocks=blocks)
