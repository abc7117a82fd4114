"""How metrics of bookies are read: who gets the token, and which certificates are trusted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientError

from quire.config import TlsClientConfig, TlsServerConfig
from quire.http.server.api import Api, Call, Route, Text
from quire.http.server.fetch import fetcher, may_send_token, proves
from quire.http.server.security import HttpOptions
from quire.http.server.server import HttpServer
from quire.net.tls import client_context
from tests.support.network.certificates import Authority

TOKEN = "a-token-that-nobody-guesses"


@asynccontextmanager
async def serving(options: HttpOptions) -> AsyncIterator[str]:
    """The address of metrics."""

    async def metrics(call: Call) -> Text:
        return Text("bookie_ledgers_count 7\n")

    api = Api("bookie", [Route("GET", "/metrics", "Metrics", metrics)])
    server = HttpServer(api, options, version="1", monotonic=lambda: 0.0, log=lambda *_, **__: None)
    await server.start()
    try:
        yield f"{server.url}/metrics"
    finally:
        await server.stop()


async def test_a_bookie_that_requires_a_token_is_fetched_with_it() -> None:
    async with serving(HttpOptions(token=TOKEN)) as url:
        async with fetcher() as fetch:
            with pytest.raises(ClientError, match="answers with status 401"):
                await fetch(url)
        async with fetcher(TOKEN) as fetch:
            assert "bookie_ledgers_count 7" in await fetch(url)


async def test_a_certificate_of_the_clusters_authority_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signed by the authority of the bookies, which this machine does not trust."""
    # As if the bookie was on another machine.
    monkeypatch.setattr("quire.http.server.fetch.is_loopback", lambda host: False)
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    files = authority.issue("bookie")
    tls = TlsServerConfig(files.certificate, files.private_key)
    async with serving(HttpOptions(token=TOKEN, tls=tls)) as url:
        assert url.startswith("https:")
        known = client_context(TlsClientConfig(ca=authority.ca))
        async with fetcher(TOKEN, lambda: known, proven=True) as fetch:
            assert "bookie_ledgers_count 7" in await fetch(url)
        async with fetcher(TOKEN, lambda: known) as fetch:
            with pytest.raises(ClientError, match="answers with status 401"):
                await fetch(url)
        async with fetcher(TOKEN) as fetch:
            with pytest.raises(ClientError):
                await fetch(url)
        other = client_context(TlsClientConfig(ca=stranger.ca))
        async with fetcher(TOKEN, lambda: other, proven=True) as fetch:
            with pytest.raises(ClientError):
                await fetch(url)


async def test_an_oversized_answer_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.http.server.fetch.METRICS_BYTES_MAX", 10)
    async with serving(HttpOptions()) as url, fetcher() as fetch:
        with pytest.raises(ClientError, match="more than 10 bytes"):
            await fetch(url)


def test_a_token_is_sent_only_to_loopback_or_a_proven_bookie() -> None:
    """Bookies say themselves where they are: in clear text it goes nowhere."""
    for url in ("http://127.0.0.1:1/metrics", "http://[::1]/m", "http://localhost:8080/metrics"):
        assert may_send_token(url, proven=False), url
    assert may_send_token("https://b7.example:8080/metrics", proven=True)
    assert not may_send_token("https://b7.example:8080/metrics", proven=False)
    for url in ("http://10.0.0.1:8080/metrics", "http://localhost.example/metrics",
                "http://127.0.0.1@10.0.0.1/metrics", "ftp://b7.example/metrics"):  # fmt: skip
        assert not may_send_token(url, proven=True), url


def test_only_the_clusters_own_authority_proves_a_bookie() -> None:
    """A certificate that any machine trusts proves a name, and no bookie."""
    assert proves(TlsClientConfig(ca="authority.pem"))
    assert not proves(None)
    assert not proves(TlsClientConfig())
    assert not proves(TlsClientConfig(ca="authority.pem", verify_host_name=False))


def test_a_token_is_not_in_the_repr_of_the_options() -> None:
    assert TOKEN not in repr(HttpOptions(token=TOKEN, bookies_token=TOKEN))
