"""One session with ZooKeeper: kazoo with types and coroutines.

Kazoo works on threads of its own; results return to the event loop with `call_soon_threadsafe`. A
request is sent once and answered once. LostConnectionError means that its outcome is unknown, and
the caller decides whether to repeat it. When a session is lost, kazoo begins a new one by itself.
`on_connected` reports that, so that ephemeral nodes and watches can be set up again.
"""

from __future__ import annotations

import asyncio
import enum
import socket
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
from quire._runtime.units import plural
from quire.errors import (
    ClientClosedError,
    MetadataDeniedError,
    MetadataError,
    MetadataUnavailableError,
    nothing_done,
)
from quire.metadata.common import WatchHandle, in_doubt, store_closed
from quire.metadata.tree import Check, Create, Delete, Operation, Put, Result
from quire.metadata.zookeeper.absence import AbsenceLog
from quire.metadata.zookeeper.kazoo_handler import (
    Handler,
    QuietLogger,
    Watcher,
    logger,
    stop_client,
)
from quire.metadata.zookeeper.options import AUTH_FILE_VARIABLE, ZooKeeperOptions

CONNECT_TIMEOUT_S = 10.0
"""Seconds to wait for the first connection. Later connections are tried without a limit, and the
operations that wait for them have limits of their own."""

RECONNECT_DELAY_S = 0.1
"""Seconds to wait after the first failed attempt to connect. The delay grows with each attempt."""
RECONNECT_DELAY_MAX_S = 2.0
"""The longest delay between two attempts to connect, in seconds."""
CLOSE_TIMEOUT_S = 2.0
"""Seconds that `close` waits for kazoo's threads, which may be in an attempt to connect."""

RESOLVE_TIMEOUT_S = 2.0
"""Seconds for finding out which host names of servers that did not answer cannot be resolved."""

REQUESTS_IN_FLIGHT_MAX = 256
"""The number of requests of one session that wait for a response. Further callers wait."""

ANY_VERSION = -1

_AUTH_SCHEME = "digest"


class Access(enum.Enum):
    """The rights to a node that the client creates.

    The first two apply to a cluster whose nodes belong to their creator (`ZooKeeperOptions.acl`).
    """

    OWN = "own"
    """All rights for the client's own identity, and none for others."""
    SHARED = "shared"
    """All rights for the client's own identity. Others may read the node and create nodes below it,
    because the nodes of several clusters are below it."""
    OPEN = "open"
    """All rights for everyone."""


class NodeError(Exception):
    """A response of ZooKeeper that the driver handles. It does not leave the driver."""

    step = 0
    """The index of the failed operation in its transaction. The operations before it could have
    been done."""


class NoNodeError(NodeError):
    """The node, or the parent of a new node, does not exist."""


class NodeExistsError(NodeError):
    """The node exists."""


class BadVersionError(NodeError):
    """The version of the node is not the one that the request names."""


class NodeNotEmptyError(NodeError):
    """The node has children."""


class BelowEphemeralError(NodeError):
    """The parent of a new node is ephemeral and cannot have children."""


class LostConnectionError(NodeError):
    """The connection or the session ended before the response came. The outcome is unknown."""


class NotSentError(LostConnectionError):
    """There was no connection, so the request was not sent."""


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
    """The properties of a node besides its data."""

    version: int
    ctime_ms: int
    owner: int
    """The session that an ephemeral node belongs to, or 0 if the node is persistent."""
    children: int
    created_zxid: int
    """The transaction that created the node."""
    changed_zxid: int
    """The transaction that last set the node's value. All nodes of one commit have the same one."""
    children_version: int
    """The number of children that were created or deleted so far, each counted on its own."""
    children_zxid: int
    """The transaction that last created or deleted a child. Without any, it created the node."""


Notify = Callable[[], None]
"""A function that is called once, on the event loop, when the node or the list of children that was
read has changed or may have changed."""


