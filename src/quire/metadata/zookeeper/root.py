"""A cluster's root in ZooKeeper: its paths, whether it is there, and operations that survive a
lost connection.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quire.codec.metadata import layout
from quire.codec.metadata.ledger_path import LedgerManager
from quire.errors import ClusterNotInitialisedError, MetadataError, MetadataUnavailableError
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

OPERATION_TIMEOUT_S = 30.0
"""For one operation with all its repetitions. Behind it the outcome is unknown."""

PARENT_ATTEMPTS_MAX = 100
"""Of one create whose parents someone else, deleting the last node beside it, takes away."""


class ZooKeeperRoot:
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
        self._layout_seen = False
        self._manager: LedgerManager | None = None
        self._instance_id = ""
        """The instance id of the cluster, as first read; '' if it had none."""

    def __str__(self) -> str:
        return f"zk://{self.zk.servers}{self.path}"

    def at(self, below: str) -> str:
        return f"{self.path}/{below}"

    @property
    def manager(self) -> LedgerManager:
        """Known once LAYOUT was read: within `do`, unless that was told not to check."""
        assert self._manager is not None
        return self._manager

    def ledger_path(self, ledger_id: int) -> str:
        """Where the ledger lies. As `manager`, known once LAYOUT was read. `UsageError` if the
        manager has no place for such an id."""
        return self.at(self.manager.path_of(ledger_id))

    async def do(self, what: str, work: Callable[[bool], Awaitable[T]], *, check: bool = True) -> T:
        """The result of `work`, repeated for as long as connections get lost.

        `work` is told whether an earlier attempt may have been carried out already: it must then
        take its own traces for success. `check` first makes sure that there is a cluster. Raises
        MetadataUnavailableError after `OPERATION_TIMEOUT_S`; cancelling leaves the outcome
        unknown.
        """
        again = False
        try:
            async with asyncio.timeout(self._operation_timeout_s):
                while True:
                    await self.zk.wait_connected()
                    try:
                        if check:
                            await self.know_layout()
                        return await work(again)
                    except LostConnectionError:
                        again = True
                        # One event-loop iteration, so that kazoo's word on its state arrives.
                        await asyncio.sleep(0)
        except NodeError as error:
            raise MetadataError(
                f"{what}: ZooKeeper's nodes were changed by others at the same time "
                f"({type(error).__name__})",
                remedy="Try again",
            ) from error
        except TimeoutError:
            raise MetadataUnavailableError(
                f"ZooKeeper at {self.zk.servers} did not answer within "
                f"{self._operation_timeout_s:g} s: {what}"
            ) from None

    async def know_layout(self) -> None:
        """Do the same as `check_layout`, unless LAYOUT was seen before."""
        if not self._layout_seen:
            await self.check_layout()

    async def check_layout(self) -> None:
        """Check that the root is initialised, and still belongs to this cluster.

        Raises ClusterNotInitialisedError if the root or LAYOUT is missing. Raises MetadataError if
        the ledger manager is unknown or differs from the URI. Raises it also if the root belongs to
        another cluster than before: then a missing ledger proves nothing about ours.
        """
        try:
            data, _ = await self.zk.get_or_sync(self.at("LAYOUT"))
        except NoNodeError:
            self._layout_seen = False
            raise self.not_initialised() from None
        found = layout.decode(data).manager()
        if self._factory is not None and found is not layout.Layout(self._factory).manager():
            raise MetadataError(
                f"{self} has the {found.name} ledger manager, but the metadata URI asks for "
                f"{layout.Layout(self._factory).manager().name}",
                remedy="Use zk:// in the URI, which takes what the cluster has",
            )
        if self._manager not in (None, found):
            raise MetadataError(
                f"the ledger manager of {self} was changed to {found.name} under our hands: this "
                "is another cluster now",
                remedy="Start this process again",
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
                f"{self} holds the cluster {found or 'without an instance id'}, and held "
                f"{self._instance_id} before: this is another cluster now",
                remedy="Find out who created it, and restore the data of the earlier one "
                "(docs/guides/disaster-recovery.md); then start this process again",
            )
        self._instance_id = found

    def not_initialised(self) -> ClusterNotInitialisedError:
        return ClusterNotInitialisedError(
            f"{self} holds no cluster",
            remedy="If the cluster is new, make it with `quire cluster init --metadata URI`. If it "
            "is not, correct the servers and the root in the URI, or restore ZooKeeper's data "
            "(docs/guides/disaster-recovery.md): the bookies still have theirs",
        )

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Stat:
        """Create a node at `path`, below the root or below Quire's own values, and its parents
        where they are missing (persistent, empty). `NodeExistsError`."""
        for _ in range(PARENT_ATTEMPTS_MAX):
            try:
                _, stat = await self.zk.create(path, data, ephemeral=ephemeral)
            except NoNodeError:
                await self.make(path.rpartition("/")[0])
            else:
                return stat
        raise MetadataError(f"{path} could not be created: its parents vanish again and again")

    async def make(self, path: str, access: Access = Access.OWN) -> None:
        """Make the persistent node `path` and its parents. The root of the cluster is not made: it
        must exist. Success if they are there."""
        if path == self.path:
            await self.check_layout()  # it is there if LAYOUT is
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
        raise MetadataError(f"{path} could not be created: its parents vanish again and again")
