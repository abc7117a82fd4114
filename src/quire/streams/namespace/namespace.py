"""Namespaces: named sets of streams in one cluster, with settings that their streams inherit.

A namespace is a path of nodes ("/tenant/name"), bound to a cluster as DistributedLog does it, so
that Java's tools find it at `distributedlog://SERVERS/tenant/name`. Settings of a tenant stand at
the first part of the path, those of the namespace at the whole, those of a stream at the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from quire._runtime.former_names import deprecated
from quire._runtime.opening import Opening, open_or_closed, opening, represented
from quire._runtime.tasks import each
from quire.client import Client
from quire.client.client import end_with_client
from quire.codec.distributedlog.binding import NamespaceBinding
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.name import StreamPaths, is_reserved, stream_name
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import (
    ArgumentTypeError,
    ClientClosedError,
    MetadataURIError,
    NoSuchKeyError,
    NoSuchNamespaceError,
    QuireError,
    StreamEndedError,
    StreamExistsError,
    StreamQuotaError,
    UsageError,
    VersionConflictError,
    check_type,
)
from quire.metadata.tree import COMMIT_OPERATIONS_MAX, Create, Delete, Operation, Put
from quire.metadata.uri import VALUES_ROOT, Driver, parse_uri
from quire.streams.namespace.removal import delete_stream
from quire.streams.namespace.settings import (
    DEFAULTS,
    StreamSettings,
    check_values,
    current_names,
    decode_settings,
    encode_settings,
)
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.truncation import (
    free,
    retain,
    stored_bytes,
    truncate,
    would_free,
    would_retain,
)
from quire.streams.read.positions import EARLIEST, Start, check_position, check_start, find
from quire.streams.read.reader import OpeningReader, StreamReader
from quire.streams.read.subscriptions import Subscription
from quire.streams.write.lock import StreamLock
from quire.streams.write.segments import Segments
from quire.streams.write.takeover import take_over
from quire.streams.write.writer import StreamWriter
from quire.streams.write.writer_task import ByteBudget

SETTINGS_NODE = ".quire"
"""Below a tenant or a namespace. Names that begin with "." are hidden in listings, Java's too."""
STREAM_SETTINGS_NODE = "quire"
"""Below a stream's root."""
NESTED_DEPTH_MAX = 16
ALL_BUFFERED_BYTES_MAX = 64 * 1024 * 1024
"""Appended and not acknowledged, of all writers that were opened through one `Namespace`."""
BINDING_PREFIX = b"1\nBKDL\n"
"""Of the value of a node that is bound to a cluster."""