class ZooKeeperConnection:
    """A session with ZooKeeper. Use `connect`, and call all methods on the same event loop.

    Each request raises NotSentError without a connection, LostConnectionError if the connection
    ended before the response, MetadataDeniedError if the server denies it, MetadataError if the
    server refuses it for another reason, and ClientClosedError after `close`.
    """

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
        self._watched: dict[Notify, set[str]] = {}
        """The paths that were read with each `notify` of a watch that goes on."""
        self._in_flight = asyncio.Semaphore(REQUESTS_IN_FLIGHT_MAX)
        self._refused = False
        self._closed = False
        self._absence = AbsenceLog(self.servers, lambda: self._handler.failures)

    @classmethod
    async def connect(
        cls,
        servers: Sequence[str],
        *,
        session_timeout_ms: int,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        options: ZooKeeperOptions | None = None,
    ) -> ZooKeeperConnection:
        """Connect to the first server that answers. If the call is cancelled, nothing stays open.

        `connect_timeout_s` is the number of seconds that all servers together have to answer.
        Without `options` the client has no identity.

        Raises:
            MetadataUnavailableError: No server answered in time.
            MetadataDeniedError: The server refuses the identity in `options`.
        """
        connection = cls(
            servers, session_timeout_ms=session_timeout_ms, options=options or ZooKeeperOptions()
        )
        connection._client.start_async()
        try:
            async with asyncio.timeout(connect_timeout_s):
                await connection.wait_connected()
        except TimeoutError:
            await connection.close()
            unknown = await unresolved(servers)
            raise nothing_done(
                MetadataUnavailableError(
                    f"no ZooKeeper server of {connection.servers} answered within "
                    f"{connect_timeout_s:g} s{unknown}. Nothing was changed",
                    causes=connection._handler.failures,
                    remedy="Check that ZooKeeper is running and that the metadata URI names its "
                    "servers",
                )
            ) from None
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        """End the session, which deletes its ephemeral nodes at once.

        Requests that wait for a response fail with ClientClosedError, whose outcome is unknown.
        """
        if self._closed:
            return
        self._closed = True
        self._absence.close()
        self._absence.watches.close()
        self._connected.set()  # the callers that wait for a connection find it closed
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(self.cut_off())
        await self._stop(self._client)

    # -- the session --------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return bool(self._client.connected)

    @property
    def session_id(self) -> int:
        """The id of the last session that was connected.

        It is read from kazoo, which may be ahead of the callbacks on the event loop. A node that
        the newest session has created must never look like a node of another session.
        """
        client_id = self._client.client_id
        return self._session_id if client_id is None else int(client_id[0])

    async def wait_connected(self) -> None:
        """Wait until there is a connection.

        Raises:
            ClientClosedError: The connection is closed.
            MetadataDeniedError: The server refuses our identity.
        """
        while not self.connected:
            if self._closed:
                raise self._closed_error()
            if self._refused:
                raise self._refusal()
            self._connected.clear()
            await self._connected.wait()

    def on_connected(self, notify: Notify) -> Callable[[], None]:
        """Call `notify` after each reconnection, with the same session or a new one.

        The watches are gone then, and after a new session the ephemeral nodes as well. Returns a
        function that ends the calls.
        """
        self._listeners.append(notify)

        def forget() -> None:
            if notify in self._listeners:
                self._listeners.remove(notify)

        return forget

    def on_outage(self, ended: Callable[[float], None]) -> WatchHandle:
        """Call `ended` with the seconds of each absence of ZooKeeper that was logged.

        Close the result to end that.
        """
        return self._absence.watches.add(ended)

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
            # Kazoo sends it on each new connection, before any request.
            auth_data=[] if digest is None else [(_AUTH_SCHEME, digest)],
            logger=QuietLogger(logger, {}),
        )
        client.add_listener(partial(self._state_changed, client))
        return client, handler

    def _state_changed(self, client: Any, state: str) -> None:
        """Forward a change of state to the event loop.

        Kazoo calls this on a thread that must not be blocked.
        """
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
            self._absence.back()
            self._connected.set()
            for notify in list(self._listeners):
                notify()
            return
        if self._session_id:
            self._absence.lost()  # a first connection that fails is reported as an error
        if state == KazooState.LOST and keeper_state == KeeperState.AUTH_FAILED:
            self._refused = True
            self._connected.set()  # the callers that wait for a connection find it refused
        elif state == KazooState.LOST and keeper_state == KeeperState.CLOSED:
            # Kazoo's loop has ended with an unexpected error, so a new client is needed.
            logger.warning("the ZooKeeper client has stopped; a new one is started")
            self._client, self._handler = self._new_client()
            self._client.start_async()
            self._abandon(client)

    def _abandon(self, client: Any) -> None:
        """Stop a client in the background, because joining its threads blocks."""
        threading.Thread(target=stop_client, args=(client,), daemon=True).start()

    async def _stop(self, client: Any) -> None:
        stopped = asyncio.Event()

        def stop() -> None:
            stop_client(client)
            self._to_loop(stopped.set)

        threading.Thread(target=stop, daemon=True, name="zookeeper-close").start()
        # After the time-out the thread ends when its attempt to connect does. Nothing waits for it.
        await came(stopped, asyncio.timeout(CLOSE_TIMEOUT_S))

    def _to_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # the event loop is closed, so nobody waits for the call

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
        """Create a node and return its path and properties, with the number if it is sequential.

        An `ephemeral` node ends with the session. With `sequence`, ZooKeeper appends a number to
        the path. `access` says who may use the node.

        Raises:
            NodeExistsError: The node exists.
            NoNodeError: The parent does not exist.
        """
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
        """Carry out all of the operations in order, or none of them.

        Raises the NodeError of the operation that failed, with its index as `step`.

        Args:
            operations: The operations.
            access: The access of each new node, in order. Nodes without one get `Access.OWN`.
        """
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
                    pass  # another operation of the transaction failed
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
        """Return the data of a node, and watch it with `notify` unless that is None.

        Raises:
            NoNodeError: The node does not exist. Nothing is watched then.
        """
        data, stat = await self._ask(
            path, lambda client: client.get_async(path, self._watch(path, notify))
        )
        return data, _stat(stat)

    async def get_or_sync(self, path: str, notify: Notify | None = None) -> tuple[bytes, Stat]:
        """Return the data of a node like `get`, but look for a missing node twice.

        The server may lag behind a process that has just created the node. It catches up before the
        second attempt.

        Raises:
            NoNodeError: The node does not exist. Nothing is watched then.
        """
        try:
            return await self.get(path, notify)
        except NoNodeError:
            await self.sync(path)
            return await self.get(path, notify)

    async def get_synced(self, path: str) -> tuple[bytes, Stat]:
        """Return the data of a node like `get`, after the server has caught up.

        ZooKeeper compares only versions. Whatever else must be the same is read with this call just
        before a change.

        Raises:
            NoNodeError: The node does not exist.
        """
        # One connection answers in order, as in `children_synced`.
        _, found = await asyncio.gather(self.sync(path), self.get(path))
        return found

    async def exists(self, path: str, notify: Notify | None = None) -> Stat | None:
        """Return the properties of a node, or None if it does not exist.

        The node is watched with `notify` in both cases, unless that is None.
        """
        stat = await self._ask(
            path, lambda client: client.exists_async(path, self._watch(path, notify))
        )
        return None if stat is None else _stat(stat)

    async def exists_or_sync(self, path: str, *, synced: bool = False) -> Stat | None:
        """Return the properties of a node like `exists`, but look for a missing node twice.

        The server catches up before the second attempt, as in `get_or_sync`. With `synced` it
        catches up before the first.
        """
        if not synced and (stat := await self.exists(path)) is not None:
            return stat
        await self.sync(path)
        return await self.exists(path)

    async def children(self, path: str, notify: Notify | None = None) -> list[str]:
        """Return the names of the children of a node, and watch them with `notify` if it is given.

        Raises:
            NoNodeError: The node does not exist.
        """
        return (await self.children_stat(path, notify))[0]

    async def children_stat(
        self, path: str, notify: Notify | None = None
    ) -> tuple[list[str], Stat]:
        """Return the names like `children`, and the properties of the node itself.

        Raises:
            NoNodeError: The node does not exist.
        """
        names, stat = await self._ask(
            path,
            lambda client: client.get_children_async(
                path, self._watch(path, notify), include_data=True
            ),
        )
        return [str(name) for name in names], _stat(stat)

    async def children_synced(self, path: str) -> list[str]:
        """Return the names like `children`, after the server has caught up.

        They reflect everything that was committed before the call.

        Raises:
            NoNodeError: The node does not exist.
        """
        # One connection answers in order, so the listing is sent without waiting for the sync.
        _, names = await asyncio.gather(self.sync(path), self.children(path))
        return names

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        """Replace the data of a node that has this version, and return its new properties.

        Raises:
            BadVersionError: The node's version is not `version`.
            NoNodeError: The node does not exist.
        """
        return _stat(await self._ask(path, lambda client: client.set_async(path, data, version)))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node that has this version. -1 means any version.

        Raises:
            BadVersionError: The node's version is not `version`.
            NoNodeError: The node does not exist.
            NodeNotEmptyError: The node has children.
        """
        await self._ask(path, lambda client: client.delete_async(path, version))

    async def sync(self, path: str) -> None:
        """Let the server catch up with everything that was committed before."""
        await self._ask(path, lambda client: client.sync_async(path))

    async def _ask(self, path: str, start: Callable[[Any], Any]) -> Any:
        async with self._in_flight:
            if self._closed:
                raise self._closed_error()
            if not self.connected:
                # Kazoo would keep the request and send it after the next reconnection, perhaps long
                # after the caller has given up.
                raise NotSentError(
                    "the request was not sent, because there is no connection to ZooKeeper"
                )
            future: asyncio.Future[Any] = self._loop.create_future()
            self._waiting.add(future)
            future.add_done_callback(self._waiting.discard)
            start(self._client).rawlink(partial(self._answered, path, future))
            return await future

    def _answered(self, path: str, future: asyncio.Future[Any], result: Any) -> None:
        """Forward a response to the event loop. Kazoo calls this on a thread of its own."""
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
            f"ZooKeeper at {self.servers} refused a request for the node {path}: {name} "
            f"{error}".rstrip(),
            remedy="Look for the reason in ZooKeeper's log",
        ) from error

    def _refusal(self) -> MetadataDeniedError:
        return MetadataDeniedError(
            f"ZooKeeper at {self.servers} refuses the identity {self._options.user!r}, because it "
            f"does not accept the authentication scheme {_AUTH_SCHEME!r}",
            remedy="Allow digest authentication in the server's configuration",
        )

    def _denied(self, path: str) -> MetadataDeniedError:
        user = self._options.user
        if user is None:
            return MetadataDeniedError(
                f"ZooKeeper at {self.servers} denies access to {path}: the cluster's nodes belong "
                "to an identity, and this process has none",
                remedy=f"Put user:password into a file and set {AUTH_FILE_VARIABLE} to its path, "
                "or pass ZooKeeperOptions(digest=...)",
            )
        return MetadataDeniedError(
            f"ZooKeeper at {self.servers} denies access to {path} to the identity {user!r}",
            remedy=f"Check the user and password ({AUTH_FILE_VARIABLE}) and the ACL of the node",
        )

    def _watch(self, path: str, notify: Notify | None) -> Callable[[object], None] | None:
        if notify is None:
            return None
        self._watched.setdefault(notify, set()).add(path)
        return Watcher(self._to_loop, notify)

    def forget(self, notify: Notify) -> None:
        """Forget everything that was read with `notify`, because its watch has ended.

        Kazoo keeps each watcher until its node changes, which may be never. It has no call that
        removes one, so it is taken from kazoo's sets. Kazoo's thread may add to these sets at the
        same time, so an empty one stays. If a request is under way, `notify` may still be
        called once.
        """
        watcher = Watcher(self._to_loop, notify)
        for path in self._watched.pop(notify, ()):
            for kind in (self._client._data_watchers, self._client._child_watchers):
                there = kind.get(path)
                if there is not None:
                    there.discard(watcher)

    def cut_off(self) -> ClientClosedError:
        """Return the error for a request that may have been carried out before the close."""
        return in_doubt(
            ClientClosedError(
                f"the client was closed before ZooKeeper at {self.servers} had answered. If this "
                "was a change, it may or may not have been made",
                remedy="Connect again, and read what became of it",
            )
        )

    def _closed_error(self) -> ClientClosedError:
        return store_closed(f"the connection to ZooKeeper at {self.servers}")


async def unresolved(servers: Sequence[str]) -> str:
    """Return the end of an error message that names the hosts whose names cannot be resolved.

    It is ": the host name x cannot be resolved", for example, or '' if all names can be resolved. A
    name that takes longer than `RESOLVE_TIMEOUT_S` is not reported.
    """
    loop = asyncio.get_running_loop()

    async def unknown(server: str) -> str:
        host = server.rpartition(":")[0].strip("[]") or server
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                await loop.getaddrinfo(host, None)
        except socket.gaierror as error:
            return f"{host} ({error.strerror})"
        except (OSError, TimeoutError):
            pass
        return ""

    names = [name for name in await asyncio.gather(*map(unknown, servers)) if name]
    if not names:
        return ""
    return f": the host {plural('name', len(names))} {', '.join(names)} cannot be resolved"


def _stat(stat: Any) -> Stat:
    return Stat(
        version=int(stat.version),
        ctime_ms=int(stat.ctime),
        owner=int(stat.ephemeralOwner),
        children=int(stat.numChildren),
        created_zxid=int(stat.czxid),
        changed_zxid=int(stat.mzxid),
        children_version=int(stat.cversion),
        children_zxid=int(stat.pzxid),
    )
