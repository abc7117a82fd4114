"""Protocol v2: the frames between clients and bookies (docs/reference/protocol.md).

All integers are big-endian. A frame begins with its length N in bytes (4 bytes, unsigned, not
counting itself). The header word (4 bytes) follows: version (8 bits), opcode (8), flags (16). Ids,
codes, counts and sizes are signed.

    ADD request           N | word | master key 20 | entry bytes (see `entry`)
    READ request          N | word | ledger 8 | entry 8 | master key 20, only with DO_FENCING
    BATCH_READ request    N | word | ledger 8 | first entry 8 | request id 8 | max count 4 |
                          max size in bytes 8 | master key 20, only with DO_FENCING
    AUTH, both directions N | word | AuthMessage (protobuf)
    ADD response          N | word | code 4 | ledger 8 | entry 8
    READ response         N | word | code 4 | ledger 8 | entry 8 | entry bytes
    BATCH_READ response   N | word | code 4 | ledger 8 | first entry 8 | request id 8 |
                          (length 4 | entry bytes) for each entry
"""

from __future__ import annotations

import enum
import struct
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from sys import byteorder

from quire.codec.packed_rows import pack_rows, unpack_rows

Buffer = bytes | bytearray | memoryview

MAX_FRAME_BYTES = 5_242_880
"""The size of the largest frame that every Apache bookie accepts by default, with its length field
(`nettyMaxFrameSizeBytes`)."""

VERSION = 2
MAX_VERSION = 2


class Opcode(enum.IntEnum):
    """The operation of a request."""

    ADD = 1
    READ = 2
    AUTH = 3
    BATCH_READ = 7


class Flag(enum.IntFlag):
    """The flags of a request."""

    NONE = 0
    DO_FENCING = 1
    RECOVERY_ADD = 2
    HIGH_PRIORITY = 4
    WAIT = 0x100
    """A flag for BATCH_READ that only Quire has (docs/reference/protocol.md). If the first entry
    does not exist yet, the bookie may answer a little later. Apache's bookies ignore this flag."""


RECOVERY_ADD = int(Flag.RECOVERY_ADD)
HIGH_PRIORITY = int(Flag.HIGH_PRIORITY)
"""The flag HIGH_PRIORITY as a plain integer, for code that runs for each ledger or add. Arithmetic
with enumerations is slow."""


class Code(enum.IntEnum):
    """The result codes with which bookies answer requests."""

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_LEDGER_STATE = 107


def header_word(opcode: int, flags: int = 0, version: int = VERSION) -> int:
    """Return the header word of a frame, with these flags (`Flag`).

    In version 0, the word is the opcode alone.
    """
    if version == 0:
        return opcode
    return version << 24 | opcode << 16 | flags


def split_word(word: int) -> tuple[int, int, int]:
    """Return the version, opcode and flags of a header word.

    Version 0 has its opcode in the low byte.
    """
    version = word >> 24
    if version == 0:
        return 0, word & 0xFF, 0
    return version, word >> 16 & 0xFF, word & 0xFFFF


ADD_WORD = header_word(Opcode.ADD)
READ_WORD = header_word(Opcode.READ)
BATCH_READ_WORD = header_word(Opcode.BATCH_READ)

LENGTH = struct.Struct(">I")
WORD = struct.Struct(">II")  # length, header word
ADD_PREFIX = struct.Struct(">II20s")  # length, header word, master key
ADD_HEAD = struct.Struct(">II20sqq")  # ..., ledger, entry: the part that a bookie reads
READ_REQUEST = struct.Struct(">IIqq")  # length, header word, ledger, entry
BATCH_READ_REQUEST = struct.Struct(">IIqqqiq")  # ..., request id, max count, max size
RESPONSE = struct.Struct(">IIiqq")  # length, header word, code, ledger, entry
_ADD_OK = struct.pack(">IIi", 24, ADD_WORD, 0)
BATCH_RESPONSE = struct.Struct(">IIiqqq")  # ..., request id

FRAME_HEADER_BYTES = ADD_PREFIX.size
"""The number of bytes of an ADD frame before the entry."""
KEY_BYTES = 20
ADD_RESPONSE_BYTES = RESPONSE.size
READ_RESPONSE_BYTES = RESPONSE.size
BATCH_RESPONSE_BYTES = BATCH_RESPONSE.size
BATCH_ENTRY_OVERHEAD_BYTES = 4
BATCH_READ_BASE_BYTES = 36
"""The bytes that Apache's bookie counts for the response to a batch read before its first entry."""
LAST_ENTRY = -1
"""The entry id with which a READ asks for the last entry that the bookie has."""


