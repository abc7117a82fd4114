"""The bookie and the cluster that a data directory belongs to.

The cookie is stored in the directory and in the metadata store. Either both or none must exist,
because a bookie that returns empty with an old id would deny entries that it has acknowledged (rule
31 of docs/internals/replication-rules.md). A bookie keeps the id that it was first started with. It
reads the id from the directory's cookie.

An old disk may come back after `quire bookie disk replace`. It has the right cookie, but its
entries, fences and deletions are out of date. It would deny entries that were copied back since,
and accept entries for a fenced ledger. So a directory must also have the id that is recorded for
its bookie (`metadata.bookies.directories`). An older copy of a directory has the right id as well;
`rollback` detects it.

Removing the cookie does not make the bookie a new one. If a bookie had this id before, or a ledger
names it, an empty directory starts as one that has lost everything.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from quire._runtime.units import host_port
from quire.bookie.background.orders import forget_predecessor
from quire.codec.metadata.cookie import (
    Cookie,
    Difference,
    decode,
    differences,
    encode,
    refuse_later_layout,
)
from quire.errors import (
    CookieError,
    KeyExistsError,
    LaterCookieError,
    MetadataError,
    NoSuchKeyError,
    UsageError,
    VersionConflictError,
)
from quire.metadata.bookies.directories import (
    BookieDirectories,
    read_directories,
    write_directories,
)
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.ledgers.naming import is_named
from quire.storage.directory import (
    ensure_directory,
    read_identity,
    read_small_file,
    settle_names,
    write_small_file,
)
from quire.storage.interfaces import Disk

COOKIE_FILE = "current/VERSION"


def cookie_of(bookie_id: str, directories: Sequence[str], instance_id: str | None) -> Cookie:
    """Return the cookie of a bookie with these data directories.

    Each directory is listed as journal and as ledger directory, because Quire's log is both. The
    cookie of a cluster without an instance id has none (None).
    """
    return Cookie.of(bookie_id, directories, directories, instance_id)


def stored_cookie(disk: Disk, uri: str = "") -> Cookie | None:
    """Return the cookie that is stored in a data directory, or None if there is none.

    Raises LaterCookieError if a later version wrote it, and CookieError if it cannot be decoded.
    The message of a CookieError names the command that repairs the cookie. `uri` is the metadata
    URI in that command. Raises StorageError or OSError if the file cannot be read.
    """
    data = read_small_file(disk, COOKIE_FILE)
    if data is None:
        return None
    try:
        return refuse_later_layout(decode(data), f"{disk.path}/{COOKIE_FILE}")
    except LaterCookieError:
        raise
    except CookieError as error:
        raise CookieError(
            f"the cookie {disk.path}/{COOKIE_FILE} cannot be used: {error.args[0]}",
            remedy="Write it again from the cluster's cookie: "
            + repair("cookie", "create", "BOOKIE", "--dir", disk.path, uri=uri)
            + ". `quire bookie cookie show` lists the ids and directories that the cluster knows",
        ) from None


def remembered_id(disk: Disk, uri: str = "") -> str:
    """Return the id of the bookie in this directory, or '' if no bookie was ever started in it.

    `uri` and the errors are those of `stored_cookie`.
    """
    cookie = stored_cookie(disk, uri)
    return "" if cookie is None else cookie.bookie_id


async def check_identity(
    disk: Disk,
    metadata: MetadataStore,
    bookie_id: str,
    random_bytes: Callable[[int], bytes],
    now_ms: int = 0,
) -> str:
    """Assign an empty directory to a bookie id or check its owner, and return the instance id.

    A directory that is not empty must belong to this bookie. The result is the cluster's instance
    id. The caller holds the disk's lock. `random_bytes` makes the id of a new directory, and
    `now_ms` is the Unix time in milliseconds. An assignment is durable on return.

    Raises:
        CookieError: Something does not match. If a command repairs it, the error names the command.
        StorageError: The file with the identity of the directory is damaged.
        LaterVersionError: A later version of Quire wrote a part of the directory or of its record.
        MetadataError: The metadata store fails, or has a record that cannot be decoded.
        OSError: The disk fails.
    """
    instance_id = await metadata.instance_id()
    wanted = cookie_of(bookie_id, [disk.path], instance_id)
    identity = read_identity(disk)
    begun = identity is not None and identity.log_begun
    local = stored_cookie(disk, metadata.uri)
    if local is None and begun:
        raise CookieError(
            f"the cookie {disk.path}/{COOKIE_FILE} is missing, but the directory holds a log",
            remedy="Write it again from the cluster's cookie of this bookie: "
            + repair("cookie", "create", bookie_id, "--dir", disk.path, uri=metadata.uri),
        )
    ids = await read_directories(metadata, bookie_id)
    if local is not None:
        if same_owner(wanted, local):
            # Check these first. The error of `check_local` suggests a command that would give an
            # old directory the current cookie, and that is not for a directory of Apache.
            if identity is None:
                raise CookieError(
                    f"the directory {disk.path} has a cookie, but no log of Quire: it is the "
                    "directory of an Apache bookie, or its file current/DIRECTORY is lost",
                    remedy="Use another directory. To copy the data of this one to other bookies: "
                    + repair("decommission", bookie_id, uri=metadata.uri),
                )
            check_current(value_of(ids), disk.path, identity.name, bookie_id, metadata.uri)
        check_local(wanted, local, disk.path, metadata.uri)
    known = await known_cookie(metadata, bookie_id)
    if known is not None:
        if local is None:
            raise await _data_is_gone(metadata, bookie_id, disk.path)
        assert identity is not None  # it was checked together with the cookie
        _check_known(wanted, known, disk.path, metadata.uri)
        await keep_ids(metadata, bookie_id, ids, value_of(ids).having({disk.path: identity.name}))
        return instance_id
    if begun:
        raise CookieError(
            f"the directory {disk.path} belongs to bookie {bookie_id}, which the cluster at "
            f"{metadata.uri} does not know",
            remedy="If the bookie was decommissioned, its ledgers have their copies elsewhere. "
            + erasing(disk.path)
            + ". If its cookie was lost, or the metadata store was restored from a backup, write "
            "the cookie again: "
            + repair("cookie", "create", bookie_id, "--dir", disk.path, uri=metadata.uri),
        )
    await _tie(disk, metadata, wanted, random_bytes, now_ms)
    return instance_id


async def create_identity(
    disk: Disk,
    metadata: MetadataStore,
    bookie_id: str,
    random_bytes: Callable[[int], bytes],
    now_ms: int = 0,
) -> Cookie:
    """Assign an empty directory to a new bookie id, and return the cookie of the new bookie.

    The caller holds the disk's lock. The cookie is durable in the directory and in the metadata
    store on return. If the call is interrupted, the bookie's next start completes it.

    `random_bytes` makes the id of the directory, and `now_ms` is the Unix time in milliseconds.

    Raises:
        CookieError: The directory belongs to a bookie already, or the cluster knows a bookie with
            this id. Nothing was changed. Or another bookie with this id was started at the same
            time.
        StorageError: The directory holds something else. Nothing in it was changed.
        MetadataError: The metadata store failed.
        OSError: The disk failed.
    """
    local = stored_cookie(disk, metadata.uri)
    if local is not None:
        raise CookieError(
            f"the directory {disk.path} belongs to bookie {local.bookie_id} already; nothing was "
            "changed",
            remedy="Start that bookie, or use an empty directory. " + erasing(disk.path),
        )
    identity = read_identity(disk)
    if identity is not None and identity.log_begun:
        raise CookieError(
            f"the directory {disk.path} holds a log, but no {COOKIE_FILE}; nothing was changed",
            remedy="Write its cookie again: "
            + repair("cookie", "create", "BOOKIE", "--dir", disk.path, uri=metadata.uri)
            + ". Or use an empty directory. "
            + give_up(disk.path),
        )
    if await known_cookie(metadata, bookie_id) is not None:
        raise CookieError(
            f"the cluster at {metadata.uri} knows a bookie with the id {bookie_id} already; "
            "nothing was changed",
            remedy="Choose another id with --bookie-id. If that bookie is gone for good, free its "
            "id: " + repair("decommission", bookie_id, uri=metadata.uri),
        )
    cookie = cookie_of(bookie_id, [disk.path], await metadata.instance_id())
    await forget_predecessor(metadata, bookie_id)
    await _tie(disk, metadata, cookie, random_bytes, now_ms)
    return cookie


async def known_cookie(metadata: MetadataStore, bookie_id: str) -> bytes | None:
    """Return the encoded cookie of a bookie in the metadata store, or None if there is none.

    Raises MetadataError if the metadata store fails.
    """
    try:
        return (await metadata.read_cookie(bookie_id)).value
    except NoSuchKeyError:
        return None


def same_owner(wanted: Cookie, stored: Cookie) -> bool:
    """Return whether both cookies belong to the same bookie of the same cluster."""
    return (wanted.bookie_id, wanted.instance_id) == (stored.bookie_id, stored.instance_id)


async def its_cookie(metadata: MetadataStore, bookie_id: str) -> Versioned[bytes]:
    """Return the encoded cookie of a bookie in the metadata store, with its version.

    Raises CookieError if there is no cookie, and MetadataError if the metadata store fails.
    """
    try:
        return await metadata.read_cookie(bookie_id)
    except NoSuchKeyError:
        raise CookieError(
            f"the cluster at {metadata.uri} has no cookie of bookie {bookie_id}",
            remedy="`quire bookie cookie show` lists the existing cookies, and `quire bookie "
            "cookie create` writes a lost cookie again",
        ) from None


def decode_known(known: bytes, bookie_id: str, uri: str, remedy: str) -> Cookie:
    """Decode `known`, the cookie of a bookie in the metadata store.

    Raises CookieError with `remedy` if it cannot be decoded, and LaterCookieError if a later
    version wrote it. Both errors name the bookie and the cluster.
    """
    try:
        what = f"the cookie of bookie {bookie_id} in the cluster at {uri}"
        return refuse_later_layout(decode(known), what)
    except LaterCookieError:
        raise
    except CookieError as error:
        raise CookieError(
            f"the cookie of bookie {bookie_id} in the cluster at {uri} cannot be decoded: {error}",
            remedy=remedy,
        ) from None


async def check_not_registered(metadata: MetadataStore, bookie_id: str) -> None:
    """Raise UsageError if the bookie is registered.

    Raises MetadataError if the metadata store fails.
    """
    await metadata.tree.sync()  # the server may lag behind a bookie that has just started
    address = (await metadata.bookies()).find(bookie_id)
    if address is not None:
        raise UsageError(
            f"bookie {bookie_id} is registered at {host_port(address.host, address.port)}: nothing "
            "was changed",
            remedy="Stop it first. A bookie that was killed stays registered until its session "
            "times out",
        )


def value_of(ids: Versioned[BookieDirectories] | None) -> BookieDirectories:
    """Return the record of a bookie's directories without its version. It is empty for None."""
    return BookieDirectories() if ids is None else ids.value


