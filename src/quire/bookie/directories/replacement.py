"""The checks that `quire bookie disk replace` and `remove` make before they change anything.

They decide whether a directory counts as lost, what may take its place, and whether a directory may
be removed without a successor. The writes that follow, and their order, are in `lost_directory`.

The bookie is stopped, and its directories stay locked until everything is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from quire._runtime.names.in_commands import command_with
from quire._runtime.units import are, counted, verb
from quire.bookie.directories.identity import check_not_registered, repair
from quire.bookie.directories.lost_directory import (
    DirectoryContent,
    KnownBookie,
    check_lost,
    check_successor,
    content_of,
    known_bookie,
    remove_directory,
    replace_directory,
    wrong_one,
)
from quire.errors import LaterStorageError, StorageError, UsageError
from quire.metadata.interface import MetadataStore
from quire.metadata.ledgers.naming import SomeLedgers, pages_naming
from quire.metadata.ledgers.unreadable import REMEDY, Unread
from quire.storage.directory import read_identity
from quire.storage.interfaces import Disk
from quire.storage.segment.ledger_ids import LedgerIdSet


class DirectoryAccess(Protocol):
    """Access to the data directories on the bookie's machine.

    The creator of this object releases the locks that `hold` has taken.
    """

    def hold(self, path: str) -> Disk | None:
        """Return the directory at this path, locked, or None if nothing is there.

        Raises `StartError` if a bookie runs on it, and `StorageError` if it cannot be locked.
        """
        ...

    def look(self, path: str) -> Disk | None:
        """Return the directory at this path, for reading only and without a lock.

        If nothing is there, the result is None, or a disk whose files cannot be read.
        """
        ...


@dataclass(slots=True)
class DirectoryReplacement:
    """The replacement of a lost directory by one that may take its place."""

    holder: KnownBookie
    """The bookie that has the lost directory."""
    lost: str
    """The path of the lost directory."""
    new: str
    """The path of the directory that replaces the lost one, which may be the same path."""
    disk: Disk | None = None
    """The disk at `new`, locked. None means that the new directory has taken the place of the lost
    one already."""
    others: dict[str, DirectoryContent] = field(default_factory=dict)
    """The contents of the bookie's other directories, by path."""
    ids: dict[str, str] = field(default_factory=dict)
    """The ids in hex of the directories that are at the bookie's paths now, by path."""

    async def carry_out(
        self, metadata: MetadataStore, random_bytes: Callable[[int], bytes], now_ms: int
    ) -> None:
        """Carry out the replacement with `replace_directory`, which documents arguments and errors.

        The call may be interrupted anywhere. If the command is repeated, it completes the
        replacement. This does nothing if `disk` is None.
        """
        if self.disk is not None:
            await replace_directory(
                metadata, self.holder, self.lost, self.disk, random_bytes, self.ids, now_ms
            )


async def find_replacement(
    metadata: MetadataStore, bookie_id: str, lost: str, new: str, machine: DirectoryAccess
) -> DirectoryReplacement:
    """Return the replacement of the directory at `lost` by the one at `new`, if it is allowed.

    Both may be the same path. Nothing is changed, but the bookie's directories are locked with
    `machine`. Raises `UsageError`, `StartError`, `StorageError` or `CookieError` if the
    replacement is not allowed, `LaterVersionError` if a later version of Quire wrote one of the
    directories, and MetadataError if the metadata store fails.
    """
    holder = await known_bookie(metadata, bookie_id)
    if lost != new and lost not in holder.directories and new in holder.directories:
        return DirectoryReplacement(holder, lost, new)
    check_listed(holder, lost)
    if lost != new and new in holder.directories:
        raise refusal(
            f"bookie {bookie_id} has the directory {new} already, so it cannot replace another one",
            "Use an empty directory",
        )
    await check_not_registered(metadata, bookie_id)
    others = others_of(machine, holder, lost)
    disk = _successor(machine, holder, lost, new, metadata.uri)
    return DirectoryReplacement(holder, lost, new, disk, others, ids_of(machine, others, lost))


