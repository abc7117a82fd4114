"""The nodes of topics, each of which stores the number of partitions of one topic.

    NAMESPACE/.quire/topics/NAME     NAME is quoted, so that "/" becomes "%2F"

    {"format": 1, "id": "1000185c83e0002-27", "partitions": 4, "partitioner": "murmur2"}

    NAMESPACE/.quire/topics/NAME/ID  It distinguishes the topic from a later one of this name, whose
                                     node has the same versions

One transaction creates the node and all partitions, so no topic exists partially. The number never
changes: with another one, most keys would have another partition, and readers could see later
records of a key before earlier ones. A deletion first adds `"ending": true`, then deletes the
partitions, and finally the node.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

from quire._runtime.names.in_commands import command_with
from quire._runtime.tasks import each
from quire.client import Client
from quire.codec.distributedlog.name import StreamPaths, may_name_stream, stream_name
from quire.codec.metadata.stored_json import stored_json
from quire.errors import (
    KeyExistsError,
    LaterMetadataError,
    MetadataDeniedError,
    MetadataError,
    NoSuchKeyError,
    NoSuchStreamError,
    StreamExistsError,
    UsageError,
    VersionConflictError,
    later_json,
    written_later,
)
from quire.metadata.common import check_operations
from quire.metadata.tree import Check, Create, Delete, Operation, Put
from quire.metadata.values import ANY_VERSION
from quire.streams.namespace.stream_life import names_of, unique
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.topic_nodes import no_topic, topic_path, topics_path
from quire.streams.topics.partitioner import PARTITIONER

FORMAT = 1
PARTITIONS_MAX = 64
"""The largest number of partitions of a topic, because one transaction creates all of them."""
CREATE_TOPIC_ATTEMPTS = 5
"""The number of attempts to create a topic while other clients change nodes that it needs."""
_NAMES = ("id", "partitions", "partitioner", "ending")


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """The node of a topic, as it was read."""

    name: str
    id: str
    """The id, which no other topic of any name has."""
    partitions: int
    deleting: bool
    """Whether a deletion has begun. It may have been interrupted."""
    version: int

    def value(self) -> bytes:
        """Return the value of the node."""
        values = {
            "format": FORMAT,
            "id": self.id,
            "partitions": self.partitions,
            "partitioner": PARTITIONER,
        }
        return json.dumps(values | ({"ending": True} if self.deleting else {})).encode()

    def streams(self) -> list[str]:
        """Return the names of the streams that are the topic's partitions, in order."""
        return [partition_stream(self.name, at) for at in range(self.partitions)]


def partition_stream(topic: str, partition: int) -> str:
    """Return the name of the stream that is a partition of a topic."""
    return f"{topic}/{partition}"


def partition_number(stream: str) -> tuple[str, int] | None:
    """Return the topic and the partition that a stream's name may stand for, or None."""
    topic, _, number = stream.rpartition("/")
    if not topic or not number.isascii() or not number.isdecimal() or len(number) > 4:
        return None
    return (topic, int(number)) if str(int(number)) == number else None


