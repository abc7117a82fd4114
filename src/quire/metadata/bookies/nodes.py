"""Quire's own nodes for each bookie, below the under-replication tree.

Apache's programs do not read them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from quire._runtime.tasks import each
from quire.errors import (
    LaterMetadataError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    QuireError,
    later_json,
)
from quire.metadata.interface import ANY_VERSION, MetadataStore, Versioned
from quire.metadata.tree import Create, Delete, Put
from quire.metadata.uri import replication_root

T = TypeVar("T")


def node_path(uri: str, kind: str, bookie_id: str) -> str:
    """Return the path of a bookie's node. `kind` is the name of the parent of all such nodes."""
    return f"{replication_root(uri)}/{kind}/{bookie_id}"


def refuse_later(what: str, value: Any, names: Collection[str]) -> None:
    """Raise LaterMetadataError if a later version of Quire wrote this decoded JSON value.

    A value with a field that is not in `names`, or with a higher format number than this version
    writes, counts as one of a later version. `what` names the value in the message.
    """
    if message := later_json(what, value, names):
        raise LaterMetadataError(message)


async def read_node(
    store: MetadataStore, path: str, decode: Callable[[bytes], T]
) -> Versioned[T] | None:
    """Return the decoded value of a node, or None if the node does not exist.

    Args:
        store: The store of the cluster.
        path: The path of the node.
        decode: Decodes the value. It raises ValueError for a value that it does not understand, and
            LaterMetadataError for one that a later version wrote.

    Raises:
        LaterMetadataError: A later version of Quire wrote the value.
        MetadataError: The value cannot be decoded, or the store does not answer.
    """
    try:
        found = await store.tree.read(path)
    except NoSuchKeyError:
        return None
    try:
        return Versioned(decode(found.value), found.version)
    except LaterMetadataError as error:
        raise LaterMetadataError(f"{path}: {error.args[0]}") from None
    except ValueError as error:
        raise MetadataError(
            f"the node {path} in the metadata store cannot be decoded: {error}",
            remedy=(
                "If a later version of Quire wrote it, use that version. Otherwise restore "
                "the node from a backup of the metadata store"
            ),
        ) from None


async def read_nodes(
    store: MetadataStore, kind: str, decode: Callable[[bytes], T], most: int | None = None
) -> dict[str, Versioned[T]]:
    """Return the decoded values of the nodes below a parent, by name.

    If `most` is given, only the first `most` nodes are read, in the order of their names. Nodes
    that cannot be read or decoded are left out: these values are for people, who look at the
    others. Raises MetadataUnavailableError if the store does not answer, and another MetadataError
    if it does not list the nodes.
    """
    parent = f"{replication_root(store.uri)}/{kind}"
    try:
        names = (await store.tree.children(parent))[:most]
    except NoSuchKeyError:
        return {}

    async def read(name: str) -> Versioned[T] | None:
        try:
            return await read_node(store, f"{parent}/{name}", decode)
        except MetadataUnavailableError:
            raise
        except QuireError:
            return None

    found = zip(names, await each(names, read))
    return {name: stored for name, stored in found if stored is not None}


async def write_node(store: MetadataStore, path: str, value: bytes, version: int | None) -> int:
    """Write the value of a node, and return its new version.

    With None as `version`, the node is created. Otherwise it must exist with this version.

    Raises:
        KeyExistsError: The version is None, and the node exists.
        VersionConflictError: The node's version is not `version`.
        NoSuchKeyError: The node to replace does not exist.
        MetadataError: The store fails.
    """
    if version is None:
        await store.tree.make_path(path.rpartition("/")[0])
        await store.tree.commit(Create(path, value))
        return 0
    (done,) = await store.tree.commit(Put(path, value, version))
    assert isinstance(done, int)
    return done


async def delete_node(store: MetadataStore, path: str, version: int = ANY_VERSION) -> None:
    """Delete a node, if it exists.

    Raises:
        VersionConflictError: The node's version is not `version`.
        MetadataError: The store fails.
    """
    try:
        await store.tree.commit(Delete(path, version))
    except NoSuchKeyError:
        pass
