"""The creation of topics in the target of a replication.

A replication copies the partitions of a topic as it copies all streams. Once all of them are in the
target, it creates a topic there with the same name and number of partitions. That topic has an id
of its own, as its partitions have lives of their own.
"""

from __future__ import annotations

from collections.abc import Collection

from quire._runtime.tasks import each
from quire.errors import (
    MetadataError,
    MetadataUnavailableError,
    NoSuchStreamError,
    QuireError,
    StreamDivergedError,
    StreamExistsError,
)
from quire.streams.mirror.check import check_origin, origin_of
from quire.streams.namespace.namespace import Namespace
from quire.streams.topics.topic_metadata import (
    StoredTopic,
    TopicMetadata,
    topic_exists,
)


class TopicCopies:
    """The topics whose partitions one run replicates, and what is known of their copies."""

    made: list[str]
    """The topics that `make` has created in the target."""

    def __init__(self, source: Namespace, target: Namespace | None) -> None:
        """Look at nothing yet. `target` is None if the target namespace does not exist."""
        self.made = []
        self._source = source
        self._target = target
        self._from = TopicMetadata(source.client, source.path)
        self._known: set[str] = set()
        """The topics of the source that were looked at."""
        self._unreadable: list[MetadataError] = []
        """The errors of topics of the source whose nodes cannot be decoded."""
        self._waiting: dict[str, StoredTopic] = {}
        """The topics of the source that are not a topic in the target yet, by name."""

    async def look(self, streams: Collection[str]) -> dict[str, QuireError]:
        """Find the topics of these streams, which are about to be copied.

        Returns an error for each stream whose topic cannot exist in the target, because the target
        has something else of that name. Such a stream must not be copied. Topics that an earlier
        call found are not looked at again. Raises MetadataError.
        """
        refused: dict[str, QuireError] = {}
        names = [name for name in await self._from.names() if name not in self._known]
        for topic in await each(names, self._find):
            if topic is None or topic.deleting:
                continue
            parts = [name for name in topic.streams() if name in streams]
            if not parts:
                continue
            error, exists = await self._compared(topic)
            if error is not None:
                refused.update(dict.fromkeys(parts, error))
            elif not exists:
                self._waiting[topic.name] = topic
            self._known.add(topic.name)
        return refused

    async def _find(self, name: str) -> StoredTopic | None:
        """Return a topic of the source. If its node cannot be decoded, note the error for `make`.

        The streams that may be its partitions are copied all the same.
        """
        try:
            return await self._from.find(name)
        except MetadataUnavailableError:
            raise
        except MetadataError as error:
            self._unreadable.append(error)
            self._known.add(name)
            return None

    async def _compared(self, topic: StoredTopic) -> tuple[QuireError | None, bool]:
        """Return why the target cannot have this topic, or None, and whether it has it already."""
        if self._target is None:
            return None, False
        name, target = topic.name, TopicMetadata(self._target.client, self._target.path)
        try:
            found = await target.find(name)
        except MetadataUnavailableError:
            raise
        except MetadataError as error:
            return error, False
        if found is None:
            if not await self._target.exists(name):
                return None, False
            return StreamExistsError(
                f"topic {name} was not copied: the target namespace has a stream of this name. "
                "Nothing was changed",
                remedy="Replicate to another namespace, or rename that stream",
            ), False
        if found.deleting:
            return topic_exists(found), False
        if found.partitions != topic.partitions:
            return StreamDivergedError(
                f"topic {name} was not copied: it has {topic.partitions} partitions, and the topic "
                f"of this name in the target namespace has {found.partitions}. Nothing was changed",
                remedy="Replicate to another namespace, or leave the topic out (`--streams`)",
            ), False
        return None, True

    async def make(self) -> None:
        """Create each topic in the target of which the target has copies of all partitions.

        A topic of which some partitions are missing, for example because the replication does not
        include them, is left for a later call. Raises MetadataError for a topic of the source that
        cannot be read, and StreamExistsError or StreamDivergedError if another program has just
        created something else of that name. Topics that come before it are created.
        """
        for topic in list(self._waiting.values()):
            if await self._is_complete(topic) and await self._create(topic):
                del self._waiting[topic.name]
        if self._unreadable:
            raise self._unreadable[0]

    async def upcoming(self, streams: Collection[str]) -> list[str]:
        """Return the topics that `make` would create once these streams are copied."""
        return [
            topic.name
            for topic in self._waiting.values()
            if await self._is_complete(topic, streams)
        ]

    async def _is_complete(self, topic: StoredTopic, assumed: Collection[str] = ()) -> bool:
        """Return whether the target has a copy of each partition, or it is `assumed` to have it."""
        names = [name for name in topic.streams() if name not in assumed]
        if not names:
            return True
        target = self._target
        if target is None or not all(await each(names, target.exists)):
            return False

        async def check(name: str) -> None:
            await check_origin(target.metadata(name), await origin_of(self._source, name))

        try:
            await each(names, check)
        except MetadataUnavailableError:
            raise
        except (NoSuchStreamError, StreamDivergedError, MetadataError):
            return False  # the replication of this stream reports it, if it is replicated
        return True

    async def _create(self, topic: StoredTopic) -> bool:
        """Create the topic in the target, and return whether the target has it now."""
        assert self._target is not None
        target = TopicMetadata(self._target.client, self._target.path)
        try:
            await target.adopt(topic.name, topic.partitions, any_number=True)
        except NoSuchStreamError:
            return False  # a copy was deleted just now
        except StreamExistsError:
            error, exists = await self._compared(topic)
            if error is not None:
                raise error from None
            return exists  # another run has created it
        self.made.append(topic.name)
        return True
