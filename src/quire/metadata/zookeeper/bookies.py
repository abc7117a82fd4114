"""Bookies in ZooKeeper: ephemeral nodes below `available` and `available/readonly`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from quire._runtime.retry import Backoff, Retry
from quire._runtime.tasks import TaskSet, came, each
from quire.errors import ClientClosedError, KeyExistsError, MetadataError
from quire.metadata.common import (
    assumed_address,
    bookie_exists,
    decode_address,
    encode_address,
    logger,
)
from quire.metadata.interface import ANY_VERSION, BookieAddress, Bookies
from quire.metadata.tree import Create, Delete
from quire.metadata.zookeeper.kazoo_adapter import (
    LostConnectionError,
    NodeExistsError,
    NoNodeError,
    Notify,
    Stat,
)
from quire.metadata.zookeeper.root import ZooKeeperRoot

AVAILABLE = "available"
READONLY = "readonly"
READONLY_PATH = f"{AVAILABLE}/{READONLY}"

LISTS_ATTEMPTS_MAX = 3
"""The number of attempts to read both lists while bookies leave or enter the first one."""

KEEP_BACKOFF = Backoff(1.0, 1.0)
"""The pause between two attempts to register again after a lost session."""

HELD_TIMEOUT_FACTOR = 1.5
"""The time that another session may keep the id, in session time-outs. It is more than one because
a server ends a silent session up to one tick after the time-out."""

WITHDRAW_TIMEOUT_S = 5.0
"""Seconds that closing a registration waits for ZooKeeper. Afterwards the node is deleted when the
session ends."""


async def read_bookies(root: ZooKeeperRoot, addresses: bool) -> Bookies:
    """Return the registered bookies. With `addresses`, the address of each is read now.

    Raises the errors of `ZooKeeperRoot.check_layout`.
    """
    return await BookieLists(root).read(None, addresses=addresses)


async def read_ids(root: ZooKeeperRoot) -> frozenset[str]:
    """Return the ids of the registered bookies, writable or read-only, without their addresses.

    Raises the errors of `ZooKeeperRoot.check_layout`.
    """
    await root.check_layout()
    lists = await _both_lists(root, None)
    return frozenset(name for names, _ in lists.values() for name in names if name != READONLY)


async def _both_lists(
    root: ZooKeeperRoot, notify: Notify | None
) -> dict[str, tuple[frozenset[str], Stat]]:
    """Return what `_list` returns for the writable and for the read-only list, at one moment.

    A bookie that becomes writable between the two requests would otherwise be in neither. A third
    request excludes that, unless the last change of the read-only list is older than one that the
    other list already shows. If the list of writable bookies changes during each of
    `LISTS_ATTEMPTS_MAX` attempts, a bookie may be missing.
    """
    lists: dict[str, tuple[frozenset[str], Stat]] = {}
    for _ in range(LISTS_ATTEMPTS_MAX):
        for below in (AVAILABLE, READONLY_PATH):
            lists[below] = await _list(root, below, notify)
        before = lists[AVAILABLE][1]
        if lists[READONLY_PATH][1].children_zxid <= before.children_zxid:
            break  # the second list is still as it was when the first one was read
        now = await root.zk.exists(root.at(AVAILABLE))
        if now is not None and (now.created_zxid, now.children_version) == (
            before.created_zxid,
            before.children_version,
        ):
            break
    return lists


async def _list(
    root: ZooKeeperRoot, below: str, notify: Notify | None
) -> tuple[frozenset[str], Stat]:
    """Return the names in one of the lists, and the properties of its node."""
    path = root.at(below)
    try:
        names, stat = await root.zk.children_stat(path, notify)
    except NoNodeError:
        # A watch needs an existing node. As in Java, the first process that needs it creates it.
        await root.make(path)
        names, stat = await root.zk.children_stat(path, notify)
    return frozenset(names), stat


@dataclass(frozen=True, slots=True)
class _Seen:
    """One of the lists, as it was read last."""

    names: frozenset[str]
    stat: Stat
    addresses: dict[str, BookieAddress | None]
    """The addresses that were read, by bookie id. The value is None if the node of the bookie was
    gone or cannot be decoded."""
    assumed: Mapping[str, BookieAddress]
    """The assumed addresses of the other bookies, by bookie id. All watches share them."""

    def replaced(self, names: frozenset[str], stat: Stat) -> frozenset[str]:
        """Return the names in the list of now whose nodes are not known to be the same as here.

        The server counts each node that it creates or deletes in the list. If the difference of the
        names explains the count, all other nodes are the same. Otherwise some bookie has left and
        come back, perhaps with another address, and any may be the one.
        """
        same_list = stat.created_zxid == self.stat.created_zxid
        changes = stat.children_version - self.stat.children_version
        if same_list and changes == len(names ^ self.names):
            return names - self.names
        return names


class BookieLists:
    """The lists of registered bookies, of which `read` reads only what has changed.

    Every change concerns every client of the cluster. If each client read the addresses of all
    bookies after each change, the load of the servers would grow with the square of the cluster.
    It would also do so if processes that run beside every bookie read all addresses when they
    start. Such a process reads only the addresses that it uses (`learn`).
    """

    def __init__(self, root: ZooKeeperRoot) -> None:
        self._root = root
        self._seen: dict[str, _Seen] = {}
        self._reading = asyncio.Lock()
        """The lock that lets a second watch use what the first one reads at the same time."""
        self._learnt: set[str] = set()
        """The bookies that `learn` was called with. Their addresses are read again with each new
        registration, because a client may have connections to the former address."""

    async def read(self, notify: Notify | None, *, addresses: bool = True) -> Bookies:
        """Return the registered bookies. `notify` is called once, when a list has changed.

        The addresses of bookies that stayed in their list are those that were read first. A bookie
        that changes its properties and nothing else keeps its node, so they may be older ones.
        Without `addresses`, they are read only where they cannot be assumed, and for the bookies
        that `learn` was called with. Raises the errors of `ZooKeeperRoot.check_layout`.
        """
        await self._root.check_layout()
        async with self._reading:
            lists = await _both_lists(self._root, notify)
            writable, readonly = [
                await self._read(below, names, stat, addresses)
                for below, (names, stat) in lists.items()
            ]
        return Bookies(writable, readonly)

    async def learn(self, bookie_ids: Collection[str]) -> dict[str, BookieAddress]:
        """Return the addresses of these bookies, by bookie id, and read those not read before.

        Bookies that are not registered, and those whose address cannot be decoded, are left out.
        Raises the errors of `ZooKeeperRoot.check_layout`.
        """
        await self._root.check_layout()
        async with self._reading:
            self._learnt.update(bookie_ids)
            found = await each(bookie_ids, self._learn)
        return {id_: one for id_, one in zip(bookie_ids, found) if one is not None}

    async def _learn(self, bookie_id: str) -> BookieAddress | None:
        lists = {below: self._seen.get(below) for below in (AVAILABLE, READONLY_PATH)}
        for seen in lists.values():
            if seen is not None and (known := seen.addresses.get(bookie_id)) is not None:
                return known
        # Look first in the list that had the bookie last. It may be in the other one now.
        for below, seen in sorted(
            lists.items(), key=lambda one: one[1] is None or bookie_id not in one[1].names
        ):
            path = self._root.at(f"{below}/{bookie_id}")
            address = await _read_address(self._root, path, bookie_id)
            if seen is not None and bookie_id in seen.names:
                seen.addresses[bookie_id] = address
            if address is not None:
                return address
        return None

    async def _read(
        self, below: str, names: frozenset[str], stat: Stat, addresses: bool
    ) -> Mapping[str, BookieAddress]:
        before = self._seen.get(below)
        replaced = names if before is None else before.replaced(names, stat)
        known = {} if before is None else before.addresses
        former = {} if before is None else before.assumed
        found = {id_: one for id_, one in known.items() if id_ in names and id_ not in replaced}
        assumed: dict[str, BookieAddress] = {}
        unread: list[str] = []
        for id_ in sorted(names - found.keys() - {READONLY}):
            address = former.get(id_) or assumed_address(id_)
            if address is None or addresses or id_ in self._learnt:
                unread.append(id_)
            else:
                assumed[id_] = address
        path = self._root.at(below)
        read = await each(unread, lambda id_: _read_address(self._root, f"{path}/{id_}", id_))
        found.update(zip(unread, read))
        self._seen[below] = _Seen(names, stat, found, assumed)
        there = {**assumed, **{id_: one for id_, one in found.items() if one is not None}}
        return {id_: there[id_] for id_ in sorted(there)}


async def _read_address(root: ZooKeeperRoot, path: str, bookie_id: str) -> BookieAddress | None:
    try:
        payload, _ = await root.zk.get(path)
    except NoNodeError:
        return None  # it was deleted after the listing
    return decode_address(bookie_id, payload)


class _HeldError(Exception):
    """Another session has the bookie's id."""


