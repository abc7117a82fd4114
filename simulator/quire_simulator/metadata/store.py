"""A metadata store in one process, for tests and for the simulator.

A `MemoryCluster` holds the data. Any number of `MemoryStore` objects attach to it, each with its
own session. The clock and all randomness are passed in, so that one seed gives one run. All stores
of a cluster live on one event loop. Ledgers are kept as their stored bytes, so that nothing passes
here that other drivers would refuse or change.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import TypeVar

from quire._runtime.clock import Clock
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.codec.metadata.registration import check_bookie_id
from quire.errors import (
    ClientClosedError,
    KeyExistsError,
    MetadataUnavailableError,
    NoSuchKeyError,
)
from quire.metadata.common import (
    LIST_RANGE_LEDGERS,
    SESSION_TIMEOUT_MS,
    EventWatches,
    assumed_address,
    bookie_exists,
    check_key,
    check_ledger_id,
    check_prefix,
    check_size,
    check_version,
    conflict,
    encode_address,
    ledger_exists,
    no_ledger_manager,
    no_such_ledger,
    registered_here,
    replaced,
    stamped,
    store_closed,
)
from quire.metadata.interface import (
    ANY_VERSION,
    BookieAddress,
    Bookies,
    KnownRanges,
    LedgerRange,
    Registration,
    Versioned,
    Watch,
)
from quire.metadata.ledgers.creation import check_same_creation
from quire.metadata.ledgers.size import encode_change, encode_new
from quire.metadata.ledgers.unreadable import UNREADABLE
from quire.metadata.uri import MetadataURI
from quire_simulator.metadata.cluster import (
    ClusterWatch,
    MemoryBookieWatch,
    MemoryCluster,
    MemoryLedgerWatch,
    WatchingSession,
)
from quire_simulator.metadata.items import MemoryPresence, StoredItem
from quire_simulator.metadata.lag import View
from quire_simulator.metadata.tree import MemoryTree

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
W = TypeVar("W", bound=ClusterWatch)

LOST_SWAPS = 0.0
"""The probability that somebody wrote the same value again just before a compare-and-swap, which
therefore loses."""

Hook = Callable[[str, bool], Awaitable[None]]
"""A function that is awaited with an operation's name before it (False) and after it (True).

