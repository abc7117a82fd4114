"""Fixtures for tests of programs that use Quire. pytest loads them wherever Quire is installed.

    def test_it(quire_blocking_client):
        with quire_blocking_client.create_ledger() as ledger:
            ledger.append(b"an entry")

    async def test_it(quire_client):  # with pytest-asyncio
        async with quire_client.create_ledger() as ledger:
            await ledger.append(b"an entry")

Quire itself is imported only when a test asks for a fixture, so other test runs do not pay for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

try:
    from pytest_asyncio import fixture as asyncio_fixture
except ImportError:
    asyncio_fixture = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from quire.api import Client
    from quire.blocking import Client as BlockingClient
    from quire.testing.cluster import LocalCluster

SESSION_BOOKIES = 3


@pytest.fixture(scope="session")
def quire_cluster() -> Iterator[LocalCluster]:
    """Start three bookies, with their metadata in SQLite, for the whole test session.

    The data is in a temporary directory. Tests that kill bookies create a
    `quire.testing.LocalCluster` of their own.

    Yields:
        The running cluster.
    """
    from quire.testing.cluster import LocalCluster

    with LocalCluster(bookies=SESSION_BOOKIES) as cluster:
        yield cluster


@pytest.fixture
def quire_blocking_client(quire_cluster: LocalCluster) -> Iterator[BlockingClient]:
    """Connect a `quire.blocking` client to `quire_cluster`.

    Yields:
        The client.
    """
    from quire import blocking

    with blocking.connect(quire_cluster.uri) as client:
        yield client


if asyncio_fixture is not None:

    @asyncio_fixture
    async def quire_client(quire_cluster: LocalCluster) -> AsyncIterator[Client]:
        """Connect a `quire.Client` to `quire_cluster`, on the event loop of the test.

        Yields:
            The client.
        """
        from quire.api import connect

        async with connect(quire_cluster.uri) as client:
            yield client
