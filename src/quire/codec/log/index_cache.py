"""The index cache of a data directory, `log/INDEX`: the index of its sealed segments.

A start reads it instead of the footers of the segments. The file is a sequence of blocks, each with
its own checksum. All integers are little-endian and unsigned, except ids and times, which are
signed. Header of a block:

| offset | size | field                                                                         |
|--------|------|-------------------------------------------------------------------------------|
| 0      | 4    | kind, in ASCII                                                                |
| 4      | 4    | number of items N                                                             |
| 8      | 8    | length of the body in bytes                                                   |
| 16     | 4    | CRC-32C of bytes 0..15 and of the body                                        |
| 20     |      | body                                                                          |

The blocks are, in this order: one `HEAD`, a `SEGM` for each segment (ascending), one `DEAD`, any
number of `LEDG` for all ledgers, and one `ENDS`, which ends the file.

`HEAD`, N is the number of segments:

| size | field                                                                                  |
|------|----------------------------------------------------------------------------------------|
| 4    | version of the format, 1                                                               |
| 16   | directory id                                                                           |
| 8    | number of a segment; the cache covers every existing segment up to it                  |
| 8    | 0; earlier versions wrote the number of a segment, which is not used any more          |

`SEGM`, N is the number of ledgers with runs or records in the segment:

| size | field                                                                                  |
|------|----------------------------------------------------------------------------------------|
| 8    | number of the segment                                                                  |
| 128  | the trailer of the segment's file, which differs from that of any other file           |
| 8    | number of ledgers that have entries in the segment and are not deleted                 |
| 8    | bytes of their frames                                                                  |
| 8    | bytes of all frames                                                                    |
| 8    | base of the ledger ids                                                                 |
| 4, 8 | for each ledger: ledger id - base, ascending; 4 or 8 bytes, by the length of the body  |

`DEAD` has 16 bytes for each of N ledgers that were fenced and deleted: the ledger id (8), and the
time in milliseconds since 1970 at which it may be forgotten (8).

`LEDG` has these columns and tables for N ledgers:

| size | field                                                                                  |
|------|----------------------------------------------------------------------------------------|
| 8 N  | ledger id                                                                              |
| 8 N  | number of the first segment that contains something about the ledger                   |
| 8 N  | number of the last such segment                                                        |
| 8 N  | last entry id                                                                          |
| 8 N  | highest known LAC                                                                      |
| 4 N  | index of the ledger's key among the keys                                               |
| 4 N  | length of the ledger's rows in bytes                                                   |
| N    | flags; 1: fenced, 2: its rows do not ascend, 4: it has an explicit LAC, 8: its fence   |
|      | is durable                                                                             |
| 4    | length of the keys in bytes                                                            |
| 4    | length of the explicit LACs in bytes                                                   |
|      | keys, each after its length in bytes (4)                                               |
|      | packets of the explicit LACs, each after its length in bytes (4)                       |
|      | rows of all ledgers, in the form of `storage/segment/sealed_rows.py`                   |

`ENDS`, N is 0: the number of all ledgers (8), and the number of the group after the last one in the
log that may have changed anything in this file (8).

A cache with another version or another flag is not used. It has nothing that the segments do not
have, so a start replaces it, whichever version wrote it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.codec.entry.digest import crc32c
from quire.codec.log.footer import TRAILER_BYTES
from quire.codec.log.state_records import Buffer, FormatError, from_little, little
from quire.errors import written_later

VERSION = 1
HEAD, SEGMENT, DEAD, LEDGERS, END = b"HEAD", b"SEGM", b"DEAD", b"LEDG", b"ENDS"

_BLOCK = struct.Struct("<4sIQ")
_U32 = struct.Struct("<I")
BLOCK_HEADER_BYTES = _BLOCK.size + _U32.size
_HEAD = struct.Struct("<I16sQQ")
_END = struct.Struct("<QQ")
_SEGMENT = struct.Struct(f"<Q{TRAILER_BYTES}sQQQq")
_COLUMNS = (("q", 8),) * 5 + (("I", 4),) * 2 + (("B", 1),)
_ID, _KEY, _ROWS_BYTES, _FLAGS_AT = 0, 5, 6, 7  # the indexes of columns
ID_BYTES = 8
"""The bytes of a ledger id in the first column of a `LEDG` block."""
_LENGTHS = struct.Struct("<II")
_FENCED, _UNORDERED, _EXPLICIT, _DURABLE = 1, 2, 4, 8
_FLAGS = _FENCED | _UNORDERED | _EXPLICIT | _DURABLE


# -- blocks -----------------------------------------------------------------------------------


def encode_block(kind: bytes, items: int, pieces: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers of a block with this kind and number of items.

    `pieces` are the buffers of its body. They are not copied.
    """
    head = _BLOCK.pack(kind, items, sum(map(len, pieces)))
    crc = crc32c(head)
    for piece in pieces:
        crc = crc32c(piece, crc)
    return [head, _U32.pack(crc), *pieces]


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """The header of a block of the cache."""

    kind: bytes
    items: int
    body_bytes: int
    crc: int


