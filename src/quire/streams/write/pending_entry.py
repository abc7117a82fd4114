"""A pending entry: records that will become one entry of a ledger, and the positions that they get.

Pending entries are filled in the order of the appends. They are sent and acknowledged in the same
order. An entry that was sent to a segment that failed may be sent again to the next segment, but
only if recovery of the failed segment proved that it does not contain the entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate

from quire._runtime.opening import represented
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.record import HEAD_BYTES
from quire.codec.wire.v2 import Buffer
from quire.errors import QuireError, done_in_part


class PendingEntry:
    """The records of one entry, and the control records between them."""

    __slots__ = (
        "control", "done", "ends", "entry_id", "envelopes", "lssn", "marks", "payloads",
        "record_bytes", "sent_by", "sequence", "size_bytes", "token", "txids",
    )  # fmt: skip

    def __init__(self, sequence: int) -> None:
        self.payloads: list[Buffer] = []
        self.txids: list[int] = []
        self.envelopes = b""
        """One byte for each record: 1 if the record has an envelope. Zeros at the end are left out.
        """
        self.marks: list[tuple[int, bytes]] = []
        """The control records. Each has the index of the record that it precedes, and its payload.
        """
        self.sent_by: list[tuple[str, int, int]] = []
        """The last record of each producer in this entry: the producer's id, the number that the
        producer gave the record, and the index of the record in the entry.
        """
        self.token: str | None = None
        """The fencing token that this entry sets, or None if it sets none."""
        self.record_bytes = 0
        self.size_bytes = 0
        """The number of bytes of all records with their headers, control records included."""
        self.sequence = sequence
        """The sequence id of the entry's first record: the number of records in the stream before
        it.
        """
        self.lssn = self.entry_id = -1
        self.ends = False
        """Whether the stream ends after the records of this entry."""
        self.control = False
        """Whether Quire added the entry for its own use, so that no caller waits for it."""
        self.done: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self.payloads)

    def add(
        self, payloads: Sequence[Buffer], txids: Sequence[int], envelopes: bytes = b""
    ) -> tuple[int, int]:
        """Add records to the entry.

        Args:
            payloads: The bytes of each record.
            txids: The transaction id of each record.
            envelopes: One byte for each record, 1 if its payload begins with an envelope, or
                nothing if none does.

        Returns:
            The index of the first of these records, and the number of bytes that they take.
        """
        first = len(self.payloads)
        if envelopes:
            self.envelopes = self.envelopes.ljust(first, b"\0") + envelopes
        self.payloads.extend(payloads)
        self.txids.extend(txids)
        size_bytes = sum(map(len, payloads)) + HEAD_BYTES * len(payloads)
        self.record_bytes += size_bytes
        self.size_bytes += size_bytes
        return first, size_bytes

    def mark(self, payload: bytes) -> None:
        """Put a control record before the record that is added next."""
        self.marks.append((len(self.payloads), payload))
        self.size_bytes += HEAD_BYTES + len(payload)

    def position(self, index: int) -> DLSN:
        """Return the position of a record. The entry must have been sent."""
        before = sum(1 for at, _ in self.marks if at <= index)
        return DLSN(self.lssn, self.entry_id, index + before)

    def waiter(self) -> asyncio.Future[None]:
        """Return the future that is done when the entry is acknowledged or has failed.

        All callers share the future, so they shield it from their own cancellation.
        """
        if self.done is None:
            self.done = asyncio.get_running_loop().create_future()
        return self.done

    def settle(self, error: BaseException | None = None) -> None:
        """Complete the future that `waiter` returns, with an error if there is one."""
        done = self.waiter()
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
            done.exception()  # mark the error as seen: there may be no waiter


class Appended(Sequence[DLSN]):
    """The positions of records that were appended together, as a sequence.

    The positions are known when the records are acknowledged. A position that is read before that
    has no meaning. The sequence is empty if no record was passed, or if the stream had all records
    of a producer already. `first` and `last` raise IndexError then.
    """

    __slots__ = ("_parts", "_starts")

    def __init__(self, parts: Sequence[tuple[PendingEntry, int, int]]) -> None:
        """Create the sequence from parts: (pending entry, index of its first record, count)."""
        self._parts = parts
        self._starts = list(accumulate((count for _, _, count in parts), initial=0))

    def __repr__(self) -> str:
        settled = all(entry.done is not None and entry.done.done() for entry, _, _ in self._parts)
        return represented(self, "settled" if settled else "under_way", records=len(self))

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
        """Wait until all records are acknowledged.

        On return the records are durable on an ack quorum. Cancelling this call is safe.

        Raises:
            QuireError: The writer failed before the records were acknowledged. See
                `StreamWriter.append`.
        """
        for at, (entry, _, _) in enumerate(self._parts):
            try:
                await asyncio.shield(entry.waiter())
            except QuireError as error:
                if not at:
                    raise
                # The records of the entries before it are in the stream.
                raise done_in_part(error) from error.__cause__