def equal_frames(view: memoryview, at: int, end: int, size: int) -> int:
    """Estimate how many frames of `size` bytes begin at `at`, from a few length fields.

    The result is at most the number that fits, and 1 if the next frame has another size. The
    estimate is cheap for mixed sizes as well.
    """
    count = (end - at) // size
    length = view[at : at + 4]
    if count > 1 and view[at + size : at + size + 4] != length:
        return 1
    while count > 2 and view[at + (count - 1) * size : at + (count - 1) * size + 4] != length:
        count //= 2
    return count


# -- requests ---------------------------------------------------------------------------------


def add_request(key: bytes, entry: bytes, flags: int = 0) -> bytes:
    """Return an ADD frame with these flags (`Flag`), for the bytes of an entry with its digest.

    `key` is the master key. `entry.AddEncoder` builds the same bytes on the client's hot path.
    """
    size = ADD_PREFIX.size - LENGTH.size + len(entry)
    return ADD_PREFIX.pack(size, header_word(Opcode.ADD, flags), key) + entry


def read_request(ledger_id: int, entry_id: int, flags: int = 0, key: bytes = b"") -> bytes:
    """Return a READ frame for one entry (-1: the last one), with these flags (`Flag`).

    `key` is the master key, which is sent only with DO_FENCING.
    """
    tail = key if flags & Flag.DO_FENCING else b""
    size = READ_REQUEST.size - LENGTH.size + len(tail)
    return READ_REQUEST.pack(size, header_word(Opcode.READ, flags), ledger_id, entry_id) + tail


def batch_read_request(
    ledger_id: int,
    first: int,
    request_id: int,
    max_count: int,
    max_size: int,
    flags: int = 0,
    key: bytes = b"",
) -> bytes:
    """Return a BATCH_READ frame for consecutive entries of one bookie.

    The response repeats `request_id`. `max_size` is in bytes. A `max_count` of 0 or less means no
    limit. `flags` are those of `Flag`. `key` is the master key, which is sent only with DO_FENCING.
    """
    tail = key if flags & Flag.DO_FENCING else b""
    size = BATCH_READ_REQUEST.size - LENGTH.size + len(tail)
    word = header_word(Opcode.BATCH_READ, flags)
    return (
        BATCH_READ_REQUEST.pack(size, word, ledger_id, first, request_id, max_count, max_size)
        + tail
    )


def auth_message(plugin: str, payload: bytes) -> bytes:
    """Return an AuthMessage {1: plugin name, 2: payload}.

    Raises:
        ValueError: The name or the payload has more than 127 bytes.
    """
    name = plugin.encode()
    if len(name) > 127 or len(payload) > 127:
        raise ValueError("a field of an AuthMessage must have at most 127 bytes")
    return bytes([0x0A, len(name)]) + name + bytes([0x12, len(payload)]) + payload


def auth_frame(message: bytes, version: int = VERSION) -> bytes:
    """Return an AUTH frame of this version. Request and response have the same form."""
    return WORD.pack(len(message) + 4, header_word(Opcode.AUTH, 0, version)) + message


# -- responses --------------------------------------------------------------------------------


def add_response(code: int, ledger_id: int, entry_id: int, version: int = VERSION) -> bytes:
    """Return the response to an add, in the protocol version of the request."""
    word = header_word(Opcode.ADD, 0, version)
    return RESPONSE.pack(24, word, code, ledger_id, entry_id)


def add_responses(ledger_id: int, first: int, count: int) -> bytes:
    """Return the OK responses to `count` consecutive adds from `first` on, as one bytes object.

    The bytes are filled column by column, with a few dozen slice assignments instead of `count`
    calls.
    """
    head = RESPONSE.pack(24, ADD_WORD, 0, ledger_id, first)
    if count < 8:
        pack = RESPONSE.pack
        return b"".join(
            [pack(24, ADD_WORD, 0, ledger_id, entry) for entry in range(first, first + count)]
        )
    out = bytearray(head * count)
    ids = array("q", range(first, first + count))
    if byteorder == "little":
        ids.byteswap()
    columns = ids.tobytes()
    # Only the low bytes that differ between the first and the last id are written.
    changed = (first ^ (first + count - 1)).bit_length() + 7 >> 3
    for byte in range(8 - changed, 8):
        out[20 + byte :: ADD_RESPONSE_BYTES] = columns[byte::8]
    return bytes(out)


