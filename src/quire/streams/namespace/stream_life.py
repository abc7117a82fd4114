"""The life of a stream, which distinguishes it from another stream with the same name.

The version of a node only counts the changes of that node. When a stream is deleted or renamed, and
another one is created under its name, the versions start again. A writer of the former stream could
then mistake the new versions for its own. Each life of a stream therefore has a node with a unique
name,

    NAMESPACE/.quire/lives/STREAM/ID

and every change by a writer checks that this node exists. Its value identifies the newest claim,
and its version changes with each claim and each truncation. The node is outside the stream, because
Java renames a stream only if it knows every node in it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from urllib.parse import quote

from quire.codec.distributedlog.name import StreamPaths
from quire.errors import (
    MetadataUnavailableError,
    NoSuchKeyError,
    NotEmptyError,
    VersionConflictError,
)
from quire.metadata.interface import ANY_VERSION
from quire.metadata.tree import Check, Create, Delete, Operation, Put, Tree

LIVES = ".quire/lives"
"""The path below a namespace that holds the lives of its streams."""
FIND_ATTEMPTS = 10

_numbers = itertools.count(1)


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
    return f"{tree.session_id:x}-{next(_numbers)}"


class StreamLives:
    """The lives of the streams that have one name."""

    def __init__(self, tree: Tree, paths: StreamPaths) -> None:
        self._tree = tree
        self._paths = paths
        self._directory = f"{paths.namespace}/{LIVES}/{quote(paths.name, safe='')}"

    async def begin(self) -> list[Operation]:
        """Return the operations that begin another life.

        They belong in the transaction that creates the stream. If it fails because a node is
        missing, call this again.
        """
        await self._tree.make_path(self._directory)
        # Java does not know these nodes, and leaves them when it deletes a stream.
        former: list[Operation] = [Delete(path) for path in await self._paths_known()]
        return [*former, Put(self._directory, b""), Create(self._new())]

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
            await self._tree.make_path(self._directory)
            try:
                before = (await self._tree.read(self._directory)).version
            except NoSuchKeyError:
                continue  # the directory was deleted just now
            if await self._paths_known():
                continue
            there = Check(self._paths.segments, ANY_VERSION)
            # Two clients that find no life at the same time must not begin two of them.
            alone = Put(self._directory, b"", before)
            try:
                await self._tree.commit(there, alone, Create(self._new()))
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
        """Delete the directory of the lives of this name if no life is left in it.

        A life that is in it may be that of another stream, which has the name by now. What another
        program left there is deleted when the next life begins.
        """
        try:
            await self._tree.commit(Delete(self._directory))
        except (NoSuchKeyError, NotEmptyError):
            pass

    async def _paths_known(self) -> list[str]:
        try:
            names = await self._tree.children(self._directory)
        except NoSuchKeyError:
            return []
        return [f"{self._directory}/{name}" for name in names]

    def _new(self) -> str:
        return f"{self._directory}/{unique(self._tree)}"
