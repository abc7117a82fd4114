"""Notes of servers about outages of the metadata store, which people read later.

A bookie or an autorecovery process cannot write while the store is away. When the store answers
again, it writes how often and for how long the store was away in the last hour. The note is a node
below the under-replication tree, one for each server that noticed an outage. No decision about data
depends on it, and Apache's programs do not read it.

A note is shown for an hour after the last outage. Processes that run autorecovery then delete it
(`forget_old_outages`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quire._runtime.retry import Backoff, Retry
from quire._runtime.tasks import TaskSet
from quire.codec.metadata.stored_json import stored_json
from quire.errors import (
    LaterMetadataError,
    MetadataUnavailableError,
    QuireError,
)
from quire.metadata.bookies.nodes import (
    delete_node,
    node_path,
    read_node,
    read_nodes,
    refuse_later,
    write_node,
)
from quire.metadata.interface import MetadataStore, Watch

NODE = "quire-outages"
RECENT_MS = 3_600_000
"""Milliseconds for which an outage is kept and shown."""
OUTAGES_MAX = 100
"""The number of outages in the note of one server. The newest are kept."""
SERVERS_READ_MAX = 200
"""The number of servers whose notes are read. Those with the last names are left out."""
WRITE_BACKOFF = Backoff(1.0, 30.0)
"""The pauses before a note that could not be written is tried again."""
WRITE_ATTEMPTS = 20
"""The number of attempts to write a note. The next outage writes all of the last hour."""
START_STORE = (
    "Start the store, or check the network to it. If it accepts connections and does not answer, "
    "its process may be paused or overloaded"
)
"""The advice about a store that does not answer."""
_WHAT = "the note about outages of the metadata store"


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which the store did not answer."""

    since_ms: int
    """The Unix time in milliseconds of the last answer before it."""
    until_ms: int
    """The Unix time in milliseconds of the first answer after it."""


def encode(outages: Iterable[Outage]) -> bytes:
    """Return the value of the node with these outages."""
    return json.dumps({"outages": [asdict(one) for one in outages]}).encode()


def decode(data: bytes) -> tuple[Outage, ...]:
    """Return the outages in the value of a node.

    Raises:
        LaterMetadataError: A later version of Quire wrote the note.
        ValueError: The value is not such a note.
    """
    value = stored_json(data)
    refuse_later(_WHAT, value, ("outages",))
    try:
        return tuple(_decoded(one) for one in value["outages"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is not a list of outages ({error!r})") from None


def _decoded(one: Mapping[str, Any]) -> Outage:
    refuse_later(_WHAT, one, ("since_ms", "until_ms"))
    return Outage(int(one["since_ms"]), int(one["until_ms"]))


def outages_path(uri: str, server: str) -> str:
    """Return the path of the node with the outages that a server noticed."""
    return node_path(uri, NODE, server)


async def noticed_outages(store: MetadataStore, now_ms: int) -> dict[str, tuple[Outage, ...]]:
    """Return the outages of the last hour, by the name of the server that noticed them.

    `now_ms` is the Unix time in milliseconds. Notes that cannot be decoded are left out, and so are
    those after the first `SERVERS_READ_MAX`. Raises MetadataError if the store fails.
    """
    notes = await read_nodes(store, NODE, decode, SERVERS_READ_MAX)
    recent = ((server, _recent(stored.value, now_ms)) for server, stored in notes.items())
    return {server: outages for server, outages in recent if outages}


async def forget_old_outages(store: MetadataStore, now_ms: int) -> None:
    """Delete the notes without an outage in the last hour.

    `now_ms` is the Unix time in milliseconds. A note that cannot be decoded is kept. Raises
    MetadataUnavailableError if the store does not answer.
    """
    for server, stored in (await read_nodes(store, NODE, decode)).items():
        if _recent(stored.value, now_ms):
            continue
        try:
            await delete_node(store, outages_path(store.uri, server), stored.version)
        except MetadataUnavailableError:
            raise
        except QuireError:
            continue  # its server has changed it meanwhile


def _recent(outages: Iterable[Outage], now_ms: int) -> tuple[Outage, ...]:
    """Return the outages of the last hour, the newest last."""
    recent = [one for one in outages if one.until_ms >= now_ms - RECENT_MS]
    return tuple(sorted(recent, key=lambda one: (one.until_ms, one.since_ms))[-OUTAGES_MAX:])


class OutageNotes:
    """The note of one server, which is written after each outage. Call `start`, and later `close`.

    An outage of which the server could not write a note stays in memory until the next attempt.
    """

    def __init__(
        self,
        store: MetadataStore,
        server: str,
        now_ms: Callable[[], int],
        rng: random.Random,
    ) -> None:
        """Create it.

        Args:
            store: The store of the cluster.
            server: The name of the server: the id of a bookie, or the name of an autorecovery
                process.
            now_ms: Returns the Unix time in milliseconds.
            rng: The source of the jitter of pauses.
        """
        self._store = store
        self._path = outages_path(store.uri, server)
        self._now_ms = now_ms
        self._rng = rng
        self._tasks = TaskSet()
        self._watch: Watch | None = None
        self._noticed: Sequence[Outage] = ()
        self._unsaved = self._writing = False

    def start(self) -> None:
        """Begin to notice outages of the metadata store, and to write them into the note."""
        self._watch = self._store.on_outage(self._ended)

    async def close(self) -> None:
        """Notice nothing more. A write under way is cancelled."""
        if self._watch is not None:
            self._watch.close()
        await self._tasks.close()

    def _ended(self, seconds: float) -> None:
        now_ms = self._now_ms()
        outage = Outage(now_ms - int(seconds * 1000), now_ms)
        self._noticed = _recent((*self._noticed, outage), now_ms)
        self._unsaved = True
        if not self._writing:
            self._writing = True
            self._tasks.start(self._write())

    async def _write(self) -> None:
        retry = Retry(WRITE_BACKOFF, self._rng, attempts=WRITE_ATTEMPTS)
        try:
            while self._unsaved:
                self._unsaved = False
                try:
                    await self._merge()
                except LaterMetadataError:
                    return
                except QuireError:
                    self._unsaved = True
                    if not await retry.pause():
                        return
        finally:
            self._writing = False

    async def _merge(self) -> None:
        """Write the outages of the last hour, with those that an earlier process has written."""
        stored = await read_node(self._store, self._path, decode)
        before = () if stored is None else stored.value
        merged = _recent({*before, *self._noticed}, self._now_ms())
        version = None if stored is None else stored.version
        await write_node(self._store, self._path, encode(merged), version)