class TopicMetadata:
    """The access to the nodes of the topics of one namespace, to read and to change them.

    Every call raises MetadataUnavailableError if the metadata store does not answer. Reads are
    cancel-safe. The outcome of a cancelled change is unknown.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._tree = client.metadata.tree
        self._namespace = namespace
        self._directory = topics_path(namespace)

    def _path(self, name: str) -> str:
        return topic_path(self._namespace, name)

    def stream(self, name: str) -> StreamMetadata:
        """Return the metadata of a stream of the namespace."""
        return StreamMetadata(self._client, StreamPaths(self._namespace, name))

    async def create(self, name: str, partitions: int, more: Mapping[str, bytes]) -> None:
        """Create a topic and its partitions in one transaction.

        `more` has further nodes of each partition, as in `StreamMetadata.create`. Raises
        StreamExistsError, and UsageError if the number or the name is not valid.
        """
        name = stream_name(name)
        streams = self._partitions(name, partitions)
        beginning = self._creation(name, partitions)
        for attempt in range(CREATE_TOPIC_ATTEMPTS):
            await self._tree.make_path(self._directory)
            parts = await each(streams, lambda stream: stream.creation(more))
            operations = [*beginning, *(operation for part in parts for operation in part)]
            _check_size(name, partitions, operations)
            try:
                await self._tree.commit(*operations)
                return
            except NoSuchKeyError:
                if attempt == CREATE_TOPIC_ATTEMPTS - 1:
                    raise
            except KeyExistsError as error:
                await self._refuse_existing(name, streams, error)
                if attempt == CREATE_TOPIC_ATTEMPTS - 1:
                    raise
                await each([self.stream(name), *streams], StreamMetadata.remove_former)

    async def adopt(self, name: str, partitions: int, *, any_number: bool = False) -> None:
        """Create a topic whose partitions are streams that exist already.

        Raises NoSuchStreamError if one of them does not exist, StreamExistsError, and UsageError if
        the number or the name is not valid, or if there is a stream for one partition more. With
        `any_number` such a stream does not matter, because the caller knows the number.
        """
        name = stream_name(name)
        streams = self._partitions(name, partitions)
        further = self.stream(partition_stream(name, partitions))
        if not any_number and await further.exists():
            raise UsageError(
                f"topic {name} was not created with {partitions} partitions: stream "
                f"{further.paths.name} exists as well",
                remedy="Give the number of partitions that the topic had: with another number, "
                "most keys would have another partition",
            )
        await self._tree.make_path(self._directory)
        checks = [Check(stream.paths.segments, ANY_VERSION) for stream in streams]
        try:
            await self._tree.commit(*self._creation(name, partitions), *checks)
        except KeyExistsError as error:
            await self._refuse_existing(name, (), error)
            raise
        except NoSuchKeyError as error:
            for stream in streams:
                if not await stream.exists():
                    raise NoSuchStreamError(
                        f"topic {name} was not created in namespace {self._namespace}: stream "
                        f"{stream.paths.name}, which would be its partition, does not exist",
                        remedy=f"Adopt {name} when its streams 0 to {partitions - 1} exist",
                    ) from error
            raise

    def _partitions(self, name: str, partitions: int) -> list[StreamMetadata]:
        """Return the streams of a new topic. Raises UsageError if it has too few or too many."""
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise UsageError(
                f"topic {name} was not created: a topic has 1 to {PARTITIONS_MAX} partitions, not "
                f"{partitions}"
            )
        return [self.stream(partition_stream(name, at)) for at in range(partitions)]

    def _creation(self, name: str, partitions: int) -> list[Operation]:
        """Return the operations that create a topic's node."""
        stored = StoredTopic(name, unique(self._tree), partitions, False, 0)
        root = self.stream(name).paths.root
        # No stream may have the name of the topic: the last two fail if there is one, or if there
        # is no node above it, which a partition has.
        path = self._path(name)
        return [
            Create(path, stored.value()),
            Create(_life_path(path, stored)),
            Create(root),
            Delete(root),
        ]

    async def _refuse_existing(
        self, name: str, streams: Sequence[StreamMetadata], error: KeyExistsError
    ) -> None:
        """Raise StreamExistsError if a topic or a stream has a name that the new topic needs."""
        found = await self.find(name)
        if found is not None:
            raise topic_exists(found) from error
        remedy = "Choose another name, or rename that stream"
        for stream in (self.stream(name), *streams):
            if await stream.exists():
                raise StreamExistsError(
                    f"topic {name} was not created in namespace {self._namespace}: stream "
                    f"{stream.paths.name} exists already",
                    remedy=remedy,
                ) from error
            adopt = command_with("quire stream create", name, "--partitions N --adopt")
            remedy = (
                "Choose another name, or rename that stream. If all partitions exist, as in a copy "
                f"of a topic, `{adopt}` makes them one"
            )
            if await self.find(stream.paths.name) is not None:
                raise StreamExistsError(
                    f"topic {name} was not created in namespace {self._namespace}: its partition "
                    f"{stream.paths.name} would have the name of another topic",
                    remedy="Choose another name",
                ) from error

    async def find(self, name: str) -> StoredTopic | None:
        """Return the topic with this name, or None if there is none. Raises MetadataError."""
        path = self._path(name)
        try:
            node = await self._tree.read(path)
        except NoSuchKeyError:
            return None
        return decode_topic(name, path, node.value, node.version)

    async def find_in_any(self, name: str) -> StoredTopic | None:
        """Return the topic with this name, also if it is that of another namespace.

        The topic "clicks" of "/team/orders" has the name "orders/clicks" in "/team". Raises
        MetadataError.
        """
        found = await self.find(name)
        stream = self.stream(name).paths.stream
        for namespace, other in names_of(stream):
            if found is None and namespace != self._namespace:
                try:
                    found = await TopicMetadata(self._client, namespace).find(other)
                except MetadataDeniedError:
                    continue  # the namespace belongs to others
        return None if found is None else replace(found, name=name)

    async def read(self, name: str) -> StoredTopic:
        """Return the topic with this name. Raises NoSuchStreamError and MetadataError."""
        name = stream_name(name)
        found = await self.find(name)
        if found is not None and found.deleting:
            # The server may lag behind the end of the deletion, and show a former topic.
            await self._tree.sync()
            found = await self.find(name)
        if found is None:
            await self._refuse_stream(name)
            create = command_with("quire stream create", name, "--partitions N")
            raise NoSuchStreamError(
                f"there is no topic {name} in namespace {self._namespace}",
                remedy=f"Create it: {create} (in Python, create_topic)",
            )
        if found.deleting:
            raise NoSuchStreamError(
                f"topic {name} of namespace {self._namespace} is being deleted, or its deletion "
                "was interrupted",
                remedy="Complete the deletion: "
                f"{command_with('quire stream delete', name)} (in Python, delete_topic)",
            )
        return found

    async def _refuse_stream(self, name: str) -> None:
        """Raise NoSuchStreamError if a stream has this name, which a caller took for a topic's."""
        if not await self.stream(name).exists():
            return
        what, remedy = "a stream", "Open it as a stream (in Spark, with the option 'stream')"
        if (topic := await self.topic_of(name)) is not None:
            what, remedy = f"a partition of topic {topic.name}", f"Open topic {topic.name}"
        raise NoSuchStreamError(
            f"{name} is {what} in namespace {self._namespace}, and not a topic", remedy=remedy
        )

    async def require_same(self, known: StoredTopic) -> None:
        """Raise NoSuchStreamError if a topic was deleted, also if another one has its name."""
        found = await self.find(known.name)
        if found != known:
            raise NoSuchStreamError(
                f"topic {known.name} of namespace {self._namespace} was deleted, or replaced by "
                "another topic of the same name",
                remedy="If another topic has the name now, open it",
            )

    async def names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        try:
            found = await self._tree.children(self._directory)
        except NoSuchKeyError:
            return []
        return sorted(filter(may_name_stream, map(unquote, found)))

    async def topic_of(self, stream: str) -> StoredTopic | None:
        """Return the topic that a stream is a partition of, or None. Raises MetadataError."""
        parts = partition_number(stream)
        if parts is None:
            return None
        found = await self.find_in_any(parts[0])
        return found if found is not None and parts[1] < found.partitions else None

    async def not_beside(self, stream: str) -> list[Operation]:
        """Return operations that fail if a new stream would look like a partition but not be one.

        A stream such as "clicks/9" beside a topic "clicks" with four partitions looks like a
        partition, but no reader or writer of the topic uses it. Raises UsageError if the
        stream would be such a stream now. Raises StreamExistsError if it has the name of a
        partition, and the topic is being deleted.
        """
        above, _, number = stream.rpartition("/")
        if not above or not number.isdecimal():
            return []
        topic = await self.find_in_any(above)
        if topic is None:
            if not await self._tree.exists(self._directory):
                return []  # then `no_topic` fails as soon as there is any topic
            return await no_topic(self._tree, StreamPaths(self._namespace, above))
        parts = partition_number(stream)
        if parts is None or parts[1] >= topic.partitions:
            raise UsageError(
                f"{stream} cannot be the name of a new stream in namespace {self._namespace}: "
                f"topic {above} has the partitions 0 to {topic.partitions - 1}",
                remedy=f"Write to {above}, which chooses the partition, or choose another name",
            )
        if topic.deleting:
            raise topic_exists(topic)  # the rest of the deletion would delete the stream
        if await self.find(above) is None:
            return []  # a topic of another namespace, which is only looked at
        path = self._path(above)
        life = _life_path(path, topic)
        # Another topic that gets the name has the same versions, perhaps with fewer partitions.
        same = [Check(life, ANY_VERSION)] if await self._tree.exists(life) else []
        return [*same, Check(path, topic.version)]

    async def delete(
        self,
        name: str,
        delete: Callable[[StreamMetadata, Callable[[], Awaitable[bool]]], Awaitable[None]],
    ) -> None:
        """Delete a topic, and each partition with `delete`. The topic need not exist.

        `delete` receives a function that returns whether the topic is still this one. A partition
        that exists then belongs to it, because no partition is created while it is being deleted.
        If this is interrupted, call it again. Raises UsageError if a stream has this name, and
        MetadataError.
        """
        name = stream_name(name)
        known = await self.find(name)
        if known is None:
            if await self.stream(name).exists():
                raise UsageError(
                    f"nothing was deleted: {name} is a stream in namespace {self._namespace}, and "
                    "not a topic",
                    remedy="Use `delete_stream`",
                )
            return
        path = self._path(name)
        life = _life_path(path, known)
        # Another program may have created the node, without this one.
        has_life = await self._tree.exists(life)
        same: list[Operation] = [Check(life, ANY_VERSION)] if has_life else []
        marked = known if has_life else await self.find(name)
        while marked is not None and marked.id == known.id and not marked.deleting:
            begun = replace(marked, deleting=True, version=marked.version + 1)
            try:
                await self._tree.commit(*same, Put(path, begun.value(), marked.version))
                marked = begun
            except (NoSuchKeyError, VersionConflictError):
                marked = await self.find(name)  # another client has changed or deleted it
        if marked is None or marked.id != known.id:
            return  # another client has deleted it, and the name may be that of another topic
        version = marked.version

        async def wanted() -> bool:
            found = await self.find(name)
            return found is not None and (found.id, found.version) == (known.id, version)

        for at in range(known.partitions):
            await delete(self.stream(partition_stream(name, at)), wanted)
        try:
            await self._tree.commit(*([Delete(life)] if has_life else []), Delete(path, version))
        except (NoSuchKeyError, VersionConflictError):
            pass  # another client has completed the deletion


