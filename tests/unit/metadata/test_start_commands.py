"""The commands that started bookies, in the metadata store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire.errors import LaterMetadataError
from quire.metadata import open_metadata
from quire.metadata.bookies.directories import forget_bookie
from quire.metadata.bookies.start_commands import (
    WORDS_BYTES_MAX,
    StartCommand,
    decode,
    read_start_command,
    start_command_path,
    write_start_command,
)
from quire.metadata.interface import MetadataStore
from quire.metadata.tree import Create

FIRST = StartCommand(
    ("quire", "bookie", "start", "--dir", "a b"), "/srv", ("QUIRE_METADATA",), "10.0.0.1:3181"
)
SECOND = StartCommand(("quire", "bookie", "start", "--dir", "/d"))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    found = await open_metadata(f"sqlite:///{tmp_path}/cluster.db", create=True)
    await found.initialise()
    yield found
    await found.close()


async def test_the_last_command_is_kept_until_the_bookie_is_forgotten(store: MetadataStore) -> None:
    assert await read_start_command(store, "b:1") is None
    for command in (FIRST, FIRST, SECOND):
        await write_start_command(store, "b:1", command)
        assert await read_start_command(store, "b:1") == command
    assert await read_start_command(store, "b:2") is None
    await forget_bookie(store, "b:1")
    assert await read_start_command(store, "b:1") is None


async def test_a_command_that_is_too_long_is_not_kept(store: MetadataStore) -> None:
    await write_start_command(store, "b:1", FIRST)
    long = StartCommand(("quire", "x" * WORDS_BYTES_MAX))
    await write_start_command(store, "b:1", long)
    assert await read_start_command(store, "b:1") is None, "the previous command is outdated"


async def test_a_value_that_cannot_be_decoded_is_unknown(store: MetadataStore) -> None:
    path = start_command_path(store.uri, "b:1")
    await store.tree.make_path(path.rpartition("/")[0])
    await store.tree.commit(Create(path, b'{"format": 2}'))
    assert await read_start_command(store, "b:1") is None
    with pytest.raises(LaterMetadataError):
        await write_start_command(store, "b:1", FIRST)


def test_a_command_without_an_address_can_be_decoded() -> None:
    """An earlier version wrote no address."""
    value = b'{"words": ["quire"], "working_directory": "", "variables": []}'
    assert decode(value) == StartCommand(("quire",))


@pytest.mark.parametrize("value", [b"", b"[]", b'{"words": 1}', b'{"words": ["a"]}'])
def test_invalid_start_commands_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError):
        decode(value)