class Namespace:
    """A namespace of streams. Made by `Client.namespace`.

    It belongs to its client's event loop. `close` ends the writers that were opened through it and
    are still open (they are abandoned)."""

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
        self._closed = False
        self._budget = ByteBudget(ALL_BUFFERED_BYTES_MAX)
        self._writers: dict[StreamWriter, StreamLock | None] = {}
        """That are open, with the lock that each holds."""
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
        """Deprecated: use `client.namespace(path, create=True)`."""
        deprecated("Namespace.create(client, path)", "client.namespace(path, create=True)")
        return open_namespace(client, path, create=True, settings=settings, password=password)

    @classmethod
    def open(cls, client: Client, path: str, *, password: bytes = b"") -> Opening[Namespace]:
        """Deprecated: use `client.namespace(path)`."""
        deprecated("Namespace.open(client, path)", "client.namespace(path)")
        return open_namespace(client, path, password=password)

    def __repr__(self) -> str:
        return represented(self, open_or_closed(self._closed), path=self.path)

    @property
    def settings(self) -> StreamSettings:
        """What its streams inherit."""
        return DEFAULTS.with_values(self._values)

    @property
    def given_settings(self) -> dict[str, Any]:
        """Those that were given to the namespace or to one above it."""
        return dict(self._values)

    async def own_settings(self) -> dict[str, Any]:
        """Those that were given to the namespace itself."""
        return await _settings(self.client, f"{self.path}/{SETTINGS_NODE}")

    async def configure(self, settings: Mapping[str, Any]) -> None:
        """Add settings to the namespace's own; with None one is inherited again. Streams that are
        open keep what they have."""
        above = await _inherited(self.client, self.path.rpartition("/")[0])
        await self._tree.make_path(f"{self.path}/{SETTINGS_NODE}")
        await _add_settings(self.client, f"{self.path}/{SETTINGS_NODE}", settings, above)
        self._values = await _inherited(self.client, self.path)

    async def close(self) -> None:
        """Abandon the writers that are open, and release their locks."""
        await self._end(None)

    async def _client_closed(self, error: ClientClosedError) -> None:
        await self._end(error)

    async def _end(self, error: QuireError | None) -> None:
        """End what was opened through it. Writers raise `error` from now on; None: that they were
        abandoned."""
        self._closed = True
        writers = dict(self._writers)
        for writer in writers:
            writer._abandon(error)
        await each([lock for lock in writers.values() if lock], StreamLock.release)
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
        """StreamExistsError; StreamQuotaError (`streams_max`). Durable on return."""
        metadata = self.metadata(name)
        limit = self.settings.streams_max
        if limit and len(await self.streams()) >= limit:
            raise StreamQuotaError(
                f"namespace {self.path} may have {limit} streams: {name} was not created",
                remedy="Raise streams_max. If you cannot, delete a stream that nobody needs",
            )
        settings = current_names(settings or {})
        encoded = encode_settings(settings)
        DEFAULTS.with_values({**self._values, **settings})
        await metadata.create({STREAM_SETTINGS_NODE: encoded} if settings else {})

    async def streams(self, prefix: str = "") -> list[str]:
        """The names of all streams that begin so, sorted; nested ones ("a/b") too."""
        found: list[str] = []
        level = [""]
        for _ in range(NESTED_DEPTH_MAX):
            nested = await each(level, self._children)
            level = [name for names in nested for name in names]
            if not level:
                break
            exist = await each(level, lambda name: self.metadata(name).exists())
            found += [name for name, there in zip(level, exist) if there]
        return sorted(name for name in found if name.startswith(prefix))

    async def _children(self, above: str) -> list[str]:
        path = f"{self.path}/{above}" if above else self.path
        try:
            names = await self._tree.children(path)
        except NoSuchKeyError:
            return []
        return [f"{above}/{n}" if above else n for n in names if not is_reserved(n)]

    async def exists(self, name: str) -> bool:
        """Whether there is a stream of this name."""
        return await self.metadata(name).exists()

    async def stream_settings(self, name: str) -> StreamSettings:
        """All of them: the stream's own, and what it inherits."""
        paths = self.metadata(name).paths
        own = await _settings(self.client, f"{paths.root}/{STREAM_SETTINGS_NODE}")
        return DEFAULTS.with_values({**self._values, **own})

    async def own_stream_settings(self, name: str) -> dict[str, Any]:
        """Those that were given to the stream itself."""
        root = self.metadata(name).paths.root
        return await _settings(self.client, f"{root}/{STREAM_SETTINGS_NODE}")

    async def configure_stream(self, name: str, settings: Mapping[str, Any]) -> None:
        """Add to the stream's own settings; with None one is inherited again. A writer that is open
        keeps what it has."""
        metadata = self.metadata(name)
        node = f"{metadata.paths.root}/{STREAM_SETTINGS_NODE}"
        await metadata.make_below(node)
        await _add_settings(self.client, node, settings, self._values)

    async def segments(self, name: str) -> list[StreamSegment]:
        """NoSuchStreamError."""
        return await self.metadata(name).segments()

    async def delete_stream(self, name: str) -> None:
        """Delete the stream with all its ledgers: whoever writes it is fenced first (as far as
        bookies answer), readers get NoSuchStreamError. Streams nested below its name stay. A
        missing stream is success. After an error some of it is left: call it again."""
        await delete_stream(self.client, self.metadata(name), self.password)

    async def rename_stream(self, name: str, new_name: str) -> None:
        """Rename a stream. Everything moves in one transaction, including settings and
        subscriptions.

        An open writer is fenced. Raises StreamExistsError and NoSuchStreamError. Raises
        RecoveryError if the last records of that writer cannot be recovered now. Raises UsageError
        if the stream has too many nodes for one transaction (about 490 segments); then nothing has
        changed.
        """
        metadata, target = self.metadata(name), self.metadata(new_name)
        if await target.exists():
            raise StreamExistsError(f"stream {new_name} exists already")
        await metadata.require()
        nodes = await self._count_nodes(metadata.paths.root)
        if 2 * nodes > COMMIT_OPERATIONS_MAX:  # before its writer is fenced
            raise UsageError(
                f"stream {name} has {nodes:,} nodes, and all of them have to move in one "
                f"transaction of at most {COMMIT_OPERATIONS_MAX:,} operations. Nothing was "
                "changed",
                remedy="Truncate the stream, so that it has fewer segments",
            )
        try:
            # Completes what is in progress: its writer would go on in the ledger otherwise.
            await take_over(self.client, metadata, self.password)
        except StreamEndedError:
            pass
        await self._tree.make_path(target.paths.stream)
        life = await metadata.life()  # before the nodes that a truncation makes anew
        creates, deletes = await self._moves(metadata.paths, target.paths.root)
        creates += await target.lives.begin()
        await self._tree.commit(Delete(life.path, life.version), *creates, *reversed(deletes))
        await metadata.remove_markers()
        await metadata.lives.clear()

    async def _count_nodes(self, path: str) -> int:
        names = await self._tree.children(path)
        return 1 + sum([await self._count_nodes(f"{path}/{name}") for name in names])

    async def _moves(
        self, paths: StreamPaths, target: str, below: str = ""
    ) -> tuple[list[Operation], list[Operation]]:
        source = paths.root + below
        node = await self._tree.read(source)
        creates: list[Operation] = [Create(target + below, node.value)]
        deletes: list[Operation] = [Delete(source, node.version)]
        for name in await self._tree.children(source):
            if paths.holds_lock_members(source):
                # They belong to a session, and to the writer or reader of the old name.
                deletes.append(Delete(f"{source}/{name}"))
                continue
            more = await self._moves(paths, target, f"{below}/{name}")
            creates += more[0]
            deletes += more[1]
        return creates, deletes

    # -- reading and writing ------------------------------------------------------------------

    @opening
    async def open_writer(
        self, name: str, *, create: bool = False, lock: float | None = None
    ) -> StreamWriter:
        """Become the writer of a stream: whoever was it before is out. What that one had
        acknowledged is in the stream, and completed, before this returns.

        With `create` a missing stream is made. `lock`: first wait so many seconds for the stream's
        lock, which Java's writers hold and wait for, and hold it until the writer ends. Without it
        nobody is waited for. A writer that loses the lock, because its session has ended, goes on
        until another one opens the stream: not the lock decides, but fencing.

        Raises NoSuchStreamError, StreamEndedError, StreamLockedError (somebody else has the lock),
        StreamFencedError (yet another writer came), RecoveryError (too few bookies answer: nothing
        is lost, try again).
        """
        metadata = self.metadata(name)
        if lock is not None and not isinstance(lock, int | float):
            raise ArgumentTypeError(f"lock is a number of seconds, not {type(lock).__name__}")
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
        await held.acquire(lock)
        try:
            return await self._open_writer(metadata, held)
        except BaseException:
            await held.release()
            raise

    async def _open_writer(
        self, metadata: StreamMetadata, lock: StreamLock | None = None
    ) -> StreamWriter:
        settings = await self.stream_settings(metadata.paths.name)
        taken = await take_over(self.client, metadata, self.password)
        held_bytes = 0
        if settings.bytes_max:
            held_bytes = await stored_bytes(self.client, taken.segments)
        segments = Segments(
            self.client, metadata, settings, taken, self._tasks,
            password=self.password, stored_bytes=held_bytes, lock=lock,
        )  # fmt: skip
        segments.prepare()
        writer = StreamWriter(segments, settings, self.client.clock, self._tasks, self._budget)
        self._writers[writer] = lock
        writer.on_end(lambda: self._ended(writer))
        return writer

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
        """A reader from `start` on: to before `end`, or to what is acknowledged when it gets there;
        with `follow`, on and on. NoSuchStreamError.

        `async for record in streams.open_reader(name)` reads without a handle of its own."""

        async def opened() -> StreamReader:
            metadata = self.metadata(name)
            await metadata.require()
            return StreamReader(
                self.client, metadata, start=start, end=end, follow=follow, on_gap=on_gap,
                password=self.password,
            )  # fmt: skip

        return OpeningReader(opened, "open_reader")

    async def find(self, name: str, start: Start) -> DLSN:
        """The position that `start` means now."""
        check_start(start)
        segments = await self.metadata(name).segments()
        return await find(self.client, segments, start, self.password)

    def subscription(self, name: str, subscriber: str) -> Subscription:
        """The stored position of a named reader."""
        return Subscription(self.metadata(name), subscriber)

    async def subscriptions(self, name: str) -> list[str]:
        """The names of the readers that keep their positions with the stream, sorted."""
        metadata = self.metadata(name)
        await metadata.require()
        try:
            return await self._tree.children(metadata.paths.subscribers)
        except NoSuchKeyError:
            return []

    # -- giving up the beginning --------------------------------------------------------------

    async def truncate(
        self, name: str, before: DLSN, *, dry_run: bool = False
    ) -> list[StreamSegment]:
        """Give up every record before this position, and free the ledgers that hold nothing else:
        the segments that went. Readers that come there get a StreamGapError. The segment that is
        being written is left alone: what lies in it is given up by a later call (or roll first).
        `dry_run`: only say which would go."""
        metadata = self.metadata(name)
        check_position(before)
        if dry_run:
            return await would_free(self.client, metadata, before)
        await truncate(metadata, before)
        return await free(self.client, metadata)

    async def retain(self, name: str, *, dry_run: bool = False) -> list[StreamSegment]:
        """Apply the stream's retention now (writers do when they roll); the segments that went.
        `dry_run`: only say which would go."""
        apply = would_retain if dry_run else retain
        return await apply(self.client, self.metadata(name), await self.stream_settings(name))

    def metadata(self, name: str) -> StreamMetadata:
        return StreamMetadata(self.client, StreamPaths(self.path, stream_name(name)))


