"""The addresses of bookies that are not registered any more."""

from __future__ import annotations

import socket
from pathlib import Path

from quire.client import Client
from quire.client.client import pool_of
from quire.metadata import open_metadata
from quire.metadata.bookies.start_commands import StartCommand, write_start_command
from quire.net.port_probe import ProbeResult

LIMIT_S = 30.0
WORDS = ("quire", "bookie", "start", "--dir", "/d", "--bookie-id", "bookie-3")


async def test_a_lost_bookie_with_a_name_is_asked_at_its_last_address(tmp_path: Path) -> None:
    """Only an id of the form HOST:PORT was asked, and guides recommend other ids."""
    store = await open_metadata(f"sqlite:///{tmp_path}/cluster.db", create=True)
    await store.initialise()
    client = Client(store)
    try:
        pool = pool_of(client)
        assert await pool.probe_port("bookie-3", LIMIT_S) is None
        await write_start_command(store, "bookie-3", StartCommand(WORDS))
        assert await pool.probe_port("bookie-3", LIMIT_S) is None, "an earlier version"
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            started = StartCommand(WORDS, address=f"127.0.0.1:{port}")
            await write_start_command(store, "bookie-3", started)
            assert await pool.probe_port("bookie-3", LIMIT_S) is ProbeResult.ACCEPTED
        assert await pool.probe_port("bookie-3", LIMIT_S) is ProbeResult.REFUSED
    finally:
        await client.close()
