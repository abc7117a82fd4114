"""Metadata stores for tests that are not coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quire.metadata import open_metadata
from quire.metadata.interface import MetadataStore

T = TypeVar("T")


def in_store(uri: str, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    """Return the result of `work` on a store, which is closed afterwards."""

    async def run() -> T:
        store = await open_metadata(uri, create=True)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())
