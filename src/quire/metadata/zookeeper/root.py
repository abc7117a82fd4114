"""A cluster's root in ZooKeeper: its paths, its LAYOUT, and the retries after lost connections.

Every operation of the driver goes through `ZooKeeperRoot.do`. If the connection is lost before the
answer arrives, it repeats the operation and says that an earlier attempt may have been carried out.
`commits` does the same for transactions, which must not be carried out twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from quire._runtime.tasks import AtOnce
from quire.codec.metadata import layout
from quire.codec.metadata.ledger_path import LedgerManager
from quire.errors import (
    ClientClosedError,
    ClusterNotInitialisedError,
    KeyExistsError,
    LaterClusterError,
    LedgerExistsError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NotEmptyError,
    UnreadableMetadataError,
    VersionConflictError,
)
from quire.metadata.common import in_doubt
from quire.metadata.zookeeper.kazoo_adapter import (
    Access,
    LostConnectionError,
    NodeError,
    NodeExistsError,
    NoNodeError,
    Stat,
    ZooKeeperConnection,
)

T = TypeVar("T")

_OF_ONE_NODE = (
    KeyExistsError,
    LedgerExistsError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NotEmptyError,
    UnreadableMetadataError,
    VersionConflictError,
)
"""Errors about the state of one node. The operation that raises one knows from the state of the
node, after a lost connection as well, whether its own change may have been made."""

OPERATION_TIMEOUT_S = 30.0
"""Seconds for one operation with all its repetitions. After that its outcome is unknown."""

OPERATIONS_AT_ONCE_MAX = 256
"""The number of operations under way. Further ones wait, and their time-out does not count that."""

PARENT_ATTEMPTS_MAX = 100
"""The number of attempts to create a node while others delete its parents."""


class FirstSeen:
    """The creation of the node that the first attempt to delete or to write it has seen.

    A later attempt may meet another creation: the node may have been deleted, by the first attempt
    whose response was lost or by others, and another process may have created it again.
    """

    def __init__(self) -> None:
        self._created_zxid: int | None = None

    def is_same(self, stat: Stat) -> bool:
        """Return whether `stat` belongs to the same creation as that of the first call."""
        if self._created_zxid is None:
            self._created_zxid = stat.created_zxid
        return stat.created_zxid == self._created_zxid


class ZooKeeperRoot:
    """The ledgers root of one cluster."""

    def __init__(
        self,
        connection: ZooKeeperConnection,
        path: str,
        rng: random.Random,
        *,
        factory: str | None = None,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
    ) -> None:
        self.zk = connection
        self.path = path
        self.rng = rng
        self._factory = factory
        self._operation_timeout_s = operation_timeout_s
        self._operations = AtOnce(OPERATIONS_AT_ONCE_MAX)
        self._layout_seen = False
        self._manager: LedgerManager | None = None
        self._instance_id = ""
        """The instance id of the cluster as first read, or '' if it had none."""

    def __str__(self) -> str:
        return f"zk://{self.zk.servers}{self.path}"

    def at(self, below: str) -> str:
        """Return the path of a node below the root."""
        return f"{self.path}/{below}"

    @property
    def manager(self) -> LedgerManager:
        """The ledger manager of the cluster.

        LAYOUT must have been read before. A `do` with `check` reads it before it calls `work`.
        """
        assert self._manager is not None
        return self._manager

    def ledger_path(self, ledger_id: int) -> str:
        """Return the path of a ledger's node. LAYOUT must have been read, as for `manager`.

        Raises:
            UsageError: The manager has no place for this id.
        """
        return self.at(self.manager.path_of(ledger_id))

    async def do(
        self,
        what: str,
        work: Callable[[bool], Awaitable[T]],
        *,
        check: bool = True,
        decides: bool = False,
    ) -> T:
        """Return the result of `work`, which is repeated while connections are lost.

        If the call is cancelled, the outcome is unknown. Any other MetadataError than those about
        the state of one node also says so, if an earlier attempt may have been carried out.

        Args:
            what: The operation, for error messages.
            work: Does the operation once. Its argument says whether an earlier attempt may have
                been carried out. It must then recognise the traces of that attempt as its own
                success.
            check: Whether to check first that the cluster exists.
            decides: Whether all errors of `work` say correctly whether the outcome is known.

        Raises:
            MetadataUnavailableError: The operation took longer than `OPERATION_TIMEOUT_S`.
            ClientClosedError: The store was closed. The error says whether the outcome is known.
            MetadataError: `work` raised a NodeError that it does not handle, because other
                processes changed the same nodes.
        """
        again = decided = False
        try:
            async with asyncio.timeout(self._operation_timeout_s) as limit:
                while True:
                    await self.zk.wait_connected()
                    try:
                        async with self._turn(limit):
                            if check:
                                await self.know_layout()
                            decided = decides
                            return await work(again)
                    except LostConnectionError:
                        again, decided = True, False
                        # Wait for one event-loop iteration, so that kazoo's state arrives.
                        await asyncio.sleep(0)
        except NodeError as error:
            # Earlier steps of the operation may have been carried out.
            raise in_doubt(
                MetadataError(
                    f"could not {what}: other processes changed the same nodes in ZooKeeper at the "
                    f"same time ({type(error).__name__})",
                    remedy="Try again",
                )
            ) from error
        except ClientClosedError:
            if again:  # an earlier attempt may have been carried out
                raise self.zk.cut_off() from None
            raise
        except MetadataError as error:
            if again and not decided and not isinstance(error, _OF_ONE_NODE):
                in_doubt(error)
            raise
        except TimeoutError:
            raise MetadataUnavailableError(
                f"could not {what}: ZooKeeper at {self.zk.servers} did not answer within "
                f"{self._operation_timeout_s:g} s. If this was a change, it may or may not have "
                "been made"
            ) from None

    @asynccontextmanager
    async def _turn(self, limit: asyncio.Timeout) -> AsyncIterator[None]:
        """Wait until fewer than `OPERATIONS_AT_ONCE_MAX` are under way. `limit` rests meanwhile."""
        loop = asyncio.get_running_loop()
        until = limit.when()
        assert until is not None
        left_s = until - loop.time()
        limit.reschedule(None)
        async with self._operations:
            limit.reschedule(loop.time() + left_s)
            yield

    async def know_layout(self) -> None:
        """Check the cluster like `check_layout`, unless that was done before."""
        if not self._layout_seen:
            await self.check_layout()

    async def check_layout(self) -> None:
        """Check that the root is initialised and still belongs to this cluster.

        Raises:
            ClusterNotInitialisedError: The root or LAYOUT is missing.
            LaterClusterError: A later version of Quire or of BookKeeper wrote LAYOUT.
            MetadataError: The store does not answer, the ledger manager is unknown or differs from
                the URI, or the root belongs to another cluster than before. After any of these
                errors, a missing ledger proves nothing about this cluster.
        """
        try:
            data, _ = await self.zk.get_or_sync(self.at("LAYOUT"))
        except NoNodeError:
            self._layout_seen = False
            raise self.not_initialised() from None
        try:
            found = layout.decode(data).manager()
        except LaterClusterError as error:
            raise LaterClusterError(f"{self} cannot be used: {error.args[0]}") from None
        except MetadataError as error:
            raise MetadataError(
                f"{self} cannot be used: {error.args[0]}", remedy=error.remedy
            ) from None
        if self._factory is not None and found is not layout.Layout(self._factory).manager():
            raise MetadataError(
                f"{self} has the {found.name} ledger manager, but the metadata URI asks for "
                f"{layout.Layout(self._factory).manager().name}",
                remedy="Use zk:// in the URI, which accepts the manager that the cluster has",
            )
        if self._manager not in (None, found):
            raise MetadataError(
                f"the ledger manager of {self} was changed to {found.name} while this process was "
                "connected, so this is another cluster now",
                remedy="Restart this process",
            )
        await self._check_instance()
        self._manager = found
        self._layout_seen = True

    async def _check_instance(self) -> None:
        try:
            data, _ = await self.zk.get_or_sync(self.at("INSTANCEID"))
        except NoNodeError:
            data = b""
        found = data.decode(errors="replace").strip()
        if self._instance_id and found != self._instance_id:
            raise MetadataError(
                f"{self} now contains another cluster: its instance id is {found or 'missing'}, "
                f"and was {self._instance_id}",
                remedy="Find out who created it, and restore the data of the earlier cluster "
                "(docs/guides/repair/disaster-recovery.md). Then restart this process",
            )
        self._instance_id = found

    def not_initialised(self) -> ClusterNotInitialisedError:
        """Return the error for a root without a cluster."""
        return ClusterNotInitialisedError(
            f"{self} contains no cluster",
            remedy="If the cluster is new, create it with `quire cluster init --metadata URI`. If "
            "it is not, correct the servers and the root in the URI, or restore ZooKeeper's data "
            "(docs/guides/repair/disaster-recovery.md): the bookies still have their entries",
        )

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Stat:
        """Create a node and its missing parents, which are persistent and empty.

        The path is below the root or below Quire's own values. An `ephemeral` node ends with the
        session.

        Raises:
            NodeExistsError: The node exists.
            MetadataError: Other processes deleted the parents `PARENT_ATTEMPTS_MAX` times.
        """
        for _ in range(PARENT_ATTEMPTS_MAX):
            try:
                _, stat = await self.zk.create(path, data, ephemeral=ephemeral)
            except NoNodeError:
                await self.make(path.rpartition("/")[0])
            else:
                return stat
        raise MetadataError(
            f"the node {path} in ZooKeeper was not created: other processes deleted its parent "
            f"{PARENT_ATTEMPTS_MAX} times in a row",
            remedy="Try again",
        )

    async def make(self, path: str, access: Access = Access.OWN) -> None:
        """Create a persistent node and its missing parents, except the root of the cluster.

        Nothing changes if they exist. `access` says who may use those that are created.

        Raises:
            ClusterNotInitialisedError: The root does not exist.
            MetadataError: Other processes deleted the parents `PARENT_ATTEMPTS_MAX` times.
        """
        if path == self.path:
            await self.check_layout()  # the root exists if LAYOUT does
            return
        for _ in range(PARENT_ATTEMPTS_MAX):
            try:
                await self.zk.create(path, access=access)
            except NodeExistsError:
                return
            except NoNodeError:
                await self.make(path.rpartition("/")[0], access)
            else:
                return
        raise MetadataError(
            f"the node {path} in ZooKeeper was not created: other processes deleted its parent "
            f"{PARENT_ATTEMPTS_MAX} times in a row",
            remedy="Try again",
        )
