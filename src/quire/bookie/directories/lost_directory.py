"""The replacement and the removal of a data directory, while its bookie is stopped.

The entries in a lost directory may have been acknowledged. So its replacement does not count as
new. It is formatted as a directory whose log is gone. The bookie then answers "unknown" for every
entry that it does not have, until all ledgers that name it are complete here (`damage`,
`complete_ledger`). A directory may be removed without a replacement only if every ledger that names
the bookie is in the other directories.

The order of the writes makes an interruption harmless. At every point the bookie refuses the
directory or treats it as lost, and the same call continues from there. The id of a directory that
was given up is recorded (`metadata.bookies.directories`). If the directory comes back, it is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from quire._runtime.units import counted
from quire.bookie.directories.identity import (
    COOKIE_FILE,
    cookie_of,
    decode_known,
    erasing,
    give_up,
    its_cookie,
    keep_ids,
    out_of_date,
    repair,
    stored_cookie,
    tell_differences,
    value_of,
)
from quire.codec.metadata.cookie import Cookie, differences, encode, split_directories
from quire.errors import CookieError, LaterVersionError, QuireError, StorageError
from quire.metadata.bookies.directories import BookieDirectories, read_directories
from quire.metadata.interface import MetadataStore, Versioned
from quire.storage.directory import begin_lost, read_identity, write_small_file
from quire.storage.inspect.contents import segment_numbers
from quire.storage.inspect.snapshot import with_log
from quire.storage.interfaces import Disk
from quire.storage.segment.ledger_ids import LedgerIdSet


@dataclass(frozen=True, slots=True)
class KnownBookie:
    """The data directories of a bookie, as its cookie in the metadata store lists them."""

    bookie_id: str
    instance_id: str
    directories: tuple[str, ...]
    version: int
    """The version of the bookie's cookie in the metadata store."""
    ids: Versioned[BookieDirectories] | None = None
    """The record of the ids of the bookie's directories, and of those that were given up, or None
    if there is none."""

    def cookie(self, directories: Sequence[str]) -> Cookie:
        """Return the cookie that this bookie would have with these `directories`."""
        return cookie_of(self.bookie_id, directories, self.instance_id)


async def known_bookie(metadata: MetadataStore, bookie_id: str) -> KnownBookie:
    """Return the data directories of a bookie, as its cookie in the metadata store lists them.

    Raises CookieError if the cluster has no cookie of the bookie, or if the cookie cannot be
    decoded or is not that of a bookie of Quire, and MetadataError.
    """
    found = await its_cookie(metadata, bookie_id)
    replace_it = (
        "Replace it by the cookie in another directory DIR of the bookie: "
        + repair("cookie", "update", bookie_id, "--from", f"DIR/{COOKIE_FILE}", uri=metadata.uri)
        + ". If there is no other directory, make the cookie with `quire bookie cookie generate`"
    )
    known = decode_known(found.value, bookie_id, metadata.uri, replace_it)
    holder = KnownBookie(
        bookie_id,
        await metadata.instance_id(),
        split_directories(known.ledger_dirs),
        found.version,
        await read_directories(metadata, bookie_id),
    )
    wrong = differences(holder.cookie(holder.directories), known)
    if wrong:
        raise CookieError(
            f"the cookie of bookie {bookie_id} in the cluster is not that of a bookie of Quire: "
            + tell_differences(wrong, "expected", "in the cookie")
            + "; nothing was changed",
            remedy="If it is a bookie of Apache, use Apache's tools for its directories. If it is "
            f"a bookie of Quire, its cookie is damaged. {replace_it}",
        )
    return holder


@dataclass(frozen=True, slots=True)
class DirectoryContent:
    """The content of a data directory."""

    ledgers: LedgerIdSet | None = None
    """The ids of the ledgers in the log of the directory, or None if there is no log or it cannot
    be read."""
    cookie: Cookie | None = None
    directory_id: str = ""
    """The id of the directory in hex, or '' if there is none that can be read."""
    gone: bool = False
    """Whether a log was begun in the directory and all of its segments are missing."""
    unreadable: str = ""
    """The reason why the content of the directory cannot be read. Empty if it can."""
    disk: Disk | None = None
    """The locked disk of the directory, or None if the directory was only looked at."""


def content_of(disk: Disk) -> DirectoryContent:
    """Return the content of a data directory, after reading all footers of its log. Blocks.

    The result says so if the content cannot be read (`unreadable`). Raises LaterVersionError if a
    later version of Quire wrote a part of the directory. Such a directory is not lost.
    """
    cookie, name = None, ""
    try:
        cookie = stored_cookie(disk)
        identity = read_identity(disk)
        if identity is None:
            lost = f"{disk.path} has a cookie, but its current/DIRECTORY is lost"
            return DirectoryContent(cookie=cookie, unreadable="" if cookie is None else lost)
        name = identity.name
        if not identity.log_begun:
            return DirectoryContent(None, cookie, name)
        if not segment_numbers(disk):
            return DirectoryContent(None, cookie, name, gone=True)
        ledgers = with_log(disk, lambda found, _: LedgerIdSet(found.replayer.catalogue.ledgers))
        return DirectoryContent(ledgers, cookie, name)
    except LaterVersionError:
        raise
    except (OSError, QuireError) as error:
        return DirectoryContent(None, cookie, name, unreadable=str(error))


