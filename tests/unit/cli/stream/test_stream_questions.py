"""Commands that ask before they destroy a stream, which changes while the question waits."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import quire
from quire.cli.main import cli
from quire.metadata import open_metadata
from quire.streams.namespace.namespace import open_namespace


async def created_again(uri: str) -> str:
    """Create the stream, after deleting it if it exists, and return its life."""
    async with quire.connect(uri) as client:
        streams = await open_namespace(client, "/streams", create=True)
        await streams.delete_stream("orders")
        await streams.create_stream("orders")
        return (await streams.metadata("orders").life()).path


async def life_of(uri: str) -> str:
    async with quire.connect(uri) as client:
        streams = await open_namespace(client, "/streams")
        return (await streams.metadata("orders").life()).path


async def initialise(uri: str) -> None:
    store = await open_metadata(uri, create=True)
    await store.initialise()
    await store.close()


@pytest.mark.parametrize("command", ["delete", "end"])
def test_a_stream_that_took_the_name_meanwhile_is_spared(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, lives = f"sqlite:///{tmp_path}/cluster.db", []
    asyncio.run(initialise(uri))
    asyncio.run(created_again(uri))

    def agree(*question: object, **how: object) -> bool:
        other = threading.Thread(target=lambda: lives.append(asyncio.run(created_again(uri))))
        other.start()
        other.join()
        return True

    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True), stdout=sys.stdout)
    monkeypatch.setattr("quire.cli.stream.manage.sys", terminal)
    monkeypatch.setattr("click.confirm", agree)
    done = CliRunner().invoke(cli, ["stream", command, "orders", "--metadata", uri])
    assert (done.exit_code, "another stream has its name now" in done.stderr) == (1, True)
    assert [asyncio.run(life_of(uri))] == lives
