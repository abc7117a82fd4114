"""Nodes with a version in ZooKeeper: cookies, and Quire's own values.

Values are stored below `/quire` + the ledgers root, where Apache's tools do not read. The top node
contains the cluster's instance id. The values of an earlier cluster on the same root are refused,
because the ledgers that they name are not those of the present cluster.

| payload           | meaning                                                               |
|-------------------|-----------------------------------------------------------------------|
| empty             | no value: the node is only the parent of others                       |
| '=' + data        | the value `data`, which may be empty                                  |
| '#' + mark + data | the same, with 8 random bytes by which a writer recognises its write  |
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from quire.errors import (
    KeyExistsError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    QuireError,
    VersionConflictError,
)
from quire.metadata.common import check_version, conflict, replaced
from quire.metadata.interface import ANY_VERSION, Versioned
from quire.metadata.tree import Create, Put
from quire.metadata.uri import VALUES_ROOT
from quire.metadata.zookeeper.commits import Commits
from quire.metadata.zookeeper.kazoo_adapter import (
    Access,
    BadVersionError,
    NodeError,
    NodeExistsError,
    NodeNotEmptyError,
    NoNodeError,
    Stat,
)
from quire.metadata.zookeeper.root import PARENT_ATTEMPTS_MAX, FirstSeen, ZooKeeperRoot

_PLAIN = b"="
_MARKED = b"#"
_MARK_BYTES = 8
_ATTEMPTS_MAX = 100
"""The number of attempts to change a node that others change at the same time."""


class Cookies:
    """The cookies of a cluster, at `<root>/cookies/<bookie id>`."""

    def __init__(self, root: ZooKeeperRoot) -> None:
        self._root = root

    async def read(self, bookie_id: str) -> Versioned[bytes]:
        async def work(again: bool) -> Versioned[bytes]:
            try:
                data, stat = await self._root.zk.get_or_sync(self._path(bookie_id))
            except NoNodeError:
                raise await self._missing(bookie_id) from None
            return Versioned(data, stat.version)

        return await self._root.do(f"read the cookie of {bookie_id}", work)

    async def write(self, bookie_id: str, data: bytes, version: int | None) -> int:
        path = self._path(bookie_id)
        what = f"the cookie of {bookie_id}"

        async def create(again: bool) -> int:
            try:
                return (await self._root.create(path, data)).version
            except NodeExistsError:
                if again and await _holds(self._root, path, data, 0):
                    return 0
                error = KeyExistsError(f"{what} already exists in the metadata store")
                # It may be our own cookie, which others changed, or deleted and created again.
                error.outcome_known = not again
                raise error from None

        async def update(again: bool) -> int:
            assert version is not None
            try:
                return (await self._root.zk.set(path, data, version)).version
            except NoNodeError:
                raise await self._missing(bookie_id, unknown=again) from None
            except BadVersionError:
                try:
                    there, stat = await self._root.zk.get(path)
                except NoNodeError:
                    raise await self._missing(bookie_id, unknown=again) from None
                if again and there == data and stat.version == version + 1:
                    return stat.version
                raise conflict(what, version, stat.version, unknown=again) from None

        if version is not None:
            check_version(version)
        return await self._root.do(f"write {what}", create if version is None else update)

    async def delete(self, bookie_id: str, version: int) -> None:
        path, what = self._path(bookie_id), f"the cookie of {bookie_id}"
        first = FirstSeen()

        async def work(again: bool) -> None:
            try:
                # The first attempt may have deleted it, and another process created it again.
                there = await self._root.zk.exists_or_sync(path, synced=again)
                if there is None:
                    raise NoNodeError
                if not first.is_same(there):
                    if version == ANY_VERSION:
                        return
                    raise replaced(what, unknown=True)
                await self._root.zk.delete(path, version)
            except NoNodeError:
                await self._root.check_layout()
            except BadVersionError:
                raise conflict(what, version, unknown=again) from None

        await self._root.do(f"delete the cookie of {bookie_id}", work)

    async def list(self) -> list[str]:
        async def work(again: bool) -> list[str]:
            try:
                return sorted(await self._root.zk.children_synced(self._root.at("cookies")))
            except NoNodeError:
                await self._root.check_layout()
                return []

        return await self._root.do("list cookies", work)

    def _path(self, bookie_id: str) -> str:
        return self._root.at(f"cookies/{bookie_id}")

    async def _missing(self, bookie_id: str, *, unknown: bool = False) -> NoSuchKeyError:
        await self._root.check_layout()
        return _not_there(f"the cookie of {bookie_id}", unknown=unknown)


class Values:
    """Quire's own values, at `/quire<root>/<key>/<key>...`."""

    def __init__(self, root: ZooKeeperRoot, commits: Commits, rng: random.Random) -> None:
        self._root = root
        self._commits = commits
        self._rng = rng
        self._base = VALUES_ROOT + root.path
        self._base_checked = False

    async def read(self, key: Sequence[str]) -> Versioned[bytes]:
        async def work(again: bool) -> Versioned[bytes]:
            if await self._base_exists():
                try:
                    payload, stat = await self._root.zk.get_or_sync(self._path(key))
                except NoNodeError:
                    pass
                else:
                    if payload:
                        return Versioned(_value_of(payload, key), stat.version)
            raise _no_value(key)

        return await self._root.do(f"read the value {'/'.join(key)}", work)

    async def write(
        self, key: Sequence[str], value: bytes, version: int | None, known: bytes | None
    ) -> int:
        path = self._path(key)
        payload = _MARKED + self._rng.randbytes(_MARK_BYTES) + value
        what = f"the value {'/'.join(key)}"
        first = FirstSeen()

        async def update(again: bool) -> int:
            assert version is not None
            if not await self._base_exists():
                raise _no_value(key, unknown=again)
            if version == 0 and await _holds(self._root, path, b"", 0):
                raise _no_value(key, unknown=again)  # it is only a parent of others
            try:
                if known is not None:
                    there, stat = await self._root.zk.get_synced(path)
                    first.is_same(stat)
                    if stat.version == version and not there:
                        raise _no_value(key, unknown=again)
                    if stat.version == version and _value_of(there, key) != known:
                        raise replaced(what, unknown=again)
                return (await self._root.zk.set(path, payload, version)).version
            except NoNodeError:
                raise _no_value(key, unknown=again) from None
            except BadVersionError:
                try:
                    there, stat = await self._root.zk.get(path)
                except NoNodeError:
                    raise _no_value(key, unknown=again) from None
                if there == payload:
                    return stat.version  # this is our own write, whose response was lost
                if not there:
                    raise _no_value(key, unknown=again) from None
                # Without `known`, nobody creates the value again after its deletion.
                same = known is None or first.is_same(stat)
                unknown = again and (not same or stat.version != version + 1)
                raise conflict(what, version, stat.version, unknown=unknown) from None

        if version is None:
            return await self._create(path, payload, what)
        check_version(version)
        return await self._root.do(f"write {what}", update)

    async def _create(self, path: str, payload: bytes, what: str) -> int:
        """Create a value, and return its version.

        This is a commit of the tree, because a node that is missing after a lost response does not
        show whether it was created: others may have deleted it. It must not be created twice.
        """
        operation: Create | Put = Create(path, payload)
        parent = path.rpartition("/")[0]

        async def prepare(again: bool) -> None:
            # If the session ends with a lost response, a node that is missing only because its
            # parent is missing leaves the outcome unknown.
            await self._make_base()
            if parent != self._base and await self._root.zk.exists(parent) is None:
                await self._root.make(parent)

        async def make_parent(again: bool) -> None:
            await self._root.make(parent)

        async def look(again: bool) -> tuple[bytes, Stat] | None:
            try:
                return await self._root.zk.get_synced(path)
            except NoNodeError:
                return None

        await self._root.do(f"write {what}", prepare)
        for _ in range(_ATTEMPTS_MAX):
            session_id = self._root.zk.session_id
            try:
                await self._commits.commit([operation], f"write {what}")
            except KeyExistsError:
                there = await self._root.do(f"read {what}", look)
                if there is None:
                    continue
                if there[0]:
                    raise KeyExistsError(f"{what} already exists in the metadata store") from None
                # It is only a parent of others, and becomes a value as well.
                operation = Put(path, payload, there[1].version)
            except (NoSuchKeyError, VersionConflictError):
                if isinstance(operation, Create):
                    await self._root.do(f"write {what}", make_parent)
                operation = Create(path, payload)
            except MetadataUnavailableError as in_doubt:
                if session_id == self._root.zk.session_id:
                    raise
                # The session has ended, but the node may show that the commit was done.
                try:
                    there = await self._root.do(f"read {what}", look)
                except QuireError:
                    raise in_doubt from None
                if there is None or there[0] != payload:
                    raise
                return there[1].version
            else:
                return operation.version + 1 if isinstance(operation, Put) else 0
        raise conflict(what, 0)

    async def delete(self, key: Sequence[str], version: int, known: bytes | None) -> bool:
        path = self._path(key)
        what = f"the value {'/'.join(key)}"
        first = FirstSeen()
        emptied: int | None = None
        """The version that the node has if an attempt whose response was lost has emptied it."""

        async def empty(version: int) -> None:
            nonlocal emptied
            before, emptied = emptied, version + 1
            try:
                await self._root.zk.set(path, b"", version)
            except BadVersionError:
                emptied = before  # this attempt has not emptied it
                raise

        async def work(again: bool) -> bool:
            if not await self._base_exists():
                return again
            for _ in range(_ATTEMPTS_MAX):
                try:
                    newest = again or version != ANY_VERSION
                    zk = self._root.zk
                    read = zk.get_synced if newest else zk.get_or_sync
                    payload, stat = await read(path)
                    if not payload:
                        return again
                    # The first attempt may have deleted it, and another process created it again.
                    if version not in (ANY_VERSION, stat.version):
                        raise conflict(what, version, stat.version, unknown=again)
                    if not first.is_same(stat):
                        if version == ANY_VERSION:
                            return True
                        raise replaced(what, unknown=again)
                    if emptied is not None and stat.version > emptied:
                        raise replaced(what, unknown=True)  # or it was changed twice, and not by us
                    if known is not None and _value_of(payload, key) != known:
                        raise replaced(what, unknown=again)
                    try:
                        await self._root.zk.delete(path, stat.version)
                    except NodeNotEmptyError:
                        await empty(stat.version)
                    break
                except NoNodeError:
                    return again
                except BadVersionError:
                    continue
            else:
                raise conflict(what, version, unknown=again)
            await self._delete_empty_parents(key)
            return True

        return await self._root.do(f"delete the value {'/'.join(key)}", work)

    async def list(self, prefix: Sequence[str]) -> list[str]:
        path = self._path(prefix)

        async def work(again: bool) -> list[str]:
            if not await self._base_exists():
                return []
            try:
                names = await self._root.zk.children_synced(path)
            except NoNodeError:
                return []
            kept = await asyncio.gather(*(self._in_use(f"{path}/{name}") for name in names))
            return sorted(name for name, in_use in zip(names, kept, strict=True) if in_use)

        return await self._root.do(f"list the values below {'/'.join(prefix)!r}", work)

    def _path(self, key: Sequence[str]) -> str:
        return "/".join((self._base, *key))

    async def _in_use(self, path: str) -> bool:
        """Return whether a node is a value or the parent of one.

        A process that ends between two steps may leave an empty parent behind.
        """
        try:
            payload, stat = await self._root.zk.get(path)
        except NoNodeError:
            return False
        return bool(payload) or stat.children > 0

    async def _delete_empty_parents(self, key: Sequence[str]) -> None:
        for end in range(len(key) - 1, 0, -1):
            parent = self._path(key[:end])
            try:
                payload, stat = await self._root.zk.get(parent)
                if payload or stat.children:
                    return
                await self._root.zk.delete(parent, stat.version)
            except (NoNodeError, NodeNotEmptyError, BadVersionError):
                return

    async def refuse_leftovers(self) -> None:
        """Raise KeyExistsError if there are values although the cluster does not exist yet."""
        try:
            owner, _ = await self._root.zk.get_or_sync(self._base)
        except NoNodeError:
            return
        if owner:  # without content it is only a parent of another cluster's values
            raise KeyExistsError(
                f"no cluster was created: the node {self._base} contains the values of an "
                f"earlier cluster ({owner.decode(errors='replace')})",
                remedy=self._remove_remedy(),
            )

    async def _base_exists(self) -> bool:
        """Return whether there are values of this cluster.

        Raises:
            MetadataError: The values belong to another cluster.
        """
        if self._base_checked:
            return True
        try:
            owner, _ = await self._root.zk.get_or_sync(self._base)
        except NoNodeError:
            return False
        instance_id = await read_instance_id(self._root)
        if owner.decode(errors="replace") != instance_id:
            if not owner:
                return False  # it is only a parent so far
            raise MetadataError(
                f"the values below the node {self._base} belong to an earlier cluster, "
                f"{owner.decode(errors='replace')}, not to this one, {instance_id}",
                remedy=self._remove_remedy(),
            )
        self._base_checked = True
        return True

    def _remove_remedy(self) -> str:
        return (
            f"The node {self._base} contains the id of that cluster. If its nodes below the "
            "ledgers root are lost, restore ZooKeeper's data "
            "(docs/guides/repair/disaster-recovery.md). For a new cluster use another root. "
            "Only if nobody needs the datasets and streams of "
            f"the earlier cluster, run `deleteall {self._base}` in ZooKeeper's command line"
        )

    async def _make_base(self) -> None:
        if await self._base_exists():
            return
        instance_id = await read_instance_id(self._root)
        for _ in range(PARENT_ATTEMPTS_MAX):
            try:
                await self._root.zk.create(self._base, instance_id.encode())
            except NodeExistsError:
                await self._claim_base(instance_id)
            except NoNodeError:
                # Other clusters, with other identities, may have their values below these nodes.
                await self._root.make(self._base.rpartition("/")[0], Access.SHARED)
                continue
            if await self._base_exists():
                return
        raise MetadataError(
            f"the node {self._base} in ZooKeeper was not created: other processes changed it "
            f"{PARENT_ATTEMPTS_MAX} times in a row",
            remedy="Try again",
        )

    async def _claim_base(self, instance_id: str) -> None:
        """Write the cluster's instance id into the top node of its values, if the node has none.

        A top node without an instance id was created as a parent of another cluster's values.
        """
        try:
            owner, stat = await self._root.zk.get(self._base)
            if not owner:
                await self._root.zk.set(self._base, instance_id.encode(), stat.version)
        except (NoNodeError, BadVersionError):
            pass  # the caller reads the node again


