"""The data directories of a bookie, by the id that each was formatted with.

A cookie names paths, so it cannot distinguish a lost disk that comes back from the disk that
replaced it. Apache's programs refuse a cookie with an additional field. So the ids are stored in a
separate node that Apache's programs do not read, next to the orders (`bookie_orders`). A bookie
without such a node creates it at its next start.

Each id has a mark: the number of times the directory was started, and how far its log had got when
the bookie last reported it. A directory that is behind its mark went back in time. The node
survives the removal of the cookie: a bookie that starts on an empty directory with this id is not
new, but has lost everything. The node is only deleted for a bookie that no ledger names
(`forget_bookie`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from quire.errors import VersionConflictError
from quire.metadata.bookies.nodes import delete_node, node_path, read_node, write_node
from quire.metadata.interface import MetadataStore, Versioned

NODE = "quire-directories"
FORGET_ATTEMPTS = 5
GIVEN_UP_MAX = 64
"""Directories of one bookie that are remembered as given up: the newest. Of an older one it is only
known that it is none of those that the bookie has."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    directory_id: str
    path: str
    successor: str
    """Id of the one that took its place; '': none did, it was taken away."""
    since_ms: int


@dataclass(frozen=True, slots=True)
class LogMark:
    """The state of one directory as its bookie last reported it."""

    incarnation: int
    """The number of its last start."""
    nonce: str = ""
    """A random value of that start; "" if no directory has one."""
    newest_file: int = 0
    """The highest number of a segment file."""
    end_group: int = 0
    """The number of the group that follows the last synced one."""
    lost: str = ""
    """The reason why the directory counts as lost, until it was started as such; "" if it does
    not."""


@dataclass(frozen=True, slots=True)
class BookieDirectories:
    ids: Mapping[str, str] = field(default_factory=dict)
    """The id of each directory in hex, by path. A directory that could not be read yet is not
    included."""
    given_up: tuple[GivenUp, ...] = ()
    """The directories that were given up, oldest first."""
    marks: Mapping[str, LogMark] = field(default_factory=dict)
    """The mark of each directory, by directory id. A directory that only earlier versions have
    started has none."""

    def encode(self) -> bytes:
        value: dict[str, object] = {
            "directories": self.ids,
            "given_up": [asdict(one) for one in self.given_up],
        }
        if self.marks:
            value["marks"] = {one: asdict(mark) for one, mark in self.marks.items()}
        return json.dumps(value).encode()

    @classmethod
    def decode(cls, data: bytes) -> BookieDirectories:
        """`ValueError` if it is none."""
        value = json.loads(data)
        try:
            ids = {str(path): str(one) for path, one in value["directories"].items()}
            given_up = tuple(
                GivenUp(
                    str(one["directory_id"]), str(one["path"]), str(one["successor"]),
                    int(one["since_ms"]),
                )
                for one in value["given_up"]
            )  # fmt: skip
            marks = {
                str(name): LogMark(
                    int(one["incarnation"]), str(one["nonce"]), int(one["newest_file"]),
                    int(one["end_group"]), str(one["lost"]),
                )
                for name, one in value.get("marks", {}).items()
            }  # fmt: skip
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no directories of a bookie: {error!r}") from None
        return cls(ids, given_up, marks)

    def path_of(self, directory_id: str) -> str | None:
        """Where the bookie has it; None: it has not."""
        return next((path for path, one in self.ids.items() if one == directory_id), None)

    def left(self, directory_id: str) -> GivenUp | None:
        """How it was given up, if it was."""
        return next((one for one in self.given_up if one.directory_id == directory_id), None)

    def successor(self, directory_id: str) -> str:
        """What the bookie has in the place of one that was given up; '': nothing, or unknown."""
        for one in self.given_up:  # oldest first: whatever took a place was given up later
            if one.directory_id == directory_id:
                directory_id = one.successor
        return directory_id if self.path_of(directory_id) is not None else ""

    def having(self, ids: Mapping[str, str]) -> BookieDirectories:
        """Return the same with exactly these directories, none of which is given up any more.

        A directory that was given up lacks the entries that its bookie stored since, so it is
        marked as lost.
        """
        kept = tuple(one for one in self.given_up if one.directory_id not in ids.values())
        named = {*ids.values(), *(one.directory_id for one in kept)}
        marks = {one: mark for one, mark in self.marks.items() if one in named}
        made = BookieDirectories(dict(ids), kept, marks)
        back = [one.directory_id for one in self.given_up if one.directory_id in ids.values()]
        return made.with_lost(back, "was given up, and was taken back by force")

    def with_lost(self, directory_ids: Iterable[str], why: str) -> BookieDirectories:
        """Return the same with these directories marked as lost until their next start."""
        marks = dict(self.marks)
        for one in directory_ids:
            before = marks.get(one, LogMark(0))
            marks[one] = LogMark(before.incarnation + 1, lost=why)
        return replace(self, marks=marks)

    def without(
        self, path: str, ids: Iterable[str], successor: str, now_ms: int
    ) -> BookieDirectories:
        """What was at `path` is given up: the directory that is known to be there, and `ids`, which
        were found there ('' for none)."""
        gone = dict.fromkeys(filter(None, (self.ids.get(path, ""), *ids)))
        kept = [one for one in self.given_up if one.directory_id not in gone]
        kept += [GivenUp(one, path, successor, now_ms) for one in gone]
        ids_left = {at: one for at, one in self.ids.items() if at != path}
        return replace(self, ids=ids_left, given_up=tuple(kept[-GIVEN_UP_MAX:]))


def directories_path(uri: str, bookie_id: str) -> str:
    return node_path(uri, NODE, bookie_id)


async def read_directories(
    store: MetadataStore, bookie_id: str
) -> Versioned[BookieDirectories] | None:
    """None: nobody has said yet. MetadataError for what cannot be understood."""
    path = directories_path(store.uri, bookie_id)
    return await read_node(store, path, BookieDirectories.decode)


async def write_directories(
    store: MetadataStore, bookie_id: str, made: BookieDirectories, version: int | None
) -> int:
    """Create the record (version None), or replace the one with this version. Returns the new
    version.

    Raises KeyExistsError if there is a record already, VersionConflictError, and NoSuchKeyError.
    """
    return await write_node(store, directories_path(store.uri, bookie_id), made.encode(), version)


async def forget_bookie(store: MetadataStore, bookie_id: str) -> None:
    """Delete the record of a bookie that no ledger names and that has no cookie: the next bookie
    with this id is a new one. Keeps the record if another process has started such a bookie
    meanwhile."""
    found = await read_directories(store, bookie_id)
    ids = None if found is None else found.value.ids
    for _ in range(FORGET_ATTEMPTS):
        if found is None or found.value.ids != ids:
            return
        try:
            await delete_node(store, directories_path(store.uri, bookie_id), found.version)
            return
        except VersionConflictError:  # the ending bookie has reported its log once more
            found = await read_directories(store, bookie_id)