@opening
async def open_namespace(
    client: Client,
    path: str,
    *,
    create: bool = False,
    settings: Mapping[str, Any] | None = None,
    password: bytes = b"",
) -> Namespace:
    """Open a namespace. See `quire.Client.namespace`."""
    path = namespace_path(path)
    check_type("a password", password, bytes)
    if create:
        await _make(client, path, current_names(settings or {}))
    elif settings:
        raise UsageError(
            "settings are given to a namespace when it is created",
            remedy="Say create=True, or use `configure` on the open namespace",
        )
    tree = client.metadata.tree
    bound = await _check_binding(client, path)
    if not bound and not await tree.exists(f"{path}/{SETTINGS_NODE}"):
        raise NoSuchNamespaceError(
            f"there is no namespace {path}",
            remedy=f"Make it: quire namespace create {path} (in Python, open it with create=True)",
        )
    return Namespace(client, path, await _inherited(client, path), password)


async def _make(client: Client, path: str, settings: Mapping[str, Any]) -> None:
    """Make a namespace, unless it exists, and add the settings to its own. On ZooKeeper it is bound
    to the client's cluster, so that Java's tools find it."""
    check_new_path(path, client.metadata.uri)
    check_values(settings)
    tree = client.metadata.tree
    if settings:
        above = await _inherited(client, path)
        DEFAULTS.with_values({**above, **settings})  # before anything is made
    await tree.make_path(path)
    binding = _binding(client)
    node = await tree.read(path)
    if binding and not node.value:
        try:
            await tree.commit(Put(path, binding, node.version))
        except VersionConflictError:
            pass  # somebody else made it in the same moment
    await tree.make_path(f"{path}/{SETTINGS_NODE}")
    if settings:
        above = await _inherited(client, path.rpartition("/")[0])
        await _add_settings(client, f"{path}/{SETTINGS_NODE}", settings, above)


