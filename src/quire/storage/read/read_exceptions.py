"""Exceptions that a read raises instead of returning entries.

They never reach a program. The bookie turns `NoLedger` and `NoEntry` into error codes.
"""

from __future__ import annotations

from quire.storage.segment.segment import LogSegment


class NoLedger(Exception):
    """The error that the store does not know the ledger."""


class NoEntry(Exception):
    """The error that the store knows the ledger but does not have the entry.

    If `negatives_unknown` of the store is True, it may have had the entry and lost it.
    """


class WouldBlock(Exception):
    """The error that a read would have to wait for the device.

    Use `LedgerStore.read_blocking` instead.
    """

    def __init__(
        self, segment: LogSegment, offset: int, size: int, entries: int = 0, entry_bytes: int = 0
    ) -> None:
        """Name the extent of the file of a segment that is needed.

        `entries` and `entry_bytes` are the number and size of the entries in the extent. `entries`
        is 0 if the extent is part of an index.
        """
        super().__init__()
        self.segment = segment
        self.offset = offset
        self.size = size
        self.entries = entries
        self.entry_bytes = entry_bytes

    @property
    def key(self) -> tuple[LogSegment, int, int]:
        """The key of the extent in `FetchedExtents`."""
        return self.segment, self.offset, self.size
