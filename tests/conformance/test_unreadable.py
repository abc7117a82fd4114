"""Every driver names a ledger with unreadable metadata, and can replace the metadata."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.errors import LedgerExistsError, UnreadableMetadataError
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.ledgers.unreadable import Unread, read_or_skip
from quire.metadata.uri import parse_uri
from quire.metadata.zookeeper.store import ZooKeeperStore
from quire_simulator.metadata.store import MemoryStore
from tests.support.metadata.backends import ids_of
from tests.support.metadata.poisoned import POISON
from tests.support.waiting import until

WELL = LedgerMetadata(2, 2, 1, (Segment(0, ("a:1", "b:1")),)).with_close(9, 100)


async def poison(store: MetadataStore, ledger_id: int) -> None:
    if isinstance(store, MemoryStore):
        node = store.cluster.ledgers[ledger_id]
        node.data, node.version = POISON, node.version + 1
    elif isinstance(store, ZooKeeperStore):
        path = store._root.ledger_path(ledger_id)
        await store._root.zk.set(path, POISON, 0)
    else:
        connection = sqlite3.connect(parse_uri(store.uri).path)
        change = "UPDATE ledgers SET metadata = ?, version = version + 1 WHERE ledger_id = ?"
        connection.execute(change, (POISON, ledger_id))
        connection.commit()
        connection.close()


async def test_unreadable_metadata_is_named_skipped_and_replaceable(
    ledger_store: MetadataStore,
) -> None:
    store = ledger_store
    ids = [(await store.create_ledger(WELL))[0] for _ in range(3)]
    bad = ids[1]
    seen: list[Versioned[LedgerMetadata] | None] = []
    watch = store.watch_ledger(bad, seen.append)
    other: list[Versioned[LedgerMetadata] | None] = []
    watch_of_another = store.watch_ledger(ids[2], other.append)
    await until(lambda: seen and other)
    await poison(store, bad)
    with pytest.raises(UnreadableMetadataError) as caught:
        await store.read_ledger(bad)
    error = caught.value
    assert str(error).startswith(f"the metadata of ledger {bad} cannot be read: ")
    assert error.remedy
    assert (error.ledger_id, error.version) == (bad, 1)
    unread = Unread()
    found = [await read_or_skip(store, one, unread) for one in ids]
    assert [one is None for one in found] == [False, True, False]
    assert (len(unread), str(unread)) == (1, f"ledger {bad}")
    assert await ids_of(store) == ids, "it exists"
    # A new ledger does not stumble over it, and its id stays taken.
    with pytest.raises(LedgerExistsError):
        await store.create_ledger(WELL, bad)
    assert (await store.create_ledger(WELL))[0] not in ids
    # Watches of other ledgers go on, and that of this one, too, once it can be read.
    stored = await store.read_ledger(ids[2])
    await store.write_ledger(ids[2], WELL.with_close(8, 90), stored.version)
    await until(lambda: other[-1], right=lambda one: one is not None and one.version == 1)
    assert error.version is not None
    await store.write_ledger(bad, WELL, error.version)
    assert (await store.read_ledger(bad)).value.segments == WELL.segments
    await until(lambda: seen[-1], right=lambda one: one is not None and one.version == 2)
    watch.close()
    watch_of_another.close()
    await asyncio.sleep(0)
