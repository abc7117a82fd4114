"""The identity of a data directory, and small files that are replaced as a whole.

`current/DIRECTORY` has lines `name: value` with the format, the directory's id, and whether a log
was ever begun. Every block of the log repeats the id, so that files of two directories cannot be
mixed up. If a log was begun and is missing, it is lost, and the directory is not a new one. The
bookie writes its cookie, `current/VERSION`, with `write_small_file`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from quire.codec.log.segment_header import ID_BYTES
from quire.codec.log.state_records import VersionError
from quire.errors import LaterStorageError, StorageError, written_later
from quire.storage.disk import LOCK_NAME
from quire.storage.interfaces import Disk

CURRENT_DIRECTORY = "current"
IDENTITY_NAME = f"{CURRENT_DIRECTORY}/DIRECTORY"
IDENTITY_FORMAT = "1"
_FIELDS = ("format", "directory", "log")
_LOG_STATES = ("none", "begun")
MAX_SMALL_FILE_BYTES = 1024 * 1024
IGNORED_NAMES = {LOCK_NAME, "lost+found"}
"""The names of files and directories that an empty data directory may contain."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a data directory."""

    directory_id: bytes
    log_begun: bool = False

    @property
    def name(self) -> str:
        """The directory's id in hex."""
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
        """Decode the content of `current/DIRECTORY`. `path` is the data directory, for the error.

        Raises:
            LaterStorageError: A later version wrote the file.
            StorageError: The file is damaged.
        """
        fields = decode_lines(data)
        refuse_later(f"{path}/{IDENTITY_NAME}", fields, IDENTITY_FORMAT, _FIELDS)
        try:
            directory_id = bytes.fromhex(fields.get("directory", ""))
        except ValueError:
            directory_id = b""
        # A file that does not say whether a log was begun must not pass for a new directory.
        whole = fields.get("format") == IDENTITY_FORMAT and fields.get("log") in _LOG_STATES
        if not whole or len(directory_id) != ID_BYTES:
            raise StorageError(
                f"{path}/{IDENTITY_NAME} is damaged",
                remedy="Restore the file from a backup. If there is none, replace the directory by "
                f"an empty one: `quire bookie disk replace BOOKIE {path} NEW`",
            )
        return cls(directory_id, fields["log"] == "begun")


def decode_lines(data: bytes) -> dict[str, str]:
    """Return the values of a small file with lines `name: value`, by name."""
    pairs = (line.partition(": ") for line in data.decode("ascii", "replace").splitlines())
    return {name: value for name, _, value in pairs}


def refuse_later(path: str, fields: Mapping[str, str], known: str, names: Collection[str]) -> None:
    """Raise LaterStorageError if a later version wrote a small file.

    A file with the known format and another field counts as well, because this version would remove
    the field when it writes the file again.

    Args:
        path: The path of the file, for the error.
        fields: The values of the file, by name.
        known: The format that this version knows.
        names: The names of the fields that this version knows.

    Raises:
        LaterStorageError: A later version wrote the file.
    """
    found = fields.get("format", "")
    if found.isdecimal() and int(found) > int(known):
        raise LaterStorageError(written_later(path, f"format {found}", f"format {known}"))
    more = [name for name in fields if name not in names]
    if more and found == known and all(name in fields for name in names):
        raise LaterStorageError(
            written_later(path, f"the field {more[0]!r}", f"the fields {', '.join(names)}")
        )


@contextmanager
def naming(disk: Disk, name: str) -> Iterator[None]:
    """Turn a `VersionError` in the `with` block into a `LaterStorageError` that names the file."""
    try:
        yield
    except VersionError as error:
        raise error.within(f"{disk.path}/{name}") from None


def read_small_file(disk: Disk, name: str) -> bytes | None:
    """Return the content of a file, or None if it does not exist.

    Raises:
        StorageError: The file has more than `MAX_SMALL_FILE_BYTES`.
        OSError: The file cannot be read.
    """
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
    """Replace the content of a file as a whole. The change is durable on return.

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
    """Remove a file if it exists. The change is durable on return.

    Raises `OSError` if that fails.
    """
    if disk.exists(name):
        disk.remove(name)
        disk.sync_directory(name.rpartition("/")[0])


def settle_names(disk: Disk) -> None:
    """Make the directory entries in the data directory and in `current` durable.

    An earlier process may have died between a rename and the sync after it. The renamed file can be
    read, but a power loss could still undo the rename. Raises `OSError` if the sync fails.
    """
    disk.sync_directory()
    if disk.exists(CURRENT_DIRECTORY):
        disk.sync_directory(CURRENT_DIRECTORY)


def read_identity(disk: Disk) -> Identity | None:
    """Return the directory's identity, or None if it was never formatted.

    Raises:
        LaterStorageError: A later version wrote the identity.
        StorageError: The identity is damaged.
        OSError: The file cannot be read.
    """
    data = read_small_file(disk, IDENTITY_NAME)
    return None if data is None else Identity.decode(data, disk.path)


def ensure_directory(disk: Disk, random_bytes: Callable[[int], bytes]) -> Identity:
    """Return the directory's identity, after formatting the directory durably if it is empty.

    The caller must hold the disk's lock. `random_bytes` makes the id of a new directory.

    Raises:
        LaterStorageError: A later version wrote the identity.
        StorageError: The identity is damaged, or the directory has none and is not empty.
        OSError: The disk fails.
    """
    identity = read_identity(disk)
    if identity is not None:
        return identity
    # A crash during an earlier format may have left `current` and a temporary file. Erasing a
    # bookie leaves empty directories.
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
    """Record in the directory's identity that its log was begun, and return the new identity.

    The record is durable on return. Raises `OSError` if the disk fails.
    """
    if identity.log_begun:
        return identity
    identity = replace(identity, log_begun=True)
    write_small_file(disk, IDENTITY_NAME, identity.encode())
    return identity


def begin_lost(disk: Disk, random_bytes: Callable[[int], bytes]) -> Identity:
    """Format an empty directory that replaces a lost one, and return its identity.

    The directory then counts as one whose log is gone. So the bookie treats everything that it does
    not have as possibly lost, until that is repaired. The identity is durable on return. A
    directory that has an identity already is only marked. `random_bytes` makes the id of a new one.
    The caller must hold the disk's lock.

    Raises:
        LaterStorageError: A later version wrote the identity.
        StorageError: The identity is damaged, or the directory has none and is not empty.
        OSError: The disk fails.
    """
    return mark_log_begun(disk, ensure_directory(disk, random_bytes))
