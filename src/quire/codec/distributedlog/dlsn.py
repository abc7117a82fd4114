"""DLSN: the position of a record in a stream (distributedlog spec, 1.2).

| version | bytes | layout                                                                   |
|---------|-------|--------------------------------------------------------------------------|
| 1       | 25    | `01`, int64 segment, int64 entry, int64 slot; written                    |
| 0       | 200   | `00`, the same three, zeros to the end; read only. The length is a slip  |
|         |       | of the first release: 25 bytes counted in bits                           |

As text, in the nodes of subscriptions: standard Base64, with padding, of these bytes.
"""

from __future__ import annotations

import binascii
import re
import struct
from base64 import b64decode, b64encode
from typing import NamedTuple

from quire.codec.distributedlog.limits import FIRST_LSSN, UNASSIGNED_LSSN, StreamFormatError
from quire.codec.entry.digest import Buffer
from quire.errors import UsageError, check_type

VERSION = 1
V1 = struct.Struct(">bqqq")  # version, segment, entry, slot
V0_BYTES = 200
_READABLE = re.compile(r"(-?\d{1,19}):(-?\d{1,19}):(-?\d{1,19})", re.ASCII)
_INT64_END = 2**63
_POSITION_REMEDY = "Use the text of a record's position, such as 5:12:3"


class DLSN(NamedTuple):
    """Ordered: by segment, then entry, then slot."""

    lssn: int
    """Number of the segment."""
    entry_id: int
    """In the segment's ledger."""
    slot_id: int
    """In the entry; a record set takes as many slots as it has members."""

    def to_bytes(self) -> bytes:
        return V1.pack(VERSION, *self)

    @classmethod
    def from_bytes(cls, data: Buffer) -> DLSN:
        """Raises StreamFormatError for anything but the two forms, to the byte."""
        size = len(data)
        version = data[0] if size else None
        if (version, size) not in ((1, V1.size), (0, V0_BYTES)):
            raise StreamFormatError(f"{bytes(data[:25]).hex()} ({size} bytes) is not a DLSN")
        if any(data[V1.size :]):
            raise StreamFormatError("a DLSN of version 0 has something behind its slot")
        _, lssn, entry_id, slot_id = V1.unpack_from(data)
        return cls(lssn, entry_id, slot_id)

    def to_text(self) -> str:
        return b64encode(self.to_bytes()).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> DLSN:
        """What `to_text` makes, and version 0 in Base64. Raises StreamFormatError."""
        try:
            data = b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise StreamFormatError(f"{text[:60]!r} is not a DLSN: no Base64") from None
        if b64encode(data).decode("ascii") != text:
            raise StreamFormatError(
                f"{text[:60]!r} is not a DLSN: not the usual Base64 of its bytes"
            )
        return cls.from_bytes(data)

    def __str__(self) -> str:
        """For people: `5:12:3`. `parse` reads it."""
        return f"{self.lssn}:{self.entry_id}:{self.slot_id}"

    @classmethod
    def parse(cls, text: str) -> DLSN:
        """Return the position that a text names: `5:12:3`, or Base64 as stored.

        Raises UsageError, which is a ValueError too, if the text is not a position.
        """
        check_type("a position", text, str)
        match = _READABLE.fullmatch(text)
        if match is None:
            try:
                return cls.from_text(text)
            except StreamFormatError as error:
                raise UsageError(str(error), remedy=_POSITION_REMEDY) from None
        lssn, entry_id, slot_id = map(int, match.groups())
        if not all(-_INT64_END <= number < _INT64_END for number in (lssn, entry_id, slot_id)):
            raise UsageError(
                f"{text!r} is not a DLSN: a number has more than 64 bits", remedy=_POSITION_REMEDY
            )
        return cls(lssn, entry_id, slot_id)

    def next_slot(self) -> DLSN:
        """The least position behind this one."""
        return DLSN(self.lssn, self.entry_id, self.slot_id + 1)

    def next_segment(self) -> DLSN:
        return DLSN(self.lssn + 1, 0, 0)


INITIAL_DLSN = DLSN(FIRST_LSSN, 0, 0)
NON_INCLUSIVE_LOWER_BOUND = DLSN(FIRST_LSSN, 0, -1)
"""Of a subscription that has stored no position."""
INVALID_DLSN = DLSN(UNASSIGNED_LSSN, -1, -1)
