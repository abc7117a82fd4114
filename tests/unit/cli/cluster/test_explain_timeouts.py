"""`quire explain` says what was late, and blames the metadata store only if that is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quire.cli import explain
from quire.config import ClientConfig
from quire.errors import BookieTimeoutError, MetadataUnavailableError, QuireError
from quire.metadata import open_metadata
from quire_simulator.metadata.store import MemoryStore, forget_memory

URI = "memory://explained"


@pytest.fixture(autouse=True)
async def initialised(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    store = await open_metadata(URI, create=True)
    await store.initialise()
    await store.close()
    monkeypatch.setattr(explain, "client_config", ClientConfig)
    yield
    forget_memory("explained")


async def test_a_metadata_store_that_does_not_answer_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(self: MemoryStore) -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(MemoryStore, "instance_id", silent)
    monkeypatch.setattr(explain, "CONNECT_TIMEOUT_S", 0.05)
    with pytest.raises(MetadataUnavailableError, match=r"did not answer within 0\.05 s"):
        async with explain.explaining(URI, 5):
            raise AssertionError("unreachable")


async def test_an_answer_that_is_late_is_not_blamed_on_the_store() -> None:
    with pytest.raises(QuireError, match=r"took longer than 0\.05 s") as caught:
        async with explain.explaining(URI, 0.05):
            await asyncio.Event().wait()
    assert not isinstance(caught.value, MetadataUnavailableError)


@pytest.mark.parametrize("error", [TimeoutError("elsewhere"), BookieTimeoutError("a bookie")])
async def test_other_errors_are_not_changed(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        async with explain.explaining(URI, 5):
            raise error
    assert caught.value is error