async def read_instance_id(root: ZooKeeperRoot) -> str:
    """Return the instance id of the cluster, or '' if it has none.

    Raises the errors of `ZooKeeperRoot.check_layout`.
    """
    try:
        data, _ = await root.zk.get_or_sync(root.at("INSTANCEID"))
    except NoNodeError:
        await root.check_layout()
        return ""
    return data.decode(errors="replace").strip()


async def _holds(root: ZooKeeperRoot, path: str, data: bytes, version: int | None) -> bool:
    """Return whether the node has this content and this version (None: any version)."""
    try:
        there, stat = await root.zk.get(path)
    except NodeError:
        return False
    return there == data and version in (None, stat.version)


def _value_of(payload: bytes, key: Sequence[str]) -> bytes:
    if payload.startswith(_MARKED) and len(payload) > _MARK_BYTES:
        return payload[len(_MARKED) + _MARK_BYTES :]
    if payload.startswith(_PLAIN):
        return payload[len(_PLAIN) :]
    raise MetadataError(
        f"the value {'/'.join(key)} in the metadata store has an unknown form: it begins with "
        "neither '=' nor '#'",
        remedy="If a later version of Quire wrote it, use that version. Otherwise restore the "
        "node from a backup of ZooKeeper",
    )


def _no_value(key: Sequence[str], *, unknown: bool = False) -> NoSuchKeyError:
    return _not_there(f"the value {'/'.join(key)}", unknown=unknown)


def _not_there(what: str, *, unknown: bool) -> NoSuchKeyError:
    """Return the error for a value that does not exist.

    `unknown` says that a write of this call may have been done before others deleted the value.
    """
    before = ". It may have been changed before it was deleted: the response was lost"
    error = NoSuchKeyError(f"{what} does not exist in the metadata store{before * unknown}")
    error.outcome_known = not unknown
    return error