def out_of_date(known: BookieDirectories, path: str, directory_id: str) -> str:
    """Return why the directory with this id (in hex) at `path` is out of date.

    The text continues a sentence that begins with "directory <id> of bookie <id>, ". It is empty if
    the directory is current, or if it is unknown which directory the bookie has there.
    """
    if known.path_of(directory_id) is not None:
        return ""
    left = known.left(directory_id)
    if left is not None:
        when = datetime.fromtimestamp(left.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
        if not left.successor:
            return f"which was removed from that bookie on {when}"
        return f"which was given up on {when}: directory {left.successor} took its place"
    if path in known.ids:
        return f"but the bookie has directory {known.ids[path]} there"
    return ""


def check_current(
    known: BookieDirectories, path: str, directory_id: str, bookie_id: str, uri: str
) -> None:
    """Raise CookieError if the directory at `path` is one that the bookie no longer has.

    `known` is the record of the bookie's directories. The commands in the error have the metadata
    URI `uri`.
    """
    wrong = out_of_date(known, path, directory_id)
    if not wrong:
        return
    current = known.successor(directory_id) or known.ids.get(path, "")
    place = known.path_of(current)
    if place is not None:
        back = f"Put directory {current} back at {path}"
        if place != path:
            back = f"Start the bookie with directory {current}, at {place}"
        remedy = (
            f"{back}. If that directory is lost too, put an empty one in its place: "
            + repair("disk", "replace", bookie_id, place, uri=uri)
            + ". "
            + erasing(path)
        )
    else:
        remedy = (
            f"Start the bookie without this directory. {erasing(path)}. After that, the directory "
            "can be added as a new one"
        )
    raise CookieError(
        f"{path} holds directory {directory_id} of bookie {bookie_id}, {wrong}. Its entries, "
        "fences and deletions are out of date, and must not be served",
        remedy=remedy,
    )


async def keep_ids(
    metadata: MetadataStore,
    bookie_id: str,
    found: Versioned[BookieDirectories] | None,
    made: BookieDirectories,
) -> None:
    """Write `made` as the record of a bookie's directories, if it differs from `found`.

    `found` is the record as it was read, or None if there was none. The change is durable on
    return. Raises CookieError if another process has changed the record since then, and
    MetadataError.
    """
    if found is not None and made == found.value:
        return
    version = None if found is None else found.version
    try:
        await write_directories(metadata, bookie_id, made, version)
    except (KeyExistsError, NoSuchKeyError, VersionConflictError):
        raise CookieError(
            f"the record of the directories of bookie {bookie_id} was not changed: another "
            "process changed it at the same time",
            remedy=(
                "Make sure that only one command or bookie uses these directories, and try again"
            ),
        ) from None


def check_local(wanted: Cookie, stored: Cookie, path: str, uri: str) -> None:
    """Raise CookieError if a directory's cookie differs from the configuration or the cluster.

    `wanted` is the cookie that follows from the configuration, and `stored` is that of the
    directory at `path`. The error has the metadata URI `uri`.
    """
    found = {one.field: one for one in differences(wanted, stored)}
    if not found:
        return
    told = tell_differences(found.values(), "here", "in its cookie")
    if "instance id" in found and stored.instance_id:
        raise CookieError(
            f"the directory {path} belongs to another cluster than the one at {uri}: {told}",
            remedy="Use the metadata URI of its cluster. If that store is lost or was created "
            "again, restore it from a backup first (docs/guides/repair/disaster-recovery.md): this "
            "directory may "
            "have the only copies of its entries. A new bookie of this cluster needs an empty "
            "directory",
        )
    if "bookie id" in found:
        raise CookieError(
            f"the directory {path} belongs to bookie {stored.bookie_id}, not {wanted.bookie_id}: "
            f"{told}",
            remedy="Start the bookie without --bookie-id to use the id of the directory, or with "
            f"`--bookie-id {shlex.quote(stored.bookie_id)}`. For a new bookie, use an empty "
            "directory",
        )
    force = ["--force"] if "instance id" in found else []
    raise CookieError(
        f"the directory {path} does not match its cookie: {told}",
        remedy="If the new values are right, write them into both cookies: "
        + repair("cookie", "update", "--dir", path, *force, uri=uri),
    )


def _check_known(wanted: Cookie, known: bytes, path: str, uri: str) -> None:
    """Raise CookieError if the cluster's cookie differs from the configuration.

    The caller has compared the directory's cookie with the configuration before.
    """
    remedy = "Replace it by the directory's cookie: " + repair(
        "cookie", "update", "--dir", path, uri=uri
    )
    found = differences(wanted, decode_known(known, wanted.bookie_id, uri, remedy))
    if found:
        raise CookieError(
            f"the cookie of bookie {wanted.bookie_id} in the cluster at {uri} differs from the "
            f"one in {path}: " + tell_differences(found, "in the directory", "in the cluster"),
            remedy=remedy,
        )


async def _data_is_gone(metadata: MetadataStore, bookie_id: str, path: str) -> CookieError:
    told = f"bookie {bookie_id} is known to the cluster, but {path} is empty: its data is gone"
    remedy = (
        "Use the right directory. If the data is lost, copy it from other bookies to this one: "
        + repair("disk", "replace", bookie_id, path, uri=metadata.uri)
        + ". Or copy it to the other bookies and free the id: "
        + repair("decommission", bookie_id, uri=metadata.uri)
        + ". Or start a new bookie in this directory, with another --bookie-id"
    )
    try:
        registered = (await metadata.bookies()).find(bookie_id)
    except MetadataError:
        registered = None  # it would only have made the message clearer
    if registered is not None:
        where = host_port(registered.host, registered.port)
        told += f", or in another place, because this bookie is registered at {where}"
    return CookieError(told, remedy=remedy)


async def _tie(
    disk: Disk,
    metadata: MetadataStore,
    cookie: Cookie,
    random_bytes: Callable[[int], bytes],
    now_ms: int,
) -> None:
    """Assign a directory without a log to a bookie id that the cluster does not know."""
    # Write the file before the node. A node without a file would look like lost data.
    settle_names(disk)
    identity = ensure_directory(disk, random_bytes)
    data = encode(cookie)
    if read_small_file(disk, COOKIE_FILE) is None:
        write_small_file(disk, COOKIE_FILE, data)
    await make_known(metadata, cookie, {disk.path: identity.name}, now_ms)


async def make_known(
    metadata: MetadataStore, cookie: Cookie, ids: Mapping[str, str], now_ms: int
) -> None:
    """Write the record and the cookie of a bookie that has no cookie in the cluster.

    `ids` has the ids of its directories by path. The directories are empty, and have their cookies
    already. They are marked as lost if a bookie with this id may have acknowledged entries before.
    The record and the cookie are durable on return. Raises CookieError if another bookie with this
    id came first, and MetadataError.
    """
    bookie_id = cookie.bookie_id
    found = await read_directories(metadata, bookie_id)
    made = value_of(found)
    earlier = {path: one for path, one in made.ids.items() if one not in ids.values()}
    had_others = bool(earlier or made.given_up)
    # Without a record this is nearly always a new bookie. Ledgers that cannot be read must
    # not keep it from taking entries.
    doubtful = had_others or found is None
    lost = doubtful and await is_named(metadata, bookie_id, unreadable=had_others)
    for path in earlier:
        made = made.without(path, (), ids.get(path, ""), now_ms)
    made = made.having(ids)
    if lost:
        made = made.with_lost(ids.values(), f"is empty, but ledgers name bookie {bookie_id}")
    # Write the mark before the cookie: a bookie with a cookie and no mark would count as new.
    try:
        version = None if found is None else found.version
        await write_directories(metadata, bookie_id, made, version)
        await metadata.write_cookie(bookie_id, encode(cookie), None)
    except (KeyExistsError, NoSuchKeyError, VersionConflictError):
        raise CookieError(
            f"bookie {bookie_id} was not added to the cluster: another process added a bookie "
            "with this id at the same time",
            remedy="Give each bookie an id of its own (--bookie-id, --port). If there should be "
            "only one bookie, use the one that was added",
        ) from None


def tell_differences(found: Iterable[Difference], configured: str, stored: str) -> str:
    """Return differences of cookies in words: "ledger directories: /a here, /b in its cookie"."""
    return "; ".join(
        f"{one.field}: {_shown(one.configured)} {configured}, {_shown(one.stored)} {stored}"
        for one in found
    )


def _shown(value: str | None) -> str:
    """Return a value of a cookie as text, without the count before a list of directories."""
    if value is None:
        return "none"
    return value.partition("\t")[2].replace("\t", ", ") or value


def give_up(path: str) -> str:
    """Return sentences that say how to find the owner of a directory, and how to erase it."""
    return (
        f"To see which bookie {path} belongs to: {repair('cookie', 'show', '--dir', path)}. "
        + erasing(path)
    )


def erasing(path: str) -> str:
    """Return a sentence that says how to erase a directory whose bookie the message names."""
    return f"Only if nobody needs its data, erase it: {repair('format', '--dir', path)}"


def repair(*words: str, uri: str = "") -> str:
    """Return a `quire bookie` command that repairs something, in backquotes.

    `words` follow `quire bookie`. `uri` is the metadata URI in the command, unless it is empty.
    """
    return (
        "`" + shlex.join(["quire", "bookie", *words, *(("--metadata", uri) if uri else ())]) + "`"
    )
