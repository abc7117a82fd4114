"""Names that mean the same everywhere in the public API (docs/reference/client.md)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

import quire
from quire.client import Client
from quire.client.datasets.datasets import Datasets
from quire.statemachine import DurableDict, Follower, Leader
from quire.streams import Namespace, Objects, Producer, StreamReader, StreamWriter, Subscription
from quire.streams.objects.reader import ObjectReader
from quire_simulator.world.world import World

KINDS = [
    quire.Client, quire.LedgerWriter, quire.CallerIdWriter, quire.LedgerReader, Datasets, Namespace,
    StreamWriter, Producer, StreamReader, Subscription, Objects, ObjectReader, Leader, Follower,
    DurableDict,
]  # fmt: skip
OTHER_NAMES_FOR_BOUNDS = {"begin", "finish", "from_", "stop", "to", "until", "upto"}


def parameters() -> Iterator[tuple[str, str]]:
    """Return (method, parameter) of all public methods."""
    for kind in KINDS:
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                for parameter in inspect.signature(method).parameters:
                    yield f"{kind.__name__}.{name}", parameter


def test_bounds_have_one_name_each() -> None:
    found = list(parameters())
    assert not [one for one in found if one[1] in OTHER_NAMES_FOR_BOUNDS]
    with_last = {method for method, parameter in found if parameter == "last"}
    with_end = {method for method, parameter in found if parameter == "end"}
    assert "LedgerReader.read" in with_last
    assert with_end == {"Namespace.open_reader"}
    assert not with_last & with_end


@pytest.mark.parametrize("kind", [quire.LedgerWriter, StreamWriter])
def test_ledgers_and_streams_append_alike(kind: type) -> None:
    for name in ("append", "append_many", "submit_many", "flush", "close", "abandon"):
        assert callable(getattr(kind, name))
    for name in ("append_many", "submit_many"):
        assert inspect.iscoroutinefunction(getattr(kind, name))
        assert list(inspect.signature(getattr(kind, name)).parameters)[1] == "payloads"


def test_submitted_appends_can_be_awaited_later() -> None:
    world = World.make(7, 3)

    async def main() -> None:
        for name in world.disks:
            await world.start(name)
        async with world.client("client") as client:
            await scene(client)
        for name in list(world.bookies):
            await world.stop(name)

    async def scene(client: Client) -> None:
        async with client.create_ledger() as writer:
            assert await writer.submit_many([]) == -1
            assert await writer.submit_many([b"one", bytearray(b"two")]) == 1
            assert writer.last_add_confirmed == -1
            assert writer.length == 6
            assert writer.submit(b"three") == 2
            assert await writer.submit_many([b"four"]) == 3
            assert await writer.flush() == 3
            assert writer.last_add_confirmed == 3
        async with client.open_ledger(writer.ledger_id) as reader:
            entries = [entry async for entry in reader.read(1, 2)]  # `last` is included
            assert [entry.payload for entry in entries] == [b"two", b"three"]
            assert [entry.ledger_length for entry in entries] == [6, 11]
            assert reader.length == writer.length == 15

    world.loop.run(main())
