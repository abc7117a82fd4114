"""The notes that a bookie leaves about damage on its disks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from quire.bookie.background.damage_notes import DamageNotes
from quire.errors import LaterMetadataError, MetadataUnavailableError
from quire.metadata.bookies.damage_notes import (
    LEDGERS_NAMED_MAX,
    NOTES_MAX,
    REPAIRED_KEPT_MS,
    FoundDamage,
    damage_notes,
    damage_path,
    encode,
    read_damage,
)
from quire.metadata.bookies.directories import forget_bookie
from quire.metadata.bookies.nodes import write_node
from quire.storage.background.quarantine_record import SegmentDamage
from quire.storage.segment.segment import segment_name
from quire_simulator.metadata.store import MemoryStore
from tests.support.bookies.bookie import memory_metadata
from tests.support.storage.storage import HandClock

ME = "me:3181"
PLACE, OTHER = "/data/a", "/data/b"


@dataclass
class Directory:
    path: str
    kind: str = ""


class FakeStore:
    def __init__(self) -> None:
        self.damaged: dict[str, list[SegmentDamage]] = {PLACE: []}
        self.lost: set[str] = set()

    def damage(self) -> dict[str, list[SegmentDamage]]:
        return {path: list(found) for path, found in self.damaged.items()}

    def directories(self) -> list[Directory]:
        return [Directory(path, "lost" if path in self.lost else "") for path in self.damaged]


class Scene:
    def __init__(self) -> None:
        self.metadata: MemoryStore = memory_metadata()
        self.store = FakeStore()
        self.clock = HandClock()

    def notes(self, *directories: str) -> DamageNotes:
        store: Any = self.store
        paths = directories or (PLACE, OTHER)
        return DamageNotes(store, self.metadata, self.clock, ME, paths)

    async def found(self) -> tuple[FoundDamage, ...]:
        return (await damage_notes(self.metadata, self.clock.now_ms())).get(ME, ())

    def damage(self, number: int, **ledgers: Any) -> SegmentDamage:
        named = {int(name[1:]): ranges for name, ranges in ledgers.items()}
        return SegmentDamage(number, self.clock.now_ms(), ((1, 1),), ledgers=named)


@pytest.fixture
async def there() -> Scene:
    made = Scene()
    await made.metadata.initialise()
    return made


async def test_damage_is_noted_and_the_note_stays_after_the_repair(there: Scene) -> None:
    notes = there.notes()
    await notes.follow()
    assert await there.found() == ()
    found_ms = there.clock.now_ms()
    damaged = replace(there.damage(3, _7=((5, 9),), _8=((0, 0),)), blocks=((8, 51), (60, 60)))
    there.store.damaged[PLACE] = [damaged]
    await notes.follow()
    wanted = FoundDamage(PLACE, segment_name(3), found_ms, 2, (7, 8), 6, blocks=45)
    assert await there.found() == (wanted,)
    # One ledger is restored: the note still says how much was missing.
    there.clock.ms += 5_000
    there.store.damaged[PLACE] = [replace(there.store.damaged[PLACE][0], ledgers={8: ((0, 0),)})]
    await notes.follow()
    assert await there.found() == (wanted,)
    there.store.damaged[PLACE] = [replace(damaged, blocks=(), ledgers={})]
    await notes.follow()
    restored = replace(wanted, repaired_ms=there.clock.now_ms())
    assert await there.found() == (restored,)
    there.clock.ms += 5_000
    there.store.damaged[PLACE] = []  # the segment was rewritten
    await notes.follow()
    assert await there.found() == (restored,)


async def test_damage_repaired_before_its_note_was_written_is_noted(there: Scene) -> None:
    notes = there.notes()
    notes.see(PLACE, there.damage(3, _7=((5, 9),)))
    there.clock.ms += 1_000
    await notes.follow()
    (one,) = await there.found()
    assert (one.entries, one.repaired_ms) == (5, there.clock.now_ms())


async def test_a_damage_note_is_known_after_a_restart(there: Scene) -> None:
    there.store.damaged[PLACE] = [there.damage(3, _7=((5, 9),))]
    await there.notes().follow()
    (before,) = await there.found()
    await there.notes().follow()
    assert await there.found() == (before,)
    there.store.damaged[PLACE] = []  # the record of the damage was lost, or the segment was removed
    await there.notes().follow()
    (after,) = await there.found()
    assert after == replace(before, repaired_ms=there.clock.now_ms())


async def test_a_directory_that_was_not_read_keeps_its_notes(there: Scene) -> None:
    there.store.damaged[PLACE] = [there.damage(3, _7=((5, 9),))]
    await there.notes().follow()
    there.store.damaged = {OTHER: []}
    await there.notes().follow()
    (one,) = await there.found()
    assert one.repaired_ms is None, "the contents of the directory are unknown"
    await there.notes(OTHER).follow()
    assert await there.found() == (), "the bookie no longer has this directory"
    assert await read_damage(there.metadata, ME) is None


async def test_the_note_ends_a_day_after_the_repair(there: Scene) -> None:
    notes = there.notes()
    notes.see(PLACE, there.damage(3, _7=((5, 9),)))
    await notes.follow()
    there.clock.ms += REPAIRED_KEPT_MS
    await notes.follow()
    assert len(await there.found()) == 1
    there.clock.ms += 1
    assert await there.found() == ()
    assert await read_damage(there.metadata, ME) is not None
    await notes.follow()
    assert await read_damage(there.metadata, ME) is None


async def test_renewed_damage_in_the_same_file_gets_a_new_note(there: Scene) -> None:
    notes = there.notes()
    notes.see(PLACE, there.damage(3, _7=((5, 9),)))
    await notes.follow()
    there.clock.ms += 60_000
    there.store.damaged[PLACE] = [there.damage(3, _9=((1, 1),))]
    await notes.follow()
    (one,) = await there.found()
    assert (one.found_ms, one.named, one.repaired_ms) == (there.clock.now_ms(), (9,), None)


async def test_missing_files_of_the_log_are_noted(there: Scene) -> None:
    notes = there.notes()
    there.store.lost = {PLACE}
    await notes.follow()
    lost = FoundDamage(PLACE, "", there.clock.now_ms())
    assert await there.found() == (lost,)
    there.clock.ms += 60_000
    await notes.follow()
    assert await there.found() == (lost,)
    there.store.lost = set()
    await notes.follow()
    assert await there.found() == (replace(lost, repaired_ms=there.clock.now_ms()),)


async def test_damage_notes_are_limited_and_missing_files_come_first(there: Scene) -> None:
    notes = there.notes()
    for number in range(NOTES_MAX):
        there.clock.ms += 1
        notes.see(PLACE, there.damage(number, _7=((0, 0),)))
    many = {f"_{ledger}": ((0, 0),) for ledger in range(LEDGERS_NAMED_MAX + 5)}
    there.store.damaged[PLACE] = [there.damage(99, **many)]
    await notes.follow()
    found = await there.found()
    assert len(found) == NOTES_MAX
    assert (found[0].file, found[0].repaired_ms) == (segment_name(99), None)
    assert (found[0].ledgers, found[0].named) == (LEDGERS_NAMED_MAX + 5, tuple(range(8)))
    assert segment_name(0) not in {one.file for one in found}, "the oldest note is left out"


async def test_nothing_is_written_if_nothing_has_changed(there: Scene) -> None:
    notes = there.notes()
    there.store.damaged[PLACE] = [there.damage(3, _7=((5, 9),))]
    for _ in range(3):
        await notes.follow()
        there.clock.ms += 10_000
    found = await read_damage(there.metadata, ME)
    assert found is not None
    assert found.version == 0


async def test_an_unavailable_store_loses_no_note(
    there: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = there.notes()
    await notes.follow()
    notes.see(PLACE, there.damage(3, _7=((5, 9),)))

    async def away(*_: object) -> Any:
        raise MetadataUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(there.metadata.tree, "commit", away)
        with pytest.raises(MetadataUnavailableError):
            await notes.follow()
    await notes.follow()
    assert len(await there.found()) == 1


async def test_notes_of_a_later_version_are_left_alone(there: Scene) -> None:
    later = encode([FoundDamage(PLACE, "", 1)])[:-1] + b', "new": 1}'
    await write_node(there.metadata, damage_path(there.metadata.uri, ME), later, None)
    there.store.lost = {PLACE}
    with pytest.raises(LaterMetadataError):
        await there.notes().follow()
    assert (await there.metadata.tree.read(damage_path(there.metadata.uri, ME))).value == later
    assert await there.found() == ()


async def test_a_removed_bookie_has_no_notes(there: Scene) -> None:
    there.store.lost = {PLACE}
    await there.notes().follow()
    await forget_bookie(there.metadata, ME)
    assert await there.found() == ()