def wrong_one(holder: KnownBookie, path: str, found: DirectoryContent) -> str:
    """Return why the directory found at `path` is not the one that the bookie has there.

    Only the ids are compared, because an old directory has the right cookie. The text continues a
    sentence that begins with "directory <id>, ". It is empty if the directory is the right one, or
    if that is unknown.
    """
    return out_of_date(value_of(holder.ids), path, found.directory_id) if found.directory_id else ""


def check_lost(holder: KnownBookie, path: str, found: DirectoryContent, uri: str) -> None:
    """Raise StorageError if the directory found at `path` is not lost.

    The directory is not lost if its log can be read and it is, or may be, a current directory of
    the bookie.
    """
    if found.ledgers is None or not _is_of(holder, found.cookie) or wrong_one(holder, path, found):
        return
    drain = repair("decommission", holder.bookie_id, "--keep-cookie", uri=uri)
    raise StorageError(
        f"{path} holds a log that can be read, with {counted(len(found.ledgers), 'ledger')}: it is "
        "not lost, and nothing was changed",
        remedy="Start the bookie with it. If the disk can no longer be written, copy the directory "
        "to another disk first. To remove the directory, empty the bookie with "
        + drain
        + ", then use `quire bookie disk remove`. "
        + give_up(path),
    )


def _is_of(holder: KnownBookie, cookie: Cookie | None) -> bool:
    """Return whether a directory with this cookie, or without one, may belong to the bookie."""
    return cookie is None or cookie.bookie_id == holder.bookie_id


def check_successor(holder: KnownBookie, path: str, found: DirectoryContent) -> None:
    """Raise StorageError or CookieError if the directory at `path` cannot replace a lost one."""
    if found.ledgers is not None or found.unreadable:
        what = (
            "a log" if found.ledgers is not None else f"data that cannot be read "
            f"({found.unreadable})"
        )  # fmt: skip
        raise StorageError(
            f"the directory {path} is not empty: it holds {what}; nothing was changed",
            remedy=f"Use an empty directory. {give_up(path)}",
        )
    if not _is_of(holder, found.cookie) or (
        found.cookie is not None and found.cookie.instance_id != holder.instance_id
    ):
        assert found.cookie is not None
        raise CookieError(
            f"{path} belongs to bookie {found.cookie.bookie_id} of cluster "
            f"{found.cookie.instance_id}: nothing was changed",
            remedy=f"Use an empty directory. {erasing(path)}",
        )


async def replace_directory(
    metadata: MetadataStore,
    holder: KnownBookie,
    lost: str,
    new: Disk,
    random_bytes: Callable[[int], bytes],
    ids: Mapping[str, str],
    now_ms: int,
) -> None:
    """Replace the directory `lost` by `new`, which becomes a directory whose log is gone.

    The change is durable on return.

    Args:
        metadata: The metadata store.
        holder: The bookie, which is stopped.
        lost: The path of the lost directory.
        new: The disk of the replacement, which is empty and locked.
        random_bytes: Returns the given number of random bytes.
        ids: The known ids of the directories that are at the bookie's paths now, by path.
        now_ms: The current Unix time in milliseconds.

    Raises:
        StorageError: `new` is not empty, or its identity is damaged.
        CookieError: Another process changed the record of the directories.
        MetadataError: The metadata store failed. VersionConflictError is such an error, and means
            that another process changed the cookie of the bookie.
        OSError: The disk failed.
    """
    cookie = holder.cookie([new.path if one == lost else one for one in holder.directories])
    name = begin_lost(new, random_bytes).name
    left = value_of(holder.ids).without(lost, [ids.get(lost, "")], name, now_ms)
    # Write this before the cookie, because the bookie can be started once the cookie is there.
    await _keep(metadata, holder, left, cookie, {**ids, **left.ids, new.path: name})
    write_small_file(new, COOKIE_FILE, encode(cookie))
    # The start of the bookie writes the cookies of the other directories again.
    if new.path != lost:
        await metadata.write_cookie(holder.bookie_id, encode(cookie), holder.version)


async def remove_directory(
    metadata: MetadataStore,
    holder: KnownBookie,
    removed: str,
    others: Sequence[Disk],
    ids: Mapping[str, str],
    now_ms: int,
) -> None:
    """Remove the directory at `removed` from a bookie, which keeps the directories `others`.

    The bookie is stopped, and the disks of `others` are locked. `ids` has the known ids of the
    directories that are at the bookie's paths now, by path. The change is durable on return. Raises
    CookieError if another process changed the record of the directories, VersionConflictError if
    another process changed the cookie of the bookie, another MetadataError if the metadata store
    fails, and OSError if a disk fails.
    """
    cookie = holder.cookie([one for one in holder.directories if one != removed])
    left = value_of(holder.ids).without(removed, [ids.get(removed, "")], "", now_ms)
    await _keep(metadata, holder, left, cookie, {**ids, **left.ids})
    for disk in others:  # first, because the start compares a single directory with the cluster
        write_small_file(disk, COOKIE_FILE, encode(cookie))
    await metadata.write_cookie(holder.bookie_id, encode(cookie), holder.version)


async def _keep(
    metadata: MetadataStore,
    holder: KnownBookie,
    left: BookieDirectories,
    cookie: Cookie,
    ids: Mapping[str, str],
) -> None:
    listed = split_directories(cookie.ledger_dirs)
    made = left.having({path: one for path, one in ids.items() if one and path in listed})
    await keep_ids(metadata, holder.bookie_id, holder.ids, made)
