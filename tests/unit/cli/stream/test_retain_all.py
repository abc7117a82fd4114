"""`quire stream retain --all` in a namespace with a stream that cannot be read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import quire
from quire.cli.main import cli
from quire.metadata import open_metadata
from quire.metadata.tree import Create
from quire.streams.namespace.namespace import open_namespace

DAMAGED = "/streams/melon/<default>/ledgers/inprogress_000000000000000001"


async def three_streams(uri: str) -> None:
    store = await open_metadata(uri, create=True)
    await store.initialise()
    await store.close()
    async with quire.connect(uri) as client:
        streams = await open_namespace(client, "/streams", create=True)
        for name in ("apple", "melon", "pear"):
            await streams.create_stream(name, settings={"retention_s": 1})
        await client.metadata.tree.commit(Create(DAMAGED, b"rubbish"))


@pytest.mark.parametrize("dry_run", [False, True])
def test_an_unreadable_stream_does_not_stop_retention_of_the_others(
    tmp_path: Path, *, dry_run: bool
) -> None:
    """The streams after it in the list kept all records, whatever their retention was."""
    uri = f"sqlite:///{tmp_path}/cluster.db"
    asyncio.run(three_streams(uri))
    words = ["stream", "retain", "--json", "--metadata", uri, *["--dry-run"] * dry_run]
    done = CliRunner().invoke(cli, [*words, "--all"])
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["apple", "pear"]
    assert (done.exit_code, done.stderr.startswith("error: stream melon: ")) == (1, True)
    assert CliRunner().invoke(cli, [*words, "melon"]).exit_code == 1
