"""Programs that end without closing everything: their output, and that they do end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from quire.testing.cluster import LocalCluster

pytestmark = pytest.mark.slow

OPENS = """
import asyncio, gc, sys, quire
from quire import blocking
from quire.statemachine import Dictionary
uri = sys.argv[1]
async def use(client):
    ledger = await client.create_ledger()
    await ledger.append(b"one")
    streams = await client.namespace("/a", create=True)
    writer = await streams.open_writer("s", create=True)
    await writer.append(b"one")
    settings = await client.durable_dict("/a", "d", create=True)
    await settings.set("a", 1)
    await client.state_machine("/a", "m", Dictionary(), create=True)
    follower = await client.state_machine("/a", "m", Dictionary(), follow=True)
    async for _ in await streams.open_reader("s", follow=True):
        break
    return ledger, streams, writer, settings, follower
"""
PROGRAMS = {
    "closed": """
async def main():
    async with quire.connect(uri) as client:
        return await use(client)
kept = asyncio.run(main())
""",
    "handles that are dropped": """
async def main():
    async with quire.connect(uri) as client:
        await use(client)
        gc.collect()
        await asyncio.sleep(0)
asyncio.run(main())
""",
    "closed in the blocking API": """
client = blocking.connect(uri)
settings = client.durable_dict("/a", "d", create=True)
settings.set("a", 1)
client.close()
""",
    "forgotten": """
async def main():
    client = await quire.connect(uri)  # this line
    await use(client)
asyncio.run(main())
""",
    "forgotten and kept": """
async def main():
    client = await quire.connect(uri)  # this line
    return client, await use(client)
kept = asyncio.run(main())
""",
    "ended by an error": """
async def main():
    client = await quire.connect(uri)  # this line
    await use(client)
    sys.exit(0)
asyncio.run(main())
""",
    "forgotten in the blocking API": """
client = blocking.connect(uri)  # this line
settings = client.durable_dict("/a", "d", create=True)
settings.set("a", 1)
follower = client.state_machine("/a", "d", Dictionary(), follow=True)
""",
    "dropped in the blocking API": """
client = blocking.connect(uri)  # this line
settings = client.durable_dict("/a", "d", create=True)
settings.set("a", 1)
del client, settings
gc.collect()
""",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3) as cluster:
        yield cluster


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    "flags",
    [(), pytest.param(("-W", "default"), marks=pytest.mark.long)],
    ids=["usual", "all warnings"],
)
def test_handles_left_open_print_no_warning(
    cluster: LocalCluster, name: str, flags: tuple[str, ...], tmp_path: pytest.TempPathFactory
) -> None:
    file = str(tmp_path) + "/program.py"
    with open(file, "w") as program:
        program.write(OPENS + PROGRAMS[name])
    ended = subprocess.run(
        [sys.executable, *flags, file, cluster.uri], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""
    said = ended.stderr.splitlines()
    if not flags or "# this line" not in PROGRAMS[name]:
        assert said == []
        return
    warning, line = said
    assert "ResourceWarning: this client of sqlite://" in warning
    assert "was never closed" in warning
    assert "# this line" in line
