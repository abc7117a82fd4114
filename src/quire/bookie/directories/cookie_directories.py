"""The check of a bookie's data directories against those that its cookie lists.

- The start must name every directory that the cookie lists. A directory that cannot be used is put
  aside, and the bookie serves the others. An empty directory at the path of one that held data
  cannot be used either, because the disk may not be mounted.
- A directory that is not listed is new. It must be empty, and is added to the cookie.
- The cookie in the metadata store decides. The cookie in a directory may be older, and is then
  written again.
- Each directory must have an id that is recorded for the bookie. An old directory that comes back
  is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quire._runtime.shortages import shortage
from quire.bookie.directories.identity import (
    COOKIE_FILE,
    check_current,
    check_identity,
    check_local,
    cookie_of,
    decode_known,
    give_up,
    keep_ids,
    known_cookie,
    make_known,
    repair,
    same_owner,
    stored_cookie,
    tell_differences,
    value_of,
)
from quire.codec.metadata.cookie import Cookie, differences, encode, split_directories
from quire.errors import (
    CookieError,
    LaterVersionError,
    QuireError,
    StartError,
    StorageError,
    VersionConflictError,
)
from quire.metadata.bookies.directories import BookieDirectories, read_directories
from quire.metadata.interface import MetadataStore, Versioned
from quire.storage.directory import (
    ensure_directory,
    read_identity,
    read_small_file,
    write_small_file,
)
from quire.storage.interfaces import Disk


@dataclass(slots=True)
class FoundDirectory:
    """The content of one data directory, as far as the check of the directories needs it."""

    disk: Disk
    cookie: Cookie | None = None
    directory_id: str = ""
    """The id of the directory in hex, or '' if it was never formatted."""
    begun: bool = False
    """Whether a log was begun in the directory."""
    locked: bool = False
    """Whether this process has locked the directory. If not, the directory does not exist, or
    `error` says why it is not locked."""
    error: StorageError | None = None
    """The reason why the directory cannot be read, or None."""


@dataclass(slots=True)
class CheckedDirectories:
    """The result of the check of all data directories of a bookie."""

    instance_id: str
    put_aside: dict[str, StorageError] = field(default_factory=dict)
    """The directories that cannot be used: the reason for each, by its path."""
    added: list[str] = field(default_factory=list)
    """The paths of the directories that this start adds to the bookie."""


def look_at(disks: Sequence[Disk], uri: str) -> list[FoundDirectory]:
    """Lock each directory and read its cookie and its id.

    Raises StartError if another bookie uses one of the directories, and LaterVersionError if a
    later version of Quire wrote one of them. `uri` is the metadata URI in the error.
    """
    return [_look(disk, uri) for disk in disks]


def _look(disk: Disk, uri: str) -> FoundDirectory:
    found = FoundDirectory(disk)
    try:
        disk.lock()
        found.locked = True
        found.cookie = stored_cookie(disk, uri)
        identity = read_identity(disk)
    except BlockingIOError:
        raise StartError(
            f"the data directory {disk.path} is in use by another bookie process",
            remedy="Stop that bookie, or use another directory",
        ) from None
    except FileNotFoundError:
        pass
    except LaterVersionError:
        raise  # The directory is in order, so the bookie must not start without it.
    except (OSError, QuireError) as error:
        why, remedy = str(error), "Check the permissions and the disk"
        if lack := shortage(error):
            why, remedy = lack, ""  # it says what to do
        elif isinstance(error, QuireError):
            why, remedy = str(error.args[0]), error.remedy
        found.error = StorageError(
            f"the data directory {disk.path} cannot be used: {why}", remedy=remedy
        )
    else:
        if identity is not None:
            found.directory_id = identity.name
            found.begun = identity.log_begun
    return found


async def check_directories(
    found: Sequence[FoundDirectory],
    metadata: MetadataStore,
    bookie_id: str,
    random_bytes: Callable[[int], bytes],
    now_ms: int = 0,
) -> CheckedDirectories:
    """Assign empty directories to this bookie id, or check that they belong to this bookie.

    On return, the cookies and the ids of the directories in use are durable. After an error, no
    entry was changed. New directories may be formatted already, which the next start accepts.

    Args:
        found: The result of `look_at`. The caller still holds the locks that it has taken.
        metadata: The store of the cluster.
        bookie_id: The id of the bookie.
        random_bytes: Makes the ids of new directories.
        now_ms: The Unix time in milliseconds.

    Returns:
        The directories that are new, and those that cannot be used and are put aside.

    Raises:
        CookieError: The directories and the cluster do not belong together.
        StartError: A directory is named twice, or cannot be used for another reason.
        StorageError: No directory can be used, or one cannot be prepared or written.
        MetadataError: The store fails.
    """
    known = await known_cookie(metadata, bookie_id)
    paths = [one.disk.path for one in found]
    remedy = "Write it again: " + repair(
        "cookie", "update", *(word for path in paths for word in ("--dir", path)), uri=metadata.uri
    )
    stored = _stored(known, bookie_id, metadata.uri, remedy, single=len(found) == 1)
    listed = () if stored is None else split_directories(stored.ledger_dirs)
    if len(found) == 1 and len(listed) <= 1:
        if found[0].error is not None and not found[0].locked:
            raise found[0].error
        disk = found[0].disk
        try:
            identity = await check_identity(disk, metadata, bookie_id, random_bytes, now_ms)
        except QuireError:
            raise  # Some of them are OSErrors as well, such as time-outs.
        except OSError as cause:
            raise StorageError(
                f"the data directory {disk.path} cannot be prepared: {shortage(cause) or cause}",
                remedy="Check the permissions and the disk, or use another directory",
            ) from cause
        return CheckedDirectories(identity)
    instance_id = await metadata.instance_id()
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise StartError(
            f"the directory {twice} is named twice among the bookie's data directories",
            remedy="Name each directory once",
        )
    if known is None or stored is None:
        await _begin(found, metadata, bookie_id, instance_id, random_bytes, now_ms)
        return CheckedDirectories(instance_id)
    wrong = differences(cookie_of(bookie_id, listed, instance_id), stored)
    if wrong:
        raise CookieError(
            f"the cookie of bookie {bookie_id} in the cluster at {metadata.uri} does not match "
            "this bookie: " + tell_differences(wrong, "here", "in the cookie"),
            remedy=remedy,
        )
    checked = CheckedDirectories(instance_id)
    cookie = cookie_of(bookie_id, [*listed, *(p for p in paths if p not in listed)], instance_id)
    ids = await read_directories(metadata, bookie_id)
    for one in found:
        # Check this first. The other errors suggest commands that would use an old directory.
        if one.cookie is not None and one.directory_id and same_owner(cookie, one.cookie):
            check_current(value_of(ids), one.disk.path, one.directory_id, bookie_id, metadata.uri)
    _none_is_left_out(listed, paths, bookie_id, metadata.uri)
    for one in found:
        if one.disk.path in listed:
            error = _why_not(one, bookie_id, cookie, metadata.uri)
            if error is not None:
                checked.put_aside[one.disk.path] = error
        else:
            _check_new(one, bookie_id, cookie, metadata.uri)
            checked.added.append(one.disk.path)
    if len(checked.put_aside) == len(found):
        raise next(iter(checked.put_aside.values()))
    usable = [one for one in found if one.disk.path not in checked.put_aside]
    _no_two_alike(usable, bookie_id)
    if checked.added:
        _format([one for one in usable if one.disk.path in checked.added], cookie, random_bytes)
    await keep_ids(metadata, bookie_id, ids, _ids_of(usable, checked, ids))
    await _write(usable, checked, cookie, metadata, known)
    return checked


def _no_two_alike(usable: Sequence[FoundDirectory], bookie_id: str) -> None:
    at: dict[str, str] = {}
    for one in usable:
        if one.directory_id:
            other = at.setdefault(one.directory_id, one.disk.path)
            if other != one.disk.path:
                raise CookieError(
                    f"{other} and {one.disk.path} hold the same data directory, "
                    f"{one.directory_id}, of bookie {bookie_id}: one is a copy of the other",
                    remedy="Mount the right disk at each path, and start the bookie again",
                )


def _ids_of(
    usable: Sequence[FoundDirectory],
    checked: CheckedDirectories,
    ids: Versioned[BookieDirectories] | None,
) -> BookieDirectories:
    """Return the record of the bookie's directories with the new directories added.

    Changed paths are recorded only if all directories can be used.
    """
    here = {one.disk.path: one.directory_id for one in usable}
    known = value_of(ids)
    if checked.put_aside:
        new = {
            path: one
            for path, one in here.items()
            if path in checked.added or (path not in known.ids and known.path_of(one) is None)
        }
        here = {**known.ids, **new}
    return known.having(here)


def _stored(
    known: bytes | None, bookie_id: str, uri: str, remedy: str, *, single: bool
) -> Cookie | None:
    if known is None:
        return None
    try:
        return decode_known(known, bookie_id, uri, remedy)
    except CookieError:
        if single:
            return None  # `check_identity` reports it and says what to do
        raise


def _none_is_left_out(
    listed: Sequence[str], paths: Sequence[str], bookie_id: str, uri: str
) -> None:
    for path in listed:
        if path not in paths:
            raise CookieError(
                f"bookie {bookie_id} has data in the directory {path}, which was not given",
                remedy=f"Start the bookie with `--dir {path}` as well, even if that disk is "
                "broken: the bookie then serves what is in its other directories. "
                + _without(path, bookie_id, uri),
            )


def _without(path: str, bookie_id: str, uri: str) -> str:
    """Return the sentences of a message that say what to do if a directory is gone for good.

    They do not suggest to start without the directory. Until its entries are on other bookies, this
    bookie must not answer that it never had them.
    """
    return (
        "If the data of the directory is gone, put an empty one in its place: "
        + repair("disk", "replace", bookie_id, path, uri=uri)
        + " (append the path of the empty directory if it is another one). The data is then copied "
        "back from other bookies. To continue without the directory: "
        + repair("disk", "remove", bookie_id, path, uri=uri)
    )


def _why_not(one: FoundDirectory, bookie_id: str, cookie: Cookie, uri: str) -> StorageError | None:
    """Return why a directory that the cookie lists cannot be used, or None if it can.

    Raises CookieError if the directory belongs to another bookie.
    """
    path = one.disk.path
    if one.error is not None:
        return one.error
    if not one.locked:
        return StorageError(
            f"the directory {path} does not exist, but held data of bookie {bookie_id}: its disk "
            "is not mounted",
            remedy="Mount the disk, and start the bookie again. " + _without(path, bookie_id, uri),
        )
    if one.cookie is None:
        if one.directory_id:
            return StorageError(
                f"the cookie {path}/{COOKIE_FILE} is missing, but the directory holds data",
                remedy="Write the cookie again: "
                + repair("cookie", "create", bookie_id, "--dir", path, uri=uri)
                + ". If the directory was to replace a lost one, and the command was interrupted: "
                + repair("disk", "replace", bookie_id, path, uri=uri),
            )
        return StorageError(
            f"the directory {path} is empty, but held data of bookie {bookie_id}: its disk is "
            "not mounted, or was replaced",
            remedy="Mount the right disk, and start the bookie again. "
            + _without(path, bookie_id, uri),
        )
    # Compare with the directory's own list, which may be older than that of the cluster's cookie.
    check_local(
        cookie_of(bookie_id, split_directories(one.cookie.ledger_dirs), cookie.instance_id),
        one.cookie, path, uri,
    )  # fmt: skip
    if not one.directory_id:
        return StorageError(
            f"the directory {path} has the cookie of bookie {bookie_id}, but its file "
            "current/DIRECTORY is lost, so its log cannot be read",
            remedy=f"Restore that file from a backup. {_without(path, bookie_id, uri)}",
        )
    return None


def _check_new(one: FoundDirectory, bookie_id: str, cookie: Cookie, uri: str) -> None:
    path = one.disk.path
    if one.error is not None:
        raise one.error
    if one.cookie is not None:
        check_local(
            cookie_of(bookie_id, split_directories(one.cookie.ledger_dirs), cookie.instance_id),
            one.cookie, path, uri,
        )  # fmt: skip
    if one.begun:
        raise CookieError(
            f"the directory {path} holds data, but the cookie of bookie {bookie_id} does not "
            "list it: the directory was replaced, or belongs to another bookie",
            remedy="Use an empty directory, or start the bookie that owns this one. "
            + give_up(path)
            + ". After that, the directory can be added",
        )


async def _begin(
    found: Sequence[FoundDirectory],
    metadata: MetadataStore,
    bookie_id: str,
    instance_id: str,
    random_bytes: Callable[[int], bytes],
    now_ms: int,
) -> None:
    """Register a bookie that the cluster does not know, with all its directories."""
    cookie = cookie_of(bookie_id, [one.disk.path for one in found], instance_id)
    for one in found:
        _check_new(one, bookie_id, cookie, metadata.uri)
    _format(found, cookie, random_bytes)
    ids = {one.disk.path: one.directory_id for one in found}
    await make_known(metadata, cookie, ids, now_ms)


async def _write(
    usable: Sequence[FoundDirectory],
    checked: CheckedDirectories,
    cookie: Cookie,
    metadata: MetadataStore,
    known: bytes,
) -> None:
    """Write the cookie to the directories, and then to the cluster.

    The directories come first, because a directory that the cluster lists and that has no cookie
    looks like lost data. A formatted directory that is not listed still counts as new.
    """
    data = encode(cookie)
    for disk in (one.disk for one in usable):
        try:
            if read_small_file(disk, COOKIE_FILE) != data:
                write_small_file(disk, COOKIE_FILE, data)
        except OSError as error:
            if disk.path in checked.added:
                raise StorageError(
                    f"the data directory {disk.path} cannot be written: {shortage(error) or error}",
                    remedy="Check the permissions and the disk, or start the bookie without "
                    "this directory",
                ) from None
            # The old cookie still identifies the directory. The next start writes it again.
    if data != known:
        found = await metadata.read_cookie(cookie.bookie_id)
        try:
            if found.value != known:
                raise VersionConflictError(cookie.bookie_id)
            await metadata.write_cookie(cookie.bookie_id, data, found.version)
        except VersionConflictError:
            raise CookieError(
                f"bookie {cookie.bookie_id} was not started: another process changed its cookie "
                "in the cluster at the same time",
                remedy="Start the bookie again",
            ) from None


def _format(
    found: Sequence[FoundDirectory], cookie: Cookie, random_bytes: Callable[[int], bytes]
) -> None:
    for one in found:
        disk = one.disk
        try:
            if not one.locked:
                disk.make_directory("")
                disk.lock()
                one.locked = True
            one.directory_id = ensure_directory(disk, random_bytes).name
            write_small_file(disk, COOKIE_FILE, encode(cookie))
        except OSError as error:
            raise StorageError(
                f"the data directory {disk.path} cannot be prepared: {shortage(error) or error}",
                remedy="Check the permissions and the disk, or use another directory",
            ) from None
