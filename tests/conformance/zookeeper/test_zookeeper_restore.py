"""A ZooKeeper with data restored from an older copy, with a bookie's guard."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from quire._runtime.clock import SystemClock
from quire.bookie.background.collection_guard import CollectionGuard, Remembered, decode_mark
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.errors import MetadataUnavailableError, MetadataWentBackError
from quire.metadata import open_metadata
from quire.metadata.bookies.collection import accept
from quire.metadata.interface import MetadataStore
from quire.metadata.zookeeper.server import ZooKeeperServer
from tests.support.bookies.bookie import free_port
from tests.support.metadata.backends import ids_of

pytestmark = pytest.mark.zookeeper

ME = "127.0.0.1:3181"
METADATA = LedgerMetadata(1, 1, 1, (Segment(0, (ME,)),))


class Bookie:
    """The garbage collection of a bookie."""

    def __init__(self) -> None:
        self.kept = b""

    async def keep(self, data: bytes) -> None:
        self.kept = data

    def guard(self, store: MetadataStore) -> CollectionGuard:
        return CollectionGuard(
            store,
            ME,
            Remembered(decode_mark(self.kept)) if self.kept else Remembered(),
            self.keep,
            enabled=True,
            clock=SystemClock(),
            random_bytes=random.Random(1).randbytes,
            log=lambda event, **fields: None,
        )


async def test_a_restored_copy_is_noticed(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    port, bookie = free_port(), Bookie()
    uri = f"zk+hierarchical://127.0.0.1:{port}/ledgers"

    with ZooKeeperServer(data, port):
        store = await open_metadata(uri)
        await store.initialise()
        old, _ = await store.create_ledger(METADATA)
        await bookie.guard(store).raise_mark()
        await store.close()
    shutil.copytree(data, copy)
    with ZooKeeperServer(data, port):
        store = await open_metadata(uri)
        newer = [(await store.create_ledger(METADATA))[0] for _ in range(5)]
        await bookie.guard(store).raise_mark()
        assert await ids_of(store) == [old, *newer]
        await store.close()
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    with ZooKeeperServer(data, port):
        store = await open_metadata(uri)
        assert await ids_of(store) == [old]  # the five would be dropped by this
        guard = bookie.guard(store)
        with pytest.raises(
            MetadataWentBackError, match="stored mark 2 in it, but now it holds mark 1"
        ):
            await guard.check()
        # It would give out the ids of the five again.
        await store.skip_ledger_ids(newer[-1])
        assert (await store.create_ledger(METADATA))[0] > newer[-1]
        assert await accept(store, ME)
        await guard.check()
        await store.close()


@pytest.mark.long
async def test_a_connected_client_gets_no_answer_from_a_restored_copy(
    tmp_path: Path,
) -> None:
    """ZooKeeper's servers refuse a client that has seen more than they have."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    port = free_port()
    uri = f"zk+hierarchical://127.0.0.1:{port}/ledgers"
    with ZooKeeperServer(data, port):
        store = await open_metadata(uri)
        await store.initialise()
        await store.close()
    shutil.copytree(data, copy)
    with ZooKeeperServer(data, port):
        connected = await open_metadata(uri)
        ledger_id = 0
        for _ in range(20):
            ledger_id, _ = await connected.create_ledger(METADATA)
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    with ZooKeeperServer(data, port):
        fresh = await open_metadata(uri)
        assert await ids_of(fresh) == []
        await fresh.close()
        with pytest.raises((MetadataUnavailableError, TimeoutError)):
            async with asyncio.timeout(5):
                await connected.read_ledger(ledger_id)
        await connected.close()
