"""A cluster with one bad item: a ledger with unreadable metadata, or a broken mark.

A mark is a node of the under-replication tree, which says that a ledger must be replicated. `Scene`
is a simulated cluster with bookies. `File` is a metadata store in a file, for commands.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from quire.cli.main import cli
from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.metadata.underreplication import mark_path
from quire.metadata.interface import MetadataStore
from quire.metadata.tree import Create
from quire.metadata.uri import replication_root
from quire.replication.marks.locks import ReplicationLocks
from quire_simulator.machine.clock import SimClock
from quire_simulator.metadata.store import MemoryStore
from quire_simulator.world.world import World, bookie_id
from tests.support.metadata.metadata import in_store

POISON = b"BookieMetadataFormatVersion\t9\nof a time to come"
"""The bytes of ledger metadata in a format that only a later version of Quire could read."""
WHY = (
    "ledger metadata was written by a later version of Quire or BookKeeper: it has format 9, but "
    "this version knows only the formats 1 to 3"
)
QUORUMS = (3, 3, 2)


@dataclass
class Scene:
    """A simulated cluster of four bookies and three closed ledgers: the second is unreadable."""

    world: World
    client: Client
    ids: list[int] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def bad(self) -> int:
        return self.ids[1]

    @property
    def locks(self) -> ReplicationLocks:
        return ReplicationLocks(self.client.metadata, "tester", SimClock(self.world.loop))

    @property
    def store(self) -> MemoryStore:
        store = self.client.metadata
        assert isinstance(store, MemoryStore)
        return store

    def log(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    def told(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == event]

    def poison(self, ledger_id: int) -> bytes:
        """Make the metadata of a ledger unreadable, and return the metadata that it had before."""
        node = self.world.cluster.ledgers[ledger_id]
        before, node.data = node.data, POISON
        node.version += 1
        return before

    async def lost(self) -> str:
        """Crash a bookie that all ledgers name, and return its id."""
        metadata = await self.client.ledger_metadata(self.ids[0])
        others = await self.client.ledger_metadata(self.ids[2])
        both = set(metadata.segments[0].ensemble) & set(others.segments[0].ensemble)
        name = sorted(both)[0]
        self.world.crash(name.partition(":")[0])
        return name

    async def members(self, ledger_id: int) -> set[str]:
        metadata = await self.client.ledger_metadata(ledger_id)
        return {bookie for one in metadata.segments for bookie in one.ensemble}


def scene(play: Callable[[Scene], Awaitable[None]], seed: int = 1) -> None:
    world = World.make(seed, 4)

    async def whole() -> None:
        for name in world.disks:
            await world.start(name)
        there = Scene(world, world.client("client"))
        for _ in range(3):
            size, write_quorum, ack_quorum = QUORUMS
            writer = await there.client.create_ledger(
                ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum, password=b""
            )
            await writer.append_many([b"entry"] * 20)
            while writer._session.pipeline.unacked_bytes_max():
                await asyncio.sleep(0.001)
            await writer.close()
            there.ids.append(writer.ledger_id)
        there.poison(there.bad)
        await play(there)
        await there.client.close()
        for bookie in list(world.bookies.values()):
            await bookie.stop()

    world.loop.run(whole())


async def broken_mark(store: MetadataStore, ledger_id: int) -> None:
    """Store an under-replication mark for the ledger whose content no version can parse."""
    path = mark_path(replication_root(store.uri), ledger_id)
    await store.tree.make_path(path.rpartition("/")[0])
    await store.tree.commit(Create(path, b"no mark at all {"))


async def stray_mark(store: MetadataStore, at: int, of: int) -> None:
    """Store the under-replication mark of ledger `of` in the directory for ledger `at`."""
    root = replication_root(store.uri)
    above = mark_path(root, at).rpartition("/")[0]
    await store.tree.make_path(above)
    name = mark_path(root, of).rpartition("/")[2]
    await store.tree.commit(Create(f"{above}/{name}", b'replica: "a:1"\n'))


class File:
    """A SQLite metadata store with three ledgers, of which the second cannot be read."""

    bookies = ("a:3181", "b:3181", "c:3181")

    def __init__(self, directory: Path, bad: bytes = POISON) -> None:
        self.uri = f"sqlite:///{directory}/cluster.db"
        self.ids: list[int] = in_store(self.uri, self._fill)
        self.bad = self.ids[1]
        with sqlite3.connect(directory / "cluster.db") as connection:
            change = "UPDATE ledgers SET metadata = ? WHERE ledger_id = ?"
            connection.execute(change, (bad, self.bad))
        connection.close()

    async def _fill(self, store: MetadataStore) -> list[int]:
        await store.initialise()
        ids = []
        for members in (self.bookies[:2], self.bookies[:2], self.bookies[1:]):
            metadata = LedgerMetadata(2, 2, 1, (Segment(0, members),)).with_close(9, 100)
            ids.append((await store.create_ledger(metadata))[0])
        return ids

    def run(self, *words: str) -> Result:
        arguments = [*words[:2], *words[2:]]
        return CliRunner().invoke(cli, arguments, env={"QUIRE_METADATA": self.uri})

    def lines(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words).stdout.splitlines()]


def index_of(bookie: str) -> str:
    return bookie_id(bookie)
