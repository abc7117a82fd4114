"""The metadata stores that the same tests run on: in memory, in SQLite and in ZooKeeper."""

from __future__ import annotations

import itertools
import os
import random
from typing import Any, Protocol

import pytest
from kazoo.client import KazooClient

from quire._runtime.clock import SystemClock
from quire.metadata.interface import BookieAddress, MetadataStore
from quire.metadata.uri import MetadataURI
from quire.metadata.zookeeper.kazoo_adapter import ZooKeeperConnection
from quire.metadata.zookeeper.store import ZooKeeperStore

SESSION_TIMEOUT_MS = 4_000


PATIENCE_S = 30.0
"""Seconds after which a wait for a condition fails the test."""


class Backend(Protocol):
    """One cluster in one kind of metadata store, with as many sessions as a test needs."""

    name: str
    uri: str

    async def store(self, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> MetadataStore:
        """Return a store with its own session, which is closed when the test ends."""
        ...

    async def initialise(self) -> None: ...

    async def take_id(
        self, loser: MetadataStore, winner: MetadataStore, address: BookieAddress
    ) -> None:
        """End the session of `loser`, and register the id of its bookie for `winner` meanwhile."""
        ...

    async def close(self) -> None: ...


def end_session(store: ZooKeeperStore) -> None:
    """End the session of a ZooKeeper store from outside, by a second client of the same session.

    The server drops everything ephemeral, and tells the store that its session has expired.
    """
    thief = KazooClient(hosts=store._zk.servers, client_id=store._zk._client.client_id)
    thief.start()
    thief.stop()
    thief.close()


async def connect(where: MetadataURI, **options: Any) -> ZooKeeperStore:
    """Return a store that is connected to ZooKeeper, which the test closes itself."""
    return await ZooKeeperStore.connect(where, clock=SystemClock(), rng=random.Random(), **options)


async def ids_of(store: MetadataStore) -> list[int]:
    return [i for ledgers in [r async for r in store.list_ledgers()] for i in ledgers.ledger_ids]


async def tree(raw: ZooKeeperConnection, path: str) -> dict[str, bytes]:
    """Return the values of the node at `path` and of all below it, by relative path."""
    found: dict[str, bytes] = {}
    todo = [path]
    while todo:
        node = todo.pop()
        found[node.removeprefix(path)] = (await raw.get(node))[0]
        todo += [f"{node}/{name}" for name in await raw.children(node)]
    return found


_roots = itertools.count()


def next_root() -> str:
    """Return the path of a ledgers root that no other test uses."""
    return f"/test-{os.getpid()}-{next(_roots)}/ledgers"


DRIVERS = [
    pytest.param("memory", id="memory"),
    pytest.param("sqlite", id="sqlite"),
    pytest.param("zookeeper", id="zookeeper", marks=pytest.mark.zookeeper),
]


NOT_A_FILE = [driver for driver in DRIVERS if driver.id != "sqlite"]
"""Drivers whose clusters must be initialised. A SQLite file is a cluster as soon as it exists."""
