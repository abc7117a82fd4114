"""Reading the metrics of other servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext
from urllib.parse import urlsplit

from quire.http.rates import METRICS_BYTES_MAX, Fetch
from quire.http.security import is_loopback


@asynccontextmanager
async def fetcher(
    token: str = "", context: Callable[[], SSLContext] | None = None
) -> AsyncIterator[Fetch]:
    """Addresses are what bookies say of themselves: no cookie is sent, nobody is followed
    elsewhere, and a `token` is shown over HTTPS and on loopback only. `context`: whose certificates
    are believed; None: those that this machine trusts. The caller bounds the time."""
    # Not on top: `server` says what to do where it is not installed.
    from aiohttp import ClientError, ClientSession, DummyCookieJar

    async with ClientSession(cookie_jar=DummyCookieJar()) as session:

        async def fetch(url: str) -> str:
            headers = {"Authorization": f"Bearer {token}"} if token and may_know(url) else {}
            ssl = context() if context is not None else True
            asked = session.get(url, allow_redirects=False, headers=headers, ssl=ssl)
            async with asked as answer:
                if answer.status != 200:
                    raise ClientError(f"{url} answers {answer.status}")
                text = bytearray()
                async for chunk in answer.content.iter_any():
                    text += chunk
                    if len(text) > METRICS_BYTES_MAX:
                        raise ClientError(f"{url} has more than {METRICS_BYTES_MAX} bytes")
                return text.decode(errors="replace")

        yield fetch


def may_know(url: str) -> bool:
    """Whether nobody but the server at `url` reads a token that is sent there."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")
