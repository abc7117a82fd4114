"""Changes of a data directory's files into what a later version of Quire could write.

Each changed file is valid: every checksum fits. Only a version, a flag or a kind is unknown.
"""

from __future__ import annotations

import json
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

from quire.codec.entry.digest import crc32c
from quire.codec.log.footer import TRAILER_BYTES
from quire.codec.log.group import GROUP_HEADER_BYTES, GROUP_MAGIC, RUN_ROW

GOLDEN = Path(__file__).parents[2] / "golden"
NEWEST = sorted(GOLDEN.glob("*/cluster.tar.xz"))[-1]
_U32 = struct.Struct("<I")
SEALED, UNSEALED = "bookie-1", "bookie-3"
"""The names of two data directories of the golden data.

The bookie of the first one was stopped cleanly, and the bookie of the second one was not.
"""

Change = Callable[[Path], Path]
"""A function that changes one file of a data directory, and returns the file's path."""


def golden_directory(name: str, target: Path) -> Path:
    """Copy a data directory of the golden data below `target`, and return its path."""
    with tarfile.open(NEWEST) as archive:
        members = [one for one in archive.getmembers() if one.name.startswith(f"{name}/")]
        archive.extractall(target, members, filter="data")
    return target / name


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "log").glob("*.seg"))


def sealed(directory: Path) -> Path:
    """Return the path of the oldest sealed segment."""
    return next(path for path in segments(directory) if b"QSEALED" in path.read_bytes()[-200:])


def open_segment(directory: Path) -> Path:
    """Return the path of the newest segment that has no footer and has a group with runs."""
    for path in reversed(segments(directory)):
        data = path.read_bytes()
        if data[:8] == b"QSEGMENT" and b"QSEALED" not in data[-200:] and _group_with_runs(data):
            return path
    raise AssertionError("no segment is open")


def without_shortcuts(directory: Path) -> None:
    """Remove the index cache, so that a start reads every footer."""
    (directory / "log" / "INDEX").unlink()


# -- small files ------------------------------------------------------------------------------


def lines(name: str, *, checked: bool, old: bytes, new: bytes) -> Change:
    """Return a change of a line in the file `current/NAME`.

    With `checked`, the first line of the file is a checksum of the others, and is updated.
    """

    def change(directory: Path) -> Path:
        path = directory / "current" / name
        data = path.read_bytes()
        _, _, body = data.partition(b"\n") if checked else (b"", b"", data)
        assert old in body
        body = body.replace(old, new)
        path.write_bytes(b"crc: %08x\n%s" % (crc32c(body), body) if checked else body)
        return path

    return change


def metadata_mark(directory: Path) -> Path:
    path = directory / "current" / "METADATA"
    body = path.read_bytes().rpartition(b"crc32")[0] + b"epoch: 7\n"
    path.write_bytes(body + b"crc32: %08x\n" % zlib.crc32(body))
    return path


def damage_record(more: dict[str, object]) -> Change:
    def change(directory: Path) -> Path:
        number = int(sealed(directory).stem, 16)
        path = directory / "log" / f"{number:016x}.damaged"
        value = {
            "format": 1, "segment": number, "found_ms": 1, "blocks": [[1, 1]], "header": False,
            "index": "", "lost_tables": 0, "extent_known": True, "more": False, "ledgers": [],
        } | more  # fmt: skip
        body = json.dumps(value).encode()
        path.write_bytes(b"crc: %08x\n%s\n" % (crc32c(body), body))
        return path

    return change


def clean_mark(directory: Path) -> Path:
    path = directory / "log" / "CLEAN"
    data = bytearray(path.read_bytes())
    data[7] = 2
    path.write_bytes(data[:-4] + b"more" + _U32.pack(crc32c(bytes(data[:-4]) + b"more")))
    return path


def index_cache(directory: Path) -> Path:
    path = directory / "log" / "INDEX"
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack_from("<Q", data, 8)
    data[20:24] = _U32.pack(2)
    data[16:20] = _U32.pack(crc32c(bytes(data[20 : 20 + size]), crc32c(bytes(data[:16]))))
    path.write_bytes(data)
    return path


# -- segments ---------------------------------------------------------------------------------


def segment_header(directory: Path) -> Path:
    path = sealed(directory)
    data = bytearray(path.read_bytes())
    data[8:12] = _U32.pack(4)
    (ranges,) = _U32.unpack_from(data, 56)
    table = bytes(data[64 : 64 + 16 * ranges])
    data[60:64] = _U32.pack(crc32c(table, crc32c(bytes(data[:60]))))
    path.write_bytes(data)
    return path


def trailer(at: int, value: bytes) -> Change:
    """Return a change of the trailer of a sealed segment: `value` at offset `at`."""

    def change(directory: Path) -> Path:
        path = sealed(directory)
        data = bytearray(path.read_bytes())
        _seal(data, at, value)
        path.write_bytes(data)
        return path

    return change


def _seal(data: bytearray, at: int, value: bytes) -> None:
    start = len(data) - TRAILER_BYTES
    data[start + at : start + at + len(value)] = value
    data[-4:] = _U32.pack(crc32c(bytes(data[start:-4])))


def footer_record(at: int, value: bytes) -> Change:
    """Return a change of the first state record in a footer: `value` at its offset `at`."""

    def change(directory: Path) -> Path:
        without_shortcuts(directory)
        path = sealed(directory)
        data = bytearray(path.read_bytes())
        start = len(data) - TRAILER_BYTES
        footer_at, rows, records = struct.unpack_from("<QQQ", data, start + 56)
        assert records
        first = footer_at + rows
        data[first + at : first + at + len(value)] = value
        _seal(data, 104, _U32.pack(crc32c(bytes(data[first : first + records]))))
        path.write_bytes(data)
        return path

    return change


def _group_with_runs(data: bytes | bytearray) -> int:
    """Return the offset of the first group with runs, or 0 if there is none."""
    at = data.find(GROUP_MAGIC)
    while at > 0:
        if at % 4096 == 0 and _U32.unpack_from(data, at + 48)[0]:
            return at
        at = data.find(GROUP_MAGIC, at + 1)
    return 0


def group(at: int, value: bytes) -> Change:
    """Return a change of a group in an unsealed segment: `value` at offset `at` in the group."""

    def change(directory: Path) -> Path:
        path = open_segment(directory)
        data = bytearray(path.read_bytes())
        start = _group_with_runs(data)
        data[start + at : start + at + len(value)] = value
        (size,) = _U32.unpack_from(data, start + 56)
        table = bytes(data[start + GROUP_HEADER_BYTES : start + GROUP_HEADER_BYTES + size])
        data[start + 76 : start + 80] = _U32.pack(
            crc32c(table, crc32c(bytes(data[start : start + 76])))
        )
        path.write_bytes(data)
        return path

    return change


RUN_FLAGS_AT = GROUP_HEADER_BYTES + RUN_ROW.size - 4
