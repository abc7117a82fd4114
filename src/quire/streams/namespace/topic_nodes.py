"""The paths of the nodes of topics, which streams must not have a name in common with.

`quire.streams.topics.topic_metadata` describes the nodes. A transaction that creates a topic fails
if a stream has its name. One that creates a stream contains `no_topic`, and fails if a topic has
its name. So a stream and a topic never have the same name, even if two clients create them at the
same time.
"""

from __future__ import annotations

from urllib.parse import quote

from quire.codec.distributedlog.name import StreamPaths
from quire.metadata.tree import Create, Delete, Operation, Tree

TOPICS = ".quire/topics"
"""The path below a namespace that holds the nodes of its topics."""


def topics_path(namespace: str) -> str:
    """Return the path of the node that holds the topics of a namespace."""
    return f"{namespace}/{TOPICS}"


def topic_path(namespace: str, name: str) -> str:
    """Return the path of the node of a topic."""
    return f"{topics_path(namespace)}/{quote(name, safe='')}"


async def no_topic(tree: Tree, paths: StreamPaths) -> list[Operation]:
    """Return operations that fail with KeyExistsError if a topic has the name of a stream.

    `NAMESPACE/.quire` must exist. If the namespace gets its first topic meanwhile, they fail with
    KeyExistsError as well. Call this again then.
    """
    directory = topics_path(paths.namespace)
    absent = topic_path(paths.namespace, paths.name) if await tree.exists(directory) else directory
    return [Create(absent), Delete(absent)]
