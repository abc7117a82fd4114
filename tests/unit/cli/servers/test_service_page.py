"""The HTTP server of several bookies has the access rules of every other server."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from quire.cli.servers.processes.bookie_process import BookieProcess
from quire.cli.servers.processes.division import divide
from quire.cli.servers.processes.page import PATH, serve_page
from quire.config import TlsServerConfig
from quire.configuration.fields import BookieProcessConfig
from quire.http.server.security import HttpOptions
from tests.support.network.certificates import Authority

TOKEN = "a-token-that-nobody-guesses"
TIMEOUT_S = 20.0


class Service:
    """A service of two bookies whose processes were not started."""

    def __init__(self) -> None:
        shares = divide(BookieProcessConfig(("a",), bookie_id="b7"), 2)
        self.bookies = [BookieProcess(one, [], lambda line: None) for one in shares]
        self.rolling = False


async def ask(port: int, path: str, context: ssl.SSLContext | None, token: str) -> tuple[int, str]:
    """Return the status and the rest of the answer. The status is 0 if there is no answer."""
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode())
            answer = (await reader.read()).decode()
        finally:
            writer.close()
    words = answer.split(maxsplit=2)
    return (int(words[1]), words[2]) if answer.startswith("HTTP/") else (0, answer)


async def test_the_page_of_a_service_over_tls_needs_the_token(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("bookie")
    options = HttpOptions(token=TOKEN, tls=TlsServerConfig(own.certificate, own.private_key))
    trusting = ssl.create_default_context(cafile=authority.ca)
    async with serve_page(Service(), options, "1", lambda event, **fields: None) as server:
        assert server.url.startswith("https://")
        for path in (PATH, "/metrics"):
            for token in ("", "another-token-that-is-wrong"):
                status, said = await ask(server.port, path, trusting, token)
                assert status == 401
                assert "b7-0" not in said
            status, said = await ask(server.port, path, trusting, TOKEN)
            assert status == 200
            assert "b7-0" in said
        # Probes need no token.
        assert (await ask(server.port, "/heartbeat", trusting, ""))[0] == 200
        status, said = await ask(server.port, "/api/v1/bookie/is_ready", trusting, "")
        assert status == 503
        assert "process 1 (b7-1) starts" in said
        assert (await ask(server.port, "/heartbeat", None, TOKEN))[0] != 200
