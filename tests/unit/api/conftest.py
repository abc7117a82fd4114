"""Three bookies and a client of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest_asyncio

import quire
from quire.metadata import open_metadata
from tests.support.bookies.bookie import running_bookie

BOOKIES = 3
NAMES = count()


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[quire.Client]:
    uri = f"memory://factories-{next(NAMES)}"
    async with AsyncExitStack() as stack:
        store = await open_metadata(uri)
        stack.push_async_callback(store.close)
        await store.initialise()
        for number in range(BOOKIES):
            bookie = running_bookie(tmp_path / str(number), metadata=await open_metadata(uri))
            await stack.enter_async_context(bookie)
        yield await stack.enter_async_context(quire.connect(uri))
