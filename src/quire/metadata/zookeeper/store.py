"""The metadata store in ZooKeeper, in Apache BookKeeper's layout (docs/reference/metadata.md).

| path below the ledgers root      | content                                          |
|----------------------------------|--------------------------------------------------|
| `LAYOUT`, `INSTANCEID`           | the ledger manager and the id of the cluster     |
| `available/<id>`, `.../readonly` | ephemeral registrations of bookies (`bookies`)   |
| `cookies/<id>`                   | cookies (`values`)                               |
| `idgen`, `idgen-long`            | the source of ledger ids (`ids`)                 |
| `00/0001/L2345`, ...             | ledger metadata (`ledgers`)                      |

Quire's own values are outside of the root, below `/quire` + the root. The tree (`tree`) has nodes
at the paths that its callers choose. An operation is repeated after lost connections for at most
`OPERATION_TIMEOUT_S`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from quire._runtime.clock import Clock
from quire._runtime.tasks import TaskSet
from quire.codec.metadata import layout
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.codec.metadata.registration import check_bookie_id
from quire.errors import KeyExistsError, UsageError
from quire.metadata.common import (
    SESSION_TIMEOUT_MS,
    check_key,
    check_ledger_id,
    check_prefix,
    check_size,
    check_version,
    new_instance_id,
    registered_here,
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
from quire.metadata.ledgers.size import encode_change, encode_new
from quire.metadata.tree import Create
from quire.metadata.uri import MetadataURI
from quire.metadata.zookeeper.bookies import (
    AVAILABLE,
    READONLY_PATH,
    BookieLists,
    ZooKeeperRegistration,
    read_bookies,
    read_ids,
)
from quire.metadata.zookeeper.commits import Commits
from quire.metadata.zookeeper.kazoo_adapter import (
    CONNECT_TIMEOUT_S,
    Access,
    NodeExistsError,
    NoNodeError,
    ZooKeeperConnection,
)
from quire.metadata.zookeeper.ledgers import ZooKeeperLedgers
from quire.metadata.zookeeper.listing import list_ledgers, list_ledgers_down
from quire.metadata.zookeeper.options import ZooKeeperOptions
from quire.metadata.zookeeper.root import OPERATION_TIMEOUT_S, ZooKeeperRoot
from quire.metadata.zookeeper.tree import ZooKeeperTree
from quire.metadata.zookeeper.values import Cookies, Values, read_instance_id
from quire.metadata.zookeeper.watch import ZooKeeperWatch

_CTOKEN_BITS = 63
_CTOKEN_FORMAT_MIN = 3


class ZooKeeperStore:
    """A metadata store in ZooKeeper.

    `quire.metadata.interface.MetadataStore` documents the calls.
    """

    def __init__(
        self,
        where: MetadataURI,
        connection: ZooKeeperConnection,
        clock: Clock,
        rng: random.Random,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
    ) -> None:
        self.uri = where.text
        self._zk = connection
        self._clock = clock
        self._rng = rng
        self._session_timeout_ms = session_timeout_ms
        self._factory = where.factory
        self._root = ZooKeeperRoot(
            connection,
            where.root,
            rng,
            factory=where.factory,
            operation_timeout_s=operation_timeout_s,
        )
        self._tasks = TaskSet()
        self._ledgers = ZooKeeperLedgers(self._root, self._tasks)
        self._bookie_lists = BookieLists(self._root)
        self._cookies = Cookies(self._root)
        commits = Commits(self._root, self._tasks)
        self._values = Values(self._root, commits, rng)
        self.tree = ZooKeeperTree(self._root, commits, self._tasks, self._check_open)
        self._registrations: dict[str, ZooKeeperRegistration] = {}
        self._withdrawing: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    @classmethod
    async def connect(
        cls,
        where: MetadataURI,
        *,
        clock: Clock,
        rng: random.Random,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
        options: ZooKeeperOptions | None = None,
    ) -> ZooKeeperStore:
        """Connect to the store that `where` names, with the arguments of `open_metadata`.

        Without `options` the client has no identity; the environment is not used. If the call is
        cancelled, nothing stays open.

        Raises:
            MetadataUnavailableError: No server answered in time.
            MetadataDeniedError: The server refuses the identity in `options`.
        """
        connection = await ZooKeeperConnection.connect(
            where.servers,
            session_timeout_ms=session_timeout_ms,
            connect_timeout_s=connect_timeout_s,
            options=options,
        )
        return cls(
            where,
            connection,
            clock,
            rng,
            session_timeout_ms=session_timeout_ms,
            operation_timeout_s=operation_timeout_s,
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._tasks.close()
        finally:  # also if the call is cancelled: otherwise the session stays open
            for registration in self._registrations.values():
                registration.abandon()
            self.tree.close()
            await self._zk.close()

    def on_outage(self, ended: Callable[[float], None]) -> Watch:
        self._check_open()
        return self._zk.on_outage(ended)

    # -- cluster ------------------------------------------------------------------------------

    async def initialise(self, ledger_manager: str | None = None) -> str:
        self._check_open()
        factory = self._factory_of(ledger_manager)
        instance_id = new_instance_id(self._rng)

        async def work(again: bool) -> str:
            if again and await self._has_instance_id(instance_id):
                return instance_id
            await self._values.refuse_leftovers()
            try:
                nodes = await self._nodes_to_initialise(instance_id, factory)
                await self._zk.commit(
                    [Create(path, data) for path, data, _ in nodes],
                    [access for _, _, access in nodes],
                )
            except NodeExistsError:
                whole = await self._zk.exists(self._root.at("LAYOUT")) is not None
                state = "" if whole else ", but has no LAYOUT, so it is not a complete cluster"
                raise KeyExistsError(
                    f"{self._root} already exists{state}. Nothing was changed",
                    remedy="Use the cluster there, or choose another root in the metadata URI",
                ) from None
            return instance_id

        return await self._root.do(f"initialise {self._root}", work, check=False)

    def _factory_of(self, ledger_manager: str | None) -> str:
        if ledger_manager is None:
            return self._factory or layout.HIERARCHICAL
        factory = layout.FACTORIES.get(ledger_manager)
        if factory is None:
            raise UsageError(
                f"{ledger_manager!r} is not a ledger manager: use one of "
                f"{', '.join(layout.FACTORIES)}"
            )
        if self._factory not in (None, factory):
            raise UsageError(
                f"the ledger manager {ledger_manager} cannot be used: the metadata URI "
                f"{self.uri} names another one",
                remedy="Use zk:// in the URI, or name the same ledger manager in both places",
            )
        return factory

    async def _nodes_to_initialise(
        self, instance_id: str, factory: str
    ) -> list[tuple[str, bytes, Access]]:
        root = self._root
        stat = await self._zk.exists(root.path)
        parts = root.path.split("/")[1:-1]
        parents = ["/" + "/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        nodes = [
            (path, b"", Access.SHARED) for path in parents if await self._zk.exists(path) is None
        ]
        if stat is None or stat.children:
            # A root with children is in use. Creating it fails, and with it the whole transaction.
            nodes.append((root.path, b"", Access.OWN))
        return [
            *nodes,
            (root.at(AVAILABLE), b"", Access.OWN),
            (root.at(READONLY_PATH), b"", Access.OWN),
            (root.at("INSTANCEID"), instance_id.encode(), Access.OWN),
            (root.at("LAYOUT"), layout.encode(layout.Layout(factory)), Access.OWN),
        ]

    async def _has_instance_id(self, instance_id: str) -> bool:
        try:
            data, _ = await self._zk.get_or_sync(self._root.at("INSTANCEID"))
        except NoNodeError:
            return False
        return data == instance_id.encode()

    async def is_initialised(self) -> bool:
        self._check_open()

        async def work(again: bool) -> bool:
            return await self._zk.exists_or_sync(self._root.at("LAYOUT")) is not None

        return await self._root.do(f"look for {self._root}", work, check=False)

    async def instance_id(self) -> str:
        self._check_open()
        return await self._root.do(
            "read the instance id", lambda again: read_instance_id(self._root)
        )

    # -- ledgers ------------------------------------------------------------------------------

    async def create_ledger(
        self, metadata: LedgerMetadata, ledger_id: int | None = None
    ) -> tuple[int, Versioned[LedgerMetadata]]:
        self._check_open()
        if ledger_id is not None:
            check_ledger_id(ledger_id)
        metadata = stamped(metadata, self._clock)
        has_ctoken = metadata.format_version >= _CTOKEN_FORMAT_MIN
        if not metadata.ctoken and has_ctoken:
            metadata = replace(metadata, ctoken=self._rng.getrandbits(_CTOKEN_BITS) or 1)
        data = encode_new(metadata)
        ctoken = metadata.ctoken if has_ctoken else 0
        if ledger_id is None:
            return await self._ledgers.create(data, ctoken)
        return ledger_id, await self._ledgers.create_at(ledger_id, data, ctoken)

    async def read_ledger(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        self._check_open()
        check_ledger_id(ledger_id)
        return await self._ledgers.read(ledger_id)

    async def write_ledger(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        known: Versioned[LedgerMetadata] | None = None,
    ) -> Versioned[LedgerMetadata]:
        self._check_open()
        check_ledger_id(ledger_id)
        check_version(version)
        data = encode_change(stamped(metadata, self._clock), ledger_id)
        return await self._ledgers.write(ledger_id, data, version, known)

    async def delete_ledger(self, ledger_id: int) -> None:
        self._check_open()
        check_ledger_id(ledger_id)
        await self._ledgers.delete(ledger_id)

    async def list_ledgers(
        self, first: int = 0, *, complete: bool = False, known: KnownRanges | None = None
    ) -> AsyncIterator[LedgerRange]:
        self._check_open()
        check_ledger_id(first)
        async for ledgers in list_ledgers(self._root, first, complete=complete, known=known):
            yield ledgers

    async def list_ledgers_down(self, last: int = LEDGER_ID_MAX) -> AsyncIterator[LedgerRange]:
        self._check_open()
        check_ledger_id(last)
        async for ledgers in list_ledgers_down(self._root, last):
            yield ledgers

    async def skip_ledger_ids(self, last: int) -> None:
        self._check_open()
        check_ledger_id(last)
        await self._ledgers.skip_ids(last)

    def watch_ledger(
        self, ledger_id: int, changed: Callable[[Versioned[LedgerMetadata] | None], None]
    ) -> Watch:
        self._check_open()
        check_ledger_id(ledger_id)
        return self._ledgers.watch(ledger_id, changed)

    # -- bookies ------------------------------------------------------------------------------

    async def register_bookie(self, address: BookieAddress, readonly: bool = False) -> Registration:
        self._check_open()
        bookie_id = address.bookie_id
        if bookie_id in self._withdrawing:
            # An earlier attempt failed. Its clean-up must not delete the new node.
            await asyncio.wait([self._withdrawing[bookie_id]])
            self._withdrawing.pop(bookie_id, None)
        known = self._registrations.get(bookie_id)
        if known is not None and known.withdrawing is not None:
            await asyncio.wait([known.withdrawing])  # the same for one that is being closed
            known = self._registrations.get(bookie_id)
        if known is not None and not known.over:
            raise registered_here(bookie_id)
        registration = ZooKeeperRegistration(
            self._root,
            self._tasks,
            address,
            readonly,
            session_timeout_ms=self._session_timeout_ms,
        )
        self._registrations[bookie_id] = registration
        try:
            await registration.begin()
        except BaseException:
            del self._registrations[bookie_id]
            if registration.withdrawing is not None:
                self._withdrawing[bookie_id] = registration.withdrawing
            raise
        return registration

    async def bookies(self, *, addresses: bool = True) -> Bookies:
        self._check_open()
        return await self._root.do(
            "list the bookies", lambda again: read_bookies(self._root, addresses)
        )

    async def registered(self) -> frozenset[str]:
        self._check_open()
        return await self._root.do("list the bookies", lambda again: read_ids(self._root))

    async def learn_bookies(self, bookie_ids: Collection[str]) -> Mapping[str, BookieAddress]:
        self._check_open()
        return await self._root.do(
            "read the addresses of bookies", lambda again: self._bookie_lists.learn(bookie_ids)
        )

    def watch_bookies(self, changed: Callable[[Bookies], None], *, addresses: bool = True) -> Watch:
        self._check_open()
        seen: Bookies | None = None

        def deliver(found: Bookies) -> bool:
            nonlocal seen
            if found != seen:
                seen = found
                changed(found)
            return True

        look = partial(self._bookie_lists.read, addresses=addresses)
        return ZooKeeperWatch(self._root, self._tasks, look, deliver)

    # -- cookies and values -------------------------------------------------------------------

    async def read_cookie(self, bookie_id: str) -> Versioned[bytes]:
        self._check_open()
        check_bookie_id(bookie_id)
        return await self._cookies.read(bookie_id)

    async def write_cookie(self, bookie_id: str, cookie: bytes, version: int | None) -> int:
        self._check_open()
        check_bookie_id(bookie_id)
        return await self._cookies.write(bookie_id, check_size(cookie, "a cookie"), version)

    async def delete_cookie(self, bookie_id: str, version: int = ANY_VERSION) -> None:
        self._check_open()
        check_bookie_id(bookie_id)
        await self._cookies.delete(bookie_id, version)

    async def list_cookies(self) -> list[str]:
        self._check_open()
        return await self._cookies.list()

    async def read_value(self, key: Sequence[str]) -> Versioned[bytes]:
        self._check_open()
        return await self._values.read(check_key(key))

    async def write_value(
        self,
        key: Sequence[str],
        value: bytes,
        version: int | None,
        *,
        known: bytes | None = None,
    ) -> int:
        self._check_open()
        check_size(value, "a value")
        return await self._values.write(check_key(key), value, version, known)

    async def delete_value(
        self, key: Sequence[str], version: int = ANY_VERSION, *, known: bytes | None = None
    ) -> bool:
        self._check_open()
        return await self._values.delete(check_key(key), version, known)

    async def list_values(self, prefix: Sequence[str]) -> list[str]:
        self._check_open()
        return await self._values.list(check_prefix(prefix))

    def _check_open(self) -> None:
        if self._closed:
            raise store_closed(f"the metadata store {self.uri}")
