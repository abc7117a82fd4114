"""The search for namespaces and streams in the tree of a metadata store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from quire._runtime.tasks import each
from quire.client import Client
from quire.codec.distributedlog.name import (
    PARTITION,
    is_reserved,
    may_lead_to_stream,
)
from quire.codec.distributedlog.namespace_binding import is_binding
from quire.errors import (
    MetadataDeniedError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
)
from quire.metadata.tree import Tree
from quire.metadata.uri import VALUES_ROOT
from quire.streams.namespace.binding import may_be_stream
from quire.streams.namespace.namespace import Namespace
from quire.streams.namespace.stored_settings import SETTINGS_NODE
from quire.streams.topics.topic_metadata import StoredTopic, TopicMetadata

NODES_AT_ONCE = 256
"""The largest number of nodes whose children are read at the same time."""
STREAMS_AT_ONCE = 16
"""The largest number of names that are looked up at the same time for a page of streams."""
PAGE_STREAMS_MAX = 1_000
"""The number of streams, with the partitions of topics, at which a page of streams ends.

A topic is never divided, so a page may have up to 63 streams more.
"""
LEDGERS_ROOT_SIGNS = {"LAYOUT", "available"}
"""The names of two children that the root node of every cluster's ledgers has.

No namespace is below a node that has both, if the first one has a value. Streams may have these
names too, but their nodes have no values.
"""
OTHERS = ("/zookeeper", VALUES_ROOT)


async def walk(
    tree: Tree,
    tops: Iterable[str],
    *,
    past_denied: bool = False,
    left_out: list[str] | None = None,
) -> AsyncGenerator[tuple[str, list[str]], None]:
    """Yield the nodes at `tops` and all nodes below them, each with the names of its children.

    The walk does not enter the nodes in which namespaces and streams store their own data, or the
    roots of ledgers, whose paths are added to `left_out`. The names of children include all nodes.
    The walk is depth-first, so that memory is bounded by the siblings along one path. Raises
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
            if set(names) >= LEDGERS_ROOT_SIGNS and await _has_layout(tree, path, past_denied):
                if left_out is not None:
                    left_out.append(path)
                continue
            yield path, names
            todo += [f"{path}/{name}" for name in names if may_lead_to_stream(name)]


async def _has_layout(tree: Tree, path: str, past_denied: bool) -> bool:
    """Return whether the node `LAYOUT` below a path is that of a cluster's ledgers."""
    try:
        value = (await tree.read(f"{path}/LAYOUT")).value
        return bool(value) and not is_binding(value)  # a namespace may have this name
    except NoSuchKeyError:
        return False  # deleted since its parent was read
    except MetadataDeniedError:
        if past_denied:
            return True
        raise


async def namespaces(client: Client) -> list[str]:
    """Return the paths of all namespaces in the client's store, sorted, including those of Java.

    Nodes that this client may not read are left out. Raises MetadataUnavailableError.
    """
    return sorted(await namespace_sizes(client))


async def namespace_sizes(client: Client) -> dict[str, int]:
    """Return the number of streams of each namespace in the client's store, by path.

    A partition of a topic is a stream. The streams of a namespace below another one count for both,
    as both list them. Nodes that this client may not read are left out. Raises
    MetadataUnavailableError.
    """
    tree = client.metadata.tree
    tops = [f"/{name}" for name in await tree.children("/") if not is_reserved(name)]
    found: dict[str, int] = {}
    streams: list[str] = []
    async for path, names in walk(tree, [t for t in tops if t not in OTHERS], past_denied=True):
        if SETTINGS_NODE in names or (PARTITION not in names and await _bound(tree, path)):
            found[path] = 0
        if PARTITION in names:
            streams.append(path)
    for path in streams:
        above = path
        while above := above.rpartition("/")[0]:
            if above in found:
                found[above] += 1
    return found


async def _bound(tree: Tree, path: str) -> bool:
    try:
        return is_binding((await tree.read(path)).value)
    except (NoSuchKeyError, MetadataDeniedError):
        return False


@dataclass(frozen=True, slots=True)
class StreamsPage:
    """A page of the streams of a namespace, on which a topic counts as one name."""

    names: list[str]
    """The names of streams and topics, sorted, without the partitions of `topics`."""
    topics: dict[str, StoredTopic]
    """The topics among `names`, by name."""
    unreadable: list[str]
    """The reason for each topic that cannot be read. Its partitions are among `names`."""
    next: str | None
    """The `after` of the next page, or None if there are no more names."""

    def streams(self) -> list[str]:
        """Return the names of the streams, with the partitions of each topic in its place."""
        return [stream for name in self.names for stream in self._streams(name)]

    def _streams(self, name: str) -> list[str]:
        topic = self.topics.get(name)
        if topic is None:
            return [name]
        return [] if topic.deleting else topic.streams()


