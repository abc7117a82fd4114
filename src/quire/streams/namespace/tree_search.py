"""The search for namespaces and streams in the tree of a metadata store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from heapq import heapify, heappop, heappush

from quire._runtime.tasks import each
from quire.client import Client
from quire.codec.distributedlog.name import PARTITION, is_reserved, may_name_stream
from quire.codec.distributedlog.namespace_binding import is_binding
from quire.errors import MetadataDeniedError, NoSuchKeyError
from quire.metadata.tree import Tree
from quire.metadata.uri import VALUES_ROOT
from quire.streams.namespace.namespace import SETTINGS_NODE, Namespace

NODES_AT_ONCE = 256
"""The largest number of nodes whose children are read at the same time."""
STREAMS_AT_ONCE = 16
"""The largest number of names that are looked up at the same time for a page of streams."""
LEDGERS_ROOT_SIGNS = {"LAYOUT", "available"}
"""The names of two children that the root node of every cluster's ledgers has.

No namespace is below a node that has both.
"""
OTHERS = ("/zookeeper", VALUES_ROOT)


async def walk(
    tree: Tree, tops: Iterable[str], *, past_denied: bool = False
) -> AsyncGenerator[tuple[str, list[str]], None]:
    """Yield the nodes at `tops` and all nodes below them, each with the names of its children.

    The walk does not enter nodes with reserved names, in which namespaces and streams store their
    own data, or the roots of ledgers. The names of children include the reserved ones. The walk is
    depth-first, so that memory is bounded by the siblings along one path. Raises
    MetadataDeniedError if a node may not be read. With `past_denied`, such a node counts as a node
    without children.
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


async def streams_page(
    namespace: Namespace,
    *,
    after: str = "",
    limit: int,
    part: str = "",
    is_late: Callable[[], bool] = lambda: False,
) -> tuple[list[str], str | None]:
    """Return the first `limit` streams after a name, in the order of their names.

    Nodes are read in that order and only as far as needed, so a page of a large namespace is cheap.

    Args:
        namespace: The namespace.
        after: Return only names that sort after this one.
        limit: The largest number of names.
        part: Return only names that contain this text.
        is_late: Called between reads. Once it returns True, the result is what was found so far.

    Returns:
        The names, and the `after` of the next page. It is None if there are no more names.
    """
    tree = namespace.client.metadata.tree

    async def below(name: str) -> list[str]:
        try:
            names = await tree.children(f"{namespace.path}/{name}" if name else namespace.path)
        except NoSuchKeyError:
            return []
        found = [f"{name}/{one}" if name else one for one in names]
        return [one for one in found if may_name_stream(one) and _leads_beyond(one, after)]

    async def look(name: str) -> tuple[bool, list[str]]:
        wanted = name > after and part in name
        return wanted and await namespace.exists(name), await below(name)

    waiting = await below("")
    heapify(waiting)
    found: list[str] = []
    passed = after
    while waiting:
        if len(found) > limit:
            return found[:limit], found[limit - 1]
        if passed > after and is_late():
            return found[:limit], passed
        batch = [heappop(waiting) for _ in range(min(STREAMS_AT_ONCE, len(waiting)))]
        for name, (there, children) in zip(batch, await each(batch, look, STREAMS_AT_ONCE)):
            if waiting and waiting[0] < name:
                # A stream below an earlier one of the batch comes first, so this one waits.
                heappush(waiting, name)
                continue
            if there:
                found.append(name)
            for child in children:
                heappush(waiting, child)
            passed = max(passed, name)
    more = len(found) > limit
    return found[:limit], found[limit - 1] if more else None


def _leads_beyond(name: str, after: str) -> bool:
    """Return whether a stream with this name, or one below it, sorts after `after`."""
    return f"{name}0" > after  # "0" follows "/"
