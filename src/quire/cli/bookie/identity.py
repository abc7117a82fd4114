"""The identity of a bookie: its directories, its cookies, and the ledgers that still need it."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.cli.common.progress import JobBar
from quire.codec.metadata.cookie import Cookie, split_directories
from quire.errors import (
    CookieError,
    LaterCookieError,
    QuireError,
    StartError,
    StorageError,
    UsageError,
)

if TYPE_CHECKING:
    from quire.codec.metadata.ledger_metadata import LedgerMetadata
    from quire.metadata.bookies.directories import BookieDirectories
    from quire.metadata.interface import MetadataStore
    from quire.metadata.ledgers.unreadable import Unread
    from quire.storage.disk import RealDisk
    from quire.storage.interfaces import Disk
    from quire.storage.recovery.incarnation import ExpectedLog

NAMED_MAX = 5
"""The number of ledgers that are named in an error which says that a bookie is still needed."""

DEVICE_ERRORS = {errno.EIO, errno.EBADMSG}
"""The errors of a disk that cannot read or write its blocks."""


def unresolved(host: str) -> str:
    """Return why this host has no address on this machine, or "" if it has one.

    This may wait for a name server.
    """
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


@asynccontextmanager
async def opened_metadata(uri: str, *, create: bool = False) -> AsyncIterator[MetadataStore]:
    """Open the metadata store, and close it at the end of the context.

    With `create`, a missing SQLite file is created. Raises MetadataError and UsageError, as
    `open_metadata` does.
    """
    from quire.metadata import open_metadata

    store = await open_metadata(uri, create=create)
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def held(directory: str) -> Iterator[RealDisk]:
    """Lock a directory, so that no bookie uses it during the context.

    Raises `StartError` if a bookie is running on it, and `StorageError` if it cannot be used.
    """
    from quire.storage.disk import RealDisk

    with errors_of(directory):
        disk = RealDisk(directory)
        try:
            disk.lock()
        except BlockingIOError:
            raise StartError(
                f"the data directory {directory} is in use by a running bookie; nothing was "
                "changed",
                remedy="Stop the bookie first",
            ) from None
        try:
            yield disk
        finally:
            disk.close()


@contextmanager
def errors_of(directory: str) -> Iterator[None]:
    """Turn an OSError of the context into a StorageError that names the directory."""
    try:
        yield
    except (BrokenPipeError, QuireError):
        raise  # the output was closed, or the error is ours
    except OSError as error:
        raise StorageError(
            f"the directory {directory} cannot be used: {error.strerror or error}",
            remedy=_remedy_for(error),
        ) from None


def _remedy_for(error: OSError) -> str | None:
    if isinstance(error, PermissionError):
        return "Run this command as the user that the bookie runs as"
    if error.errno in DEVICE_ERRORS:
        return "The disk may be damaged: look at the log of the operating system"
    return None


@contextmanager
def reading(directory: str) -> Iterator[None]:
    """Check that this is a bookie's data directory, and name it in the errors of the context.

    Raises StorageError if it is not one, or if it cannot be read.
    """
    with errors_of(directory):
        try:
            found = stat.S_ISDIR(os.stat(Path(directory, "current")).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            found = False
        if not found:
            raise StorageError(
                f"{directory} is not a data directory of a Quire bookie",
                remedy="Give the directory that the bookie was started with (--dir)",
            )
        yield


async def old_directory(store: MetadataStore, disk: Disk) -> str:
    """Return why the cluster rejects this directory, or '' if it does not.

    A directory is rejected if another one replaced it, if it was removed from the bookie, or if it
    is an older copy. The log is not read. Raises MetadataError, and StorageError or OSError if the
    directory cannot be read.
    """
    from quire.bookie.directories.identity import check_current
    from quire.bookie.directories.rollback import expected_in
    from quire.storage.directory import read_identity

    bookie_id, known = await _known_of(store, disk)
    identity = read_identity(disk)
    if identity is None:
        return ""
    try:
        check_current(known, disk.path, identity.name, bookie_id, store.uri)
    except CookieError as error:
        return str(error)
    why = expected_in(disk, known).went_back
    return behind(disk.path, why) if why else ""


async def expected_of(store: MetadataStore, disk: Disk) -> ExpectedLog:
    """Return how far the log of this directory must reach, according to its mark in the cluster.

    Without a mark nothing is expected. Raises MetadataError, and StorageError or OSError if the
    directory cannot be read.
    """
    from quire.bookie.directories.rollback import expected_in

    return expected_in(disk, (await _known_of(store, disk))[1])


async def _known_of(store: MetadataStore, disk: Disk) -> tuple[str, BookieDirectories]:
    """Return the bookie of this directory, and the cluster's record of the bookie's directories.

    The result is '' with an empty record if the directory has no cookie, or belongs to another
    cluster.
    """
    from quire.bookie.directories.identity import stored_cookie, value_of
    from quire.metadata.bookies.directories import BookieDirectories, read_directories

    try:
        cookie = stored_cookie(disk)
    except LaterCookieError:
        raise
    except CookieError:
        cookie = None  # the owner is unknown
    if cookie is None or (cookie.instance_id or "") != await store.instance_id():
        return "", BookieDirectories()
    return cookie.bookie_id, value_of(await read_directories(store, cookie.bookie_id))


def behind(path: str, why: str) -> str:
    """Return the message for a directory that went back in time."""
    return (
        f"{path} {why}. You may start the bookie with it: entries that the directory lacks "
        "count as lost until autorecovery has copied them back. If the right directory still "
        "exists, use that one instead"
    )


def absolute(directories: Sequence[str]) -> list[str]:
    """Return absolute paths, as the bookie writes them into its cookie.

    Symbolic links are not resolved.
    """
    return [os.path.abspath(one) for one in directories]


def cookie_as_json(cookie: Cookie | None) -> dict[str, Any] | None:
    """Return the fields of a cookie under their names in JSON output, or None without a cookie."""
    if cookie is None:
        return None
    return {
        "bookie": cookie.bookie_id,
        "journal_directories": cookie.journal_dirs.split(","),
        "ledger_directories": list(split_directories(cookie.ledger_dirs)),
        "index_directories": list(split_directories(cookie.index_dirs))
        if cookie.index_dirs
        else None,
        "instance_id": cookie.instance_id,
        "layout_version": cookie.layout_version,
    }


def looking_at_ledgers(progress: JobBar) -> Callable[[int], None]:
    """Begin a progress bar for a search of all ledgers.

    Return a function that adds a number of examined ledgers to the bar.
    """
    progress.begin("examining ledgers", 0, 0)
    return lambda count: progress.done(count, 0)


def pages_naming(
    store: MetadataStore, bookie_id: str, progress: JobBar, unread: Unread
) -> AsyncIterator[list[tuple[int, LedgerMetadata]]]:
    """Yield the ledgers whose metadata names the bookie, in lists, and show progress.

    A list may be empty. Ledgers whose metadata cannot be read are recorded in `unread`. Raises
    MetadataError if the store does not answer, or did not list all ledgers.
    """
    from quire.metadata.ledgers import naming

    return naming.pages_naming(store, bookie_id, looking_at_ledgers(progress), unread)


async def ledgers_naming(
    store: MetadataStore, bookie_id: str, progress: JobBar, unread: Unread
) -> list[int]:
    """Return the ids of some of the ledgers whose metadata names the bookie.

    The search ends soon after the first one. If the result is empty, all ledgers were examined, and
    those that could not be read are in `unread`. Raises MetadataError.
    """
    async for page in pages_naming(store, bookie_id, progress, unread):
        if page:
            return [ledger_id for ledger_id, _ in page]
    return []


async def check_not_needed(store: MetadataStore, bookie_id: str, *, shown: bool) -> None:
    """Raise UsageError if the metadata of a ledger names the bookie, or may name it.

    A ledger whose metadata cannot be read counts as one that may name it. `shown` says whether to
    show the progress of the search. Raises MetadataError as `pages_naming` does.
    """
    from quire.bookie.directories.identity import repair
    from quire.metadata.ledgers.unreadable import REMEDY, Unread

    unread = Unread()
    with JobBar(shown=shown) as progress:
        needing = await ledgers_naming(store, bookie_id, progress, unread)
    if needing:
        some = ", ".join(map(str, needing[:NAMED_MAX]))
        more = ", ..." if len(needing) > NAMED_MAX else ""
        raise UsageError(
            f"ledgers have replicas on bookie {bookie_id} ({some}{more}); nothing was changed",
            remedy="Move them to other bookies and free the id: "
            + repair("decommission", bookie_id, uri=store.uri)
            + ". With --force, these replicas are given up",
        )
    if unread:
        raise UsageError(
            f"the metadata of {unread} cannot be read ({unread.why}), and may name bookie "
            f"{bookie_id}. No other ledger names the bookie. Nothing was changed",
            remedy=REMEDY,
        )
