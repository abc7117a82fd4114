"""What a run of `replicate` knows of the ledgers that it writes itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.client import LedgerWriter
from quire.codec.distributedlog.segment import StreamSegment
from quire.streams.read.records import decode


@dataclass(slots=True)
class Copied:
    """What this run has copied and published."""

    segments: int = 0
    entries: int = 0
    size_bytes: int = 0
    """Payload of entries."""


@dataclass(slots=True)
class Tail:
    """A ledger that follows the source's segment in progress."""

    segment: StreamSegment
    writer: LedgerWriter
    named: bool = False
    """The copy's segment in progress is this."""
    records: int = 0
    entries: int = 0
    size_bytes: int = 0

    def count_records(self, first: int, payloads: Sequence[bytes]) -> None:
        """Records number themselves: the last entry that has some says how many there are."""
        for at in range(len(payloads) - 1, -1, -1):
            users = decode(self.segment, first + at, payloads[at]).users()
            if len(users):
                self.records = users.positions[-1]
                return
