"""A pending entry: records that will be one entry of a ledger, and the positions that they get.

Pending entries are filled in the order of the appends, sent in that order, and acknowledged in that
order. One that was sent to a segment which failed may be sent again to the next segment, but only
if recovery of the failed one proved that the entry is not part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.record import HEAD_BYTES
from quire.codec.wire.v2 import Buffer


class PendingEntry:
    """The records of one entry, and the marks (control records) between them."""

    __slots__ = (
        "control", "done", "ends", "entry_id", "lssn", "marks", "payloads", "record_bytes",
        "sent_by", "sequence", "size_bytes", "token", "txids",
    )  # fmt: skip

    def __init__(self, sequence: int) -> None:
        self.payloads: list[Buffer] = []
        self.txids: list[int] = []
        self.marks: list[tuple[int, bytes]] = []
        """(index of the record before which it stands, its payload)."""
        self.sent_by: list[tuple[str, int, int]] = []
        """(producer, number of its last record here, index of that record)."""
        self.token: str | None = None
        """The fencing token that is set here."""
        self.record_bytes = 0
        self.size_bytes = 0
        """With the marks."""
        self.sequence = sequence
        """The sequence id of its first record: records of the stream before it."""
        self.lssn = self.entry_id = -1
        self.ends = False
        """The end of the stream follows its records."""
        self.control = False
        """An entry of ours, without records: nobody waits for it."""
        self.done: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self.payloads)

    def add(self, payloads: Sequence[Buffer], txids: Sequence[int]) -> tuple[int, int]:
        """(index of the first of them, bytes that they take)."""
        first = len(self.payloads)
        self.payloads.extend(payloads)
        self.txids.extend(txids)
        size_bytes = sum(map(len, payloads)) + HEAD_BYTES * len(payloads)
        self.record_bytes += size_bytes
        self.size_bytes += size_bytes
        return first, size_bytes

    def mark(self, payload: bytes) -> None:
        """A control record before the record that is added next."""
        self.marks.append((len(self.payloads), payload))
        self.size_bytes += HEAD_BYTES + len(payload)

    def position(self, index: int) -> DLSN:
        """Of a record, once the pending entry was sent."""
        before = sum(1 for at, _ in self.marks if at <= index)
        return DLSN(self.lssn, self.entry_id, index + before)

    def waiter(self) -> asyncio.Future[None]:
        """Done when the entry is acknowledged. Shared: shield it."""
        if self.done is None:
            self.done = asyncio.get_running_loop().create_future()
        return self.done

    def settle(self, error: BaseException | None = None) -> None:
        done = self.waiter()
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
            done.exception()  # whoever waits hears of it; nobody has to


class Appended(Sequence[DLSN]):
    """The positions of records that were appended together."""

    __slots__ = ("_parts", "_starts")

    def __init__(self, parts: Sequence[tuple[PendingEntry, int, int]]) -> None:
        """Each part is (pending entry, index of its first record, number of records)."""
        self._parts = parts
        self._starts = list(accumulate((count for _, _, count in parts), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> DLSN:  # type: ignore[override]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        for start, (entry, first, count) in zip(self._starts, self._parts):
            if index < start + count:
                return entry.position(first + index - start)
        raise AssertionError("unreachable")  # pragma: no cover

    @property
    def first(self) -> DLSN:
        """The position of the first record."""
        return self[0]

    @property
    def last(self) -> DLSN:
        """The position of the last record."""
        return self[-1]

    async def wait(self) -> None:
        """Until all are acknowledged. Cancel-safe."""
        for entry, _, _ in self._parts:
            await asyncio.shield(entry.waiter())
