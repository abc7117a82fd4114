"""The record of a bookie's data directories, by the id with which each was formatted.

A cookie names paths. It therefore cannot distinguish a lost disk that comes back from the disk that
replaced it. The ids cannot be added to the cookie, because Apache's programs refuse a cookie with
an additional field. They are stored in a node of their own that Apache's programs do not read. A
bookie without such a node creates it at its next start.

Each id has a mark: the number of times that the directory was started, and the end of its log when
the bookie last reported it. A directory whose log ends before its mark went back in time. The node
survives the removal of the cookie: while it exists, a bookie that starts with this bookie id on an
empty directory has lost everything, and is not new. The node is deleted only for a bookie that no
ledger names (`forget_bookie`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from quire.codec.metadata.stored_json import stored_json
from quire.errors import NoSuchKeyError, VersionConflictError
from quire.metadata.bookies.damage_notes import forget_damage
from quire.metadata.bookies.nodes import (
    delete_node,
    node_path,
    read_node,
    refuse_later,
    write_node,
)
from quire.metadata.bookies.start_commands import forget_start_command
from quire.metadata.interface import MetadataStore, Versioned

NODE = "quire-directories"
FORGET_ATTEMPTS = 5
"""The number of attempts to delete a record that its bookie still updates."""
GIVEN_UP_MAX = 64
"""The number of directories of one bookie that are remembered as given up. The newest are kept. An
older one counts only as a directory that does not belong to the bookie."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A directory that the bookie does not use any more."""

    directory_id: str
    path: str
    successor: str
    """The id of the directory that replaced it, or '' if it was removed without a replacement."""
    since_ms: int


@dataclass(frozen=True, slots=True)
class LogMark:
    """The state of one directory as its bookie last reported it."""

    incarnation: int
    """The number of times that the directory was started."""
    nonce: str = ""
    """A random value that the last start wrote into the directory. A mark that only records a loss
    has "", which differs from the value in any directory."""
    newest_file: int = 0
    """The highest number among the segment files of the directory's log."""
    end_group: int = 0
    """The number of the group that follows the last synced group of the log."""
    lost: str = ""
    """The reason why the directory counts as lost, or "" if it does not. The bookie clears the
    reason once it has started with the directory counted as lost."""


_WHAT = "the record of a bookie's directories"
_NAMES = ("directories", "given_up", "marks")
_GIVEN_UP_NAMES = tuple(one.name for one in fields(GivenUp))
_MARK_NAMES = tuple(one.name for one in fields(LogMark))


