"""Ledger metadata in ZooKeeper: one node for each ledger.

Changes are compare-and-set operations on the version of the node. A response can be lost with its
connection. The repeated request then recognises its own earlier attempt: a ledger with its creation
token, or its bytes at the version that its write would have made. If it cannot tell, the error says
that the outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire._runtime.tasks import TaskSet
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.ledger_path import parents_of
from quire.errors import (
    LedgerExistsError,
    LedgerRecreatedError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    UnreadableMetadataError,
)
from quire.metadata.common import (
    CREATE_ATTEMPTS_MAX,
    conflict,
    ledger_exists,
    logger,
    no_such_ledger,
)
from quire.metadata.interface import UNKNOWN_CREATION, Versioned, Watch
from quire.metadata.ledgers.creation import check_same_creation
from quire.metadata.ledgers.unreadable import decode_ledger
from quire.metadata.zookeeper.ids import LedgerIdCounter
from quire.metadata.zookeeper.kazoo_adapter import (
    BadVersionError,
    NodeExistsError,
    NodeNotEmptyError,
    NoNodeError,
    Notify,
    Stat,
)
from quire.metadata.zookeeper.root import FirstSeen, ZooKeeperRoot
from quire.metadata.zookeeper.watch import ZooKeeperWatch

SKIPPED_AT_ONCE = 64
"""The number of ids that are generated concurrently in order to skip them."""


class _AmbiguousError(Exception):
    """A ledger exists, and it is unknown whether this call has created it."""


class ZooKeeperLedgers:
    """The ledger metadata of one cluster."""

    def __init__(self, root: ZooKeeperRoot, tasks: TaskSet) -> None:
        self._root = root
        self._tasks = tasks
        self._ids = LedgerIdCounter(root, tasks)

    async def create(self, data: bytes, ctoken: int) -> tuple[int, Versioned[LedgerMetadata]]:
        """Create a ledger with a new id, and return the id with the stored metadata.

        `ctoken` is the creation token in `data`, or 0 if its format stores none. Raises
        MetadataError if no unused id was found.
        """
        for _ in range(CREATE_ATTEMPTS_MAX):
            ledger_id = await self._root.do("generate a ledger id", self._ids.next)
            try:
                return ledger_id, await self._create_at(ledger_id, data, ctoken)
            except LedgerExistsError:
                continue
            except _AmbiguousError:
                # If it is not ours, using it would give it two writers. As in Java, use another id.
                logger.warning(
                    "ledger %d may be left behind without entries: the connection to ZooKeeper was "
                    "lost while it was created",
                    ledger_id,
                )
        raise MetadataError(
            f"no ledger was created: {CREATE_ATTEMPTS_MAX} generated ids in a row belonged to "
            "existing ledgers already",
            remedy="Try again. If that does not help, create the ledger with an id that you choose",
        )

    async def skip_ids(self, last: int) -> None:
        """Let all clients generate only ids above `last` from now on.

        If the ids are above `last` already, the call only uses up one id. `LedgerIdCounter.jump`
        names an exception for Java clients. Raises MetadataError if the store fails, or if all ids
        are used up.
        """
        made = await self._root.do("generate a ledger id", self._ids.next)
        if self._ids.may_jump(made, last):
            await self._root.do("skip ledger ids", lambda again: self._ids.jump(last))
            made = await self._root.do("generate a ledger id", self._ids.next)
        while made < last:
            some = min(last - made, SKIPPED_AT_ONCE)
            made = max(
                await asyncio.gather(
                    *(self._root.do("generate a ledger id", self._ids.next) for _ in range(some))
                )
            )

    async def create_at(
        self, ledger_id: int, data: bytes, ctoken: int
    ) -> Versioned[LedgerMetadata]:
        """Create a ledger with an id that the caller chose.

        Raises:
            LedgerExistsError: The id is taken.
            MetadataUnavailableError: It is unknown whether this call or another one created the
                ledger.
        """
        try:
            return await self._create_at(ledger_id, data, ctoken)
        except _AmbiguousError:
            raise MetadataUnavailableError(
                f"ledger {ledger_id} exists now, but it is unknown whether this call created it, "
                "because the connection to ZooKeeper was lost meanwhile",
                remedy=(
                    "Read the ledger's metadata to find out, or create a ledger with another id"
                ),
            ) from None

    async def _create_at(
        self, ledger_id: int, data: bytes, ctoken: int
    ) -> Versioned[LedgerMetadata]:
        async def work(again: bool) -> Versioned[LedgerMetadata]:
            path = self._root.ledger_path(ledger_id)
            try:
                stat = await self._root.create(path, data)
                return _versioned(ledger_id, data, stat)
            except NodeExistsError:
                pass
            try:
                there, stat = await self._root.zk.get(path)
            except NoNodeError:
                # It existed a moment ago. The first attempt may have created it.
                error = ledger_exists(ledger_id)
                error.outcome_known = not again
                raise error from None
            try:
                value = decode_ledger(ledger_id, there, stat.ctime_ms, stat.version)
            except UnreadableMetadataError:
                raise ledger_exists(ledger_id) from None
            if ctoken and value.ctoken == ctoken:
                return Versioned(value, stat.version, stat.created_zxid)
            if again and not ctoken:
                raise _AmbiguousError
            raise ledger_exists(ledger_id)

        return await self._root.do(f"create ledger {ledger_id}", work)

    async def read(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        async def work(again: bool) -> Versioned[LedgerMetadata]:
            try:
                data, stat = await self._root.zk.get_or_sync(self._root.ledger_path(ledger_id))
            except NoNodeError:
                raise await self._missing(ledger_id) from None
            return _versioned(ledger_id, data, stat)

        return await self._root.do(f"read the metadata of ledger {ledger_id}", work)

    async def write(
        self,
        ledger_id: int,
        data: bytes,
        version: int,
        known: Versioned[LedgerMetadata] | None = None,
    ) -> Versioned[LedgerMetadata]:
        """Replace a ledger's metadata if it has this version and is the same creation as `known`.

        ZooKeeper only compares versions, so the creation is read just before the write. A deletion
        and a creation between the two are noticed afterwards, from the node that was written. The
        errors are those of `MetadataStore.write_ledger`.
        """

        async def work(again: bool) -> Versioned[LedgerMetadata]:
            path = self._root.ledger_path(ledger_id)
            created = UNKNOWN_CREATION
            try:
                if known is not None:
                    before = _versioned(ledger_id, *await self._root.zk.get_synced(path))
                    check_same_creation(ledger_id, known, before)
                    created = before.created
                stat = await self._root.zk.set(path, data, version)
            except NoNodeError:
                raise await self._missing(ledger_id) from None
            except BadVersionError:
                try:
                    there, stat = await self._root.zk.get(path)
                except NoNodeError:
                    raise await self._missing(ledger_id) from None
                if not (again and there == data and stat.version == version + 1):
                    own_write_possible = again and stat.version != version + 1
                    raise conflict(
                        f"ledger {ledger_id}", version, stat.version, unknown=own_write_possible
                    ) from None
            if created not in (UNKNOWN_CREATION, stat.created_zxid):
                raise _overwritten(ledger_id)
            return _versioned(ledger_id, data, stat)

        return await self._root.do(f"write the metadata of ledger {ledger_id}", work)

    async def delete(self, ledger_id: int) -> None:
        first = FirstSeen()

        async def work(again: bool) -> None:
            below = self._root.manager.path_of(ledger_id)
            path = self._root.at(below)
            try:
                there = await self._root.zk.exists_or_sync(path, synced=again)
                if there is None:
                    raise NoNodeError
                if not first.is_same(there):
                    return  # the first attempt was carried out, and the id has another ledger now
                await self._root.zk.delete(path)
            except NoNodeError:
                await self._root.check_layout()
            for parent in parents_of(below):
                try:
                    await self._root.zk.delete(self._root.at(parent))
                except (NodeNotEmptyError, NoNodeError):
                    return

        await self._root.do(f"delete ledger {ledger_id}", work)

    def watch(
        self, ledger_id: int, changed: Callable[[Versioned[LedgerMetadata] | None], None]
    ) -> Watch:
        seen = (UNKNOWN_CREATION, -1)

        async def look(notify: Notify) -> Versioned[LedgerMetadata] | None:
            await self._root.know_layout()
            try:
                # After a lost session, the next server may lag behind the creation of the ledger.
                path = self._root.ledger_path(ledger_id)
                data, stat = await self._root.zk.get_or_sync(path, notify)
            except NoNodeError:
                await self._root.check_layout()
                return None
            return _versioned(ledger_id, data, stat)

        def deliver(found: Versioned[LedgerMetadata] | None) -> bool:
            nonlocal seen
            if found is None:
                changed(None)
            elif (found.created, found.version) != seen:
                seen = (found.created, found.version)
                changed(found)
            return found is not None

        return ZooKeeperWatch(self._root, self._tasks, look, deliver)

    async def _missing(self, ledger_id: int) -> NoSuchLedgerError:
        """Return the error for a missing ledger, after checking that the cluster exists.

        Without the cluster nothing is known about the ledger.
        """
        await self._root.check_layout()
        return no_such_ledger(ledger_id)


def _versioned(ledger_id: int, data: bytes, stat: Stat) -> Versioned[LedgerMetadata]:
    found = decode_ledger(ledger_id, data, stat.ctime_ms, stat.version)
    return Versioned(found, stat.version, stat.created_zxid)


def _overwritten(ledger_id: int) -> LedgerRecreatedError:
    error = LedgerRecreatedError(
        f"ledger {ledger_id} was deleted and created again by another client while its metadata "
        "was written. This change of the former ledger has overwritten the metadata of the new "
        "one",
        ledger_id=ledger_id,
        remedy=(
            f"Tell the owner of the new ledger, and compare `quire ledger show {ledger_id}` "
            "with what its bookies store"
        ),
    )
    error.outcome_known = False
    return error
