"""The identity of a data directory, and small files that are replaced as a whole.

`current/DIRECTORY` has lines `name: value` with the format, the directory's id, and whether a log
was ever begun. Every block of the log repeats the id, so that files of two directories cannot be
mixed up. If a log was begun and is missing, it is lost, and the directory is not a new one. The
bookie writes its cookie, `current/VERSION`, with `write_small_file`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.codec.log.segment_header import ID_BYTES
from quire.errors import StorageError
from quire.storage.disk import LOCK_NAME
from quire.storage.interfaces import Disk

CURRENT_DIRECTORY = "current"
IDENTITY_NAME = f"{CURRENT_DIRECTORY}/DIRECTORY"
IDENTITY_FORMAT = "1"
MAX_SMALL_FILE_BYTES = 1024 * 1024
IGNORED_NAMES = {LOCK_NAME, "lost+found"}
"""The names that an empty directory may contain."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a data directory."""

    directory_id: bytes
    log_begun: bool = False

    @property
    def name(self) -> str:
        """The directory's id as text."""
        return self.directory_id.hex()

    def encode(self) -> bytes:
        lines = [
            f"format: {IDENTITY_FORMAT}",
            f"directory: {self.name}",
            f"log: {'begun' if self.log_begun else 'none'}",
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Identity:
        pairs = (line.partition(": ") for line in data.decode("ascii", "replace").splitlines())
        fields = {name: value for name, _, value in pairs}
        try:
            directory_id = bytes.fromhex(fields.get("directory", ""))
        except ValueError:
            directory_id = b""
        if fields.get("format") != IDENTITY_FORMAT or len(directory_id) != ID_BYTES:
            raise StorageError(
                f"the file {path}/{IDENTITY_NAME}, which identifies the data directory, is "
                "damaged, or a later version of Quire wrote it",
                remedy=(
                    "Do not start a bookie on this directory. Restore the file from a "
                    "backup, use that version, or put an empty directory in its place "
                    "(`quire bookie disk replace`)"
                ),
            )
        return cls(directory_id, fields.get("log") == "begun")


def read_small_file(disk: Disk, name: str) -> bytes | None:
    """Return the content of a file, or None if it does not exist. `OSError` if that fails."""
    try:
        file = disk.open(name)
    except FileNotFoundError:
        return None
    try:
        size = file.size()
        if size > MAX_SMALL_FILE_BYTES:
            raise StorageError(
                f"the file {disk.path}/{name} has {size} bytes, but a bookie's file has at most "
                f"{MAX_SMALL_FILE_BYTES}",
                remedy="Another program wrote it: restore the file from a backup",
            )
        return bytes(file.read(0, size) or b"")
    finally:
        file.close()


def write_small_file(disk: Disk, name: str, data: bytes) -> None:
    """Replace a file as a whole. The change is durable on return.

    After a crash or an `OSError`, the file has either the old or the new content.
    """
    directory = name.rpartition("/")[0]
    temporary = f"{name}.new"
    if directory:
        disk.make_directory(directory)
    if disk.exists(temporary):
        disk.remove(temporary)
    file = disk.create(temporary)
    try:
        file.write([data], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, name)
    disk.sync_directory(directory)


def remove_small_file(disk: Disk, name: str) -> None:
    """Remove a file if it exists. The change is durable on return."""
    if disk.exists(name):
        disk.remove(name)
        disk.sync_directory(name.rpartition("/")[0])


def settle_names(disk: Disk) -> None:
    """Make the names of small files and directories durable.

    An earlier process may have died between a rename and the sync after it. What it left can be
    read, but a power loss could still undo it. `OSError` if that fails.
    """
    disk.sync_directory()
    if disk.exists(CURRENT_DIRECTORY):
        disk.sync_directory(CURRENT_DIRECTORY)


def read_identity(disk: Disk) -> Identity | None:
    """Return the directory's identity, or None if it was never formatted.

    Raises:
        StorageError: The identity cannot be decoded.
    """
    data = read_small_file(disk, IDENTITY_NAME)
    return None if data is None else Identity.decode(data, disk.path)


def ensure_directory(disk: Disk, random_bytes: Callable[[int], bytes]) -> Identity:
    """Return the directory's identity. An empty directory is formatted first.

    The caller must hold the disk's lock.

    Raises:
        StorageError: The directory contains something else.
    """
    identity = read_identity(disk)
    if identity is not None:
        return identity
    # A crash during an earlier format may have left the directory and a temporary file. Erasing a
    # bookie leaves directories.
    strange = set(disk.list()) - IGNORED_NAMES - {CURRENT_DIRECTORY}
    strange = {name for name in strange if not _is_empty_directory(disk, name)}
    strange |= set(disk.list(CURRENT_DIRECTORY)) - {IDENTITY_NAME.rpartition("/")[2] + ".new"}
    if strange:
        raise StorageError(
            f"the directory {disk.path} is not empty ({', '.join(sorted(strange)[:3])}), and is "
            "not a data directory of a Quire bookie",
            remedy="Name an empty directory, or the right one",
        )
    identity = Identity(random_bytes(ID_BYTES))
    write_small_file(disk, IDENTITY_NAME, identity.encode())
    return identity


def _is_empty_directory(disk: Disk, name: str) -> bool:
    try:
        return not disk.list(name)
    except NotADirectoryError:
        return False


def mark_log_begun(disk: Disk, identity: Identity) -> Identity:
    """Record in the directory's identity that its log was begun, and return the identity."""
    if identity.log_begun:
        return identity
    identity = replace(identity, log_begun=True)
    write_small_file(disk, IDENTITY_NAME, identity.encode())
    return identity


def begin_lost(disk: Disk, random_bytes: Callable[[int], bytes]) -> Identity:
    """Format an empty directory that replaces a lost one.

    It counts as a directory whose log is gone. Everything that it does not have may be lost, until
    that is repaired. The caller must hold the disk's lock.

    Raises:
        StorageError: The directory contains something else.
    """
    return mark_log_begun(disk, ensure_directory(disk, random_bytes))
