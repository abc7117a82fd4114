"""Namespaces: named sets of streams in one cluster, with settings that their streams inherit.

A namespace is a path of nodes, such as "/tenant/name". It is bound to a cluster in DistributedLog's
way, so that Java's tools find it at `distributedlog://SERVERS/tenant/name`. The settings of a
tenant are stored below the first part of the path, the settings of a namespace below the whole
path, and the settings of a stream below the stream.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from quire._runtime.names.former_names import deprecated
from quire._runtime.names.in_commands import command_with
from quire._runtime.opening import Opening, open_or_closed, opening, represented
from quire._runtime.tasks import each
from quire._runtime.units import counted
from quire.client import Client
from quire.client.client import end_with_client
from quire.codec.distributedlog.compression import check_available
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.name import StreamPaths, stream_name
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import (
    ArgumentTypeError,
    ClientClosedError,
    KeyExistsError,
    MetadataDeniedError,
    MetadataError,
    NoSuchKeyError,
    NoSuchNamespaceError,
    NoSuchObjectError,
    NoSuchStreamError,
    NotEmptyError,
    QuireError,
    StreamClosedError,
    StreamEndedError,
    StreamExistsError,
    StreamQuotaError,
    UsageError,
    VersionConflictError,
    check_type,
    client_closed,
    nothing_done,
    whole_number,
)
from quire.metadata.common import check_operations
from quire.metadata.interface import ANY_VERSION
from quire.metadata.tree import (
    COMMIT_BYTES_MAX,
    COMMIT_OPERATIONS_MAX,
    Check,
    Create,
    Delete,
    Operation,
    Put,
)
from quire.streams.namespace.binding import (
    binding_of,
    check_binding,
    check_new_path,
    may_be_stream,
    namespace_path,
    other_data,
)
from quire.streams.namespace.job_plans import end_job_plans, is_job_plan, job_plans
from quire.streams.namespace.removal import delete_stream
from quire.streams.namespace.settings import (
    DEFAULTS,
    StreamSettings,
    check_values,
    current_names,
    encode_settings,
)
from quire.streams.namespace.stored_settings import (
    SETTINGS_NODE,
    STREAM_SETTINGS_NODE,
    add_settings,
    inherited_settings,
    stored_settings,
)
from quire.streams.namespace.stream_life import names_of
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.topic_nodes import no_topic
from quire.streams.namespace.truncation import (
    free,
    retain,
    stored_bytes,
    truncate,
    would_free,
    would_retain,
)
from quire.streams.objects.objects import Objects
from quire.streams.read.positions import EARLIEST, Start, check_position, checked_start, find
from quire.streams.read.reader import OpeningReader, StreamReader
from quire.streams.read.subscriptions import Subscription
from quire.streams.statemachine.snapshot_info import BUCKET, LIFE_KEY, snapshot_name
from quire.streams.topics.topic import Topic
from quire.streams.topics.topic_metadata import TopicMetadata, topic_exists
from quire.streams.write.lock import StreamLock
from quire.streams.write.segments import Segments
from quire.streams.write.takeover import take_over
from quire.streams.write.writer import StreamWriter
from quire.streams.write.writer_task import ByteBudget

RENAME_ATTEMPTS = 5
"""The number of attempts to rename a stream that other processes change."""
FENCED_OPERATIONS = 10
"""The largest number of operations that a rename needs in addition after it has fenced the writer.
"""
ALL_BUFFERED_BYTES_MAX = 64 * 1024 * 1024
"""The largest number of unacknowledged bytes of all writers that one `Namespace` opened."""


class Namespace:
    """A namespace of streams. `Client.namespace` opens it.

    Closing a namespace, or its client, abandons the writers that the namespace opened and that are
    still open.

    Calls that read or change metadata raise MetadataUnavailableError if the metadata store does
    not answer. The outcome of a change is then unknown. They raise MetadataDeniedError if the
    metadata store refuses this client, and ClientClosedError if the client is closed. If the
    name of a stream is not valid, every call that takes one raises UsageError.
    """

    path: str
    """The path of the namespace, such as "/team/orders"."""

    def __init__(
        self, client: Client, path: str, values: Mapping[str, Any], password: bytes
    ) -> None:
        self.client = client
        self.path = path
        self._values = dict(values)
        self.password = password
        self._tree = client.metadata.tree
        self._topics = TopicMetadata(client, path)
        self._closed = False
        self._budget = ByteBudget(ALL_BUFFERED_BYTES_MAX)
        self._writers: dict[StreamWriter, StreamLock | None] = {}
        """The open writers, each with the lock that it holds, or None if it holds none."""
        self._tasks = end_with_client(client, self)

    # -- namespaces ---------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        client: Client,
        path: str,
        *,
        settings: Mapping[str, Any] | None = None,
        password: bytes = b"",
    ) -> Opening[Namespace]:
        """Deprecated: use `client.namespace(path, create=True)`.

        Args:
            client: The client of the cluster.
            path: The path of the namespace.
            settings: Settings to add to the namespace's own.
            password: The password of the ledgers of its streams.

        Returns:
            The open namespace.

        Raises:
            QuireError: See `Client.namespace`. It is raised when the result is awaited or entered.
        """
        deprecated("Namespace.create(client, path)", "client.namespace(path, create=True)")
        return open_namespace(client, path, create=True, settings=settings, password=password)

    @classmethod
    def open(cls, client: Client, path: str, *, password: bytes = b"") -> Opening[Namespace]:
        """Deprecated: use `client.namespace(path)`.

        Args:
            client: The client of the cluster.
            path: The path of the namespace.
            password: The password of the ledgers of its streams.

        Returns:
            The open namespace.

        Raises:
            QuireError: See `Client.namespace`. It is raised when the result is awaited or entered.
        """
        deprecated("Namespace.open(client, path)", "client.namespace(path)")
        return open_namespace(client, path, password=password)

    def __repr__(self) -> str:
        return represented(self, open_or_closed(self._closed), path=self.path)

    @property
    def settings(self) -> StreamSettings:
        """The settings that streams of this namespace inherit, as they were last read.

        Calls that need them read them again.
        """
        return DEFAULTS.with_values(self._values)

    @property
    def given_settings(self) -> dict[str, Any]:
        """The settings given to the namespace or to a path above it, as they were last read."""
        return dict(self._values)

    async def _inherited(self) -> dict[str, Any]:
        """Return `given_settings` after reading them: other clients may have changed them."""
        self._values = await inherited_settings(self.client, self.path)
        return self._values

    async def own_settings(self) -> dict[str, Any]:
        """Return the settings that were given to the namespace itself.

        Cancelling this call is safe.

        Returns:
            The settings by name. The dictionary is empty if none were given.

        Raises:
            MetadataError: The stored settings cannot be decoded.
        """
        return await stored_settings(self.client, f"{self.path}/{SETTINGS_NODE}")

    async def configure(self, settings: Mapping[str, Any]) -> None:
        """Add settings to the namespace's own settings.

        The change is durable on return. Writers that are open keep the settings that they have. If
        the call is cancelled, the change may or may not have been stored.

        Args:
            settings: The new values by name. None removes a value, so that the setting is inherited
                again.

        Raises:
            UsageError: A name is unknown, or a value is not valid together with the inherited ones.
                Nothing was changed.
            MetadataError: The stored settings cannot be decoded. Nothing was changed.
        """
        above = await inherited_settings(self.client, self.path.rpartition("/")[0])
        await self._tree.make_path(f"{self.path}/{SETTINGS_NODE}")
        await add_settings(self.client, f"{self.path}/{SETTINGS_NODE}", settings, above)
        await self._inherited()

    async def close(self) -> None:
        """Abandon the writers that are open, and release their locks.

        Records that were appended and not acknowledged may or may not become part of their streams.
        Readers continue. Calling this again is safe. If the call is cancelled, the writers are
        abandoned all the same.
        """
        await self._end(None)

    async def _client_closed(self, error: ClientClosedError) -> None:
        await self._end(error)

    async def _end(self, error: QuireError | None) -> None:
        """End everything that this namespace opened.

        Writers raise `error` from now on. With None they report that they were abandoned.
        """
        self._closed = True
        writers = dict(self._writers)
        for writer in writers:
            writer._abandon(error)
        try:
            await each([lock for lock in writers.values() if lock], StreamLock.release)
        finally:
            await self._tasks.close()

    async def __aenter__(self) -> Namespace:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # -- streams ------------------------------------------------------------------------------

    async def create_stream(self, name: str, *, settings: Mapping[str, Any] | None = None) -> None:
        """Create a stream. It is durable on return.

        If the call is cancelled, the stream may or may not have been created.

        Args:
            name: The name of the stream. It may contain "/".
            settings: The stream's own settings, by name.

        Raises:
            StreamExistsError: A stream or a topic has this name already, or a topic that had such a
                partition is being deleted.
            StreamQuotaError: The namespace, or one above it or between it and the stream, has as
                many streams as its `streams_max` allows.
            UsageError: The name or a setting is not valid, or the name is that of a partition that
                a topic does not have.
            MetadataError: Inherited settings, or the node of a topic, cannot be decoded. Nothing
                was created.
        """
        metadata = self.metadata(name)
        inherited = await self.inherited_stream_settings(name)
        await self._check_quota(name, 1, f"stream {name} was not created")
        settings = current_names(settings or {})
        encoded = encode_settings(settings)
        DEFAULTS.with_values({**inherited, **settings})
        if (topic := await self._topics.find_in_any(metadata.paths.name)) is not None:
            raise topic_exists(topic)
        guard = partial(self._topics.not_beside, metadata.paths.name)
        await metadata.create({STREAM_SETTINGS_NODE: encoded} if settings else {}, guard)

    async def _check_quota(self, name: str, more: int, undone: str, moved: str = "") -> None:
        """Raise StreamQuotaError if a namespace may not have `more` streams in addition.

        `undone` says in the error what was not done. The streams are beside the stream `name`. They
        are streams of each namespace that the name may be in: this one, those between it and them,
        and those above it. Those that have the stream `moved` get no further stream.
        """
        await self._inherited()
        stays = names_of(self.metadata(moved).paths.stream) if moved else ()
        passed = {path for path, _ in stays}
        for path, _ in names_of(self.metadata(name).paths.stream):
            if path in passed:
                continue
            if path == self.path:
                await self._check_room(path, self.settings.streams_max, more, undone)
                continue
            try:
                own = await stored_settings(self.client, f"{path}/{SETTINGS_NODE}")
                # What it inherits is that of another namespace which is checked here.
                await self._check_room(path, own.get("streams_max", 0), more, undone)
            except MetadataDeniedError:
                continue  # The namespace belongs to others, and the store decides.

    async def _check_room(self, path: str, limit: int, more: int, undone: str) -> None:
        """Raise StreamQuotaError if `more` streams exceed the limit of the namespace at `path`."""
        if limit and len(await self._streams_in(path)) + more > limit:
            has = "already has" if more == 1 else f"would, with {more} more, have more than"
            raise StreamQuotaError(
                f"namespace {path} {has} the {counted(limit, 'stream')} that streams_max allows: "
                f"{undone}",
                remedy="Raise streams_max. If you cannot, delete a stream that nobody needs",
            )

    async def streams(self, prefix: str = "") -> list[str]:
        """Return the names of the streams in this namespace, sorted.

        Nested streams such as "a/b" are included. Cancelling this call is safe.

        Args:
            prefix: Return only the names that begin with this text.

        Returns:
            The names of the streams.

        Raises:
            UsageError: `prefix` is not text.
        """
        check_type("prefix", prefix, str)
        await self._tree.sync()  # the server may lag behind others, here and in the lists below
        return sorted(n for n in await self._streams_in(self.path) if n.startswith(prefix))

    async def _streams_in(self, namespace: str) -> list[str]:
        """Return the names of the streams in the namespace at a path."""
        uri = self.client.metadata.uri

        async def exists(name: str) -> bool:
            return await self._tree.exists(StreamPaths(namespace, name).segments)

        async def below(name: str) -> list[str]:
            path = f"{namespace}/{name}" if name else namespace
            try:
                names = await self._tree.children(path)
            except NoSuchKeyError:
                return []
            found = [f"{name}/{one}" if name else one for one in names]
            return [one for one in found if may_be_stream(one, namespace, uri)]

        found: list[str] = []
        level = await below("")
        while level:
            found += [name for name, there in zip(level, await each(level, exists)) if there]
            level = [name for names in await each(level, below) for name in names]
        return found

    async def exists(self, name: str) -> bool:
        """Return whether a stream with this name exists. Cancelling this call is safe.

        Args:
            name: The name of the stream.

        Returns:
            Whether there is such a stream. A topic is no stream, but its partitions are.

        Raises:
            MetadataUnavailableError: The metadata store does not answer.
        """
        return await self.metadata(name).exists()

    async def stream_settings(self, name: str) -> StreamSettings:
        """Return all settings of a stream: its own settings and those that it inherits.

        Cancelling this call is safe.

        Args:
            name: The name of the stream, which need not exist.

        Returns:
            The settings. For a stream that does not exist they are those that it would inherit.

        Raises:
            MetadataError: Stored settings cannot be decoded.
            UsageError: The stream's own settings contradict those that it inherits now.
        """
        inherited = await self.inherited_stream_settings(name)
        return DEFAULTS.with_values({**inherited, **await self.own_stream_settings(name)})

    async def inherited_stream_settings(self, name: str) -> dict[str, Any]:
        """Return the settings that were given to a path above the stream.

        If the name has several parts, another namespace may be nearer to the stream than this one,
        such as "/team/orders" to the stream "orders/eu" of "/team". Its settings come first.
        Cancelling this call is safe.

        Args:
            name: The name of the stream, which need not exist.

        Returns:
            The settings by name. Those that have their defaults are not included.

        Raises:
            MetadataError: Stored settings cannot be decoded.
        """
        above = self.metadata(name).paths.stream.rpartition("/")[0]
        return await inherited_settings(self.client, above)

    async def own_stream_settings(self, name: str) -> dict[str, Any]:
        """Return the settings that were given to the stream itself.

        Cancelling this call is safe.

        Args:
            name: The name of the stream, which need not exist.

        Returns:
            The settings by name. The dictionary is empty if none were given.

        Raises:
            MetadataError: The stored settings cannot be decoded.
        """
        root = self.metadata(name).paths.root
        return await stored_settings(self.client, f"{root}/{STREAM_SETTINGS_NODE}")

    async def configure_stream(self, name: str, settings: Mapping[str, Any]) -> None:
        """Add settings to the stream's own settings.

        The change is durable on return. A writer that is open keeps the settings that it has. If
        the call is cancelled, the change may or may not have been stored.

        Args:
            name: The name of the stream.
            settings: The new values by name. None removes a value, so that the setting is inherited
                again.

        Raises:
            NoSuchStreamError: The stream does not exist, or was replaced by another one meanwhile.
            UsageError: A name is unknown, or a value is not valid together with the inherited ones.
                Nothing was changed.
            MetadataError: The stored settings cannot be decoded. Nothing was changed.
        """
        metadata = self.metadata(name)
        node = f"{metadata.paths.root}/{STREAM_SETTINGS_NODE}"
        inherited = await self.inherited_stream_settings(name)
        guard: list[Operation] = []
        try:
            guard.append(Check((await metadata.life()).path, ANY_VERSION))
        except MetadataDeniedError:
            pass  # The stream has no life, and this client may not begin one.
        await metadata.make_below(node)
        try:
            await add_settings(self.client, node, settings, inherited, guard)
        except NoSuchKeyError as error:
            await metadata.require()
            raise nothing_done(
                NoSuchStreamError(
                    f"stream {name} was deleted or renamed, and another stream has its name now, "
                    "whose settings were not changed",
                    remedy="Change the settings again if they are meant for that stream",
                )
            ) from error

    async def segments(self, name: str) -> list[StreamSegment]:
        """Return the segments of a stream, from the oldest to the newest.

        Cancelling this call is safe.

        Args:
            name: The name of the stream.

        Returns:
            The segments.

        Raises:
            NoSuchStreamError: The stream does not exist.
            MetadataError: The metadata of a segment cannot be decoded.
        """
        return await self._segments_now(name)

    async def _segments_now(self, name: str) -> list[StreamSegment]:
        """Return all segments that were stored before this call, even if the server lags."""
        await self._tree.sync()
        return await self.metadata(name).segments()

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and all its ledgers.

        The deletion is durable on return. Bookies free the space at their next garbage collection.
        An open writer of the stream is fenced first, as far as its bookies answer. Readers then
        raise NoSuchStreamError. Streams that are nested below this name are kept. Deleting a stream
        that does not exist succeeds. If the call fails or is cancelled, a part of the stream may be
        left, which cannot be renamed: call this again.

        Args:
            name: The name of the stream.

        Raises:
            UsageError: The name is not valid, or it is that of a topic or of a partition. Nothing
                was deleted.
            MetadataError: The metadata of the stream cannot be decoded.
        """
        await self._refuse_partition(name, "deleted", "Delete the topic")
        metadata = self.metadata(name)
        if not await metadata.exists() and await self._topics.find(metadata.paths.name) is not None:
            raise UsageError(
                f"nothing was deleted: {name} is a topic in namespace {self.path}, and not a "
                "stream",
                remedy="Use `delete_topic`",
            )
        await delete_stream(self.client, metadata, self.password)

    async def _refuse_partition(self, name: str, done: str, remedy: str) -> None:
        """Raise UsageError if a stream is a partition of a topic, which would lose it."""
        name = stream_name(name)
        topic = await self._topics.topic_of(name)
        if topic is not None:
            raise UsageError(
                f"stream {name} was not {done}: it is a partition of topic {topic.name}",
                remedy=remedy,
            )

    async def rename_stream(self, name: str, new_name: str, *, force: bool = False) -> None:
        """Rename a stream. Its settings and subscriptions move with it, in one transaction.

        The new name is durable on return. An open writer of the stream is fenced, and jobs of Spark
        that write the stream publish nothing. If the call is cancelled, the stream has either the
        old or the new name. The snapshot of a state machine belongs to the old name of its stream,
        so the stream of a state machine that has a snapshot is not renamed.

        Args:
            name: The present name.
            new_name: The new name.
            force: Whether to rename the stream even if a state machine has a snapshot of it.

        Raises:
            NoSuchStreamError: There is no stream with the present name, or it is being deleted.
            StreamExistsError: There is a stream or a topic with the new name.
            StreamQuotaError: The new name is in another namespace below this one, which has as many
                streams as its `streams_max` allows. Nothing was changed.
            RecoveryError, WriteError, ReadError: The last records of the fenced writer cannot be
                recovered now. Try again.
            StreamFencedError: Another writer opened the stream meanwhile. Try again.
            StreamDamagedError: An entry of the fenced writer cannot be decoded.
            UnauthorizedError: The password of the namespace is not that of the stream's ledgers.
            MetadataError: The metadata of the stream cannot be decoded, or other processes changed
                the stream during every attempt.
            UsageError: The stream has too many nodes for one transaction (the limit is about 480
                segments and subscriptions), or it is a topic or a partition of one, or a state
                machine has a snapshot of it and `force` is not set. The error is also raised if the
                new name is that of a partition that a topic does not have. Nothing was changed.
        """
        metadata, target = self.metadata(name), self.metadata(new_name)
        check_type("force", force, bool)
        remedy = "Create another topic, and copy the records"
        await self._refuse_partition(name, "renamed", remedy)
        if not await metadata.exists() and await self._topics.find(metadata.paths.name) is not None:
            raise UsageError(f"topic {name} was not renamed: a topic keeps its name", remedy=remedy)
        for _ in range(RENAME_ATTEMPTS):
            if (topic := await self._topics.find_in_any(target.paths.name)) is not None:
                raise topic_exists(topic)
            if await target.exists():
                if not await metadata.exists():
                    raise NoSuchStreamError(
                        f"there is no stream {name} in namespace {self.path}, but stream "
                        f"{new_name} exists. If an earlier call to rename it ended with an error, "
                        "that call may have succeeded",
                        remedy=f"Look at {new_name}: {command_with('quire stream show', new_name)}",
                    )
                raise StreamExistsError(
                    f"stream {name} was not renamed: stream {new_name} already exists",
                    remedy="Choose another name",
                )
            await metadata.require()
            if not force:
                await self._refuse_snapshot(metadata)
            undone = f"stream {name} was not renamed to {new_name}"
            await self._check_quota(new_name, 1, undone, moved=name)
            await target.remove_former()
            self._check_size_of_rename(name, (await self._rename(metadata, target))[0])
            try:
                # This completes the segment in progress. Otherwise its writer would continue in the
                # same ledger.
                await take_over(self.client, metadata, self.password)
            except StreamEndedError:
                pass
            # One by one, because there may be more than a transaction can delete.
            await end_job_plans(self._tree, await job_plans(self._tree, metadata.paths.root))
            life = ""
            try:
                operations, life = await self._rename(metadata, target)
                await self._tree.commit(*operations)
                break
            except (VersionConflictError, KeyExistsError, NoSuchKeyError, NotEmptyError):
                if life and await self._tree.exists(life):
                    break  # An earlier attempt of the same transaction succeeded unnoticed.
                continue  # Another process changed one of the streams. Begin again.
        else:
            raise MetadataError(
                f"stream {name} was not renamed, because other processes changed it during "
                f"{RENAME_ATTEMPTS} attempts. It has its old name",
                remedy="Try again",
            )
        await metadata.remove_markers()
        await metadata.lives.clear()

    async def _refuse_snapshot(self, metadata: StreamMetadata) -> None:
        """Raise UsageError if a state machine has a snapshot of the stream as it is now."""
        name = metadata.paths.name
        try:
            snapshot = await Objects(self.client, BUCKET).info(snapshot_name(self.path, name))
        except (NoSuchObjectError, UsageError):
            return  # there is none, or none can have this name
        life = await metadata.life_id()
        if life and snapshot.metadata.get(LIFE_KEY, life) != life:
            return  # it belongs to a former stream of this name
        raise UsageError(
            f"stream {name} was not renamed: it is the log of a state machine, whose snapshot "
            f"(object {BUCKET}/{snapshot.name}) would not be found under the new name, and which "
            "could then not be opened if commands were truncated",
            remedy="Keep the name. If you do not need the state machine any more, pass force=True "
            "(--force)",
        )

    async def _rename(
        self, metadata: StreamMetadata, target: StreamMetadata
    ) -> tuple[list[Operation], str]:
        """Return the operations of the transaction that renames a stream as it is now.

        The second value is the path of the life that only this transaction begins.
        """
        await self._tree.make_path(target.paths.stream)
        # Read the life before the segment nodes, which a concurrent truncation replaces.
        life = await metadata.life()
        # A deletion that begins after this adds a node, so that the transaction fails.
        await metadata.refuse_deleted()
        creates, deletes = await self._moves(metadata.paths, target.paths.root)
        begin = await target.lives.begin()
        creates += begin
        creates += await no_topic(self._tree, target.paths)
        creates += await self._topics.not_beside(target.paths.name)
        return [Delete(life.path, life.version), *creates, *reversed(deletes)], begin[-1].path

    def _check_size_of_rename(self, name: str, operations: Sequence[Operation]) -> None:
        """Raise UsageError if a rename would be too large, before the writer is fenced.

        The plans of jobs do not count, because they are deleted before the rename.
        """
        operations = [one for one in operations if not is_job_plan(one.path)]
        reason = f"it may need {len(operations) + FENCED_OPERATIONS:,} operations"
        if len(operations) + FENCED_OPERATIONS <= COMMIT_OPERATIONS_MAX:
            try:
                check_operations(operations)
            except UsageError as error:
                reason = str(error.args[0])
            else:
                return
        raise UsageError(
            f"stream {name} was not renamed: the nodes of a stream move in one transaction, "
            f"which has at most {COMMIT_OPERATIONS_MAX:,} operations and {COMMIT_BYTES_MAX:,} "
            f"bytes, and this one is too large ({reason})",
            remedy="Look at its segments and subscriptions (`quire stream show`). Truncate the "
            "stream, so that it has fewer segments, or delete subscriptions that nobody uses, and "
            "try again",
        )

    async def _moves(
        self, paths: StreamPaths, target: str, below: str = ""
    ) -> tuple[list[Operation], list[Operation]]:
        source = paths.root + below
        node = await self._tree.read(source)
        creates: list[Operation] = [Create(target + below, node.value)]
        deletes: list[Operation] = [Delete(source, node.version)]
        for name in await self._tree.children(source):
            if paths.holds_lock_members(source):
                # Lock members belong to a session, and to a writer or reader that uses the old
                # name.
                deletes.append(Delete(f"{source}/{name}"))
                continue
            if is_job_plan(f"{source}/{name}"):
                deletes.append(Delete(f"{source}/{name}"))  # a job began just now
                continue
            more = await self._moves(paths, target, f"{below}/{name}")
            creates += more[0]
            deletes += more[1]
        return creates, deletes

    # -- topics -------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int,
        *,
        settings: Mapping[str, Any] | None = None,
        adopt: bool = False,
    ) -> None:
        """Create a topic with several partitions, in one transaction. It is durable on return.

        Partition 3 of the topic `clicks` is the stream `clicks/3`. The number of partitions never
        changes. If the call is cancelled, the topic may or may not have been created.

        Args:
            name: The name of the topic. It may contain "/".
            partitions: The number of partitions, from 1 to 64.
            settings: The settings of each partition, by name.
            adopt: Whether the partitions are streams that exist already, such as the copies that
                replication made of a topic's partitions. They are not changed.

        Raises:
            StreamExistsError: A topic or a stream has this name already. Without `adopt`, the error
                is also raised if one has the name of a partition.
            NoSuchStreamError: A stream to adopt does not exist.
            StreamQuotaError: The namespace may not have that many more streams (`streams_max`).
                `adopt` adds no streams, and never raises this.
            UsageError: The name, the number or a setting is not valid, the nodes of the partitions
                are too many for one transaction, or settings were passed with `adopt`. The error is
                also raised if `adopt` would leave out the stream of a further partition.
            MetadataError: Inherited settings, or the node of a topic, cannot be decoded. Nothing
                was created.
        """
        partitions = whole_number("the number of partitions", partitions)
        check_type("adopt", adopt, bool)
        if adopt:
            if settings:
                raise UsageError(
                    f"topic {name} was not created: streams that are adopted keep their settings",
                    remedy="Leave out the settings, and change those of the streams",
                )
            await self._topics.adopt(name, partitions)
            return
        inherited = await self.inherited_stream_settings(name)
        await self._check_quota(f"{name}/0", partitions, f"topic {name} was not created")
        settings = current_names(settings or {})
        encoded = encode_settings(settings)
        DEFAULTS.with_values({**inherited, **settings})
        await self._topics.create(
            name, partitions, {STREAM_SETTINGS_NODE: encoded} if settings else {}
        )

    async def topics(self, prefix: str = "") -> list[str]:
        """Return the names of the topics in this namespace, sorted.

        Their partitions are among the names that `streams` returns. Cancelling this call is safe.

        Args:
            prefix: Return only the names that begin with this text.

        Returns:
            The names of the topics.

        Raises:
            UsageError: `prefix` is not text.
        """
        check_type("prefix", prefix, str)
        await self._tree.sync()
        return [name for name in await self._topics.names() if name.startswith(prefix)]

    async def topic(self, name: str) -> Topic:
        """Return a topic, with the number of partitions that the metadata store has.

        Cancelling this call is safe.

        Args:
            name: The name of the topic.

        Returns:
            The topic. It holds no resources and need not be closed.

        Raises:
            NoSuchStreamError: There is no such topic, or it is being deleted.
            MetadataError: The node of the topic cannot be decoded.
        """
        return Topic(self, self._topics, await self._topics.read(name))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its partitions and their ledgers.

        The deletion is durable on return. Open writers are fenced first, as far as their bookies
        answer. Deleting a topic that does not exist succeeds. If the call fails or is cancelled,
        some partitions may be left, and the topic cannot be opened: call this again.

        Args:
            name: The name of the topic.

        Raises:
            UsageError: The name is that of a stream. Nothing was deleted.
            MetadataError: The metadata of the topic or of a partition cannot be decoded.
        """

        async def delete(partition: StreamMetadata, wanted: Callable[[], Awaitable[bool]]) -> None:
            await delete_stream(self.client, partition, self.password, wanted=wanted)

        await self._topics.delete(name, delete)

    # -- reading and writing ------------------------------------------------------------------

    @opening
    async def open_writer(
        self, name: str, *, create: bool = False, lock: float | None = None
    ) -> StreamWriter:
        """Become the writer of a stream, and fence the previous writer.

        When this returns, all records that the previous writer had acknowledged are part of
        completed segments, and the previous writer cannot append any more. If the call fails or is
        cancelled, no record is lost, and the previous writer may or may not be fenced.

        With `lock` the call first waits for the stream's lock, which Java's writers hold while they
        are open. The writer holds it until it ends. Without `lock` the call waits for nobody. A
        writer whose session ends loses the lock, but it can still append until another writer opens
        the stream: fencing decides who may write, and the lock only avoids interruptions.

        Args:
            name: The name of the stream.
            create: Whether to create the stream if it does not exist.
            lock: Seconds to wait for the stream's lock. With 0 the call fails at once if another
                writer holds it. None opens the stream without the lock.

        Returns:
            The writer. Use it with `async with`, or close it.

        Raises:
            NoSuchStreamError: The stream does not exist.
            StreamEndedError: The stream was ended, so nothing can be appended.
            StreamLockedError: Another writer held the lock for the whole time.
            StreamFencedError: Another writer opened the stream meanwhile.
            StreamClosedError: The namespace is closed, or was closed meanwhile.
            RecoveryError, WriteError, ReadError: Too few bookies answer to recover and read the
                last records of the previous writer. Nothing is lost: try again.
            UnauthorizedError: The password of the namespace is not that of the stream's ledgers.
            StreamQuotaError: The stream does not exist, and a limit `streams_max` is reached.
            StreamDamagedError: The last entry of the previous writer cannot be decoded, or the
                stream uses producers or fencing tokens, and an entry with them cannot be decoded.
            MetadataError: The metadata of a segment, or the settings, cannot be decoded.
            UsageError: The stream does not exist, and `create_stream` refuses its name, or its own
                settings contradict those that it inherits, or the library for the compression of
                the stream is not installed, or `lock` is not a number.
        """
        metadata = self.metadata(name)
        self._check_open(metadata)
        check_type("create", create, bool)
        if lock is not None and not isinstance(lock, int | float):
            raise ArgumentTypeError(
                f"the argument lock must be a number of seconds, not {type(lock).__name__}"
            )
        if lock is not None and math.isnan(lock):
            raise UsageError("the argument lock must be a number of seconds, not NaN")
        if create and not await metadata.exists():
            try:
                await self.create_stream(name)
            except StreamExistsError:
                pass
        await metadata.require()
        if lock is None:
            return await self._open_writer(metadata)
        await metadata.ensure_writable()
        held = StreamLock(self._tree, metadata.paths.lock, self._tasks)
        end_with_client(self.client, held)
        try:
            await held.acquire(lock)
        except NoSuchKeyError as error:  # the stream was deleted or renamed while this waited
            await metadata.require()
            raise nothing_done(metadata.replaced()) from error
        try:
            return await self._open_writer(metadata, held)
        except BaseException:
            await held.release()
            raise

    async def _open_writer(
        self, metadata: StreamMetadata, lock: StreamLock | None = None
    ) -> StreamWriter:
        settings = await self.stream_settings(metadata.paths.name)
        check_available(settings.compression)  # fail before another writer is fenced
        taken = await take_over(self.client, metadata, self.password)
        # Until then, another stream with other settings may have got the name.
        settings = await self.stream_settings(metadata.paths.name)
        check_available(settings.compression)
        held_bytes = 0
        if settings.bytes_max:
            held_bytes = await stored_bytes(self.client, taken.segments)
        self._check_open(metadata)  # otherwise nobody would end the writer
        segments = Segments(
            self.client, metadata, settings, taken, self._tasks,
            password=self.password, stored_bytes=held_bytes, lock=lock,
        )  # fmt: skip
        segments.prepare()
        writer = StreamWriter(
            segments, settings, self.client.clock, self._tasks, self._budget, self._ended
        )
        self._writers[writer] = lock
        return writer

    def _check_open(self, metadata: StreamMetadata) -> None:
        if self.client.closed:
            raise nothing_done(client_closed())
        if self._closed:
            raise nothing_done(
                StreamClosedError(
                    f"namespace {self.path} is closed, so stream {metadata.paths.name} was not "
                    "opened for writing",
                    remedy="Open the namespace again, with another client if this one is closed",
                )
            )

    def _ended(self, writer: StreamWriter) -> None:
        lock = self._writers.pop(writer, None)
        if lock is not None:
            self._tasks.start(lock.release())

    def open_reader(
        self,
        name: str,
        *,
        start: Start = EARLIEST,
        end: DLSN | None = None,
        follow: bool = False,
        on_gap: str = "raise",
    ) -> OpeningReader:
        """Open a reader of a stream.

        `async for record in streams.open_reader(name)` opens the reader and reads. Cancelling is
        safe.

        Args:
            name: The name of the stream.
            start: Where to begin: a position, or one of EARLIEST, LATEST, AtTxid, AtTime and
                AtSequence.
            end: The position before which to stop. Without it the reader stops after the last
                record that is acknowledged when it gets there, or with `follow` at the end of the
                stream.
            follow: Whether to wait for further records until `end`, or until the stream is ended.
            on_gap: What to do when records are missing: "raise" raises StreamGapError, "deliver"
                yields a `Gap` among the `batches`, and "skip" continues after the gap. Iteration by
                records leaves out the `Gap`.

        Returns:
            The reader.

        Raises:
            NoSuchStreamError: The stream does not exist.
            UsageError: An argument is not valid.
        """

        async def opened() -> StreamReader:
            metadata = self.metadata(name)
            await metadata.require()
            return StreamReader(
                self.client, metadata, start=start, end=end, follow=follow, on_gap=on_gap,
                password=self.password,
            )  # fmt: skip

        return OpeningReader(opened, "open_reader")

    async def find(self, name: str, start: Start) -> DLSN:
        """Return the position at which a reader with this start would begin now.

        Cancelling this call is safe.

        Args:
            name: The name of the stream.
            start: A position, or one of EARLIEST, LATEST, AtTxid, AtTime and AtSequence.

        Returns:
            The position.

        Raises:
            NoSuchStreamError: The stream does not exist.
            ReadError: Too few bookies answer to read an entry of the search.
            UnauthorizedError: The password of the namespace is not that of the stream's ledgers.
            StreamDamagedError: An entry cannot be decoded.
            MetadataError: The metadata of a segment cannot be decoded.
            UsageError: `start` is not a valid start.
        """
        start = checked_start(start)
        segments = await self._segments_now(name)
        return await find(self.client, segments, start, self.password)

    def subscription(self, name: str, subscriber: str) -> Subscription:
        """Return the stored position of a named reader.

        This call does no I/O.

        Args:
            name: The name of the stream.
            subscriber: The name of the reader.

        Returns:
            The subscription. It holds no resources and need not be closed.

        Raises:
            UsageError: The name of the stream or of the reader is not valid.
        """
        return Subscription(self.metadata(name), subscriber)

    async def subscriptions(self, name: str) -> list[str]:
        """Return the names of the readers that store their positions with the stream, sorted.

        Cancelling this call is safe.

        Args:
            name: The name of the stream.

        Returns:
            The names of the readers.

        Raises:
            NoSuchStreamError: The stream does not exist.
        """
        metadata = self.metadata(name)
        await self._tree.sync()
        await metadata.require()
        try:
            return await self._tree.children(metadata.paths.subscribers)
        except NoSuchKeyError:
            return []

    # -- giving up the beginning --------------------------------------------------------------

    async def truncate(
        self, name: str, before: DLSN, *, dry_run: bool = False, life: str | None = None
    ) -> list[StreamSegment]:
        """Give up all records before a position, and free the ledgers that hold nothing else.

        Readers that begin before the position then meet a gap (`on_gap` of `open_reader` says what
        they do). The segment in progress is not changed: call `StreamWriter.roll` first, or
        truncate again later. The truncation is durable on return. If the call is cancelled, the
        stream may be truncated and some ledgers may not be freed yet: the next call frees them.

        Args:
            name: The name of the stream.
            before: The position of the first record to keep. A position after the last record of a
                segment counts as the beginning of the next segment.
            dry_run: Whether to return only the segments that would be freed, and change nothing.
            life: The path of the life (`StreamMetadata.life`) in which the position was found. With
                it, a stream that was created later with the same name is not truncated.

        Returns:
            The segments whose ledgers were deleted.

        Raises:
            NoSuchStreamError: The stream does not exist, or has another life.
            UsageError: `before` is not a position, or its segment has an old layout, which cannot
                store it.
            MetadataError: The metadata of a segment cannot be decoded.
        """
        metadata = self.metadata(name)
        check_position(before)
        check_type("dry_run", dry_run, bool)
        await self._tree.sync()  # the server may lag behind the writer, here and in `retain`
        if dry_run:
            return await would_free(self.client, metadata, before)
        await truncate(metadata, before, life=life)
        return await free(self.client, metadata)

    async def retain(self, name: str, *, dry_run: bool = False) -> list[StreamSegment]:
        """Apply the retention settings of a stream now.

        A writer does the same whenever it completes a segment. On return, readers get no record of
        the segments that the settings do not keep. The ledger of the newest completed segment is
        never deleted, so its records may be gone for readers although no segment is returned. If
        the call is cancelled, the next call continues.

        Args:
            name: The name of the stream.
            dry_run: Whether to return only the segments that would be deleted, and change nothing.

        Returns:
            The segments whose ledgers were deleted.

        Raises:
            NoSuchStreamError: The stream does not exist.
            MetadataError: The metadata of a segment, or the settings, cannot be decoded.
            UsageError: The stream's own settings contradict those that it inherits now.
        """
        metadata = self.metadata(name)
        check_type("dry_run", dry_run, bool)
        await self._tree.sync()
        if dry_run:
            return await would_retain(self.client, metadata, await self.stream_settings(name))
        life = (await metadata.life()).path  # read first, so that the settings are not older
        settings = await self.stream_settings(name)
        return await retain(self.client, metadata, settings, life=life)

    def metadata(self, name: str) -> StreamMetadata:
        """Return an object that reads and changes the metadata nodes of a stream.

        Applications do not need it. Raises UsageError if the name is not valid.
        """
        paths = StreamPaths(self.path, stream_name(name))
        if taken := other_data(paths.stream, self.client.metadata.uri, self.path):
            raise UsageError(
                f"{name!r} cannot be the name of a stream in namespace {self.path}: {taken} is "
                "used for other data",
                remedy="Choose another name",
            )
        return StreamMetadata(self.client, paths)


@opening
async def open_namespace(
    client: Client,
    path: str,
    *,
    create: bool = False,
    settings: Mapping[str, Any] | None = None,
    password: bytes = b"",
) -> Namespace:
    """Open a namespace. See `quire.Client.namespace`.

    If the call is cancelled, the namespace may or may not have been created.

    Args:
        client: The client of the cluster.
        path: The path of the namespace.
        create: Whether to create the namespace if it does not exist.
        settings: Settings to add to the namespace's own, only with `create`.
        password: The password of the ledgers of its streams.

    Returns:
        The open namespace.

    Raises:
        QuireError: The errors of `quire.Client.namespace`.
    """
    path = namespace_path(path)
    check_type("a password", password, bytes)
    check_type("create", create, bool)
    if create:
        await check_binding(client, path)  # before anything is created
        await _make(client, path, current_names(settings or {}))
    elif settings:
        raise UsageError(
            f"settings were passed for namespace {path} without create=True. Nothing was changed",
            remedy="Pass create=True, or call `configure` on the open namespace",
        )
    tree = client.metadata.tree
    bound = await check_binding(client, path)
    if not bound and not await tree.exists(f"{path}/{SETTINGS_NODE}"):
        raise NoSuchNamespaceError(
            f"there is no namespace {path}",
            remedy=f"Check the path, or create the namespace: quire namespace create {path} (in "
            "Python, pass create=True)",
        )
    return Namespace(client, path, await inherited_settings(client, path), password)


async def _make(client: Client, path: str, settings: Mapping[str, Any]) -> None:
    """Create a namespace unless it exists, and add the settings to its own.

    On ZooKeeper the namespace is bound to the client's cluster, so that Java's tools find it.
    """
    check_new_path(path, client.metadata.uri)
    check_values(settings)
    tree = client.metadata.tree
    if settings:
        above = await inherited_settings(client, path)
        DEFAULTS.with_values({**above, **settings})  # check them before anything is created
    await tree.make_path(path)
    binding = binding_of(client)
    node = await tree.read(path)
    if binding and not node.value:
        try:
            await tree.commit(Put(path, binding, node.version))
        except VersionConflictError:
            pass  # another client created it at the same time
    await tree.make_path(f"{path}/{SETTINGS_NODE}")
    if settings:
        above = await inherited_settings(client, path.rpartition("/")[0])
        await add_settings(client, f"{path}/{SETTINGS_NODE}", settings, above)
