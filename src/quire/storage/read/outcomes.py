"""What a read may find instead of entries. Cheap and internal: the bookie turns them into codes."""

from __future__ import annotations

from quire.storage.segment.segment import LogSegment


class NoLedger(Exception):
    """The store knows no such ledger."""


class NoEntry(Exception):
    """The store knows the ledger and never had the entry, unless `negatives_unknown` is set."""


class WouldBlock(Exception):
    """The device would have to be waited for: use `read_blocking`."""

    def __init__(
        self, segment: LogSegment, offset: int, size: int, entries: int = 0, entry_bytes: int = 0
    ) -> None:
        """`entries`: how many, with how many bytes, lie in these blocks; 0: it is of an index."""
        super().__init__()
        self.segment = segment
        self.offset = offset
        self.size = size
        self.entries = entries
        self.entry_bytes = entry_bytes

    @property
    def key(self) -> tuple[LogSegment, int, int]:
        return self.segment, self.offset, self.size