def namespace_path(path: str) -> str:
    """Checked: absolute, without a slash at the end. UsageError."""
    check_type("the path of a namespace", path, str)
    parts = path.strip("/").split("/")
    try:
        for part in parts:
            stream_name(part)
    except UsageError as error:
        raise UsageError(f"{path!r} cannot be a namespace: {error.args[0]}") from None
    return "/" + "/".join(parts)


def check_new_path(path: str, uri: str) -> None:
    """Raise UsageError for a namespace path that would be among other nodes: those of ZooKeeper, of
    Quire, or of the ledgers of the cluster at `uri`."""
    try:
        ledgers = parse_uri(uri).root
    except MetadataURIError:
        ledgers = ""
    for taken in ("/zookeeper", VALUES_ROOT, ledgers):
        if taken and f"{path}/".startswith(f"{taken}/"):
            raise UsageError(
                f"{path!r} cannot be a namespace: {taken} is used for other data",
                remedy="Choose another path, for example /team/orders",
            )


def _binding(client: Client) -> bytes:
    try:
        where = parse_uri(client.metadata.uri)
    except MetadataURIError:
        return b""
    if where.driver is not Driver.ZOOKEEPER:
        return b""
    return NamespaceBinding.of_one(",".join(where.servers), where.root).to_bytes()


