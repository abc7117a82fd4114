"""kazoo behind types and coroutines: one session with ZooKeeper.

kazoo works on threads of its own; results come back with `call_soon_threadsafe`. A request is made
once and answered once: `LostConnectionError` says that its outcome is not known, and repeating it
is the caller's decision. After a lost session kazoo opens a new one by itself; `on_connected` tells
so that what was ephemeral or watched can be set up again.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, make_acl

from quire._runtime.tasks import came
from quire.errors import (
    ClientClosedError,
    MetadataDeniedError,
    MetadataError,
    MetadataUnavailableError,
)
from quire.metadata.tree import Check, Create, Delete, Operation, Put, Result
from quire.metadata.zookeeper.kazoo_handler import (
    Handler,
    QuietLogger,
    Watcher,
    logger,
    stop_client,
)
from quire.metadata.zookeeper.options import AUTH_FILE_VARIABLE, ZooKeeperOptions

CONNECT_TIMEOUT_S = 10.0
"""For the first connection; later ones are tried for ever, operations wait for them in bounds."""

RECONNECT_DELAY_S = 0.1
RECONNECT_DELAY_MAX_S = 2.0
CLOSE_TIMEOUT_S = 2.0
"""How long `close` waits for kazoo's threads, which may hang in a connection attempt."""

REQUESTS_IN_FLIGHT_MAX = 256
"""Of one session; behind them callers wait."""

ANY_VERSION = -1

_AUTH_SCHEME = "digest"


class Access(enum.Enum):
    """Who may touch a node that we create, in a cluster whose nodes belong to their creator."""

    OWN = "own"
    """We alone."""
    SHARED = "shared"
    """Others may create nodes of their own below it: it stands above several clusters."""
    OPEN = "open"
    """Everyone may do everything."""


class NodeError(Exception):
    """An answer of ZooKeeper that the drivers handle; never seen outside of them."""

    step = 0
    """Of a transaction: which operation it is about. Those before it could have been done."""


class NoNodeError(NodeError):
    pass


class NodeExistsError(NodeError):
    pass


class BadVersionError(NodeError):
    pass


class NodeNotEmptyError(NodeError):
    pass


class BelowEphemeralError(NodeError):
    """An ephemeral node has no children."""


class LostConnectionError(NodeError):
    """The connection or the session ended before the answer came."""


class NotSentError(LostConnectionError):
    """There was no connection: certainly nothing was done."""


_TRANSLATED: dict[type[BaseException], type[NodeError]] = {
    kazoo_errors.NoNodeError: NoNodeError,
    kazoo_errors.NodeExistsError: NodeExistsError,
    kazoo_errors.BadVersionError: BadVersionError,
    kazoo_errors.NotEmptyError: NodeNotEmptyError,
    kazoo_errors.NoChildrenForEphemeralsError: BelowEphemeralError,
    kazoo_errors.ConnectionLoss: LostConnectionError,
    kazoo_errors.ConnectionClosedError: LostConnectionError,
    kazoo_errors.SessionExpiredError: LostConnectionError,
    kazoo_errors.SessionMovedError: LostConnectionError,
    kazoo_errors.OperationTimeoutError: LostConnectionError,
    kazoo_errors.RequestTimeoutError: LostConnectionError,
    kazoo_errors.ThrottledOpError: LostConnectionError,
}


@dataclass(frozen=True, slots=True)
class Stat:
    """What ZooKeeper says about a node besides its data."""

    version: int
    ctime_ms: int
    owner: int
    """The session that an ephemeral node belongs to; 0: the node is persistent."""
    children: int
    created_zxid: int
    """The transaction that created the node."""
    changed_zxid: int
    """The transaction that last gave it a value: all nodes of one commit have the same."""


Notify = Callable[[], None]
"""Called on the event loop, once, when what was read has changed or may have."""