def decode_block_header(data: Buffer) -> BlockHeader:
    if len(data) < BLOCK_HEADER_BYTES:
        raise FormatError("the index cache ends within the header of a block")
    return BlockHeader(*_BLOCK.unpack_from(data), *_U32.unpack_from(data, _BLOCK.size))


def check_block(header: BlockHeader, body: Buffer, kind: bytes) -> None:
    """Check that a block has this kind and matches its checksum.

    Raises:
        FormatError: The block has another kind, or is damaged.
    """
    crc = crc32c(body, crc32c(_BLOCK.pack(header.kind, header.items, header.body_bytes)))
    if len(body) != header.body_bytes or crc != header.crc:
        raise FormatError("a block of the index cache does not match its checksum")
    if header.kind != kind:
        raise FormatError(
            f"a block of the index cache has the kind {header.kind!r} instead of {kind!r}"
        )


# -- head -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CacheHead:
    """The content of the `HEAD` block."""

    directory_id: bytes
    through: int
    """The number of a segment. The cache covers every existing segment up to this one."""
    segments: int
    """The number of `SEGM` blocks."""

    def encode(self) -> list[Buffer]:
        body = _HEAD.pack(VERSION, self.directory_id, self.through, 0)
        return encode_block(HEAD, self.segments, [body])


def decode_head(header: BlockHeader, body: Buffer) -> CacheHead:
    if len(body) != _HEAD.size:
        raise FormatError("the first block of the index cache (HEAD) has a wrong length")
    version, directory_id, through, _ = _HEAD.unpack(body)
    if version != VERSION:
        raise _unknown(version > VERSION, f"version {version}", f"version {VERSION}")
    return CacheHead(directory_id, through, header.items)


# -- segments ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CachedSegment:
    """The content of a `SEGM` block."""

    number: int
    trailer: bytes
    """The bytes of the trailer in the segment's file."""
    live_ledgers: int
    live_bytes: int
    payload_bytes: int
    base: int
    offsets: array[int]
    """The ids of all ledgers of the segment, minus `base`. They have 4 or 8 bytes each."""

    def encode(self) -> list[Buffer]:
        head = _SEGMENT.pack(
            self.number, self.trailer, self.live_ledgers, self.live_bytes, self.payload_bytes,
            self.base,
        )  # fmt: skip
        return encode_block(SEGMENT, len(self.offsets), [head, little(self.offsets)])


def decode_segment(header: BlockHeader, body: Buffer) -> CachedSegment:
    view = memoryview(body)
    offsets = view[_SEGMENT.size :]
    if len(offsets) not in (4 * header.items, 8 * header.items):
        raise FormatError(
            "the index cache is damaged: its list of the ledgers in one segment has a wrong length"
        )
    typecode = "I" if len(offsets) == 4 * header.items else "q"
    number, trailer, live_ledgers, live_bytes, payload_bytes, base = _SEGMENT.unpack_from(view)
    ids = from_little(typecode, offsets)
    return CachedSegment(number, trailer, live_ledgers, live_bytes, payload_bytes, base, ids)


# -- ledgers that are gone --------------------------------------------------------------------


def encode_dead(tombstones: Mapping[int, int]) -> list[Buffer]:
    pairs = array("q", [number for pair in tombstones.items() for number in pair])
    return encode_block(DEAD, len(tombstones), [little(pairs)])


def decode_dead(header: BlockHeader, body: Buffer) -> dict[int, int]:
    if len(body) != 16 * header.items:
        raise FormatError(
            "the index cache is damaged: its list of deleted ledgers has a wrong length"
        )
    pairs = from_little("q", body)
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


# -- ledgers ----------------------------------------------------------------------------------


class CachedLedger(NamedTuple):
    """One ledger of a `LEDG` block. It is a tuple because there may be a million of them."""

    ledger_id: int
    master_key: bytes
    fenced: bool
    fence_durable: bool
    explicit_lac: bytes | None
    last_entry_id: int
    last_add_confirmed: int
    born: int
    """The number of the first segment that contains something about the ledger."""
    touched: int
    """The number of the last segment that contains something about the ledger."""
    ordered: bool
    """Whether the rows of the ledger ascend."""
    rows: bytes


def encode_ledgers(ledgers: Sequence[CachedLedger]) -> list[Buffer]:
    keys: dict[bytes, int] = {}
    numbers = array("I", [keys.setdefault(one.master_key, len(keys)) for one in ledgers])
    flags = bytes(
        (_FENCED if one.fenced else 0)
        | (0 if one.ordered else _UNORDERED)
        | (0 if one.explicit_lac is None else _EXPLICIT)
        | (_DURABLE if one.fence_durable else 0)
        for one in ledgers
    )
    key_table = _strings(keys)
    lacs = _strings([one.explicit_lac for one in ledgers if one.explicit_lac is not None])
    return encode_block(
        LEDGERS,
        len(ledgers),
        [
            little(array("q", [one.ledger_id for one in ledgers])),
            little(array("q", [one.born for one in ledgers])),
            little(array("q", [one.touched for one in ledgers])),
            little(array("q", [one.last_entry_id for one in ledgers])),
            little(array("q", [one.last_add_confirmed for one in ledgers])),
            little(numbers),
            little(array("I", [len(one.rows) for one in ledgers])),
            flags,
            _LENGTHS.pack(len(key_table), len(lacs)),
            key_table,
            lacs,
            b"".join([one.rows for one in ledgers]),
        ],
    )


