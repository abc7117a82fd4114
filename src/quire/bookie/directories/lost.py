"""A data directory of a bookie that is stopped is given up: an empty one takes its place, or none.

What was in it may have been acknowledged. So the empty one is not new: it is formatted as one whose
log is gone, which makes the bookie say of all that it does not have that it may be lost, until all
that names it is complete here again (`damage`, `complete_ledger`). A directory may go without a
successor only when every ledger that names the bookie is in the others.

Everything that is written is written in an order that leaves, wherever it is cut off, a bookie that
refuses the directory, or takes it for lost; the same call goes on from there. The id of what is
given up is remembered (`metadata.bookie_directories`): should it come back, it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from quire.bookie.directories.identity import (
    COOKIE_FILE,
    cookie_of,
    give_up,
    its_cookie,
    keep_ids,
    out_of_date,
    repair,
    stored_cookie,
    tell_differences,
    value_of,
)
from quire.codec.metadata.cookie import Cookie, decode, differences, encode, split_directories
from quire.errors import CookieError, QuireError, StorageError
from quire.metadata.bookies.directories import BookieDirectories, read_directories
from quire.metadata.interface import MetadataStore, Versioned
from quire.storage.directory import begin_lost, read_identity, write_small_file
from quire.storage.inspect.contents import segment_numbers
from quire.storage.inspect.snapshot import with_log
from quire.storage.interfaces import Disk
from quire.storage.segment.ledger_ids import LedgerIdSet


@dataclass(frozen=True, slots=True)
class KnownBookie:
    """A bookie as the cluster knows it."""

    bookie_id: str
    instance_id: str
    directories: tuple[str, ...]
    version: int
    """Of its cookie."""
    ids: Versioned[BookieDirectories] | None = None
    """Of the directories, and of those that were given up."""

    def cookie(self, directories: Sequence[str]) -> Cookie:
        return cookie_of(self.bookie_id, directories, self.instance_id)


async def known_bookie(metadata: MetadataStore, bookie_id: str) -> KnownBookie:
    """`CookieError` where the cluster knows no such bookie of Quire's; MetadataError."""
    found = await its_cookie(metadata, bookie_id)
    known = decode(found.value)
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
            + tell_differences(wrong, "as it should be", "in the cookie")
            + "; nothing was changed",
            remedy="`quire bookie cookie show` shows it; `quire bookie cookie update` writes it "
            "again",
        )
    return holder


@dataclass(frozen=True, slots=True)
class DirectoryContent:
    """Of a data directory."""

    ledgers: LedgerIdSet | None = None
    """Of a log that can be read; None: there is none, or it cannot."""
    cookie: Cookie | None = None
    directory_id: str = ""
    """In hex; "": it has none, or none that can be read."""
    gone: bool = False
    """A log was begun in it, and no segment is there."""
    unreadable: str = ""
    """Why nobody can tell what is in it."""
    disk: Disk | None = None
    """Where that is, if it is locked."""


def content_of(disk: Disk) -> DirectoryContent:
    """Reads only, all footers of the log. Blocks."""
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
    except (OSError, QuireError) as error:
        return DirectoryContent(None, cookie, name, unreadable=str(error))


def wrong_one(holder: KnownBookie, path: str, found: DirectoryContent) -> str:
    """Why this is not the directory that the bookie has at `path`, though it has its cookie: goes
    on from "directory <id>, "; '' where it is that one, or nobody knows."""
    return out_of_date(value_of(holder.ids), path, found.directory_id) if found.directory_id else ""


def check_lost(holder: KnownBookie, path: str, found: DirectoryContent, uri: str) -> None:
    """`StorageError` where what it holds is not lost: nothing healthy is given up by a slip."""
    if found.ledgers is None or not _is_of(holder, found.cookie) or wrong_one(holder, path, found):
        return
    drain = repair("decommission", holder.bookie_id, "--keep-cookie", uri=uri)
    raise StorageError(
        f"{path} holds a log that can be read, with {len(found.ledgers)} ledgers: it is not "
        "lost, and nothing was changed",
        remedy="Start the bookie with it; if the disk takes no writes any more, copy the directory "
        "to another one first. To take it away, empty the bookie ("
        + drain
        + "), then `quire bookie disk remove`. "
        + give_up(path),
    )


def _is_of(holder: KnownBookie, cookie: Cookie | None) -> bool:
    """One whose cookie is lost may be."""
    return cookie is None or cookie.bookie_id == holder.bookie_id


def check_successor(holder: KnownBookie, path: str, found: DirectoryContent) -> None:
    """`StorageError` or `CookieError` where it cannot take the place of a lost one."""
    if found.ledgers is not None or found.unreadable:
        what = "a log" if found.ledgers is not None else f"what cannot be read ({found.unreadable})"
        raise StorageError(
            f"{path} is not empty, but holds {what}: nothing was changed",
            remedy=f"Name an empty directory. {give_up(path)}",
        )
    if not _is_of(holder, found.cookie) or (
        found.cookie is not None and found.cookie.instance_id != holder.instance_id
    ):
        assert found.cookie is not None
        raise CookieError(
            f"{path} belongs to bookie {found.cookie.bookie_id} of cluster "
            f"{found.cookie.instance_id}: nothing was changed",
            remedy=f"Name an empty directory. {give_up(path)}",
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
    """`new`, which is empty and locked, takes the place of `lost`: as a directory whose log is
    gone. `ids`: of what is at the paths of the bookie now, by path, as far as that is known.
    Durable on return. `StorageError` where it holds something else; `OSError`; MetadataError;
    `CookieError` where somebody else changed the directories."""
    cookie = holder.cookie([new.path if one == lost else one for one in holder.directories])
    name = begin_lost(new, random_bytes).name
    left = value_of(holder.ids).without(lost, [ids.get(lost, "")], name, now_ms)
    # Before its cookie, with which it can be started.
    await _keep(metadata, holder, left, cookie, {**ids, **left.ids, new.path: name})
    write_small_file(new, COOKIE_FILE, encode(cookie))
    # Those of the other directories are written again by the start.
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
    """The bookie has only the others, which are locked, from now on; `ids` as above. Durable on
    return. `OSError`; MetadataError; `CookieError` where somebody else changed the directories."""
    cookie = holder.cookie([one for one in holder.directories if one != removed])
    left = value_of(holder.ids).without(removed, [ids.get(removed, "")], "", now_ms)
    await _keep(metadata, holder, left, cookie, {**ids, **left.ids})
    for disk in others:  # first: the last one left is compared with the cluster's as it is
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
