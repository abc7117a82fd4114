"""Checks of a bookie's options that need no I/O.

Call `check_bookie` before starting a bookie. It uses no disk, no network and no metadata store.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from quire.codec.metadata.registration import check_bookie_id
from quire.config import BookieConfig
from quire.errors import UsageError

BOOKIE_ID_BYTES_MAX = 255
"""The most bytes of the id of a new bookie. The metadata of a ledger repeats the id in each
ensemble that contains the bookie."""
ANY_ADDRESS = ("0.0.0.0", "::")
SEPARATORS = "\t\n\r\0"
"""The characters that the path of a directory in a cookie cannot contain."""


def check_bookie(
    directories: Sequence[str],
    *,
    port: int,
    advertise: str,
    bind: str = "",
    bookie_id: str = "",
    config: BookieConfig | None = None,
) -> None:
    """Check the arguments of `run_bookie`.

    An empty `bind` or `bookie_id`, and None as `config`, stand for the defaults, and are accepted.

    Raises:
        UsageError: A value is impossible, or two options contradict each other.
    """
    check_directories(directories)
    if not 0 <= port <= 65535:
        raise UsageError(f"{port} is not a port: use 0 to 65535")
    check_advertised(advertise)
    if bind:
        check_host(bind)
    if bookie_id:
        check_new_id(bookie_id)
    if config is not None:
        check_config(config)


def check_directories(directories: Sequence[str]) -> None:
    """Raise UsageError if there is no path, or one is empty, repeated or unusable in a cookie.

    Two paths are the same if they lead to one directory, for example through a symbolic link or a
    bind mount.
    """
    if not directories:
        raise UsageError("a bookie needs at least one data directory, but none was given")
    seen: dict[object, str] = {}
    for path in directories:
        if not path:
            raise UsageError("the path of a data directory must not be empty")
        if any(character in path for character in SEPARATORS):
            raise UsageError(
                f"{path!r} cannot be the path of a data directory, because it contains a tab, a "
                "line break or a NUL: use another path"
            )
        try:
            path.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{path!r} cannot be the path of a data directory, because it is not UTF-8, in "
                "which the cookie stores it: use another path"
            ) from None
        identity = _identity(path)
        if identity in seen:
            first = seen[identity]
            also = "" if path == first else f", also as {first}"
            raise UsageError(
                f"the data directory {path} is named twice{also}",
                remedy="Give each directory once. The bookie keeps a separate log in each of them",
            )
        seen[identity] = path


def _identity(path: str) -> object:
    """Return a value that all paths of one directory have."""
    try:
        found = os.stat(path)
    except OSError:
        return os.path.realpath(path)  # a directory that is to be created
    return found.st_dev, found.st_ino


def check_host(host: str) -> None:
    """Raise UsageError if the text cannot be a host name or an address.

    Only the characters are checked, and no name is looked up. An IPv6 address has no brackets.
    """
    if not host or not host.isprintable() or any(character in host for character in " /[]@,;"):
        raise UsageError(
            f"{host!r} is neither a host name nor an address that a bookie can use",
            remedy="Give only a name or an address, without a port, brackets or spaces",
        )
    if host.count(":") == 1:
        raise UsageError(
            f"{host!r} is neither a host name nor an address that a bookie can use",
            remedy="Give the port with --port",
        )


def check_advertised(host: str) -> None:
    """Raise UsageError if the text cannot be a host, or means all addresses of a machine.

    No name is looked up.
    """
    check_host(host)
    if host in ANY_ADDRESS:
        raise UsageError(
            f"a bookie cannot be advertised as {host}, because that means all addresses of a "
            "machine",
            remedy="Advertise a name or an address of this machine, and give --bind " + host,
        )


def check_new_id(bookie_id: str) -> None:
    """Raise UsageError if no bookie can have this id, or if it is too long for a new bookie."""
    check_bookie_id(bookie_id)
    if len(bookie_id) > BOOKIE_ID_BYTES_MAX:
        raise UsageError(
            f"a bookie id of {len(bookie_id):,} bytes is too long: the limit is "
            f"{BOOKIE_ID_BYTES_MAX} bytes"
        )


def check_config(config: BookieConfig) -> None:
    """Raise UsageError if limits in the configuration contradict each other."""
    if 0 < config.writable_free_bytes < config.min_free_bytes:
        raise UsageError(
            f"writable_free_bytes ({config.writable_free_bytes:,}) must not be less than "
            f"min_free_bytes ({config.min_free_bytes:,}): the bookie would become writable with "
            "less free space than that at which it becomes read-only"
        )
    minor, major = config.compact_minor_ratio, config.compact_major_ratio
    if major and minor > major:
        raise UsageError(
            f"compact_minor_ratio ({minor:g}) must not be more than compact_major_ratio "
            f"({major:g}): a major compaction would do less than a minor one"
        )
