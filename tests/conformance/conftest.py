"""The three metadata stores with one interface for the tests."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from quire._runtime.clock import SystemClock
from quire.metadata import open_metadata
from quire.metadata.common import encode_address
from quire.metadata.interface import BookieAddress, MetadataStore
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.uri import MetadataURI, parse_uri
from quire.metadata.zookeeper.kazoo_adapter import ZooKeeperConnection
from quire.metadata.zookeeper.server import ZooKeeperServer
from quire.metadata.zookeeper.store import ZooKeeperStore
from quire_simulator.metadata.store import MemoryStore, forget_memory
from tests.support.metadata.backends import (
    DRIVERS,
    SESSION_TIMEOUT_MS,
    Backend,
    _roots,
    end_session,
    next_root,
)


class _Stores:
    def __init__(self, name: str, uri: str) -> None:
        self.name = name
        self.uri = uri
        self.clock = SystemClock()
        self.opened: list[MetadataStore] = []

    async def initialise(self) -> None:
        store = await open_metadata(self.uri, create=True)
        self.opened.append(store)
        await store.initialise()

    async def store(self, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> MetadataStore:
        store = await self.open(session_timeout_ms)
        self.opened.append(store)
        return store

    async def open(self, session_timeout_ms: int) -> MetadataStore:
        raise NotImplementedError

    async def take_id(
        self, loser: MetadataStore, winner: MetadataStore, address: BookieAddress
    ) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        for store in self.opened:
            await store.close()


class MemoryBackend(_Stores):
    async def open(self, session_timeout_ms: int) -> MetadataStore:
        attached = await open_metadata(self.uri)
        assert isinstance(attached, MemoryStore)
        return MemoryStore(attached.cluster, session_timeout_ms=session_timeout_ms)

    async def take_id(
        self, loser: MetadataStore, winner: MetadataStore, address: BookieAddress
    ) -> None:
        assert isinstance(loser, MemoryStore)
        loser.expire_session(back=False)
        await winner.register_bookie(address)
        loser.restore_session()

    async def close(self) -> None:
        await super().close()
        forget_memory(parse_uri(self.uri).name)


class SqliteBackend(_Stores):
    async def open(self, session_timeout_ms: int) -> MetadataStore:
        return await SqliteStore.open(
            Path(parse_uri(self.uri).path),
            create=False,
            clock=self.clock,
            rng=random.Random(),
            session_timeout_ms=session_timeout_ms,
            watch_poll_s=0.02,
        )

    async def take_id(
        self, loser: MetadataStore, winner: MetadataStore, address: BookieAddress
    ) -> None:
        assert isinstance(winner, SqliteStore)
        await winner.register_bookie(replace(address, bookie_id="other"))  # begins its session
        connection = sqlite3.connect(parse_uri(self.uri).path, isolation_level=None)
        try:
            connection.execute(
                "UPDATE bookies SET session_id = ?, payload = ? WHERE bookie_id = ?",
                (winner._session._session_id, encode_address(address), address.bookie_id),
            )
        finally:
            connection.close()


class ZooKeeperBackend(_Stores):
    async def open(self, session_timeout_ms: int) -> MetadataStore:
        return await ZooKeeperStore.connect(
            parse_uri(self.uri),
            clock=self.clock,
            rng=random.Random(),
            session_timeout_ms=session_timeout_ms,
        )

    async def take_id(
        self, loser: MetadataStore, winner: MetadataStore, address: BookieAddress
    ) -> None:
        assert isinstance(loser, ZooKeeperStore)
        assert isinstance(winner, ZooKeeperStore)
        path = winner._root.at(f"available/{address.bookie_id}")

        def swap(client: KazooClient) -> Any:
            both = client.transaction()
            both.delete(path)
            both.create(path, encode_address(address), ephemeral=True)
            return both.commit_async()

        assert path in (await winner._zk._ask(path, swap))
        await asyncio.to_thread(end_session, loser)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), tick_ms=200) as server:
        yield server


def make_backend(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> _Stores:
    if name == "memory":
        return MemoryBackend(name, f"memory://test-{next(_roots)}")
    if name == "sqlite":
        return SqliteBackend(name, f"sqlite:///{tmp_path / 'metadata.db'}")
    server: ZooKeeperServer = request.getfixturevalue("zookeeper_server")
    uri = server.uri(next_root())
    name, _, manager = name.partition("-")
    return ZooKeeperBackend(name, uri.replace("hierarchical", manager) if manager else uri)


LEDGER_DRIVERS = [
    *DRIVERS,
    pytest.param("zookeeper-longhierarchical", id="zookeeper-long", marks=pytest.mark.zookeeper),
    pytest.param("zookeeper-flat", id="zookeeper-flat", marks=pytest.mark.zookeeper),
]
"""The drivers, with each way to arrange ledgers."""


@pytest.fixture(params=DRIVERS)
async def empty_backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """Yield a backend without a cluster."""
    backend = make_backend(request.param, request, tmp_path)
    yield backend
    await backend.close()


@pytest.fixture(params=DRIVERS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """A cluster, initialised."""
    backend = make_backend(request.param, request, tmp_path)
    await backend.initialise()
    yield backend
    await backend.close()


@pytest.fixture(params=LEDGER_DRIVERS)
async def ledger_backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """Yield a backend for tests about ledgers."""
    backend = make_backend(request.param, request, tmp_path)
    await backend.initialise()
    yield backend
    await backend.close()


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.store()


@pytest.fixture
async def ledger_store(ledger_backend: Backend) -> MetadataStore:
    return await ledger_backend.store()


@pytest.fixture
async def zookeeper(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    backend = make_backend("zookeeper", request, tmp_path)
    await backend.initialise()
    yield backend
    await backend.close()


@pytest.fixture
def where(zookeeper: Backend) -> MetadataURI:
    return parse_uri(zookeeper.uri)


@pytest.fixture
async def raw(where: MetadataURI) -> AsyncIterator[ZooKeeperConnection]:
    """Yield a direct connection to the server, past the store."""
    connection = await ZooKeeperConnection.connect(where.servers, session_timeout_ms=4_000)
    yield connection
    await connection.close()


@pytest.fixture
async def sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    backend = make_backend("sqlite", request, tmp_path)
    await backend.initialise()
    yield backend
    await backend.close()
