"""The loss of a session, for tests of every metadata store."""

from __future__ import annotations

import asyncio
import sqlite3

from quire.metadata.interface import MetadataStore
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.uri import parse_uri
from quire.metadata.zookeeper.store import ZooKeeperStore
from quire_simulator.metadata.store import MemoryStore
from tests.support.metadata.backends import Backend, end_session


async def lose_session(backend: Backend, store: MetadataStore) -> None:
    """End the session of `store` in the cluster, without telling the store."""
    if isinstance(store, MemoryStore):
        store.expire_session()
    elif isinstance(store, SqliteStore):
        connection = sqlite3.connect(parse_uri(backend.uri).path, isolation_level=None)
        try:
            connection.execute(
                "UPDATE sessions SET deadline_ms = 0 WHERE session_id = ?",
                (store.tree.session_id,),
            )
        finally:
            connection.close()
    else:
        assert isinstance(store, ZooKeeperStore)
        await asyncio.to_thread(end_session, store)
