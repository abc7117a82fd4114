"""What tells a stream from another one that had, or gets, the same name.

A version tells about changes of one node: where a stream is deleted or renamed, and another of its
name is made, versions begin anew, and a writer of the former one could take them for its own. So
each life of a stream has a node with a name that no other ever has,

    NAMESPACE/.quire/lives/STREAM/ID

and every change of a writer checks that it is there. Its value says whose the newest claim is, its
version changes with each claim and each truncation. It stands outside the stream, because Java
renames only streams in which it knows every node.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from urllib.parse import quote

from quire.codec.distributedlog.name import StreamPaths
from quire.errors import NoSuchKeyError, NotEmptyError, VersionConflictError
from quire.metadata.interface import ANY_VERSION
from quire.metadata.tree import Check, Create, Delete, Operation, Put, Tree

LIVES = ".quire/lives"
"""Below a namespace."""
FIND_ATTEMPTS = 10

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class StreamLife:
    path: str
    value: bytes
    version: int

    @property
    def id(self) -> str:
        """The id that no other life of any stream has."""
        return self.path.rpartition("/")[2]


def unique(tree: Tree) -> str:
    """A name that nobody else has."""
    return f"{tree.session_id:x}-{next(_numbers)}"


class StreamLives:
    """Of one name of a stream."""

    def __init__(self, tree: Tree, paths: StreamPaths) -> None:
        self._tree = tree
        self._paths = paths
        self._directory = f"{paths.namespace}/{LIVES}/{quote(paths.name, safe='')}"

    async def begin(self) -> list[Operation]:
        """What begins another life, as part of the transaction that makes the stream. Where that
        fails because a node is missing, this has to be asked again."""
        await self._tree.make_path(self._directory)
        # Java deletes a stream, and does not know of these.
        former: list[Operation] = [Delete(path) for path in await self._paths_known()]
        return [*former, Put(self._directory, b""), Create(self._new())]

    async def find(self) -> StreamLife:
        """The present one; begun where there is none, because others have made the stream.
        NoSuchKeyError: there is no stream."""
        for _ in range(FIND_ATTEMPTS):
            for path in await self._paths_known():
                try:
                    found = await self._tree.read(path)
                except NoSuchKeyError:
                    continue  # it has just ended
                return StreamLife(path, found.value, found.version)
            await self._tree.make_path(self._directory)
            try:
                before = (await self._tree.read(self._directory)).version
            except NoSuchKeyError:
                continue  # it was cleared just now
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
        raise NoSuchKeyError(f"the life of stream {self._paths.name} changes all the time")

    async def clear(self) -> None:
        """Of a stream that is no more: what is left of these."""
        for path in await self._paths_known():
            await self._delete(path)
        await self._delete(self._directory)

    async def _paths_known(self) -> list[str]:
        try:
            names = await self._tree.children(self._directory)
        except NoSuchKeyError:
            return []
        return [f"{self._directory}/{name}" for name in names]

    def _new(self) -> str:
        return f"{self._directory}/{unique(self._tree)}"

    async def _delete(self, path: str) -> None:
        try:
            await self._tree.commit(Delete(path))
        except (NoSuchKeyError, NotEmptyError):
            pass