def _successor(
    machine: DirectoryAccess, holder: KnownBookie, lost: str, new: str, uri: str
) -> Disk | None:
    """Return the disk of the replacement, or None if it was replaced already."""
    if lost != new:
        check_lost(holder, lost, _content_of_lost(machine, lost), uri)
    disk = machine.hold(new)
    if disk is None:
        raise refusal(
            f"the new directory {new} does not exist", "Mount the new disk, or create the directory"
        )
    found = content_of(disk)
    if lost == new:
        check_lost(holder, lost, found, uri)
        if (
            found.gone
            and found.cookie == holder.cookie(holder.directories)
            and not wrong_one(holder, new, found)
        ):
            return None
    check_successor(holder, new, found)
    return disk


def _content_of_lost(machine: DirectoryAccess, path: str) -> DirectoryContent:
    """Return the contents of the lost directory as far as they can be read.

    Raises `StartError` if the bookie runs on it.
    """
    try:
        disk = machine.hold(path)
    except StorageError:  # it cannot be locked, but may still be readable
        disk = machine.look(path)
    return DirectoryContent() if disk is None else content_of(disk)


@dataclass(frozen=True, slots=True)
class DirectoryRemoval:
    """The removal of a directory that no other directory replaces."""

    holder: KnownBookie
    """The bookie that has the directory."""
    path: str
    """The path of the directory."""
    others: list[Disk]
    """The locked disks of the directories that the bookie keeps."""
    here: list[LedgerIdSet]
    """The ids of the ledgers in each of the directories that the bookie keeps."""
    ids: dict[str, str]
    """The ids in hex of the directories that are at the bookie's paths now, by path."""

    @property
    def left(self) -> list[str]:
        """The paths of the directories that the bookie keeps."""
        return [one for one in self.holder.directories if one != self.path]

    async def check_not_needed(
        self, metadata: MetadataStore, looked_at: Callable[[int], object] = lambda count: None
    ) -> None:
        """Raise UsageError if the directory is still needed.

        The directory is needed while a ledger names the bookie and is in none of its other
        directories. A ledger whose metadata cannot be read counts as such a ledger. All ledgers of
        the cluster are examined. `looked_at` is called with the number of ledgers in each examined
        page. Raises MetadataError if the metadata store fails.
        """
        bookie, lacking, unread = self.holder.bookie_id, SomeLedgers(), Unread()
        async for page in pages_naming(metadata, bookie, looked_at, unread):
            for ledger_id, _ in page:
                if not any(ledger_id in ledgers for ledgers in self.here):
                    lacking.add(ledger_id)
        if lacking.count:
            uri = metadata.uri
            raise refusal(
                f"{counted(lacking.count, 'ledger')} {verb('name', lacking.count)} "
                f"bookie {bookie} and {are(lacking.count)} not in its other directories: "
                f"{lacking}",
                "Empty the bookie first: "
                + repair("decommission", bookie, "--keep-cookie", uri=uri)
                + f". If {self.path} is lost, put an empty directory in its place: "
                + repair("disk", "replace", bookie, self.path, "NEW", uri=uri),
            )
        if unread:
            raise refusal(
                f"the metadata of {unread} cannot be read ({unread.why}), and may name bookie "
                f"{bookie}: {self.path} may have the only copies of entries",
                REMEDY,
            )

    async def carry_out(self, metadata: MetadataStore, now_ms: int) -> None:
        """Carry out the removal as `remove_directory` does, which documents the errors.

        The call may be interrupted anywhere. If the command is repeated, it completes the removal.
        """
        await remove_directory(metadata, self.holder, self.path, self.others, self.ids, now_ms)


