"""Three bookies on the event loop of the blocking API, and a client of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest

from quire import blocking
from quire.blocking.background import call
from quire.metadata import open_metadata
from tests.support.bookies.bookie import running_bookie

BOOKIES = 3
NAMES = count()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[blocking.Client]:
    uri = f"memory://blocking-{next(NAMES)}"
    stack = AsyncExitStack()

    async def start() -> None:
        store = await open_metadata(uri)
        stack.push_async_callback(store.close)
        await store.initialise()
        for number in range(BOOKIES):
            bookie = running_bookie(tmp_path / str(number), metadata=await open_metadata(uri))
            await stack.enter_async_context(bookie)

    call(start())
    try:
        with blocking.connect(uri) as client:
            yield client
    finally:
        call(stack.aclose())
