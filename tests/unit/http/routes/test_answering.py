"""The time limit of the routes that pages use."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire.errors import MetadataUnavailableError
from quire.http.routes import answering as routes

URI = "zk://zk1:2181/ledgers"


async def test_a_store_that_does_not_answer_in_time_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "ANSWER_TIMEOUT_S", 0.001)

    async def connect() -> Any:
        return cast(Any, SimpleNamespace(metadata=SimpleNamespace(uri=URI)))

    with pytest.raises(MetadataUnavailableError, match=f"store {URI} did not answer") as refused:
        async with routes.answering(connect):
            await asyncio.Event().wait()
    assert "Start the store" in str(refused.value.remedy)


async def test_a_store_that_cannot_be_connected_to_in_time_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "ANSWER_TIMEOUT_S", 0.001)

    async def connect() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(MetadataUnavailableError, match="the metadata store did not answer"):
        async with routes.answering(connect):
            pytest.fail("there is no client")
