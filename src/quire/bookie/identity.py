"""Which bookie of which cluster a data directory belongs to (metadata spec, 5.3; rule 31).

The cookie is stored in the directory and in the metadata store. Both or neither must be there: a
bookie that comes back empty under an old id would deny entries that it has acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.codec.cookie import Cookie, decode, encode, verify
from quire.errors import CookieError, KeyExistsError, NoSuchKeyError
from quire.metadata.base import MetadataStore
from quire.storage.directory import (
    ensure_directory,
    read_identity,
    read_small_file,
    write_small_file,
)
from quire.storage.seams import Disk

COOKIE_FILE = "current/VERSION"


async def check_identity(
    disk: Disk,
    metadata: MetadataStore,
    bookie_id: str,
    random_bytes: Callable[[int], bytes],
) -> str:
    """Tie an empty directory to this bookie id, or check that it is tied to it; the cluster's
    instance id. CookieError and StorageError say which side does not fit and what to do. Hold the
    disk's lock."""
    instance_id = await metadata.instance_id()
    wanted = Cookie.of(bookie_id, [disk.path], [disk.path], instance_id)
    identity = read_identity(disk)
    begun = identity is not None and identity.log_begun
    local = read_small_file(disk, COOKIE_FILE)
    known = await _known_cookie(metadata, bookie_id)
    if local is not None:
        _check(wanted, decode(local), disk, metadata)
    elif begun:
        raise CookieError(
            f"{disk.path}/{COOKIE_FILE} is missing, but the directory holds a log",
            remedy="Restore the file from the cluster's cookie of this bookie",
        )
    if known is not None:
        if local is None:
            raise CookieError(
                f"bookie {bookie_id} is known to the cluster, but {disk.path} is empty: its data "
                "is gone",
                remedy="Name the right directory; or start the bookie with another port or host, "
                "and re-replicate what it held",
            )
        verify(wanted, decode(known))
        return instance_id
    if begun:
        raise CookieError(
            f"{disk.path} belongs to bookie {bookie_id}, which the cluster at {metadata.uri} does "
            "not know",
            remedy="Check the metadata URI; if the bookie was decommissioned, use an empty "
            "directory",
        )
    # The file before the node: a node without a file would look like lost data.
    ensure_directory(disk, random_bytes)
    if local is None:
        write_small_file(disk, COOKIE_FILE, encode(wanted))
    try:
        await metadata.write_cookie(bookie_id, encode(wanted), None)
    except KeyExistsError:
        raise CookieError(
            f"two bookies were started as {bookie_id} at the same time",
            remedy="Stop the other one and start this one again",
        ) from None
    return instance_id


async def _known_cookie(metadata: MetadataStore, bookie_id: str) -> bytes | None:
    try:
        return (await metadata.read_cookie(bookie_id)).value
    except NoSuchKeyError:
        return None


def _check(wanted: Cookie, stored: Cookie, disk: Disk, metadata: MetadataStore) -> None:
    if stored.instance_id != wanted.instance_id:
        raise CookieError(
            f"{disk.path} belongs to another cluster ({stored.instance_id}); the one at "
            f"{metadata.uri} is {wanted.instance_id}",
            remedy="Use the metadata URI of its cluster, or an empty directory",
        )
    if stored.bookie_id != wanted.bookie_id:
        raise CookieError(
            f"{disk.path} belongs to bookie {stored.bookie_id}, not {wanted.bookie_id}",
            remedy="Start it with the id that it had (--bookie-id, or --advertise and --port), or "
            "use an empty directory",
        )
    verify(wanted, stored)