class ZooKeeperRegistration:
    """The registration of one bookie, which a background task keeps alive after `begin`.

    Until `close`, only the task changes the nodes, on request and after each reconnection. If
    another session keeps the id for too long, the task ends and completes `lost`.
    """

    def __init__(
        self,
        root: ZooKeeperRoot,
        tasks: TaskSet,
        address: BookieAddress,
        readonly: bool,
        *,
        session_timeout_ms: int,
    ) -> None:
        self._root = root
        self._tasks = tasks
        self._bookie_id = address.bookie_id
        self._address = address
        self._payload = encode_address(address)
        self._written: bytes | None = None
        """The data of the node, or None if it is not known."""
        self._readonly = readonly
        self._held_timeout_ms = int(session_timeout_ms * HELD_TIMEOUT_FACTOR)
        self._held_until: float | None = None
        """The time, on the clock of the event loop, until which another session may keep the id. It
        is None if no other session has it."""
        self._wake = asyncio.Event()
        self._changes: list[asyncio.Future[None]] = []
        self._forget = root.zk.on_connected(self._wake.set)
        self._keeper: asyncio.Task[None] | None = None
        self.lost: asyncio.Future[KeyExistsError] = asyncio.get_running_loop().create_future()
        self.withdrawing: asyncio.Task[None] | None = None
        """The task that deletes the node after `close`, or what a failed `begin` may have
        created."""
        self._closed = False

    @property
    def over(self) -> bool:
        """Whether the registration was closed or lost."""
        return self._closed or self.lost.done()

    async def begin(self) -> None:
        """Register the bookie, and wait if another session has its id.

        Raises:
            KeyExistsError: Another session keeps the id for too long.
            MetadataError: ZooKeeper fails. A node that was created is deleted in the background.
        """
        try:
            await self._register()
        except BaseException:
            self._forget()
            # A request whose response we did not wait for may still create a node.
            self.withdrawing = self._tasks.start(self._withdraw())
            raise
        self._keeper = self._tasks.start(self._keep())

    async def _register(self) -> None:
        """Register the bookie.

        Raises:
            KeyExistsError: Another session has kept the id for too long.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._root.do(f"register bookie {self._bookie_id}", self._ensure)
                self._held_until = None
                return
            except _HeldError:
                if self._held_until is None:
                    logger.warning(
                        "bookie %s waits for its registration: another session has its id",
                        self._bookie_id,
                    )
                    self._held_until = loop.time() + self._held_timeout_ms / 1000
                elif loop.time() >= self._held_until:
                    raise bookie_exists(self._bookie_id, self._held_timeout_ms) from None
                await self._wait_for_change(self._held_until)

    async def _wait_for_change(self, deadline: float) -> None:
        """Wait until one of the nodes has changed or may have.

        A reconnection counts as a change.
        """
        gone = asyncio.Event()

        async def watch(again: bool) -> bool:
            there = [await self._root.zk.exists(path, gone.set) for path in self._paths()]
            return any(there)

        try:
            if await self._root.do(f"register bookie {self._bookie_id}", watch):
                await came(gone, asyncio.timeout_at(deadline))  # the caller tries once more
        finally:
            self._root.zk.forget(gone.set)

    async def set_readonly(
        self, readonly: bool, properties: Mapping[str, str] | None = None
    ) -> None:
        """Move the bookie to the read-only list or to the writable list.

        See `Registration.set_readonly`. After a MetadataError, the task tries again by itself.
        """
        if self.lost.done():
            raise self.lost.result()
        if self._closed:
            raise self._closed_error()
        self._readonly = readonly
        if properties is not None:
            self._payload = encode_address(replace(self._address, properties=properties))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.append(done)
        self._wake.set()
        await done

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._forget()
        # A task of its own, because a cancelled call must not leave the node behind.
        self.withdrawing = self._tasks.start(self._end())
        await asyncio.wait([self.withdrawing])

    async def _end(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._answer_waiting(self._closed_error())
        await self._withdraw()

    def abandon(self) -> None:
        """End the registration after its session has ended, and its node with it."""
        self._closed = True
        self._forget()
        self._answer_waiting(self._closed_error())

    async def _keep(self) -> None:
        failing = False
        retry = Retry(KEEP_BACKOFF, self._root.rng)
        while True:
            await self._wake.wait()
            self._wake.clear()
            changes, self._changes = self._changes, []
            try:
                await self._register()
                failing = False
                _answer(changes, None)
            except ClientClosedError as error:
                _answer(changes, error)
                return
            except KeyExistsError as error:
                _answer(changes, error)
                self._lose(error)
                return
            except MetadataError as error:
                if not failing:
                    logger.error("bookie %s is not registered: %s", self._bookie_id, error)
                failing = True
                _answer(changes, error)
                self._wake.set()
                await retry.pause()
            except asyncio.CancelledError:
                self._changes = changes + self._changes
                raise

    def _lose(self, error: KeyExistsError) -> None:
        """End the registration, because another session has kept the bookie's id, and set `lost`.

        If two processes had one id, clients would ask one of them for the other's data.
        """
        logger.error("the registration of bookie %s is lost: %s", self._bookie_id, error)
        self._forget()
        self._answer_waiting(error)
        self.lost.set_result(error)

    def _paths(self) -> tuple[str, str]:
        """Return the path where the node must be, and the path where it must not be."""
        paths = (
            self._root.at(f"{READONLY_PATH}/{self._bookie_id}"),
            self._root.at(f"{AVAILABLE}/{self._bookie_id}"),
        )
        return paths if self._readonly else (paths[1], paths[0])

    async def _ensure(self, again: bool) -> None:
        wanted, other = self._paths()
        if again:
            await self._root.zk.sync(wanted)  # another server may lag behind the first attempt
        owner = await self._owner_of(other)
        if owner not in (None, self._root.zk.session_id):
            raise _HeldError
        payload, written = self._payload, self._written
        self._written = None  # until it is certain that the node has it
        if owner is not None and await self._moved(other, wanted, payload):
            self._written = payload
            return
        try:
            await self._root.create(wanted, payload, ephemeral=True)
        except NodeExistsError:
            if await self._owner_of(wanted) != self._root.zk.session_id:
                raise _HeldError from None
            if written != payload:
                await self._replace(wanted, payload)
        self._written = payload
        if owner is not None:
            await self._delete(other)

    async def _replace(self, path: str, payload: bytes) -> None:
        """Replace the data of this session's node. Raises _HeldError if the node is gone."""
        try:
            await self._root.zk.set(path, payload, ANY_VERSION)
        except NoNodeError:
            raise _HeldError from None

    async def _moved(self, old: str, new: str, payload: bytes) -> bool:
        """Move the bookie from the node `old` to `new` in one transaction.

        Return False if nothing was moved, because `old` does not exist, or `new` exists already or
        has no parent. Clients see the bookie in one of the lists at any time.

        The deletion comes first, because watches fire in this order. Apache's client (4.17.2) takes
        a deletion for the end of the bookie. If it heard of it after it had found the bookie in the
        other list, it could not connect to the bookie until a list changed again.
        """
        try:
            await self._root.zk.commit([Delete(old), Create(new, payload, ephemeral=True)])
        except (NoNodeError, NodeExistsError):  # no list yet, nothing to delete, or in both lists
            return False
        return True

    async def _owner_of(self, path: str) -> int | None:
        stat = await self._root.zk.exists(path)
        return None if stat is None else stat.owner

    async def _delete(self, path: str) -> None:
        try:
            await self._root.zk.delete(path)
        except NoNodeError:
            pass

    async def _withdraw(self) -> None:
        try:
            async with asyncio.timeout(WITHDRAW_TIMEOUT_S):
                for path in self._paths():
                    while await self._withdraw_from(path):
                        pass
        except (TimeoutError, MetadataError, ClientClosedError) as error:
            logger.warning(
                "bookie %s stays registered until its session ends: %s", self._bookie_id, error
            )

    async def _withdraw_from(self, path: str) -> bool:
        """Delete the node at `path` if it belongs to this session.

        Return True if the connection was lost and the call must be repeated, else False.
        """
        try:
            await self._root.zk.wait_connected()
            if await self._owner_of(path) == self._root.zk.session_id:
                await self._delete(path)
        except LostConnectionError:
            await asyncio.sleep(0)
            return True
        return False

    def _answer_waiting(self, error: Exception) -> None:
        changes, self._changes = self._changes, []
        _answer(changes, error)

    def _closed_error(self) -> ClientClosedError:
        return ClientClosedError(
            f"the registration of bookie {self._bookie_id} was closed, so it cannot be changed"
        )


def _answer(changes: list[asyncio.Future[None]], error: Exception | None) -> None:
    for done in changes:
        if done.done():
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
