"""A ZooKeeper server in this process, with the cost of each request on the simulator's clock.

`SimulatedConnection` replaces the connection below Quire's ZooKeeper driver, so every request that
the driver makes is counted. One server handles all requests in order. Sessions end only by `close`
and by `ZooKeeperModel.expire`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from quire.metadata.common import EventWatches, WatchHandle, store_closed
from quire.metadata.tree import Check, Create, Delete, Operation, Put, Result
from quire.metadata.zookeeper.kazoo_adapter import (
    REQUESTS_IN_FLIGHT_MAX,
    Access,
    BadVersionError,
    NodeError,
    NodeExistsError,
    NodeNotEmptyError,
    NoNodeError,
    Notify,
    Stat,
)

T = TypeVar("T")

READ_S = 134e-6
"""Processor time of a server for one read, in seconds (measured: docs/internals/benchmarks.md)."""
WRITE_S = 330e-6
"""Processor time of a server for one write, in seconds (measured without followers)."""
NAME_S = 0.25e-6
"""Processor time of a server for one name in a list of children, in seconds."""
CLIENT_S = 230e-6
"""Processor time of a client for one request, in seconds: kazoo, and Quire's driver."""
ROUND_TRIP_S = 0.0005
"""Seconds for a request and its answer on the network, besides the time of the server."""

REQUEST_BYTES = 60
"""The bytes of the headers of a request and its answer: lengths, ids, zxid, error."""
STAT_BYTES = 80
NAME_BYTES = 4
"""The bytes of a name in an answer besides the name itself."""
WATCH_BYTES = 150
"""An estimate of a watch's bytes in the server's heap: two entries of hash maps."""

ANY_VERSION = -1
BUCKET_S = 0.1
"""The length of the intervals in which requests are counted to find the busiest moment, in s."""
READS = ("get", "exists", "children", "sync")


@dataclass(slots=True)
class _Node:
    value: bytes
    owner: int = 0
    version: int = 0
    ctime_ms: int = 0
    created_zxid: int = 0
    changed_zxid: int = 0
    children_zxid: int = 0
    made: int = 0
    """The number of children created so far, which numbers the next sequential one."""
    children: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Load:
    """What the server was asked since the last `take`."""

    since_s: float
    requests: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)
    """The number of requests by the kind of node, for reports."""
    sent_bytes: int = 0
    events: int = 0
    """The number of watch events that were sent."""
    busy_s: float = 0.0
    """Seconds of work of the server."""
    buckets: Counter[int] = field(default_factory=Counter)
    until_s: float = 0.0

    @property
    def total(self) -> int:
        return self.requests.total()

    @property
    def writes(self) -> int:
        return sum(count for name, count in self.requests.items() if name not in READS)

    @property
    def seconds(self) -> float:
        return max(self.until_s - self.since_s, 1e-9)

    @property
    def peak_per_s(self) -> float:
        """The rate of requests in the busiest interval of `BUCKET_S`."""
        return max(self.buckets.values(), default=0) / BUCKET_S


