"""The client of `quire explain`: who asks what is wrong does not wait for what is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from quire.cli.common.tls import client_config

if TYPE_CHECKING:
    from quire.client import Client

CONNECT_TIMEOUT_S = 3.0
"""A metadata store that takes longer is what is wrong."""
BOOKIE_TIMEOUT_S = 3
"""A bookie that does not answer within this is unreachable."""


@asynccontextmanager
async def explaining(uri: str, answer_timeout_s: float | None = None) -> AsyncIterator[Client]:
    """MetadataUnavailableError, soon, where the store does not answer; also where everything, from
    here on, takes longer than `answer_timeout_s` (None: no bound)."""
    from quire.client import Client
    from quire.errors import MetadataUnavailableError
    from quire.http.watch.reachability import REMEDY
    from quire.metadata import open_metadata

    loop = asyncio.get_running_loop()
    deadline = None if answer_timeout_s is None else loop.time() + answer_timeout_s
    config = client_config(connect_timeout_s=BOOKIE_TIMEOUT_S, read_timeout_s=BOOKIE_TIMEOUT_S)
    try:
        store = await open_metadata(uri, connect_timeout_s=CONNECT_TIMEOUT_S)
    except MetadataUnavailableError as error:
        error.remedy = REMEDY
        raise
    client = Client(store, config=config)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await store.instance_id()
        async with asyncio.timeout_at(deadline):
            yield client
    except TimeoutError:
        raise MetadataUnavailableError(
            f"the metadata store {uri} does not answer in time", remedy=REMEDY
        ) from None
    finally:
        await client.close()