def _life_path(path: str, topic: StoredTopic) -> str:
    """Return the path of the node below that of a topic that no other topic ever has."""
    return f"{path}/{topic.id}"


def _check_size(name: str, partitions: int, operations: Sequence[Operation]) -> None:
    """Raise UsageError if the transaction that creates a topic would be too large."""
    try:
        check_operations(operations)
    except UsageError as error:
        raise UsageError(
            f"topic {name} was not created: one transaction creates all partitions, and with a "
            f"name of {len(name):,} characters {partitions} of them do not fit into it",
            remedy="Choose a shorter name or fewer partitions",
        ) from error


def topic_exists(topic: StoredTopic) -> StreamExistsError:
    """Return the error for a new topic or stream whose name a topic has."""
    if topic.deleting:
        return StreamExistsError(
            f"topic {topic.name} is being deleted, or its deletion was interrupted, so its name "
            "and those of its partitions cannot be used yet",
            remedy="Complete the deletion: "
            f"{command_with('quire stream delete', topic.name)} (in Python, delete_topic)",
        )
    return StreamExistsError(
        f"topic {topic.name} already exists, with {topic.partitions} partitions. It was not "
        "changed",
        remedy="Use this topic, or choose another name. The number of partitions cannot change: "
        "to get more, create another topic and copy the records",
    )


def decode_topic(name: str, path: str, value: bytes, version: int) -> StoredTopic:
    """Return the topic that a node describes. Raises MetadataError."""
    try:
        values = stored_json(value)
        if message := later_json(path, values, _NAMES, FORMAT):
            raise LaterMetadataError(message)
        if values["format"] != FORMAT:
            raise ValueError(f"it has format {values['format']!r}")
        if values["partitioner"] != PARTITIONER:
            found = f"the partitioner {values['partitioner']!r}"
            raise LaterMetadataError(written_later(path, found, PARTITIONER))
        partitions, deleting = values["partitions"], values.get("ending", False)
        if type(partitions) is not int or partitions < 1 or type(deleting) is not bool:
            raise ValueError("a field has a wrong value")
        return StoredTopic(name, str(values["id"]), partitions, deleting, version)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise MetadataError(
            f"the node {path} of topic {name} cannot be decoded: {error!r}",
            remedy="Restore the node from a backup of the metadata store",
        ) from None
