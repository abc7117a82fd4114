"""Reading the metrics of other servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quire.http.rates import METRICS_BYTES_MAX, Fetch


@asynccontextmanager
async def fetcher() -> AsyncIterator[Fetch]:
    """Sends no token and no cookie, and follows nobody elsewhere: addresses are what bookies say of
    themselves. The caller bounds the time."""
    # Not on top: `server` says what to do where it is not installed.
    from aiohttp import ClientError, ClientSession, DummyCookieJar

    async with ClientSession(cookie_jar=DummyCookieJar()) as session:

        async def fetch(url: str) -> str:
            async with session.get(url, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise ClientError(f"{url} answers {answer.status}")
                text = bytearray()
                async for chunk in answer.content.iter_any():
                    text += chunk
                    if len(text) > METRICS_BYTES_MAX:
                        raise ClientError(f"{url} has more than {METRICS_BYTES_MAX} bytes")
                return text.decode(errors="replace")

        yield fetch
