"""Which data directories a bookie has, by the id that each was formatted with.

A cookie names paths. It fits the disk that was lost and comes back as well as the one that took its
place, and Apache's programs refuse a cookie with a field more. So the ids are kept beside it, in a
node that those do not look at, next to the orders (`bookie_orders`). A bookie that has none yet is
given one by its next start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from quire.metadata.base import MetadataStore, Versioned
from quire.metadata.bookie_nodes import delete_node, node_path, read_node, write_node

NODE = "quire-directories"
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
class BookieDirectories:
    ids: Mapping[str, str] = field(default_factory=dict)
    """By path, in hex. One that could not be read yet is not among them."""
    given_up: tuple[GivenUp, ...] = ()
    """Oldest first."""

    def encode(self) -> bytes:
        value = {"directories": self.ids, "given_up": [asdict(one) for one in self.given_up]}
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
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no directories of a bookie: {error!r}") from None
        return cls(ids, given_up)

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
        """With these directories and no others; none of them is given up any more."""
        kept = tuple(one for one in self.given_up if one.directory_id not in ids.values())
        return BookieDirectories(dict(ids), kept)

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
) -> None:
    """Create them (version None: `KeyExistsError` where there are some), or replace those with this
    version (`VersionConflictError`, `NoSuchKeyError`)."""
    await write_node(store, directories_path(store.uri, bookie_id), made.encode(), version)


async def forget_directories(store: MetadataStore, bookie_id: str) -> None:
    """Where there are none, that is success."""
    await delete_node(store, directories_path(store.uri, bookie_id))