def add_responses_of(
    ledger_id: int, entry_ids: Iterable[int], code: int = 0, version: int = VERSION
) -> bytes:
    """Return responses with one code to any adds of one ledger, in the version of the adds."""
    pack, word = RESPONSE.pack, header_word(Opcode.ADD, 0, version)
    return b"".join([pack(24, word, code, ledger_id, entry) for entry in entry_ids])


def add_responses_each(ledger_ids: Sequence[int], entry_ids: Sequence[int]) -> bytes:
    """Return the OK responses to adds of several ledgers, as one bytes object.

    Response k is that of entry `entry_ids[k]` of ledger `ledger_ids[k]`.
    """
    columns = {1: ledger_ids, 2: entry_ids}
    return pack_rows(">", "12sqq", (_ADD_OK, 0, 0), columns, len(ledger_ids))


def read_response(
    code: int, ledger_id: int, entry_id: int, entry: Buffer = b"", version: int = VERSION
) -> bytes:
    """Return the response to a read, in the protocol version of the request.

    `entry` is the bytes of the entry with its digest. It is empty if `code` is an error.
    """
    word = header_word(Opcode.READ, 0, version)
    return b"".join((RESPONSE.pack(24 + len(entry), word, code, ledger_id, entry_id), entry))


CONNECTION_REFUSED = read_response(Code.TOO_MANY_REQUESTS, -1, -1)
"""The response that a bookie sends without a request before it closes a connection for which it has
no place.

No request has an id below 0, so a client that does not know this response ignores it.
"""


def batch_read_response(
    code: int, ledger_id: int, first: int, request_id: int, entries: Sequence[Buffer] = ()
) -> bytes:
    """Return the response to a batch read. There are no entries if `code` is an error."""
    body = pack_entries(entries)
    return batch_read_head(code, ledger_id, first, request_id, len(body)) + body


def batch_read_head(
    code: int, ledger_id: int, first: int, request_id: int, body_bytes: int
) -> bytes:
    """Return a BATCH_READ response up to its entries, which `pack_entries` encodes."""
    total = BATCH_RESPONSE.size - LENGTH.size + body_bytes
    return BATCH_RESPONSE.pack(total, BATCH_READ_WORD, code, ledger_id, first, request_id)


def pack_entries(entries: Sequence[Buffer]) -> bytes:
    """Return the entries, each after its length (4 bytes, big-endian)."""
    sizes = list(map(len, entries))
    if sizes and sizes.count(sizes[0]) == len(sizes):
        # All entries have the same length, so joining them with it puts it before each.
        return LENGTH.pack(sizes[0]).join((b"", *entries))
    parts: list[Buffer] = []
    for size, entry in zip(sizes, entries):
        parts.append(LENGTH.pack(size))
        parts.append(entry)
    return b"".join(parts)


# -- columns of equal frames ------------------------------------------------------------------


@lru_cache(maxsize=256)
def _add_row(frame_bytes: int) -> str:
    return f"{FRAME_HEADER_BYTES}sqqq{frame_bytes - FRAME_HEADER_BYTES - 24}x"


def add_columns(
    view: memoryview, frame_bytes: int
) -> tuple[tuple[bytes, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return four columns of ADD frames that have `frame_bytes` each and are back to back.

    The columns are the bytes before the entries, the ledger ids, the entry ids and the LACs. A row
    is meaningful only if all length fields up to it equal `frame_bytes` - 4.
    """
    prefixes, ledgers, entries, lacs = unpack_rows(">", _add_row(frame_bytes), 4, view, frame_bytes)
    return prefixes, ledgers, entries, lacs


def frame_bounds(data: Buffer) -> list[tuple[int, int]]:
    """Return the start and end of each whole frame in `data`."""
    bounds = []
    at, end = 0, len(data)
    while at + 4 <= end:
        stop = at + 4 + LENGTH.unpack_from(data, at)[0]
        if stop > end:
            break
        bounds.append((at, stop))
        at = stop
    return bounds