class ZooKeeperModel:
    """The nodes, watches and load of one server."""

    def __init__(self) -> None:
        self.nodes = {"/": _Node(b"")}
        self.load = Load(self._now_s)
        self.watches_peak = 0
        self._loop = asyncio.get_running_loop()
        self._zxid = 0
        self._sessions = 0
        self._free_at_s = 0.0
        self._ephemeral: dict[int, dict[str, None]] = {}
        self._watches: dict[tuple[str, bool], dict[int, dict[Notify, Context]]] = {}
        """The watches of each node (False) or its children (True), by session."""
        self._watch_count = 0

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def node_bytes(self) -> int:
        """The bytes of all paths and values, without the server's own overhead."""
        return sum(len(path) + len(node.value) for path, node in self.nodes.items())

    @property
    def watch_count(self) -> int:
        return self._watch_count

    def take(self) -> Load:
        """Return the load since the last call, and begin to count anew."""
        found, self.load = self.load, Load(self._now_s)
        found.until_s = self._now_s
        return found

    def new_session(self) -> int:
        self._sessions += 1
        self._ephemeral[self._sessions] = {}
        return self._sessions

    def expire(self, session: int) -> None:
        """End a session: its ephemeral nodes and its watches are gone."""
        for path in list(self._ephemeral.pop(session, ())):
            self.delete(path, ANY_VERSION)
        for key, by_session in list(self._watches.items()):
            if by_session.pop(session, None) is not None:
                self._watch_count -= 1
            if not by_session:
                del self._watches[key]

    # -- requests -----------------------------------------------------------------------------

    def serve(self, name: str, path: str, ready_s: float) -> float:
        """Count a request that arrives at `ready_s`, and return when the server has done it."""
        self.load.requests[name] += 1
        self.load.places[_kind(path)] += 1
        self.load.sent_bytes += REQUEST_BYTES
        self.load.buckets[int(ready_s / BUCKET_S)] += 1
        cost_s = READ_S if name in READS else WRITE_S
        if name == "children" and (node := self.nodes.get(path)) is not None:
            cost_s += NAME_S * len(node.children)
        self.load.busy_s += cost_s
        self._free_at_s = max(self._free_at_s, ready_s) + cost_s
        return self._free_at_s

    def watch(self, key: tuple[str, bool], session: int, notify: Notify) -> None:
        by_session = self._watches.setdefault(key, {})
        if session not in by_session:
            by_session[session] = {}
            self._watch_count += 1
            self.watches_peak = max(self.watches_peak, self._watch_count)
        by_session[session][notify] = copy_context()

    def _fire(self, *keys: tuple[str, bool]) -> None:
        for key in keys:
            for notifies in self._watches.pop(key, {}).values():
                self._watch_count -= 1
                self.load.events += 1
                self.load.sent_bytes += REQUEST_BYTES + len(key[0])
                for notify, context in notifies.items():
                    self._loop.call_soon(notify, context=context)

    # -- nodes --------------------------------------------------------------------------------

    def find(self, path: str) -> _Node:
        node = self.nodes.get(path)
        if node is None:
            raise NoNodeError(path)
        return node

    def create(
        self, path: str, value: bytes, *, owner: int = 0, sequence: bool = False
    ) -> tuple[str, _Node]:
        above = path.rpartition("/")[0] or "/"
        parent = self.find(above)
        if sequence:
            path = f"{path}{parent.made:010d}"
        if path in self.nodes:
            raise NodeExistsError(path)
        parent.made += 1
        self._zxid += 1
        at_ms = int(self._now_s * 1000)
        node = _Node(value, owner, 0, at_ms, self._zxid, self._zxid, self._zxid)
        parent.children_zxid = self._zxid
        self.nodes[path] = node
        parent.children[path.rpartition("/")[2]] = None
        if owner:
            self._ephemeral[owner][path] = None
        self._fire((path, False), (above, True))
        return path, node

    def make(self, path: str, value: bytes = b"") -> None:
        """Create a node and its missing parents, without cost: what was there before the run."""
        above = path.rpartition("/")[0]
        if above and above not in self.nodes:
            self.make(above)
        self.create(path, value)

    def put(self, path: str, value: bytes, version: int) -> _Node:
        node = self.find(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersionError(path)
        self._zxid += 1
        node.value, node.version, node.changed_zxid = value, node.version + 1, self._zxid
        self._fire((path, False))
        return node

    def delete(self, path: str, version: int) -> None:
        node = self.find(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersionError(path)
        if node.children:
            raise NodeNotEmptyError(path)
        above = path.rpartition("/")[0] or "/"
        del self.nodes[path]
        self._zxid += 1
        parent = self.nodes[above]
        del parent.children[path.rpartition("/")[2]]
        parent.children_zxid = self._zxid
        if node.owner in self._ephemeral:
            self._ephemeral[node.owner].pop(path, None)
        self._fire((path, False), (path, True), (above, True))

    def check(self, operation: Operation) -> None:
        """Raise the error of an operation that would fail, without the effects of others."""
        if isinstance(operation, Create):
            if not operation.sequential and operation.path in self.nodes:
                raise NodeExistsError(operation.path)
            self.find(operation.path.rpartition("/")[0] or "/")
            return
        node = self.find(operation.path)
        if operation.version not in (ANY_VERSION, node.version):
            raise BadVersionError(operation.path)
        if isinstance(operation, Delete) and node.children:
            raise NodeNotEmptyError(operation.path)

    def apply(self, operation: Operation, session: int) -> Result:
        match operation:
            case Create(path, value, ephemeral, sequential):
                owner = session if ephemeral else 0
                return self.create(path, value, owner=owner, sequence=sequential)[0]
            case Put(path, value, version):
                return self.put(path, value, version).version
            case Delete(path, version):
                self.delete(path, version)
            case Check():
                pass
        return None


def _kind(path: str) -> str:
    """Return the part of the metadata that a path belongs to, for reports."""
    parts = path.split("/")
    if len(parts) < 3:
        return "other"
    if parts[2] == "underreplication":
        return f"underreplication/{parts[3]}" if len(parts) > 3 else "underreplication"
    if parts[2].isdigit():
        return "ledgers"
    return parts[2]


class SimulatedConnection:
    """A session with the model, in place of `ZooKeeperConnection`."""

    def __init__(self, server: ZooKeeperModel) -> None:
        self.servers = "simulated:2181"
        self.server = server
        self.session_id = server.new_session()
        self.connected = True
        self._loop = asyncio.get_running_loop()
        self._in_flight = asyncio.Semaphore(REQUESTS_IN_FLIGHT_MAX)
        self._free_at_s = 0.0
        self._outages: EventWatches[[float]] = EventWatches()

    async def close(self) -> None:
        self.connected = False
        self.server.expire(self.session_id)

    async def wait_connected(self) -> None:
        if not self.connected:
            raise store_closed("the simulated connection to ZooKeeper")

    def on_connected(self, notify: Notify) -> Callable[[], None]:
        return lambda: None  # the session never loses its connection

    def forget(self, notify: Notify) -> None:
        """The server keeps a watch until its node changes, as ZooKeeper does."""

    def on_outage(self, ended: Callable[[float], None]) -> WatchHandle:
        return self._outages.add(ended)

    async def _ask(self, name: str, path: str, work: Callable[[], T]) -> T:
        async with self._in_flight:
            await self.wait_connected()
            self._free_at_s = max(self._free_at_s, self._loop.time()) + CLIENT_S
            done_s = self.server.serve(name, path, self._free_at_s)
            answer: asyncio.Future[T] = self._loop.create_future()

            def finish() -> None:
                if answer.done() or not self.connected:
                    return
                try:
                    answer.set_result(work())
                except NodeError as error:
                    answer.set_exception(error)

            self._loop.call_at(done_s + ROUND_TRIP_S, finish)
            return await answer

    def _sent(self, count: int) -> None:
        self.server.load.sent_bytes += count

    def _watched(self, key: tuple[str, bool], notify: Notify | None) -> None:
        if notify is not None:
            self.server.watch(key, self.session_id, notify)

    # -- the methods of ZooKeeperConnection ----------------------------------------------------

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        access: Access = Access.OWN,
    ) -> tuple[str, Stat]:
        def work() -> tuple[str, Stat]:
            owner = self.session_id if ephemeral else 0
            made, node = self.server.create(path, data, owner=owner, sequence=sequence)
            return made, _stat(node)

        return await self._ask("create", path, work)

    async def commit(
        self, operations: Sequence[Operation], access: Sequence[Access] = ()
    ) -> list[Result]:
        def work() -> list[Result]:
            for step, operation in enumerate(operations):
                try:
                    self.server.check(operation)
                except NodeError as error:
                    error.step = step
                    raise
            return [self.server.apply(one, self.session_id) for one in operations]

        return await self._ask("commit", operations[-1].path, work)

    async def get(self, path: str, notify: Notify | None = None) -> tuple[bytes, Stat]:
        def work() -> tuple[bytes, Stat]:
            node = self.server.find(path)
            self._watched((path, False), notify)
            self._sent(STAT_BYTES + len(node.value))
            return node.value, _stat(node)

        return await self._ask("get", path, work)

    async def get_or_sync(self, path: str) -> tuple[bytes, Stat]:
        try:
            return await self.get(path)
        except NoNodeError:
            await self.sync(path)
            return await self.get(path)

    async def get_synced(self, path: str) -> tuple[bytes, Stat]:
        _, found = await asyncio.gather(self.sync(path), self.get(path))
        return found

    async def exists(self, path: str, notify: Notify | None = None) -> Stat | None:
        def work() -> Stat | None:
            self._watched((path, False), notify)
            self._sent(STAT_BYTES)
            node = self.server.nodes.get(path)
            return None if node is None else _stat(node)

        return await self._ask("exists", path, work)

    async def exists_or_sync(self, path: str, *, synced: bool = False) -> Stat | None:
        if not synced and (stat := await self.exists(path)) is not None:
            return stat
        await self.sync(path)
        return await self.exists(path)

    async def children(self, path: str, notify: Notify | None = None) -> list[str]:
        return (await self.children_stat(path, notify))[0]

    async def children_stat(
        self, path: str, notify: Notify | None = None
    ) -> tuple[list[str], Stat]:
        def work() -> tuple[list[str], Stat]:
            node = self.server.find(path)
            self._watched((path, True), notify)
            self._sent(sum(map(len, node.children)) + NAME_BYTES * len(node.children))
            return list(node.children), _stat(node)

        return await self._ask("children", path, work)

    async def children_synced(self, path: str) -> list[str]:
        _, names = await asyncio.gather(self.sync(path), self.children(path))
        return names

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        return await self._ask("set", path, lambda: _stat(self.server.put(path, data, version)))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._ask("delete", path, lambda: self.server.delete(path, version))

    async def sync(self, path: str) -> None:
        await self._ask("sync", path, lambda: None)


def _stat(node: _Node) -> Stat:
    return Stat(
        node.version, node.ctime_ms, node.owner, len(node.children),
        node.created_zxid, node.changed_zxid, 2 * node.made - len(node.children),
        node.children_zxid,
    )  # fmt: skip
