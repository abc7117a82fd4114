"""One cluster with Apache BookKeeper 4.17.2: its client on our bookies, ours on its bookies.

The short proof; every operation both ways comes with an issue of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import quire
from quire.testing.cluster import BookieProcess

pytestmark = pytest.mark.interop

PEER = Path(__file__).parents[2] / "bench" / "peer" / "apache"
LIMIT_S = 240


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Peer:
    """The script that runs Apache BookKeeper, with a state directory and ports of its own."""

    def __init__(self, directory: Path) -> None:
        self.environment = {
            **os.environ,
            "PEER_DIR": str(directory / "peer"),
            "ZK_PORT": str(free_port()),
            "BOOKIE_PORT": str(free_port() - 9),
        }

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            [str(PEER), *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    peer = Peer(tmp_path)
    yield peer
    peer("down")


def test_apaches_client_on_our_bookies(peer: Peer, tmp_path: Path) -> None:
    """`initnewcluster` of Apache, bookies of ours: its v2 client writes, reads and recovers."""
    uri = peer("zk").split()[-1]
    with contextlib.ExitStack() as stack:
        for number in range(3):
            bookie = BookieProcess(number, free_port(), tmp_path, uri, ())
            stack.callback(bookie.kill)
            bookie.start()
        assert peer("shell", "listbookies", "-rw").count("BookieID:127.0.0.1:") == 3
        for options in (["digest=CRC32C"], ["digest=MAC", "batch=true"], ["E=3", "W=2", "A=2"]):
            said = peer("bench", "v2=true", "n=2000", "out=100", "rounds=1", "keep=true", *options)
            assert "err=0" in said
            assert "read  2000 entries" in said
            written = int(re.findall(r"^ledger (\d+)$", said, re.MULTILINE)[0])
            assert asyncio.run(read_back(uri, written)) == 2000
        said = peer("bench", "v2=true", "mode=recover", "L=3", "n=300", "rounds=1")
        assert "entries=300 ledgers=3" in said


async def read_back(uri: str, ledger_id: int) -> int:
    async with quire.connect(uri) as client:
        reader = await client.open_ledger(ledger_id, password=b"pw")
        payload = bytes(ord("a") + k % 26 for k in range(1024))
        found = [entry.payload async for entry in reader.read()]
        assert set(found) == {payload}
        return len(found)


def test_our_client_on_apaches_bookies(peer: Peer) -> None:
    uri = peer("up", "3").split()[-1]

    async def write_read_recover() -> None:
        async with quire.connect(uri) as client:
            for digest in quire.DigestType:
                for shape in ((3, 3, 2), (3, 2, 2)):
                    writer = await client.create_ledger(
                        ensemble_size=shape[0],
                        write_quorum=shape[1],
                        ack_quorum=shape[2],
                        digest=digest,
                        password=b"secret",
                    )
                    sent = [b"%d-" % k * (k % 50) for k in range(300)]
                    assert await writer.append_many(sent) == 299
                    writer.abandon()
                    reader = await client.open_ledger(
                        writer.ledger_id, password=b"secret", recover=True
                    )
                    assert [entry.payload async for entry in reader.read()] == sent
                    metadata = await client.ledger_metadata(writer.ledger_id)
                    assert metadata.closed
                    assert metadata.last_entry_id == 299

    asyncio.run(write_read_recover())
