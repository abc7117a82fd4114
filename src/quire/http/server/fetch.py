"""An HTTP client that reads the metrics of other servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext
from urllib.parse import urlsplit

from quire.config import TlsClientConfig
from quire.http.server.security import is_loopback
from quire.http.watch.rates import METRICS_BYTES_MAX, Fetch


@asynccontextmanager
async def fetcher(
    token: str = "", context: Callable[[], SSLContext] | None = None, *, proven: bool = False
) -> AsyncIterator[Fetch]:
    """Yield a function that returns the text at a URL.

    The URLs come from the registrations of bookies and are not trusted. So the client sends no
    cookies and follows no redirects. It sends the token only to loopback addresses, or over HTTPS
    if `proven` is set. The function raises aiohttp's ClientError, also for another status than 200
    and for more than `METRICS_BYTES_MAX` bytes. The caller limits the time.

    Args:
        token: The token for servers that require one.
        context: Returns the TLS context that checks certificates. None means the authorities that
            this machine trusts.
        proven: Whether HTTPS proves that the server belongs to the cluster (see `proves`).
    """
    # Imported here, because `server` reports how to install aiohttp if it is missing.
    from aiohttp import ClientError, ClientSession, DummyCookieJar

    async with ClientSession(cookie_jar=DummyCookieJar()) as session:

        async def fetch(url: str) -> str:
            shown = token and may_send_token(url, proven=proven)
            headers = {"Authorization": f"Bearer {token}"} if shown else {}
            ssl = context() if context is not None else True
            asked = session.get(url, allow_redirects=False, headers=headers, ssl=ssl)
            async with asked as answer:
                if answer.status != 200:
                    raise ClientError(f"{url} answers with status {answer.status} instead of 200")
                text = bytearray()
                async for chunk in answer.content.iter_any():
                    text += chunk
                    if len(text) > METRICS_BYTES_MAX:
                        raise ClientError(f"{url} answers with more than {METRICS_BYTES_MAX} bytes")
                return text.decode(errors="replace")

        yield fetch


def proves(tls: TlsClientConfig | None) -> bool:
    """Return whether TLS with this configuration proves that a server belongs to the cluster.

    It does if the operator's own authority must have signed the certificate, and the host name is
    checked. The authorities that the machine trusts prove nothing, because anybody can get a
    certificate from them for a host of their own.
    """
    return tls is not None and tls.ca is not None and tls.verify_host_name


def may_send_token(url: str, *, proven: bool) -> bool:
    """Return whether a token may be sent to this URL: to a proven HTTPS server, or to this machine.

    `proven` says that HTTPS proves that the server belongs to the cluster.
    """
    parts = urlsplit(url)
    return (proven and parts.scheme == "https") or is_loopback(parts.hostname or "")
