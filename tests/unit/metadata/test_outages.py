"""Notes of servers about outages of the metadata store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from quire._runtime.retry import Backoff
from quire.errors import MetadataUnavailableError
from quire.metadata import outages
from quire.metadata.bookies.nodes import write_node
from quire.metadata.outages import (
    OUTAGES_MAX,
    RECENT_MS,
    Outage,
    OutageNotes,
    encode,
    forget_old_outages,
    noticed_outages,
    outages_path,
)
from quire_simulator.metadata.store import MemoryStore
from tests.support.bookies.bookie import memory_metadata
from tests.support.storage.storage import HandClock
from tests.support.waiting import until


class Scene:
    def __init__(self) -> None:
        self.store: MemoryStore = memory_metadata()
        self.clock = HandClock()

    def notes(self, server: str) -> OutageNotes:
        return OutageNotes(self.store, server, self.clock.now_ms, random.Random(1))

    async def found(self) -> dict[str, tuple[Outage, ...]]:
        return await noticed_outages(self.store, self.clock.now_ms())


@pytest.fixture
async def there() -> AsyncIterator[Scene]:
    made = Scene()
    await made.store.initialise()
    yield made
    await made.store.close()


async def test_an_outage_is_recorded_when_the_store_is_back(there: Scene) -> None:
    notes = there.notes("b1:3181")
    notes.start()
    assert await there.found() == {}
    now_ms = there.clock.now_ms()
    there.store.outages.tell(6.0)
    wanted = {"b1:3181": (Outage(now_ms - 6_000, now_ms),)}
    await until(there.found, right=lambda found: found == wanted)
    await notes.close()
    there.store.outages.tell(6.0)
    await asyncio.sleep(0)
    assert await there.found() == wanted, "closed notes record no outage"


async def test_a_server_that_was_restarted_keeps_its_earlier_outages(there: Scene) -> None:
    for number in (1, 2):
        notes = there.notes("b1:3181")
        notes.start()
        there.clock.ms += 60_000
        there.store.outages.tell(3.0)
        await until(
            there.found, right=lambda found, number=number: len(found.get("b1:3181", ())) == number
        )
        await notes.close()


async def test_only_the_last_hour_is_shown_and_then_the_note_is_deleted(there: Scene) -> None:
    notes = there.notes("b1:3181")
    notes.start()
    there.store.outages.tell(3.0)
    await until(there.found, right=bool)
    await forget_old_outages(there.store, there.clock.now_ms())
    assert await there.found()
    there.clock.ms += RECENT_MS + 1
    assert await there.found() == {}
    path = outages_path(there.store.uri, "b1:3181")
    assert await there.store.tree.exists(path)
    await forget_old_outages(there.store, there.clock.now_ms())
    assert not await there.store.tree.exists(path)
    there.store.outages.tell(3.0)
    found = await until(there.found, right=bool)
    assert len(found["b1:3181"]) == 1, "the older one is forgotten"
    await notes.close()


async def test_the_number_of_outages_in_a_note_is_limited(there: Scene) -> None:
    notes = there.notes("b1:3181")
    notes.start()
    for _ in range(OUTAGES_MAX + 5):
        there.clock.ms += 10
        there.store.outages.tell(0.001)
        await asyncio.sleep(0)
    last = there.clock.now_ms()

    def whole(found: dict[str, tuple[Outage, ...]]) -> bool:
        kept = found.get("b1:3181", ())
        return bool(kept) and kept[-1].until_ms == last and len(kept) == OUTAGES_MAX

    await until(there.found, right=whole)
    await notes.close()


async def test_a_failed_write_of_a_note_is_retried(
    there: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may go away again at once."""
    failures = 2

    async def flaky(*args: object) -> int:
        nonlocal failures
        if failures:
            failures -= 1
            raise MetadataUnavailableError("away again")
        return await write_node(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(outages, "write_node", flaky)
    monkeypatch.setattr(outages, "WRITE_BACKOFF", Backoff(0.001, 0.001))
    notes = there.notes("b1:3181")
    notes.start()
    there.store.outages.tell(3.0)
    await until(there.found, right=bool)
    assert failures == 0
    await notes.close()


@pytest.mark.parametrize(
    "value", [b"no json", b"[]", b'{"outages": 1}', encode([])[:-1] + b', "new": 1}']
)
async def test_a_note_that_cannot_be_decoded_is_skipped_and_kept(
    there: Scene, value: bytes
) -> None:
    notes = there.notes("b2:3181")
    notes.start()
    path = outages_path(there.store.uri, "b1:3181")
    await write_node(there.store, path, value, None)
    there.store.outages.tell(3.0)
    await until(there.found, right=lambda found: list(found) == ["b2:3181"])
    there.clock.ms += 2 * RECENT_MS
    await forget_old_outages(there.store, there.clock.now_ms())
    assert (await there.store.tree.read(path)).value == value
    await notes.close()
