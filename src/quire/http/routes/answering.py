"""The time limit of the routes that pages use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quire.client import Client
from quire.errors import MetadataUnavailableError, QuireError
from quire.http.routes.cluster import Connect
from quire.http.watch.reachability import OPEN_LEDGERS
from quire.metadata.outages import START_STORE

ANSWER_TIMEOUT_S = 5.0
"""Seconds to answer a page. If the metadata store takes longer, the page reports that instead."""


@asynccontextmanager
async def answering(connect: Connect) -> AsyncIterator[Client]:
    """Yield the client, and limit the time of the block to `ANSWER_TIMEOUT_S`.

    Raises MetadataUnavailableError if the time runs out, and the errors of `connect` and of the
    block.
    """
    store = "the metadata store"
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            client = await connect()
            store += f" {client.metadata.uri}"
            yield client
    except QuireError:
        raise
    except TimeoutError:
        raise MetadataUnavailableError(
            f"{store} did not answer within {ANSWER_TIMEOUT_S:g} s",
            remedy=f"{START_STORE}. {OPEN_LEDGERS}",
        ) from None