async def streams_page(
    namespace: Namespace,
    *,
    after: str = "",
    limit: int,
    part: str = "",
    is_late: Callable[[], bool] = lambda: False,
) -> StreamsPage:
    """Return the first `limit` streams and topics after a name, in the order of their names.

    Nodes are read in that order and only as far as needed, so a page of a large namespace is cheap.
    A topic takes the place of its partitions. If its deletion was interrupted, the partitions that
    are left are streams of the page as well.

    Args:
        namespace: The namespace.
        after: Return only names that sort after this one.
        limit: The largest number of names. A page also ends at `PAGE_STREAMS_MAX` streams.
        part: Return only names that contain this text. A topic is also returned if the name of a
            partition contains it.
        is_late: Called between reads. Once it returns True, the result is what was found so far.
    """
    metadata = TopicMetadata(namespace.client, namespace.path)
    search = _StreamsSearch(namespace, metadata, set(await metadata.names()), after, part)
    waiting = await search.tops()
    heapify(waiting)
    found: list[str] = []
    topics: dict[str, StoredTopic] = {}
    passed = after
    while waiting and len(found) <= _page_size(found, topics, limit):
        if passed > after and is_late():
            return StreamsPage(found, topics, search.unreadable, passed)
        batch = [heappop(waiting) for _ in range(min(STREAMS_AT_ONCE, len(waiting)))]
        for name, (topic, wanted, children) in zip(
            batch, await each(batch, search.look_at, STREAMS_AT_ONCE)
        ):
            if waiting and waiting[0] < name:
                # A stream below an earlier one of the batch comes first, so this one waits.
                heappush(waiting, name)
                continue
            if wanted:
                found.append(name)
                if topic is not None:
                    topics[name] = topic
            for child in children:
                heappush(waiting, child)
            passed = max(passed, name)
    names = found[: _page_size(found, topics, limit)]
    shown = {name: topics[name] for name in names if name in topics}
    following = names[-1] if len(found) > len(names) else None
    return StreamsPage(names, shown, search.unreadable, following)


def _page_size(found: list[str], topics: dict[str, StoredTopic], limit: int) -> int:
    """Return the number of names on a page, as far as it is known from the names found so far."""
    streams = 0
    for at, name in enumerate(found[:limit], 1):
        streams += topics[name].partitions if name in topics else 1
        if streams >= PAGE_STREAMS_MAX:
            return at
    return limit


class _StreamsSearch:
    """The nodes of a namespace, as a page of streams reads them."""

    def __init__(
        self,
        namespace: Namespace,
        metadata: TopicMetadata,
        named: set[str],
        after: str,
        part: str,
    ) -> None:
        """Prepare to read nodes. `named` has the names of the topics."""
        self._namespace = namespace
        self._metadata = metadata
        self._named = named
        self._after = after
        self._part = part
        self._partitions: set[str] = set()
        """The streams of the topics that were read, which are no names of the page."""
        self.unreadable: list[str] = []
        """The reason for each topic that cannot be read."""

    async def tops(self) -> list[str]:
        """Return the names with which the search begins."""
        return [*await self._below(""), *self._beyond(self._named)]

    async def look_at(self, name: str) -> tuple[StoredTopic | None, bool, list[str]]:
        """Read one node.

        Returns:
            The topic with this name, or None. Then whether the page has the name, and the names
            below it that may be on the page.
        """
        topic = await self._topic(name)
        children = await self._below(name)
        part, wanted = self._part, name > self._after
        if topic is None:
            wanted = wanted and part in name and name not in self._partitions
            return None, wanted and await self._namespace.exists(name), children
        texts = [name]
        if not topic.deleting:
            self._partitions.update(topic.streams())
            texts += topic.streams()
        return topic, wanted and any(part in text for text in texts), children

    async def _below(self, name: str) -> list[str]:
        path = self._namespace.path
        try:
            names = await self._namespace.client.metadata.tree.children(
                f"{path}/{name}" if name else path
            )
        except NoSuchKeyError:
            return []
        found = self._beyond(f"{name}/{one}" if name else one for one in names)
        return [one for one in found if one not in self._named]  # The search begins with topics.

    def _beyond(self, names: Iterable[str]) -> list[str]:
        path, uri = self._namespace.path, self._namespace.client.metadata.uri
        return [
            one
            for one in names
            if _leads_beyond(one, self._after) and may_be_stream(one, path, uri)
        ]

    async def _topic(self, name: str) -> StoredTopic | None:
        if name not in self._named:
            return None
        try:
            return await self._metadata.find(name)
        except MetadataUnavailableError:
            raise
        except MetadataError as error:
            self.unreadable.append(str(error.args[0]))
            return None


def _leads_beyond(name: str, after: str) -> bool:
    """Return whether a stream with this name, or one below it, sorts after `after`."""
    return f"{name}0" > after  # "0" follows "/"