async def _check_binding(client: Client, path: str) -> bool:
    """Whether the path or one above it is bound (DistributedLog spec, 2.1). UsageError where the
    binding leads to what this client cannot see."""
    parts = path.split("/")
    for depth in range(len(parts), 1, -1):
        try:
            node = await client.metadata.tree.read("/".join(parts[:depth]))
        except NoSuchKeyError:
            continue
        if node.value.startswith(BINDING_PREFIX):
            break
    else:
        return False
    where = parse_uri(client.metadata.uri)
    binding = NamespaceBinding.from_bytes(node.value, ",".join(where.servers))
    if binding.federated:
        raise UsageError(
            f"namespace {path} is federated: its streams are spread over others, which Quire does "
            "not follow",
            remedy="Use a namespace that is not federated",
        )
    if binding.ledgers_root.rstrip("/") != where.root:
        raise UsageError(
            f"namespace {path} keeps its ledgers at {binding.ledgers_root}, not at {where.root}",
            remedy=f"Connect to the cluster at {binding.ledgers_root}",
        )
    return True


async def _settings(client: Client, path: str) -> dict[str, Any]:
    try:
        return decode_settings((await client.metadata.tree.read(path)).value, path)
    except NoSuchKeyError:
        return {}


async def _inherited(client: Client, path: str) -> dict[str, Any]:
    """What was given to the namespace and to those above it."""
    values: dict[str, Any] = {}
    parts = path.split("/")
    for depth in range(2, len(parts) + 1):
        values |= await _settings(client, "/".join(parts[:depth]) + f"/{SETTINGS_NODE}")
    return values


async def _add_settings(
    client: Client, path: str, values: Mapping[str, Any], inherited: Mapping[str, Any]
) -> None:
    """UsageError for what cannot be, together with what is inherited."""
    tree = client.metadata.tree
    values = current_names(values)
    check_values({n: getattr(DEFAULTS, n, v) if v is None else v for n, v in values.items()})
    while True:
        node = await tree.read(path)
        merged = {**decode_settings(node.value, path), **values}
        merged = {name: value for name, value in merged.items() if value is not None}
        DEFAULTS.with_values({**inherited, **merged})
        try:
            await tree.commit(Put(path, encode_settings(merged), node.version))
            return
        except VersionConflictError:
            continue  # somebody else has changed them: ours are added to theirs