async def find_removal(
    metadata: MetadataStore, bookie_id: str, path: str, machine: DirectoryAccess
) -> DirectoryRemoval:
    """Return the removal of the directory at `path`, whatever is in it.

    Call `check_not_needed` before `carry_out`. Nothing is changed, but the bookie's other
    directories are locked with `machine`. Raises `UsageError`, `StartError` or `CookieError`
    if the directory may not be removed, `LaterVersionError` if a later version of Quire wrote one
    of the directories, and MetadataError if the metadata store fails.
    """
    holder = await known_bookie(metadata, bookie_id)
    check_listed(holder, path)
    if holder.directories == (path,):
        raise refusal(
            f"bookie {bookie_id} has no other directory than {path}, so {path} cannot be removed",
            "Remove the whole bookie instead: "
            + repair("decommission", bookie_id, uri=metadata.uri),
        )
    await check_not_registered(metadata, bookie_id)
    others = others_of(machine, holder, path)
    disks, here = [], []
    for other, found in others.items():
        if found.ledgers is None or found.disk is None:
            raise refusal(
                f"the ledgers in {other}, a directory that bookie {bookie_id} keeps, cannot be "
                f"listed: {found.unreadable or 'it is empty'}",
                "Repair or mount that directory first",
            )
        disks.append(found.disk)
        here.append(found.ledgers)
    return DirectoryRemoval(holder, path, disks, here, ids_of(machine, others, path))


# -- shared by both -----------------------------------------------------------------------------


def refusal(what: str, remedy: str = "") -> UsageError:
    """Return an error with this message, to which "; nothing was changed" is added.

    `remedy` says what to do. It may be empty.
    """
    return UsageError(f"{what}; nothing was changed", remedy=remedy)


def check_listed(holder: KnownBookie, path: str) -> None:
    """Raise `UsageError` if the bookie has no data directory at `path`."""
    if path not in holder.directories:
        raise refusal(
            f"bookie {holder.bookie_id} does not have the directory {path}",
            f"Name one of its directories: {', '.join(holder.directories)}",
        )


def others_of(
    machine: DirectoryAccess, holder: KnownBookie, lost: str
) -> dict[str, DirectoryContent]:
    """Return the contents of the bookie's directories except the lost one, by path.

    Each directory that can be read stays locked. One that is missing, cannot be locked or read, or
    belongs to something else is in the result as well, without ledgers. Raises `StartError` if the
    bookie runs, `LaterVersionError` if a later version wrote one of them, and `UsageError` if none
    of them can be read.
    """
    found = {path: _other(machine, holder, path) for path in holder.directories if path != lost}
    if found and all(one.ledgers is None for one in found.values()):
        raise refusal(
            f"none of the other directories of bookie {holder.bookie_id} can be read here: "
            + ", ".join(found),
            "Run this command on the bookie's machine. If all directories are lost, restore its "
            f"data to other bookies: "
            f"`{command_with('quire bookie recover', holder.bookie_id)}`",
        )
    return found


def _other(machine: DirectoryAccess, holder: KnownBookie, path: str) -> DirectoryContent:
    try:
        disk = machine.hold(path)
    except StorageError as error:
        return DirectoryContent(unreadable=str(error))
    if disk is None:
        return DirectoryContent(unreadable="it does not exist")
    found = content_of(disk)
    if wrong := wrong_one(holder, path, found):
        return DirectoryContent(unreadable=f"it holds directory {found.directory_id}, {wrong}")
    return replace(found, disk=disk)


def ids_of(
    machine: DirectoryAccess, others: dict[str, DirectoryContent], lost: str
) -> dict[str, str]:
    """Return the ids in hex of the directories that are at the bookie's paths now, by path.

    The id of the directory at `lost` is '' if nothing is there, or if it cannot be read. Other
    directories without a readable id are left out. Raises `LaterStorageError` if a later version of
    Quire wrote the directory at `lost`.
    """
    ids = {path: found.directory_id for path, found in others.items() if found.directory_id}
    return ids | {lost: _id_at(machine, lost)}


def _id_at(machine: DirectoryAccess, path: str) -> str:
    try:
        disk = machine.look(path)
        found = None if disk is None else read_identity(disk)
    except LaterStorageError:
        raise
    except (OSError, StorageError):
        return ""
    return "" if found is None else found.name
