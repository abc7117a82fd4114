"""The three metadata stores, under one face for the tests."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from quire.clock import SystemClock
from quire.metadata import open_metadata
from quire.metadata.base import MetadataStore
from quire.metadata.memory import MemoryStore, forget_memory
from quire.metadata.sqlite import SqliteStore
from quire.metadata.uri import parse_uri
from quire.metadata.zookeeper import ZooKeeperStore
from quire.metadata.zookeeper_server import ZooKeeperServer

SESSION_TIMEOUT_MS = 4_000
PATIENCE_S = 30.0
"""Bounds every wait for a condition; reached only by a failing test."""

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


class Backend(Protocol):
    """One cluster of one driver."""

    name: str
    uri: str

    async def store(self, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> MetadataStore:
        """A store of its own session; closed when the test ends."""
        ...

    async def initialise(self) -> None: ...

    async def close(self) -> None: ...


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

    async def close(self) -> None:
        for store in self.opened:
            await store.close()


class MemoryBackend(_Stores):
    async def open(self, session_timeout_ms: int) -> MetadataStore:
        attached = await open_metadata(self.uri)
        assert isinstance(attached, MemoryStore)
        return MemoryStore(attached.cluster, session_timeout_ms=session_timeout_ms)

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


class ZooKeeperBackend(_Stores):
    async def open(self, session_timeout_ms: int) -> MetadataStore:
        return await ZooKeeperStore.connect(
            parse_uri(self.uri),
            clock=self.clock,
            rng=random.Random(),
            session_timeout_ms=session_timeout_ms,
        )


_roots = itertools.count()


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
    return ZooKeeperBackend(name, server.uri(f"/test-{os.getpid()}-{next(_roots)}/ledgers"))


DRIVERS = [
    pytest.param("memory", id="memory"),
    pytest.param("sqlite", id="sqlite"),
    pytest.param("zookeeper", id="zookeeper", marks=pytest.mark.zookeeper),
]


@pytest.fixture(params=DRIVERS)
async def empty_backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """No cluster yet."""
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


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.store()


@pytest.fixture
async def zookeeper(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    backend = make_backend("zookeeper", request, tmp_path)
    await backend.initialise()
    yield backend
    await backend.close()


@pytest.fixture
async def sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    backend = make_backend("sqlite", request, tmp_path)
    await backend.initialise()
    yield backend
    await backend.close()


@pytest.fixture
def eventually() -> Eventually:
    """Wait until a condition holds; fail if it does not for a long while."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.01)

    return wait
