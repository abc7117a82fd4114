"""Bookies in ZooKeeper: ephemeral nodes below `available` and `available/readonly`
(metadata spec, 1.4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from quire.errors import ClientClosedError, MetadataError
from quire.metadata._common import bookie_exists, decode_address, logger
from quire.metadata.base import BookieAddress, Bookies
from quire.metadata.kazoo_adapter import (
    LostConnectionError,
    NodeExistsError,
    NoNodeError,
    Notify,
)
from quire.metadata.zookeeper_root import ZooKeeperRoot
from quire.tasks import TaskSet

AVAILABLE = "available"
READONLY = "readonly"
READONLY_PATH = f"{AVAILABLE}/{READONLY}"

KEEP_RETRY_S = 1.0
"""Between two attempts to register again after a lost session."""

WITHDRAW_TIMEOUT_S = 5.0
"""How long closing a registration waits for ZooKeeper; afterwards the session's end does it."""


async def read_bookies(root: ZooKeeperRoot, notify: Notify | None = None) -> Bookies:
    """Who is registered. `notify` is called once, when one of the lists has changed."""
    await root.check_layout()
    writable = await _read_list(root, AVAILABLE, notify)
    readonly = await _read_list(root, READONLY_PATH, notify)
    return Bookies(writable, readonly)


async def _read_list(
    root: ZooKeeperRoot, below: str, notify: Notify | None
) -> Mapping[str, BookieAddress]:
    path = root.at(below)
    try:
        names = await root.zk.children(path, notify)
    except NoNodeError:
        # A watch needs the node to be there; whoever needs it first makes it (as Java does).
        await root.make(path)
        names = await root.zk.children(path, notify)
    ids = sorted(name for name in names if name != READONLY)
    found = await asyncio.gather(*(_read_address(root, f"{path}/{id_}", id_) for id_ in ids))
    return {address.bookie_id: address for address in found if address is not None}


async def _read_address(root: ZooKeeperRoot, path: str, bookie_id: str) -> BookieAddress | None:
    try:
        payload, _ = await root.zk.get(path)
    except NoNodeError:
        return None  # it went in between
    return decode_address(bookie_id, payload)


class _HeldError(Exception):
    """Another session has the bookie's id."""


class ZooKeeperRegistration:
    """One bookie's presence. A task keeps it: it alone changes the nodes, when it is told to and
    after each reconnection."""

    def __init__(
        self,
        root: ZooKeeperRoot,
        tasks: TaskSet,
        bookie_id: str,
        payload: bytes,
        readonly: bool,
        *,
        session_timeout_ms: int,
    ) -> None:
        self._root = root
        self._tasks = tasks
        self._bookie_id = bookie_id
        self._payload = payload
        self._readonly = readonly
        self._session_timeout_ms = session_timeout_ms
        self._wake = asyncio.Event()
        self._changes: list[asyncio.Future[None]] = []
        self._forget = root.zk.on_connected(self._wake.set)
        self._keeper: asyncio.Task[None] | None = None
        self.withdrawing: asyncio.Task[None] | None = None
        """After a failed `begin`: clears away what it may have made."""
        self.closed = False

    async def begin(self) -> None:
        """Register, waiting for another session to go. `KeyExistsError` if it stays."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._session_timeout_ms / 1000
        try:
            while True:
                gone = asyncio.Event()
                try:
                    await self._root.do(f"register bookie {self._bookie_id}", self._ensure)
                    break
                except _HeldError:
                    await self._wait_for_change(gone, deadline)
        except BaseException:
            self._forget()
            # Whatever was made meanwhile, as by a request whose answer was not waited for.
            self.withdrawing = self._tasks.start(self._withdraw())
            raise
        self._keeper = self._tasks.start(self._keep())

    async def _wait_for_change(self, gone: asyncio.Event, deadline: float) -> None:
        async def watch(again: bool) -> bool:
            there = [await self._root.zk.exists(path, gone.set) for path in self._paths()]
            return any(there)

        if not await self._root.do(f"register bookie {self._bookie_id}", watch):
            return
        try:
            async with asyncio.timeout_at(deadline):
                await gone.wait()
        except TimeoutError:
            raise bookie_exists(self._bookie_id, self._session_timeout_ms) from None

    async def set_readonly(self, readonly: bool) -> None:
        """After an error it is still wanted: the task goes on trying."""
        if self.closed:
            raise self._closed_error()
        self._readonly = readonly
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.append(done)
        self._wake.set()
        await done

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._forget()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._answer_waiting()
        await self._withdraw()

    def abandon(self) -> None:
        """The session is over, and the node with it."""
        self.closed = True
        self._forget()
        self._answer_waiting()

    async def _keep(self) -> None:
        failing = False
        while True:
            await self._wake.wait()
            self._wake.clear()
            changes, self._changes = self._changes, []
            try:
                await self._root.do(f"register bookie {self._bookie_id}", self._ensure)
                failing = False
                _answer(changes, None)
            except ClientClosedError as error:
                _answer(changes, error)
                return
            except (MetadataError, _HeldError) as error:
                if isinstance(error, _HeldError):
                    error = bookie_exists(self._bookie_id, 0)
                if not failing:
                    logger.error("bookie %s is not registered: %s", self._bookie_id, error)
                failing = True
                _answer(changes, error)
                self._wake.set()
                await asyncio.sleep(KEEP_RETRY_S)
            except asyncio.CancelledError:
                self._changes = changes + self._changes
                raise

    def _paths(self) -> tuple[str, str]:
        """Where the node is to be, and where it is not to be."""
        paths = (
            self._root.at(f"{READONLY_PATH}/{self._bookie_id}"),
            self._root.at(f"{AVAILABLE}/{self._bookie_id}"),
        )
        return paths if self._readonly else (paths[1], paths[0])

    async def _ensure(self, again: bool) -> None:
        """The new entry is made before the old one is removed, so that readers find one."""
        wanted, other = self._paths()
        owner = await self._owner_of(other)
        if owner not in (None, self._root.zk.session_id):
            raise _HeldError
        try:
            await self._root.create(wanted, self._payload, ephemeral=True)
        except NodeExistsError:
            if await self._owner_of(wanted) != self._root.zk.session_id:
                raise _HeldError from None
        if owner is not None:
            await self._delete(other)

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
            logger.warning("bookie %s stays registered for a while: %s", self._bookie_id, error)

    async def _withdraw_from(self, path: str) -> bool:
        """Delete our own node. True: try again."""
        try:
            await self._root.zk.wait_connected()
            if await self._owner_of(path) == self._root.zk.session_id:
                await self._delete(path)
        except LostConnectionError:
            await asyncio.sleep(0)
            return True
        return False

    def _answer_waiting(self) -> None:
        changes, self._changes = self._changes, []
        _answer(changes, self._closed_error())

    def _closed_error(self) -> ClientClosedError:
        return ClientClosedError(f"the registration of bookie {self._bookie_id} is closed")


def _answer(changes: list[asyncio.Future[None]], error: Exception | None) -> None:
    for done in changes:
        if done.done():
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