It may sleep, to model a slow store. It may raise `MetadataUnavailableError`, to model a lost
request or a lost answer.
"""


async def _no_delay(name: str, done: bool) -> None:
    """Let other tasks run before each call, as a call that leaves the process would."""
    if not done:
        await asyncio.sleep(0)


class MemoryStore:
    """One session with a `MemoryCluster`."""

    def __init__(
        self,
        cluster: MemoryCluster,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        hook: Hook = _no_delay,
    ) -> None:
        self.cluster = cluster
        self.uri = f"memory://{cluster.name}"
        self.session_timeout_ms = session_timeout_ms
        self._hook = hook
        self._watches: list[ClusterWatch] = []
        self._learnt: set[str] = set()
        """The bookies of which `learn_bookies` was asked."""
        self._registrations: dict[str, MemoryRegistration] = {}
        self._session_lives = True
        self._closed = False
        self._claim_initialise = False
        self.view = View(cluster, cluster.history, self._look_again)
        self.tree = MemoryTree(self)
        self.outages: EventWatches[[float]] = EventWatches()
        """The callbacks of `on_outage`. A test calls them."""

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for watch in self._watches:
            watch.close()
        self.tree.close()
        self.outages.close()
        self._drop_presences()
        for registration in list(self._registrations.values()):
            registration.abandon()

    # -- for tests ----------------------------------------------------------------------------

    def expire_session(self, *, back: bool = True) -> None:
        """Lose everything ephemeral at once.

        With `back`, a new session begins in the next event-loop iteration and restores the
        registrations. Otherwise this happens at `restore_session`.
        """
        self._session_lives = False
        self._drop_presences()
        self.tree.end_session()
        if back:
            asyncio.get_running_loop().call_soon(self.restore_session)

    def restore_session(self) -> None:
        if self._closed:
            return
        if not self._session_lives:
            self._session_lives = True
            self.tree.begin_session()
        for registration in self._registrations.values():
            registration.ensure()
        for watch in self._watches:
            watch.notify()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def alive(self) -> bool:
        """Whether the session lives."""
        return self._session_lives

    def _look_again(self) -> None:
        for watch in self._watches:
            watch.look_soon()

    def _watching(self, watch: W) -> W:
        self._watches = [known for known in self._watches if not known.closed]
        self._watches.append(watch)
        return watch

    def _drop_presences(self) -> None:
        presences = self.cluster.presences
        mine = [bookie_id for bookie_id, p in presences.items() if p.owner is self]
        self.cluster.history.keep()
        for bookie_id in mine:
            del presences[bookie_id]
        if mine:
            self.cluster.bookies_changed()

    # -- cluster ------------------------------------------------------------------------------

    async def initialise(self, ledger_manager: str | None = None) -> str:
        no_ledger_manager(self.uri, ledger_manager)

        def work() -> str:
            if self._claim_initialise:
                self._claim_initialise = False
                return self.cluster.require()
            return self.cluster.initialise()

        return await self.call("initialise", work)

    def create_if_missing(self) -> None:
        """Initialise the cluster if necessary.

        If so, the first `initialise` of this store returns its id instead of raising.
        """
        if self.cluster.instance_id is None:
            self.cluster.initialise()
            self._claim_initialise = True

    async def is_initialised(self) -> bool:
        return await self.call("is_initialised", lambda: self.cluster.instance_id is not None)

    async def instance_id(self) -> str:
        return await self.call("instance_id", self.cluster.require)

    # -- ledgers ------------------------------------------------------------------------------

    async def create_ledger(
        self, metadata: LedgerMetadata, ledger_id: int | None = None
    ) -> tuple[int, Versioned[LedgerMetadata]]:
        if ledger_id is not None:
            check_ledger_id(ledger_id)
        data = encode_new(stamped(metadata, self.cluster.clock))

        def work() -> tuple[int, Versioned[LedgerMetadata]]:
            cluster = self.cluster
            cluster.require()
            found = ledger_id
            if found is None:
                while cluster.next_ledger_id in cluster.ledgers:
                    cluster.next_ledger_id += 1
                found = cluster.next_ledger_id
                cluster.next_ledger_id += 1
            elif found in cluster.ledgers:
                try:
                    there = cluster.shown(found)
                except UNREADABLE:
                    raise ledger_exists(found) from None
                if metadata.ctoken and there.value.ctoken == metadata.ctoken:
                    return found, there
                raise ledger_exists(found)
            cluster.ledgers[found] = StoredItem(data, ctime_ms=cluster.clock.now_ms())
            insort(cluster.ledger_ids, found)
            return found, cluster.ledger(found)

        return await self.call("create_ledger", work)

    async def read_ledger(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        check_ledger_id(ledger_id)

        def work() -> Versioned[LedgerMetadata]:
            self.cluster.require()
            return self.cluster.shown(ledger_id)

        return await self.call("read_ledger", work)

    async def write_ledger(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        known: Versioned[LedgerMetadata] | None = None,
    ) -> Versioned[LedgerMetadata]:
        check_ledger_id(ledger_id)
        check_version(version)
        data = encode_change(stamped(metadata, self.cluster.clock))

        def work() -> Versioned[LedgerMetadata]:
            cluster = self.cluster
            cluster.require()
            node = cluster.ledgers.get(ledger_id)
            if node is None:
                raise no_such_ledger(ledger_id)
            if known is not None:
                check_same_creation(ledger_id, known, cluster.shown(ledger_id))
            if LOST_SWAPS and cluster.rng.random() < LOST_SWAPS:
                cluster.lost_swaps += 1
                cluster.ledger_rewritten(ledger_id)
            if node.version != version:
                raise conflict(f"ledger {ledger_id}", version, node.version)
            cluster.unreadable.pop(ledger_id, None)
            node.data, node.version = data, version + 1
            cluster.ledger_changed(ledger_id)
            return cluster.ledger(ledger_id)

        return await self.call("write_ledger", work)

    async def delete_ledger(self, ledger_id: int) -> None:
        check_ledger_id(ledger_id)

        def work() -> None:
            cluster = self.cluster
            cluster.require()
            if cluster.ledgers.pop(ledger_id, None) is not None:
                cluster.unreadable.pop(ledger_id, None)
                del cluster.ledger_ids[bisect_left(cluster.ledger_ids, ledger_id)]
                cluster.ledger_changed(ledger_id)

        await self.call("delete_ledger", work)

    async def list_ledgers(
        self, first: int = 0, *, complete: bool = False, known: KnownRanges | None = None
    ) -> AsyncIterator[LedgerRange]:
        check_ledger_id(first)
        start = first

        def work() -> LedgerRange:
            self.cluster.require()
            ids = self.cluster.ledger_ids
            at = bisect_left(ids, start)
            found = tuple(ids[at : at + LIST_RANGE_LEDGERS])
            last = found[-1] if len(found) == LIST_RANGE_LEDGERS else LEDGER_ID_MAX
            stamp = len(found), hash(found)
            if known is not None and known.get((start, last)) == stamp:
                return LedgerRange(start, last, (), stamp, unchanged=True)
            return LedgerRange(start, last, found, stamp)

        while start <= LEDGER_ID_MAX:
            ledgers = await self.call("list_ledgers", work)
            yield ledgers
            start = ledgers.last + 1

    async def list_ledgers_down(self, last: int = LEDGER_ID_MAX) -> AsyncIterator[LedgerRange]:
        check_ledger_id(last)
        end = last

        def work() -> LedgerRange:
            self.cluster.require()
            ids = self.cluster.ledger_ids
            at = bisect_right(ids, end)
            found = tuple(ids[max(0, at - LIST_RANGE_LEDGERS) : at])
            full = len(found) == LIST_RANGE_LEDGERS
            return LedgerRange(found[0] if full else 0, end, found)

        while end >= 0:
            ledgers = await self.call("list_ledgers", work)
            yield ledgers
            end = ledgers.first - 1

    async def skip_ledger_ids(self, last: int) -> None:
        check_ledger_id(last)

        def work() -> None:
            self.cluster.require()
            self.cluster.next_ledger_id = max(self.cluster.next_ledger_id, last + 1)

        await self.call("skip_ledger_ids", work)

    def watch_ledger(
        self, ledger_id: int, changed: Callable[[Versioned[LedgerMetadata] | None], None]
    ) -> Watch:
        check_ledger_id(ledger_id)
        self.check_open("watch_ledger")
        return self._watching(MemoryLedgerWatch(self.cluster, self, ledger_id, changed))

    def on_outage(self, ended: Callable[[float], None]) -> Watch:
        self.check_open("on_outage")
        return self.outages.add(ended)

    # -- bookies ------------------------------------------------------------------------------

    async def register_bookie(self, address: BookieAddress, readonly: bool = False) -> Registration:
        bookie_id = address.bookie_id

        def work() -> bool:
            self.cluster.require()
            if bookie_id in self._registrations:
                raise registered_here(bookie_id)
            return bookie_id not in self.cluster.presences

        if not await self.call("register_bookie", work):
            await self._wait_for_absence(bookie_id)
        if bookie_id in self._registrations:
            raise registered_here(bookie_id)
        registration = MemoryRegistration(self, address, readonly)
        self._registrations[bookie_id] = registration
        registration.ensure()
        return registration

    async def _wait_for_absence(self, bookie_id: str) -> None:
        gone = asyncio.Event()

        def look(bookies: Bookies) -> None:
            if bookie_id not in self.cluster.presences:
                gone.set()

        watch = self.watch_bookies(look)
        try:
            async with asyncio.timeout(self.session_timeout_ms / 1000):
                while bookie_id in self.cluster.presences:
                    gone.clear()
                    await gone.wait()
        except TimeoutError:
            if bookie_id in self.cluster.presences:
                raise bookie_exists(bookie_id, self.session_timeout_ms) from None
        finally:
            watch.close()
        self.check_open("register_bookie")

    async def bookies(self, *, addresses: bool = True) -> Bookies:
        def work() -> Bookies:
            self.cluster.require()
            return self.cluster.bookies()

        return await self.call("bookies", work)

    async def registered(self) -> frozenset[str]:
        def work() -> frozenset[str]:
            self.cluster.require()
            return frozenset(self.cluster.presences)

        return await self.call("registered", work)

    async def learn_bookies(self, bookie_ids: Collection[str]) -> Mapping[str, BookieAddress]:
        def work() -> Mapping[str, BookieAddress]:
            self.cluster.require()
            self._learnt.update(bookie_ids)
            found = self.cluster.bookies()
            addresses = {id_: found.find(id_) for id_ in bookie_ids}
            return {id_: address for id_, address in addresses.items() if address is not None}

        return await self.call("learn_bookies", work)

    def watch_bookies(self, changed: Callable[[Bookies], None], *, addresses: bool = True) -> Watch:
        self.check_open("watch_bookies")

        def shown(bookies: Bookies) -> Bookies:
            return bookies if addresses else self._assumed(bookies)

        return self._watching(MemoryBookieWatch(self.cluster, self, changed, shown))

    def _assumed(self, bookies: Bookies) -> Bookies:
        """Return the bookies with the addresses of a watch that does not ask for them."""

        def assumed(some: Mapping[str, BookieAddress]) -> dict[str, BookieAddress]:
            return {
                id_: address if id_ in self._learnt else assumed_address(id_) or address
                for id_, address in some.items()
            }

        return Bookies(assumed(bookies.writable), assumed(bookies.readonly))

    # -- cookies and values -------------------------------------------------------------------

    async def read_cookie(self, bookie_id: str) -> Versioned[bytes]:
        check_bookie_id(bookie_id)
        what = f"the cookie of {bookie_id}"
        return await self._read(lambda: self.cluster.cookies, bookie_id, what)

    async def write_cookie(self, bookie_id: str, cookie: bytes, version: int | None) -> int:
        check_bookie_id(bookie_id)
        what = f"the cookie of {bookie_id}"
        return await self._write(self.cluster.cookies, bookie_id, cookie, version, what)

    async def delete_cookie(self, bookie_id: str, version: int = ANY_VERSION) -> None:
        check_bookie_id(bookie_id)
        await self._delete(self.cluster.cookies, bookie_id, version, f"the cookie of {bookie_id}")

    async def list_cookies(self) -> list[str]:
        def work() -> list[str]:
            self.cluster.require()
            return sorted(self.cluster.cookies)

        return await self.call("list_cookies", work)

    async def read_value(self, key: Sequence[str]) -> Versioned[bytes]:
        parts = check_key(key)
        what = f"the value {'/'.join(parts)}"
        return await self._read(lambda: self.cluster.values, parts, what, self.cluster.value_shown)

    async def write_value(
        self,
        key: Sequence[str],
        value: bytes,
        version: int | None,
        *,
        known: bytes | None = None,
    ) -> int:
        parts = check_key(key)
        what = f"the value {'/'.join(parts)}"
        changed = self.cluster.value_changed
        return await self._write(
            self.cluster.values, parts, value, version, what, known, changed=changed
        )

    async def delete_value(
        self, key: Sequence[str], version: int = ANY_VERSION, *, known: bytes | None = None
    ) -> bool:
        parts = check_key(key)
        what = f"the value {'/'.join(parts)}"
        changed = self.cluster.value_changed
        return await self._delete(self.cluster.values, parts, version, what, known, changed=changed)

    async def list_values(self, prefix: Sequence[str]) -> list[str]:
        parts = check_prefix(prefix)
        depth = len(parts)

        def work() -> list[str]:
            self.cluster.require()
            keys = (key for key in self.cluster.values if len(key) > depth)
            return sorted({key[depth] for key in keys if key[:depth] == parts})

        return await self.call("list_values", work)

    async def _read(
        self,
        nodes: Callable[[], dict[K, StoredItem]],
        key: K,
        what: str,
        shown: Callable[[K, bytes | None], None] = lambda key, data: None,
    ) -> Versioned[bytes]:
        def work() -> Versioned[bytes]:
            self.cluster.require()
            node = nodes().get(key)
            if node is not None or not self.view.past:
                shown(key, None if node is None else node.data)
            if node is None:
                raise NoSuchKeyError(f"{what} does not exist")
            return Versioned(node.data, node.version)

        return await self.call("read", work)

    async def _write(
        self,
        nodes: dict[K, StoredItem],
        key: K,
        data: bytes,
        version: int | None,
        what: str,
        known: bytes | None = None,
        *,
        changed: Callable[[K, bytes | None, bytes | None], None] = lambda key, before, after: None,
    ) -> int:
        check_size(data, what)
        if version is not None:
            check_version(version)

        def work() -> int:
            self.cluster.require()
            node = nodes.get(key)
            if version is None:
                if node is not None:
                    raise KeyExistsError(f"{what} exists already")
                nodes[key] = StoredItem(data)
                changed(key, None, data)
                return 0
            if node is None:
                raise NoSuchKeyError(f"{what} does not exist")
            values = self.cluster.values
            if LOST_SWAPS and nodes is values and self.cluster.rng.random() < LOST_SWAPS:
                self.cluster.lost_swaps += 1
                node.version += 1
            if node.version != version:
                raise conflict(what, version, node.version)
            if known not in (None, node.data):
                raise replaced(what)
            before, node.data, node.version = node.data, data, version + 1
            changed(key, before, data)
            return node.version

        return await self.call("write", work)

    async def _delete(
        self,
        nodes: dict[K, StoredItem],
        key: K,
        version: int,
        what: str,
        known: bytes | None = None,
        *,
        changed: Callable[[K, bytes | None, bytes | None], None] = lambda key, before, after: None,
    ) -> bool:
        def work() -> bool:
            self.cluster.require()
            node = nodes.get(key)
            if node is not None and version not in (ANY_VERSION, node.version):
                raise conflict(what, version, node.version)
            if node is not None and known not in (None, node.data):
                raise replaced(what)
            if nodes.pop(key, None) is not None and node is not None:
                changed(key, node.data, None)
            return node is not None

        return await self.call("delete", work)

    async def call(self, name: str, work: Callable[[], T]) -> T:
        self.check_open(name)
        await self._hook(name, False)
        self.check_open(name)
        if not self._session_lives:
            raise MetadataUnavailableError(f"{self.uri} cannot be reached: {name} was not done")
        result, number = self.view.call(name, work)
        await self._hook(name, True)
        self.view.caught_up(number)
        return result

    def check_open(self, name: str) -> None:
        if self._closed:
            raise store_closed(f"the metadata store {self.uri} (for {name})")

    def watch_tree(self, watch: Callable[[WatchingSession], ClusterWatch]) -> Watch:
        """Create and keep a watch.

        `watch` creates it. It receives this session.
        """
        self.check_open("watch_tree")
        return self._watching(watch(self))

    def registration_closed(self, bookie_id: str) -> None:
        self._registrations.pop(bookie_id, None)


class MemoryRegistration:
    def __init__(self, store: MemoryStore, address: BookieAddress, readonly: bool) -> None:
        self._store = store
        self._address = address
        self._bookie_id = address.bookie_id
        self._payload = encode_address(address)
        self._readonly = readonly
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._giving_up: asyncio.TimerHandle | None = None
        self.lost: asyncio.Future[KeyExistsError] = self._loop.create_future()
        self._watch = store.watch_bookies(lambda bookies: self.ensure())

    def ensure(self) -> None:
        """Register the bookie as requested, unless another session has taken its id meanwhile.

        In that case, register when the other session has gone, which the watch notices. If it
        stays, the registration is lost.
        """
        cluster = self._store.cluster
        there = cluster.presences.get(self._bookie_id)
        if there is not None and there.owner is not self._store:
            if self._giving_up is None:
                timeout_s = self._store.session_timeout_ms / 1000
                self._giving_up = self._loop.call_later(timeout_s, self._lose)
            return
        self._keep_trying()
        wanted = MemoryPresence(self._store, self._payload, self._readonly)
        if wanted != there:
            cluster.history.keep()
            cluster.presences[self._bookie_id] = wanted
            cluster.bookies_changed()

    def _lose(self) -> None:
        self._end()
        self.lost.set_result(bookie_exists(self._bookie_id, self._store.session_timeout_ms))

    def _keep_trying(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    async def set_readonly(
        self, readonly: bool, properties: Mapping[str, str] | None = None
    ) -> None:
        def work() -> None:
            self._readonly = readonly
            if properties is not None:
                self._payload = encode_address(replace(self._address, properties=properties))
            self.ensure()

        if self.lost.done():
            raise self.lost.result()
        if self._closed:
            raise ClientClosedError(f"the registration of bookie {self._bookie_id} is closed")
        await self._store.call("set_readonly", work)

    async def close(self) -> None:
        self._end()
        cluster = self._store.cluster
        there = cluster.presences.get(self._bookie_id)
        if there is not None and there.owner is self._store:
            cluster.history.keep()
            del cluster.presences[self._bookie_id]
            cluster.bookies_changed()

    def abandon(self) -> None:
        """End the registration, because the session and its presence are gone."""
        self._end()

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self._keep_trying()
            self._watch.close()
            self._store.registration_closed(self._bookie_id)


_CLUSTERS: dict[str, MemoryCluster] = {}
"""The clusters of this process by the name in `memory://NAME`.

A cluster lives until the process ends or until `forget_memory`, so that a test can close a store
and open it again.
"""


async def open_memory(
    where: MetadataURI,
    *,
    create: bool,
    clock: Clock,
    rng: random.Random,
    session_timeout_s: float,
) -> MemoryStore:
    """Return a store of the cluster that the URI names.

    The first call for a name creates the cluster, with this clock and this source of randomness.
    """
    cluster = _CLUSTERS.get(where.name)
    if cluster is None:
        cluster = _CLUSTERS[where.name] = MemoryCluster(where.name, clock=clock, rng=rng)
    store = MemoryStore(cluster, session_timeout_ms=round(1000 * session_timeout_s))
    if create:
        store.create_if_missing()
    return store


def forget_memory(name: str) -> None:
    """Drop the cluster `name`. Open stores can still use it."""
    _CLUSTERS.pop(name, None)
