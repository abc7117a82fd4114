"""DLSN: the position of a record in a stream.

| version | bytes | layout                                                                      |
|---------|-------|-----------------------------------------------------------------------------|
| 1       | 25    | `01`, segment, entry, slot; written                                         |
| 0       | 200   | `00`, the same numbers, and zeros to the end; only read. The length is a    |
|         |       | mistake of the first release, which counted 25 bytes in bits                |

The numbers are signed, big-endian and 64 bits wide. In the nodes of subscriptions these bytes are
stored as standard Base64 with padding.
"""

from __future__ import annotations

import binascii
import re
import struct
from base64 import b64decode, b64encode
from typing import NamedTuple

from quire._runtime.units import counted
from quire.codec.distributedlog.limits import (
    BY,
    FIRST_LSSN,
    UNASSIGNED_LSSN,
    LaterStreamFormatError,
    StreamFormatError,
)
from quire.codec.entry.digest import Buffer
from quire.errors import UsageError, check_type, written_later

VERSION = 1
V1 = struct.Struct(">bqqq")  # version, segment, entry, slot
V0_BYTES = 200
_READABLE = re.compile(r"(-?\d{1,19}):(-?\d{1,19}):(-?\d{1,19})", re.ASCII)
_INT64_END = 2**63
_POSITION_REMEDY = "Use the text of a record's position, such as 5:12:3"


class DLSN(NamedTuple):
    """A position in a stream. Positions are ordered by segment, then entry, then slot."""

    lssn: int
    """The number of the segment."""
    entry_id: int
    """The id of the entry in the segment's ledger."""
    slot_id: int
    """The slot in the entry. A record set takes as many slots as it has members."""

    def to_bytes(self) -> bytes:
        """Return the 25 bytes of the position in version 1."""
        return V1.pack(VERSION, *self)

    @classmethod
    def from_bytes(cls, data: Buffer) -> DLSN:
        """Decode a position of either version.

        Args:
            data: The bytes of the position.

        Returns:
            The position.

        Raises:
            LaterStreamFormatError: A later version wrote the position.
            StreamFormatError: The bytes are not exactly one of the two forms.
        """
        size = len(data)
        version = data[0] if size else None
        if size and VERSION < data[0] < 128:
            raise LaterStreamFormatError(
                written_later("the DLSN", f"version {data[0]}", f"0 and {VERSION}", by=BY)
            )
        if (version, size) not in ((1, V1.size), (0, V0_BYTES)):
            raise StreamFormatError(
                f"{bytes(data[:25]).hex()} ({counted(size, 'byte')}) is not an encoded position "
                "(DLSN)"
            )
        if any(data[V1.size :]):
            raise StreamFormatError(
                "the encoded position (DLSN) of version 0 has data after its slot number"
            )
        _, lssn, entry_id, slot_id = V1.unpack_from(data)
        return cls(lssn, entry_id, slot_id)

    def to_text(self) -> str:
        """Return the position as Base64, as nodes of subscriptions store it."""
        return b64encode(self.to_bytes()).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> DLSN:
        """Decode the Base64 of a position of either version, as nodes of subscriptions store it.

        Args:
            text: The Base64.

        Returns:
            The position.

        Raises:
            LaterStreamFormatError: A later version wrote the position.
            StreamFormatError: The text is not the standard Base64 of a position.
        """
        try:
            data = b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise StreamFormatError(
                f"{text[:60]!r} is not a position (DLSN): it is neither SEGMENT:ENTRY:SLOT nor "
                "Base64"
            ) from None
        if b64encode(data).decode("ascii") != text:
            raise StreamFormatError(
                f"{text[:60]!r} is not a position (DLSN): its Base64 is not the standard "
                "encoding of its bytes"
            )
        return cls.from_bytes(data)

    def __str__(self) -> str:
        """Return the form for people, such as `5:12:3`, which `parse` reads."""
        return f"{self.lssn}:{self.entry_id}:{self.slot_id}"

    @classmethod
    def parse(cls, text: str) -> DLSN:
        """Return the position that a person wrote.

        Args:
            text: The position as `5:12:3`, or in the form that `to_text` returns.

        Returns:
            The position.

        Raises:
            UsageError: The text is not a position. This error is a ValueError as well.
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
                f"{text!r} is not a position (DLSN): one of its numbers does not fit into a "
                "signed 64-bit integer",
                remedy=_POSITION_REMEDY,
            )
        return cls(lssn, entry_id, slot_id)

    def next_slot(self) -> DLSN:
        """Return the lowest position after this one, at which a reader continues after a record."""
        return DLSN(self.lssn, self.entry_id, self.slot_id + 1)

    def next_segment(self) -> DLSN:
        """Return the first position of the next segment."""
        return DLSN(self.lssn + 1, 0, 0)


INITIAL_DLSN = DLSN(FIRST_LSSN, 0, 0)
NON_INCLUSIVE_LOWER_BOUND = DLSN(FIRST_LSSN, 0, -1)
"""A position before every record. A subscription that has stored no position starts after it."""
INVALID_DLSN = DLSN(UNASSIGNED_LSSN, -1, -1)
