"""The search for namespaces and streams in the tree of a metadata store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from quire._runtime.tasks import each
from quire.client import Client
from quire.codec.distributedlog.name import PARTITION, is_reserved
from quire.codec.distributedlog.namespace_binding import is_binding
from quire.errors import MetadataDeniedError, NoSuchKeyError
from quire.metadata.tree import Tree
from quire.metadata.uri import VALUES_ROOT
from quire.streams.namespace.namespace import SETTINGS_NODE

NODES_AT_ONCE = 256
"""The number of nodes whose children are read at a time."""
LEDGERS_ROOT_SIGNS = {"LAYOUT", "available"}
"""Nodes that every ledgers root has. There is no namespace below one."""
OTHERS = ("/zookeeper", VALUES_ROOT)


async def walk(
    tree: Tree, tops: Iterable[str], *, past_denied: bool = False
) -> AsyncGenerator[tuple[str, list[str]], None]:
    """Yield these nodes and all nodes below them, with the names of their children.

    Left out are nodes with reserved names, in which namespaces and streams store their own data,
    and the roots of ledgers. The walk is depth-first, so that memory is bounded by the siblings
    along one path. Raises MetadataDeniedError if a node may not be read. With `past_denied`, such a
    node counts as a node without children.
    """

    async def children(path: str) -> list[str]:
        try:
            return await tree.children(path)
        except NoSuchKeyError:
            return []  # deleted since its parent was read
        except MetadataDeniedError:
            if past_denied:
                return []
            raise

    todo = list(tops)
    while todo:
        piece, todo = todo[-NODES_AT_ONCE:], todo[:-NODES_AT_ONCE]
        for path, names in zip(piece, await each(piece, children)):
            if set(names) >= LEDGERS_ROOT_SIGNS:
                continue
            yield path, names
            todo += [f"{path}/{name}" for name in names if not is_reserved(name)]


async def namespaces(client: Client) -> list[str]:
    """Return the paths of all namespaces in the client's store, sorted, including those of Java.

    Nodes that this client may not read are left out.
    """
    tree = client.metadata.tree
    tops = [f"/{name}" for name in await tree.children("/") if not is_reserved(name)]
    found = []
    async for path, names in walk(tree, [t for t in tops if t not in OTHERS], past_denied=True):
        if SETTINGS_NODE in names or (PARTITION not in names and await _bound(tree, path)):
            found.append(path)
    return sorted(found)


async def _bound(tree: Tree, path: str) -> bool:
    try:
        return is_binding((await tree.read(path)).value)
    except (NoSuchKeyError, MetadataDeniedError):
        return False