@dataclass(frozen=True, slots=True)
class BookieDirectories:
    """The record of a bookie's data directories, as the metadata store has it."""

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
        """Decode the value of a record.

        Raises:
            LaterMetadataError: A later version of Quire wrote the value.
            ValueError: The value is not a record of directories.
        """
        try:
            value = stored_json(data)
            refuse_later(_WHAT, value, _NAMES)
            for one in value["given_up"]:
                refuse_later(_WHAT, one, _GIVEN_UP_NAMES)
            for one in value.get("marks", {}).values():
                refuse_later(_WHAT, one, _MARK_NAMES)
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
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"it is not the record of a bookie's directories ({error!r})"
            ) from None
        return cls(ids, given_up, marks)

    def path_of(self, directory_id: str) -> str | None:
        """Return the path at which the bookie has this directory, or None."""
        return next((path for path, one in self.ids.items() if one == directory_id), None)

    def left(self, directory_id: str) -> GivenUp | None:
        """Return the record of how the directory was given up, or None if it was not given up."""
        return next((one for one in self.given_up if one.directory_id == directory_id), None)

    def successor(self, directory_id: str) -> str:
        """Return the id of the directory that the bookie now has instead of one that was given up.

        Return '' if there is none, or if it is unknown.
        """
        for one in self.given_up:  # oldest first, so a successor comes after what it replaced
            if one.directory_id == directory_id:
                directory_id = one.successor
        return directory_id if self.path_of(directory_id) is not None else ""

    def having(self, ids: Mapping[str, str]) -> BookieDirectories:
        """Return the record with the directories in `ids`, and no others, in use.

        `ids` maps paths to directory ids. A directory that was given up before is in use again. It
        lacks the entries that its bookie stored since then, so it is marked as lost.
        """
        kept = tuple(one for one in self.given_up if one.directory_id not in ids.values())
        named = {*ids.values(), *(one.directory_id for one in kept)}
        marks = {one: mark for one, mark in self.marks.items() if one in named}
        made = BookieDirectories(dict(ids), kept, marks)
        back = [one.directory_id for one in self.given_up if one.directory_id in ids.values()]
        return made.with_lost(back, "was given up, and was taken back by force")

    def with_lost(self, directory_ids: Iterable[str], why: str) -> BookieDirectories:
        """Return the record with these directories marked as lost until their next start."""
        marks = dict(self.marks)
        for one in directory_ids:
            before = marks.get(one, LogMark(0))
            marks[one] = LogMark(before.incarnation + 1, lost=why)
        return replace(self, marks=marks)

    def without(
        self, path: str, ids: Iterable[str], successor: str, now_ms: int
    ) -> BookieDirectories:
        """Return the record without the directory at `path`, which is given up.

        Args:
            path: The path of the directory.
            ids: The directory ids that were found at the path, which are given up as well. An ''
                among them is ignored.
            successor: The id of the directory that replaces it, or '' if none does.
            now_ms: The present time, in milliseconds since 1970.
        """
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
    """Return the record of a bookie, or None if it has none yet.

    Raises:
        MetadataError: The record cannot be decoded, or the store does not answer.
    """
    path = directories_path(store.uri, bookie_id)
    return await read_node(store, path, BookieDirectories.decode)


async def write_directories(
    store: MetadataStore, bookie_id: str, made: BookieDirectories, version: int | None
) -> int:
    """Write `made` as the record of the bookie, and return its new version.

    With None as `version`, the record is created. Otherwise it replaces the record that has this
    version.

    Raises:
        KeyExistsError: The version is None, and the bookie has a record.
        VersionConflictError: The record's version is not `version`.
        NoSuchKeyError: There is no record to replace.
        MetadataError: The store fails.
    """
    return await write_node(store, directories_path(store.uri, bookie_id), made.encode(), version)


async def forget_bookie(
    store: MetadataStore, bookie_id: str, directories: Collection[str] | None = None
) -> None:
    """Delete the record of a bookie that no ledger names and that has no cookie, its notes about
    damage, and its start command.

    The next bookie with this id is then a new one. If another process has created such a bookie in
    the meantime, everything is kept. The record is also kept if its bookie still updates it during
    `FORGET_ATTEMPTS` attempts.

    Args:
        store: The metadata store.
        bookie_id: The id of the bookie.
        directories: The ids of the bookie's directories before its cookie was removed, or None if
            it was removed just now. A record with other directories only is that of a later bookie.

    Raises:
        MetadataError: The record cannot be decoded, or the store fails.
    """
    found = await read_directories(store, bookie_id)
    ids = None if found is None else found.value.ids
    if ids and directories is not None and set(directories).isdisjoint(ids.values()):
        return
    if await _has_cookie(store, bookie_id):
        return
    await forget_damage(store, bookie_id)
    await forget_start_command(store, bookie_id)
    for _ in range(FORGET_ATTEMPTS):
        if found is None or found.value.ids != ids:
            return
        try:
            await delete_node(store, directories_path(store.uri, bookie_id), found.version)
            return
        except VersionConflictError:  # the bookie, which is stopping, reported its log once more
            found = await read_directories(store, bookie_id)


async def _has_cookie(store: MetadataStore, bookie_id: str) -> bool:
    try:
        await store.read_cookie(bookie_id)
    except NoSuchKeyError:
        return False
    return True
