"""The life of a stream, which distinguishes it from another stream with the same name.

The version of a node only counts the changes of that node. When a stream is deleted or renamed, and
another one is created under its name, the versions start again. A writer of the former stream could
then mistake the new versions for its own. Each life of a stream therefore has a node with a unique
name,

    NAMESPACE/.quire/lives/STREAM/ID

and every change by a writer checks that this node exists. Its value identifies the newest claim,
and its version changes with each claim and each truncation. The node is outside the stream, because
Java renames a stream only if it knows every node in it.

The stream "eu" of the namespace "/team/orders" is the stream "orders/eu" of "/team", too. It has
one life, whichever of its names a client uses: in the nearest namespace that Quire knows when the
life begins. A life is looked for in all namespaces that the stream may be in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from quire._runtime.names.process_numbers import process_number
from quire.codec.distributedlog.name import HIDDEN, StreamPaths
from quire.errors import (
    MetadataDeniedError,
    MetadataUnavailableError,
    NoSuchKeyError,
    NotEmptyError,
    VersionConflictError,
)
from quire.metadata.interface import ANY_VERSION
from quire.metadata.tree import Check, Create, Delete, Operation, Put, Tree

LIVES = f"{HIDDEN}/lives"
"""The path below a namespace that holds the lives of its streams."""
FIND_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class StreamLife:
    """The node that identifies one stream among all that ever had its name, as it was read."""

    path: str
    value: bytes
    version: int

    @property
    def id(self) -> str:
        """The id, which no other life of any stream has."""
        return self.path.rpartition("/")[2]


def unique(tree: Tree) -> str:
    """Return a name that no other call returns, in this session or in another one."""
    return f"{tree.session_id:x}-{process_number()}"


class StreamLives:
    """The lives of the streams that have one path."""

    def __init__(self, tree: Tree, paths: StreamPaths) -> None:
        self._tree = tree
        self._paths = paths
        self._directories = dict(_directories(paths.stream))
        """The directories in which the life may be, by their namespaces, the nearest first."""
        self._found_in: str | None = None
        """The directory in which a life was last found, or None. There is rarely another one."""

    async def begin(self) -> list[Operation]:
        """Return the operations that begin another life.

        They belong in the transaction that creates the stream. If it fails because a node is
        missing, call this again.
        """
        home = await self._home()
        # Java does not know these nodes, and leaves them when it deletes a stream.
        former: list[Operation] = [
            Delete(path)
            for directory in self._directories.values()
            for path in await self._paths_in(directory)
        ]
        return [*former, Put(home, b""), Create(self._new(home))]

    async def find(self) -> StreamLife:
        """Return the current life of the stream.

        If there is none, because another program created the stream, begin one.

        Raises NoSuchKeyError if there is no stream, and MetadataUnavailableError if others changed
        it too often meanwhile.
        """
        for _ in range(FIND_ATTEMPTS):
            for path in await self._paths_known():
                try:
                    found = await self._tree.read(path)
                except NoSuchKeyError:
                    continue  # this life has just ended
                return StreamLife(path, found.value, found.version)
            home = await self._home()
            try:
                before = (await self._tree.read(home)).version
            except NoSuchKeyError:
                continue  # the directory was deleted just now
            root = await self._tree.read(self._paths.root)
            if await self._paths_known():
                continue
            there = Check(self._paths.segments, ANY_VERSION)
            # Two clients that find no life at the same time must not begin two of them, even in the
            # directories of two namespaces. Former versions change only the directory.
            alone = [Put(home, b"", before), Put(self._paths.root, root.value, root.version)]
            try:
                await self._tree.commit(there, *alone, Create(self._new(home)))
            except VersionConflictError:
                continue
            except NoSuchKeyError:
                if not await self._tree.exists(self._paths.segments):
                    raise
        raise MetadataUnavailableError(
            f"the identity of stream {self._paths.name} could not be read: other clients changed "
            f"it during each of {FIND_ATTEMPTS} attempts",
            remedy="Try again",
        )

    async def clear(self) -> None:
        """Delete the directories of the lives of this stream in which no life is left.

        A directory in which there is a life is kept, because it may belong to another stream, which
        has the path by now. What another program left there is deleted when the next life begins.
        """
        for directory in self._directories.values():
            try:
                await self._tree.commit(Delete(directory))
            except (NoSuchKeyError, NotEmptyError, MetadataDeniedError):
                pass

    async def _home(self) -> str:
        """Return the directory for a life that begins now, which this call creates.

        The node `.quire` of this client's namespace is created as well.
        """
        own = self._directories[self._paths.namespace]
        await self._tree.make_path(own.rpartition("/")[0])
        home = own
        for namespace, directory in self._directories.items():
            if directory == own or await self._tree.exists(f"{namespace}/{HIDDEN}"):
                home = directory
                break
        await self._tree.make_path(home)
        return home

    async def _paths_known(self) -> list[str]:
        """Return the paths of the lives in the first directory that has any."""
        first = self._found_in
        order = [directory for directory in self._directories.values() if directory != first]
        for directory in order if first is None else [first, *order]:
            found = await self._paths_in(directory)
            if found:
                self._found_in = directory
                return found
        return []

    async def _paths_in(self, directory: str) -> list[str]:
        try:
            names = await self._tree.children(directory)
        except NoSuchKeyError:
            return []
        except MetadataDeniedError:
            if directory == self._directories[self._paths.namespace]:
                raise
            return []  # the namespace belongs to others
        return [f"{directory}/{name}" for name in names]

    def _new(self, directory: str) -> str:
        return f"{directory}/{unique(self._tree)}"


def names_of(stream: str) -> Iterator[tuple[str, str]]:
    """Yield each namespace that the stream at this path may be in, with its name there.

    The nearest namespace comes first.
    """
    parts = stream.strip("/").split("/")
    for length in range(len(parts) - 1, 0, -1):
        yield "/" + "/".join(parts[:length]), "/".join(parts[length:])


def _directories(stream: str) -> Iterator[tuple[str, str]]:
    """Yield these namespaces, each with the directory in which it has the life of the stream."""
    for namespace, name in names_of(stream):
        yield namespace, f"{namespace}/{LIVES}/{quote(name, safe='')}"
