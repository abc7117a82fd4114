"""Reading the metrics of other servers."""

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
    """Addresses are what bookies say of themselves: no cookie is sent, nobody is followed
    elsewhere, and a `token` is shown on loopback only, or where HTTPS has `proven` who is there
    (`proves`). `context`: whose certificates are believed; None: those that this machine trusts.
    The caller bounds the time."""
    # Not on top: `server` says what to do where it is not installed.
    from aiohttp import ClientError, ClientSession, DummyCookieJar

    async with ClientSession(cookie_jar=DummyCookieJar()) as session:

        async def fetch(url: str) -> str:
            shown = token and may_know(url, proven=proven)
            headers = {"Authorization": f"Bearer {token}"} if shown else {}
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


def proves(tls: TlsClientConfig | None) -> bool:
    """Whether only a server that the operator's own authority has signed for, by its name, passes.
    Anybody can have a certificate that the machine trusts, for a host of his own."""
    return tls is not None and tls.ca is not None and tls.verify_host_name


def may_know(url: str, *, proven: bool) -> bool:
    """Whether nobody but a bookie of the cluster reads a token that is sent there. `proven`: HTTPS
    tells who it is."""
    parts = urlsplit(url)
    return (proven and parts.scheme == "https") or is_loopback(parts.hostname or "")
