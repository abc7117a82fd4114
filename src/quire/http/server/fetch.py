"""HTTP clients: of bookies, for their metrics, reports and changes, and of Prometheus."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Any
from urllib.parse import urlsplit

from quire.config import TlsClientConfig
from quire.http.server.security import is_loopback
from quire.http.watch.prometheus import ANSWER_BYTES_MAX, FetchText
from quire.http.watch.rates import METRICS_BYTES_MAX, Fetch

Put = Callable[[str, Mapping[str, Any]], Awaitable[tuple[int, str]]]
"""A function that sends a PUT request with a JSON body to a URL, and returns the status and the
text of the answer. Any error means that there is no answer."""


@asynccontextmanager
async def fetcher(
    token: str = "", context: Callable[[], SSLContext] | None = None, *, proven: bool = False
) -> AsyncIterator[Fetch]:
    """Yield a function that returns the text at a URL: the first of the two that `peers` yields.

    The arguments are those of `peers`.
    """
    async with peers(token, context, proven=proven) as (fetch, _):
        yield fetch


@asynccontextmanager
async def peers(
    token: str = "", context: Callable[[], SSLContext] | None = None, *, proven: bool = False
) -> AsyncIterator[tuple[Fetch, Put]]:
    """Yield a function that returns the text at a URL, and one that sends a change to a URL.

    The URLs come from the registrations of bookies and are not trusted. So the client sends no
    cookies and follows no redirects. It sends the token only to loopback addresses, or over HTTPS
    if `proven` is set. Both functions raise aiohttp's ClientError, also for more than
    `METRICS_BYTES_MAX` bytes. `Fetch` also raises its subclass ClientResponseError, with the
    status, for another status than 200. The caller limits the time.

    Args:
        token: The token for servers that require one.
        context: Returns the TLS context that checks certificates. None means the authorities that
            this machine trusts.
        proven: Whether HTTPS proves that the server belongs to the cluster (see `proves`).
    """
    # Imported here, because `server` reports how to install aiohttp if it is missing.
    from aiohttp import (
        ClientError,
        ClientResponse,
        ClientResponseError,
        ClientSession,
        DummyCookieJar,
    )

    def options(url: str) -> dict[str, Any]:
        shown = token and may_send_token(url, proven=proven)
        headers = {"Authorization": f"Bearer {token}"} if shown else {}
        ssl = context() if context is not None else True
        return {"allow_redirects": False, "headers": headers, "ssl": ssl}

    async def text_of(url: str, answer: ClientResponse) -> str:
        text = bytearray()
        async for chunk in answer.content.iter_any():
            text += chunk
            if len(text) > METRICS_BYTES_MAX:
                raise ClientError(f"{url} answers with more than {METRICS_BYTES_MAX} bytes")
        return text.decode(errors="replace")

    async with ClientSession(cookie_jar=DummyCookieJar()) as session:

        async def fetch(url: str) -> str:
            async with session.get(url, **options(url)) as answer:
                if answer.status != 200:
                    raise ClientResponseError(
                        answer.request_info, (), status=answer.status,
                        message=f"{url} answers with status {answer.status} instead of 200",
                    )  # fmt: skip
                return await text_of(url, answer)

        async def put(url: str, body: Mapping[str, Any]) -> tuple[int, str]:
            given = options(url)
            given["headers"] |= {"Content-Type": "application/json"}
            async with session.put(url, data=json.dumps(body), **given) as answer:
                return answer.status, await text_of(url, answer)

        yield fetch, put


@asynccontextmanager
async def prometheus_fetcher() -> AsyncIterator[FetchText]:
    """Yield a function that reads a URL of Prometheus.

    It sends no cookies and follows no redirects. It raises aiohttp's ClientError for more than
    `ANSWER_BYTES_MAX` bytes, and for an answer that is not JSON.
    """
    from aiohttp import ClientError, ClientSession, DummyCookieJar

    async with ClientSession(cookie_jar=DummyCookieJar()) as session:

        async def fetch(url: str) -> str:
            async with session.get(url, allow_redirects=False) as answer:
                # Prometheus describes a refused query in JSON, with status 400, 422 or 503.
                if answer.content_type != "application/json":
                    raise ClientError(f"it answers with status {answer.status} and no JSON")
                text = bytearray()
                async for chunk in answer.content.iter_any():
                    text += chunk
                    if len(text) > ANSWER_BYTES_MAX:
                        raise ClientError(f"it answers with more than {ANSWER_BYTES_MAX} bytes")
                return text.decode(errors="replace")

        yield fetch


def proves(tls: TlsClientConfig | None) -> bool:
    """Return whether TLS with this configuration proves that a server belongs to the cluster.

    The proof requires that the operator's own authority has signed the certificate, and that the
    host name is checked. The authorities that the machine trusts prove nothing, because anybody can
    get a certificate from them for a host of their own. None (no TLS is configured) proves nothing.
    """
    return tls is not None and tls.ca is not None and tls.verify_host_name


def may_send_token(url: str, *, proven: bool) -> bool:
    """Return whether a token may be sent to this URL.

    It may be sent to this machine. With `proven`, it may also be sent over HTTPS, which then proves
    that the server belongs to the cluster.
    """
    parts = urlsplit(url)
    return (proven and parts.scheme == "https") or is_loopback(parts.hostname or "")
