"""What the cluster keeps of a bookie for Quire alone: nodes below the under-replication tree, which
Apache's programs do not look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from quire.errors import MetadataError, NoSuchKeyError
from quire.metadata.interface import ANY_VERSION, MetadataStore, Versioned
from quire.metadata.tree import Create, Delete, Put
from quire.metadata.uri import replication_root

T = TypeVar("T")


def node_path(uri: str, kind: str, bookie_id: str) -> str:
    return f"{replication_root(uri)}/{kind}/{bookie_id}"


async def read_node(
    store: MetadataStore, path: str, decode: Callable[[bytes], T]
) -> Versioned[T] | None:
    """None: there is none. MetadataError for what cannot be understood: `decode` raises
    `ValueError` for it."""
    try:
        found = await store.tree.read(path)
    except NoSuchKeyError:
        return None
    try:
        return Versioned(decode(found.value), found.version)
    except ValueError as error:
        raise MetadataError(
            f"{path} cannot be understood: {error}",
            remedy="Put the value of this node back from a backup of the metadata store",
        ) from None


async def write_node(store: MetadataStore, path: str, value: bytes, version: int | None) -> int:
    """Create it (version None: `KeyExistsError` where there is one), or replace the one with this
    version (`VersionConflictError`, `NoSuchKeyError`). The new version."""
    if version is None:
        await store.tree.make_path(path.rpartition("/")[0])
        await store.tree.commit(Create(path, value))
        return 0
    (done,) = await store.tree.commit(Put(path, value, version))
    assert isinstance(done, int)
    return done


async def delete_node(store: MetadataStore, path: str, version: int = ANY_VERSION) -> None:
    """`VersionConflictError`. Where there is none, that is success."""
    try:
        await store.tree.commit(Delete(path, version))
    except NoSuchKeyError:
        pass
