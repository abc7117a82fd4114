"""The incarnation of a data directory, and the position of its log.

`current/INCARNATION` has a number that rises at each start, and a random value of that start:

    crc: <CRC-32C of the rest, eight hexadecimal digits>
    format: 1
    incarnation: 7
    nonce: 4f0c...

The bookie stores the same values in the metadata store (`metadata.bookies.directories`), together
with the position of the log. If a directory is behind either of them, it is an older copy of
itself, or has lost its newest files. From that start on, the log records this as a missing segment;
see `log_recovery`.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.codec.entry.digest import crc32c
from quire.errors import StorageError
from quire.storage.directory import (
    CURRENT_DIRECTORY,
    decode_lines,
    read_small_file,
    refuse_later,
    write_small_file,
)
from quire.storage.interfaces import Disk

INCARNATION_NAME = f"{CURRENT_DIRECTORY}/INCARNATION"
INCARNATION_FORMAT = "1"
_FIELDS = ("format", "incarnation", "nonce")
NONCE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One start of a data directory."""

    number: int
    nonce: str
    """A random value in hex. It differs between two copies of a directory that were both started
    after they were copied."""

    def encode(self) -> bytes:
        body = f"format: {INCARNATION_FORMAT}\nincarnation: {self.number}\nnonce: {self.nonce}\n"
        return b"crc: %08x\n%s" % (crc32c(body.encode()), body.encode())

    @classmethod
    def decode(cls, data: bytes, path: str = INCARNATION_NAME) -> Incarnation:
        """Decode the content of an incarnation file. `path` is the path of the file, for the error.

        Raises:
            LaterStorageError: A later version wrote the file.
            ValueError: The file is damaged, or its format is unknown.
        """
        head, _, body = data.partition(b"\n")
        if head != b"crc: %08x" % crc32c(body):
            raise ValueError("it does not match its checksum")
        fields = decode_lines(body)
        refuse_later(path, fields, INCARNATION_FORMAT, _FIELDS)
        if fields.get("format") != INCARNATION_FORMAT:
            raise ValueError("its format is not known to this version of Quire")
        return cls(int(fields.get("incarnation", "")), fields.get("nonce", ""))


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The end of a directory's log."""

    newest_file: int = 0
    """The highest number of a segment file that is durable, even if it is only preallocated."""
    end_group: int = 0
    """The number of the group after the last synced one."""


@dataclass(frozen=True, slots=True)
class ExpectedLog:
    """The expectations of the metadata store for a directory whose log is not read yet."""

    position: LogPosition = LogPosition()
    """The position that the log must reach. Otherwise a part of it is lost."""
    went_back: str = ""
    """Why the directory counts as one that went back in time, whatever its log contains, or ""."""

    def held_against(self, found: LogPosition) -> str:
        """Return why a log that ends at `found` is behind, or "" if it is not.

        The text continues a sentence that begins with the directory's path.
        """
        wanted = self.position
        if self.went_back:
            return self.went_back
        if found.newest_file < wanted.newest_file:
            return (
                f"went back in time: its newest segment file is {found.newest_file}, but its "
                f"bookie has reported {wanted.newest_file}"
            )
        if found.end_group < wanted.end_group:
            return (
                f"went back in time: its log ends before group {found.end_group}, but its bookie "
                f"has reported all groups before {wanted.end_group}"
            )
        return ""


def read_incarnation(disk: Disk) -> Incarnation | None:
    """Return the incarnation, or None if the directory was last started by an earlier version.

    Raises:
        LaterStorageError: A later version wrote the file.
        StorageError: The file is damaged.
        OSError: The file cannot be read.
    """
    data = read_small_file(disk, INCARNATION_NAME)
    if data is None:
        return None
    try:
        return Incarnation.decode(data, f"{disk.path}/{INCARNATION_NAME}")
    except ValueError as error:
        raise StorageError(
            f"the file {disk.path}/{INCARNATION_NAME}, which counts the bookie's starts, cannot "
            f"be decoded: {error}",
            remedy="Restore the file from a backup. If there is none, replace the directory by an "
            f"empty one: `quire bookie disk replace BOOKIE {disk.path} NEW`",
        ) from None


def write_incarnation(disk: Disk, incarnation: Incarnation) -> None:
    """Replace the directory's incarnation. The change is durable on return.

    After an `OSError`, the file has either the old or the new incarnation.
    """
    write_small_file(disk, INCARNATION_NAME, incarnation.encode())