def decode_ledgers(header: BlockHeader, body: Buffer) -> Iterator[CachedLedger]:
    """Yield the ledgers of a `LEDG` block.

    Raises:
        FormatError: The parts of the block do not fit together, or a ledger has an unknown flag.
    """
    columns, keys_view, lacs_view, rows_view = _parts(header, body)
    keys = list(_each_string(keys_view))
    if max(columns[_KEY], default=-1) >= len(keys):
        raise FormatError("the index cache is damaged: the key of one of its ledgers is missing")
    packets = _each_string(lacs_view)
    rows = bytes(rows_view)
    at = 0
    for ledger_id, born, touched, last, lac, key, size, flags in zip(*columns, strict=True):
        if flags & ~_FLAGS:
            raise _unknown_flags(flags)
        packet = next(packets, b"") if flags & _EXPLICIT else None
        yield CachedLedger(
            ledger_id, keys[key], bool(flags & _FENCED), bool(flags & _DURABLE), packet, last, lac,
            born, touched, not flags & _UNORDERED, rows[at : at + size],
        )  # fmt: skip
        at += size


def decode_ids(data: Buffer) -> array[int]:
    """Return the ledger ids of a `LEDG` block, from the first `ID_BYTES` * N bytes of its body."""
    return from_little("q", data)


def find_rows(header: BlockHeader, body: Buffer, ledger_id: int) -> bytes | None:
    """Return the rows of one ledger of a `LEDG` block, or None if the block does not have it.

    Raises:
        FormatError: The parts of the block do not fit together, or the ledger has an unknown flag.
    """
    columns, _, _, rows = _parts(header, body)
    try:
        at = columns[_ID].index(ledger_id)
    except ValueError:
        return None
    if columns[_FLAGS_AT][at] & ~_FLAGS:
        raise _unknown_flags(columns[_FLAGS_AT][at])
    start = sum(columns[_ROWS_BYTES][:at])
    return bytes(rows[start : start + columns[_ROWS_BYTES][at]])


def _parts(
    header: BlockHeader, body: Buffer
) -> tuple[list[array[int]], memoryview, memoryview, memoryview]:
    """Return the columns of a `LEDG` block, its keys, its explicit LACs, and its rows."""
    view, count = memoryview(body), header.items
    columns: list[array[int]] = []
    at = 0
    for typecode, width in _COLUMNS:
        columns.append(from_little(typecode, view[at : at + width * count]))
        at += width * count
    if len(view) < at + _LENGTHS.size:
        raise FormatError("the index cache is damaged: one of its lists of ledgers is cut off")
    keys_bytes, lacs_bytes = _LENGTHS.unpack_from(view, at)
    keys_at = at + _LENGTHS.size
    lacs_at = keys_at + keys_bytes
    rows = view[lacs_at + lacs_bytes :]
    if len(rows) != sum(columns[_ROWS_BYTES]):
        raise FormatError("the index cache is damaged: the rows of its ledgers have a wrong length")
    return columns, view[keys_at:lacs_at], view[lacs_at : lacs_at + lacs_bytes], rows


def _unknown_flags(flags: int) -> FormatError:
    return _unknown(True, f"a ledger with the flags {flags:#x}", f"the flags in {_FLAGS:#x}")


def _unknown(later: bool, found: str, known: str) -> FormatError:
    """Return the error for a cache with an unknown version or flag, which is then not used.

    It is not a `VersionError`, because that would end the start. Nothing is lost without the cache.
    """
    if later:
        return FormatError(written_later("it", found, known))
    return FormatError(f"it has {found}, but this version knows only {known}")


# -- end --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CacheEnd:
    """The content of the `ENDS` block."""

    ledgers: int
    """The number of ledgers in all `LEDG` blocks."""
    end_group: int
    """The number of the group after the last one that may have changed anything in the cache."""

    def encode(self) -> list[Buffer]:
        return encode_block(END, 0, [_END.pack(self.ledgers, self.end_group)])


def decode_end(body: Buffer) -> CacheEnd:
    if len(body) != _END.size:
        raise FormatError("the last block of the index cache (ENDS) has a wrong length")
    return CacheEnd(*_END.unpack(body))


def _strings(values: Sequence[bytes] | Mapping[bytes, int]) -> bytes:
    return b"".join([piece for one in values for piece in (_U32.pack(len(one)), one)])


def _each_string(view: memoryview) -> Iterator[bytes]:
    at = 0
    while at < len(view):
        (size,) = _U32.unpack_from(view, at)
        at += _U32.size
        yield bytes(view[at : at + size])
        at += size