class ZooKeeperConnection:
    """Use `connect`. All methods are for the event loop it was called on."""

    def __init__(
        self, servers: Sequence[str], *, session_timeout_ms: int, options: ZooKeeperOptions
    ) -> None:
        self.servers = ",".join(servers)
        self._options = options
        self._session_timeout_s = session_timeout_ms / 1000
        self._attempt_timeout_s = self._session_timeout_s / 3 / len(servers)
        self._loop = asyncio.get_running_loop()
        self._client, self._handler = self._new_client()
        self._connected = asyncio.Event()
        self._session_id = 0
        self._listeners: list[Notify] = []
        self._waiting: set[asyncio.Future[Any]] = set()
        self._in_flight = asyncio.Semaphore(REQUESTS_IN_FLIGHT_MAX)
        self._refused = False
        self._closed = False

    @classmethod
    async def connect(
        cls,
        servers: Sequence[str],
        *,
        session_timeout_ms: int,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        options: ZooKeeperOptions | None = None,
    ) -> ZooKeeperConnection:
        """`MetadataUnavailableError` if no server answers in time. Cancelling leaves nothing
        open."""
        connection = cls(
            servers, session_timeout_ms=session_timeout_ms, options=options or ZooKeeperOptions()
        )
        connection._client.start_async()
        try:
            async with asyncio.timeout(connect_timeout_s):
                await connection.wait_connected()
        except TimeoutError:
            await connection.close()
            raise MetadataUnavailableError(
                f"no ZooKeeper server answered within {connect_timeout_s:g} s: "
                f"{connection.servers}; nothing was changed",
                causes=connection._handler.failures,
                remedy="Check that ZooKeeper is running there, and the servers in the metadata URI",
            ) from None
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        """End the session: what is ephemeral goes at once. Requests that wait for an answer fail
        with ClientClosedError."""
        if self._closed:
            return
        self._closed = True
        self._connected.set()  # those who wait for it look, and find it closed
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(self._closed_error())
        await self._stop(self._client)

    # -- the session --------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return bool(self._client.connected)

    @property
    def session_id(self) -> int:
        """Of the last session that was connected. From kazoo, not from what the loop was told: a
        node that the newest session has made must never look like another's."""
        client_id = self._client.client_id
        return self._session_id if client_id is None else int(client_id[0])

    async def wait_connected(self) -> None:
        while not self.connected:
            if self._closed:
                raise self._closed_error()
            if self._refused:
                raise self._refusal()
            self._connected.clear()
            await self._connected.wait()

    def on_connected(self, notify: Notify) -> Callable[[], None]:
        """Call `notify` after each reconnection, with the old session or a new one: watches are
        gone, ephemeral nodes perhaps. Returns a function that ends it."""
        self._listeners.append(notify)

        def forget() -> None:
            if notify in self._listeners:
                self._listeners.remove(notify)

        return forget

    def _new_client(self) -> tuple[Any, Handler]:
        handler = Handler(self._attempt_timeout_s)
        digest = self._options.digest
        client = KazooClient(
            hosts=self.servers,
            timeout=self._session_timeout_s,
            handler=handler,
            connection_retry={
                "max_tries": -1,
                "delay": RECONNECT_DELAY_S,
                "max_delay": RECONNECT_DELAY_MAX_S,
            },
            # Told to the server on each new connection, before any request.
            auth_data=[] if digest is None else [(_AUTH_SCHEME, digest)],
            logger=QuietLogger(logger, {}),
        )
        client.add_listener(partial(self._state_changed, client))
        return client, handler

    def _state_changed(self, client: Any, state: str) -> None:
        """On a thread of kazoo's, which must not be held up."""
        self._to_loop(self._on_state, client, state, client.client_id, client.client_state)

    def _on_state(
        self, client: Any, state: str, client_id: tuple[int, bytes] | None, keeper_state: str
    ) -> None:
        if client is not self._client or self._closed:
            return
        if state == KazooState.CONNECTED and client_id is not None:
            if self._session_id not in (0, client_id[0]):
                logger.warning("the session with ZooKeeper was lost; a new one has begun")
            self._session_id = client_id[0]
            self._connected.set()
            for notify in list(self._listeners):
                notify()
        elif state == KazooState.LOST and keeper_state == KeeperState.AUTH_FAILED:
            self._refused = True
            self._connected.set()  # those who wait for it look, and are told
        elif state == KazooState.LOST and keeper_state == KeeperState.CLOSED:
            # kazoo's loop has ended on something that it did not expect: only a new client helps.
            logger.warning("the ZooKeeper client has stopped; it is started again")
            self._client, self._handler = self._new_client()
            self._client.start_async()
            self._abandon(client)

    def _abandon(self, client: Any) -> None:
        """Stop a client in the background: joining its threads would hold up the loop."""
        threading.Thread(target=stop_client, args=(client,), daemon=True).start()

    async def _stop(self, client: Any) -> None:
        stopped = asyncio.Event()

        def stop() -> None:
            stop_client(client)
            self._to_loop(stopped.set)

        threading.Thread(target=stop, daemon=True, name="zookeeper-close").start()
        # Otherwise it ends once its connection attempt does; nothing waits for it.
        await came(stopped, asyncio.timeout(CLOSE_TIMEOUT_S))

    def _to_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # the loop is closed: nobody is left who could want to know

    # -- requests -----------------------------------------------------------------------------

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        access: Access = Access.OWN,
    ) -> tuple[str, Stat]:
        """The path, with its number if it is a sequence node. `NodeExistsError`, `NoNodeError`."""
        acl = self._acl(access)
        real_path, stat = await self._ask(
            path,
            lambda client: client.create_async(
                path, data, acl=acl, ephemeral=ephemeral, sequence=sequence, include_data=True
            ),
        )
        return real_path, _stat(stat)

    async def commit(
        self, operations: Sequence[Operation], access: Sequence[Access] = ()
    ) -> list[Result]:
        """All or none, in order. Errors are those of the single operations, with their `step`.
        `access` is that of each node created, in order; OWN where it says nothing."""
        accesses = iter(access)

        def start(client: Any) -> Any:
            transaction = client.transaction()
            for operation in operations:
                match operation:
                    case Create(path, value, ephemeral, sequential):
                        acl = self._acl(next(accesses, Access.OWN))
                        transaction.create(path, value, acl, ephemeral, sequential)
                    case Put(path, value, version):
                        transaction.set_data(path, value, version)
                    case Delete(path, version):
                        transaction.delete(path, version)
                    case Check(path, version):
                        transaction.check(path, version)
            return transaction.commit_async()

        results = await self._ask(operations[0].path, start)
        answers: list[Result] = []
        for step, (operation, result) in enumerate(zip(operations, results, strict=True)):
            match operation, result:
                case _, kazoo_errors.RolledBackError():
                    pass  # not the one that failed
                case _, BaseException():
                    try:
                        self._raise_translated(operation.path, result)
                    except NodeError as error:
                        error.step = step
                        raise
                case Create(), path:
                    answers.append(str(path))
                case Put(), stat:
                    answers.append(int(stat.version))
                case _:
                    answers.append(None)
        return answers

    def _acl(self, access: Access) -> Any:
        if access is Access.OPEN or not self._options.private:
            return OPEN_ACL_UNSAFE
        if access is Access.SHARED:
            return [*CREATOR_ALL_ACL, make_acl("world", "anyone", read=True, create=True)]
        return CREATOR_ALL_ACL

    async def get(self, path: str, notify: Notify | None = None) -> tuple[bytes, Stat]:
        """`NoNodeError`: and then nothing is watched."""
        data, stat = await self._ask(
            path, lambda client: client.get_async(path, self._watch(notify))
        )
        return data, _stat(stat)

    async def get_or_sync(self, path: str) -> tuple[bytes, Stat]:
        """As `get`; a node that is missing is looked for again as of now, for the server asked may
        lag behind whoever has just made it."""
        try:
            return await self.get(path)
        except NoNodeError:
            await self.sync(path)
            return await self.get(path)

    async def exists(self, path: str, notify: Notify | None = None) -> Stat | None:
        stat = await self._ask(path, lambda client: client.exists_async(path, self._watch(notify)))
        return None if stat is None else _stat(stat)

    async def children(self, path: str, notify: Notify | None = None) -> list[str]:
        """`NoNodeError`."""
        names = await self._ask(
            path, lambda client: client.get_children_async(path, self._watch(notify))
        )
        return [str(name) for name in names]

    async def children_synced(self, path: str) -> list[str]:
        """As `children`, as of now and not of some moment before: the server asked first catches
        up. `NoNodeError`."""

        # One connection answers in order: the listing follows the sync without waiting for it.
        _, names = await asyncio.gather(self.sync(path), self.children(path))
        return names

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        """`BadVersionError`, `NoNodeError`."""
        return _stat(await self._ask(path, lambda client: client.set_async(path, data, version)))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """`BadVersionError`, `NoNodeError`, `NodeNotEmptyError`."""
        await self._ask(path, lambda client: client.delete_async(path, version))

    async def sync(self, path: str) -> None:
        await self._ask(path, lambda client: client.sync_async(path))

    async def _ask(self, path: str, start: Callable[[Any], Any]) -> Any:
        async with self._in_flight:
            if self._closed:
                raise self._closed_error()
            if not self.connected:
                # kazoo would keep the request and make it whenever a connection is there again,
                # long after the caller has gone.
                raise NotSentError("not connected")
            future: asyncio.Future[Any] = self._loop.create_future()
            self._waiting.add(future)
            future.add_done_callback(self._waiting.discard)
            start(self._client).rawlink(partial(self._answered, path, future))
            return await future

    def _answered(self, path: str, future: asyncio.Future[Any], result: Any) -> None:
        """On a thread of kazoo's."""
        self._to_loop(self._settle, path, future, result)

    def _settle(self, path: str, future: asyncio.Future[Any], result: Any) -> None:
        if future.done():
            return
        if result.exception is None:
            future.set_result(result.value)
            return
        try:
            self._raise_translated(path, result.exception)
        except (NodeError, MetadataError) as error:
            future.set_exception(error)

    def _raise_translated(self, path: str, error: BaseException) -> NoReturn:
        for kind in type(error).__mro__:
            if kind in _TRANSLATED:
                raise _TRANSLATED[kind](str(error)) from None
        if isinstance(error, kazoo_errors.NoAuthError):
            raise self._denied(path) from None
        if isinstance(error, kazoo_errors.AuthFailedError):
            raise self._refusal() from None
        name = type(error).__name__.removesuffix("Error")
        raise MetadataError(
            f"ZooKeeper refused the request about {path}: {name} {error}".rstrip()
        ) from error

    def _refusal(self) -> MetadataDeniedError:
        return MetadataDeniedError(
            f"ZooKeeper at {self.servers} refuses the identity {self._options.user!r}: it does not "
            f"take the scheme {_AUTH_SCHEME!r}",
            remedy="Allow digest authentication in the server's configuration",
        )

    def _denied(self, path: str) -> MetadataDeniedError:
        user = self._options.user
        if user is None:
            return MetadataDeniedError(
                f"ZooKeeper at {self.servers} denies access to {path}: the cluster's nodes belong "
                "to an identity, and this process has given none",
                remedy=f"Put user:password into a file and name the file in {AUTH_FILE_VARIABLE}, "
                "or pass ZooKeeperOptions(digest=...)",
            )
        return MetadataDeniedError(
            f"ZooKeeper at {self.servers} denies access to {path} to the identity {user!r}",
            remedy=f"Check user and password ({AUTH_FILE_VARIABLE}), or the ACL of the node",
        )

    def _watch(self, notify: Notify | None) -> Callable[[object], None] | None:
        return None if notify is None else Watcher(self._to_loop, notify)

    def _closed_error(self) -> ClientClosedError:
        return ClientClosedError(f"the connection to ZooKeeper at {self.servers} is closed")


def _stat(stat: Any) -> Stat:
    return Stat(
        version=int(stat.version),
        ctime_ms=int(stat.ctime),
        owner=int(stat.ephemeralOwner),
        children=int(stat.numChildren),
        created_zxid=int(stat.czxid),
        changed_zxid=int(stat.mzxid),
    )
