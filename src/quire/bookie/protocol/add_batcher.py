"""The collection of a connection's accepted adds into one batch for the store."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from quire.bookie.protocol.service import BookieService
from quire.codec.log.group import ColumnarBatch
from quire.codec.wire.v2 import HIGH_PRIORITY, RECOVERY_ADD, Buffer, Code
from quire.errors import StorageError, UsageError
from quire.storage.config import SEGMENT_BYTES_LEAST
from quire.storage.segment.batch import LogBatch, Run, runs_of

Done = Callable[[LogBatch, StorageError | None], None]

MIN_ENTRY_BYTES = 24
"""The size in bytes of the ledger id, the entry id and the LAC at the start of an entry. A bookie
parses only this part."""
BATCH_SHARE = 2
"""The divisor that gives the most bytes of a batch from the size of a segment. A batch then fits
into a segment together with its tables, even if segments are smaller than what is received at
once."""


class AddBatcher:
    """The accepted adds of a connection, collected until `submit` passes them to the store.

    The adds that were taken since the last `submit` are one batch. The caller collects their frames
    in the order in which they were taken, and passes them to `submit`.
    """

    __slots__ = (
        "_batch_bytes", "_batch_bytes_max", "_columns", "_copies", "_runs", "_service", "_urgent",
    )  # fmt: skip

    def __init__(self, service: BookieService) -> None:
        self._service = service
        self._runs: list[Run] = []
        self._columns: ColumnarBatch | None = None
        """The collected adds as columns, or None if they are in `_runs`. Columns are used while the
        ledgers alternate and all frames have the same size."""
        self._batch_bytes = 0
        self._batch_bytes_max = (service.config.segment_bytes or SEGMENT_BYTES_LEAST) // BATCH_SHARE
        self._urgent = False
        """Whether the batch has high-priority adds, which may use the reserve of a full disk."""
        self._copies = 0
        """The number of collected entries that are replicated from other bookies. They are recovery
        adds without the high priority that the adds of a recovery have."""

    def most(self, size: int) -> int:
        """Return how many frames of `size` bytes may be taken at once, which is at least one."""
        return max(1, self._batch_bytes_max // size)

    def has_room(self, size_bytes: int) -> bool:
        """Return whether `size_bytes` more bytes fit into the batch. If not, submit it first."""
        return self._batch_bytes + size_bytes <= self._batch_bytes_max

    def take(
        self, flags: int, key: bytes, ledger: int, entries: Sequence[int], size: int, lac: int
    ) -> int:
        """Accept ascending entries of one ledger, or refuse all of them.

        Return `Code.OK`, or the code of the refusal. The frames have `size` bytes each, and the
        last one carries the LAC `lac`. `flags` are the flags of protocol v2.
        """
        service = self._service
        info = service.store.ledgers.get(ledger)
        if info is None or info.fenced or not service.writable or info.master_key != key:
            code = service.may_add(ledger, key, flags)
            if code:
                return code
            info = service.store.ledgers[ledger]
        count = len(entries)
        first = entries[0]
        if first < 0:
            return Code.BAD_REQUEST
        if flags:
            self._note(flags, count)
        if lac > info.last_add_confirmed:
            info.last_add_confirmed = lac
            if ledger in service.long_polls:
                service.long_polls.wake(ledger, lac)
        if count == 1 and not self._batch_bytes:
            self._columns = ColumnarBatch((ledger,), (first,), size)
        else:
            self._list()
            consecutive = entries[-1] - first == count - 1
            if not (consecutive and self._extend_run(ledger, first, count, size)):
                ids = None if consecutive else array("q", entries)
                self._runs.append(Run(ledger, first, count, self._batch_bytes, size, None, ids))
        self._batch_bytes += count * size
        return Code.OK

    def take_each(
        self,
        flags: int,
        key: bytes,
        ledgers: Sequence[int],
        entries: Sequence[int],
        lacs: Sequence[int],
        size: int,
    ) -> list[tuple[int, int]]:
        """Accept or refuse each row of an add of several ledgers, as `take` does for one ledger.

        Return the index of each refused row and the code of its refusal, ascending. The other rows
        are accepted in their order.
        """
        service, refused = self._service, list[tuple[int, int]]()
        known, polls = service.store.ledgers.get, service.long_polls or ()
        plain = service.writable
        rows = zip(range(len(ledgers)), map(known, ledgers), entries, lacs)
        for row, info, entry, lac in rows:
            if info is None or info.fenced or info.master_key != key or entry < 0 or not plain:
                ledger = ledgers[row]
                code = service.may_add(ledger, key, flags) or (entry < 0 and Code.BAD_REQUEST)
                if code:
                    refused.append((row, code))
                    continue
                info = service.store.ledgers[ledger]
            if lac > info.last_add_confirmed:
                info.last_add_confirmed = lac
                if polls and ledgers[row] in polls:
                    service.long_polls.wake(ledgers[row], lac)
        if refused:
            bad = {row for row, _ in refused}
            good = [row for row in range(len(ledgers)) if row not in bad]
            ledgers, entries = [ledgers[row] for row in good], [entries[row] for row in good]
        if ledgers:
            self._add_columns(ColumnarBatch(ledgers, entries, size))
            if flags:
                self._note(flags, len(ledgers))
        return refused

    def _add_columns(self, more: ColumnarBatch) -> None:
        before = self._columns
        if not self._batch_bytes:
            self._columns = more
        elif before is not None and before.frame_size == more.frame_size:
            self._columns = ColumnarBatch(
                (*before.ledger_ids, *more.ledger_ids),
                (*before.entry_ids, *more.entry_ids),
                before.frame_size,
            )
        else:
            self._list()
            self._runs += runs_of(more, self._batch_bytes)
        self._batch_bytes += more.frame_size * len(more.ledger_ids)

    def _list(self) -> None:
        """Convert the collected columns to runs, so that runs of any kind can follow them."""
        if self._columns is not None:
            self._runs, self._columns = runs_of(self._columns), None

    def _note(self, flags: int, count: int) -> None:
        """Note the priority, and whether they are copies, of `count` entries that were accepted."""
        if flags & HIGH_PRIORITY:
            self._urgent = True
        elif flags & RECOVERY_ADD:
            self._copies += count

    def _extend_run(self, ledger: int, first: int, count: int, size: int) -> bool:
        """Extend the last run of the batch if the entries follow it, and return whether they do.

        Adjacent frames of different sizes then make one run, instead of one run for each size.
        """
        if not self._runs:
            return False
        run = self._runs[-1]
        if run.ledger_id != ledger or run.ids is not None or run.first + run.count != first:
            return False
        if run.sizes is None and run.frame_size != size:
            run.sizes = array("I", [run.frame_size]) * run.count
            run.frame_size = 0
        if run.sizes is not None:
            run.sizes.extend([size] * count)
        run.count += count
        return True

    @property
    def empty(self) -> bool:
        return not self._batch_bytes

    def submit(self, buffers: Sequence[Buffer], done: Done) -> None:
        """Pass the collected adds to the store as one batch.

        `buffers` has their frames. `done` is called with the batch and None when they are durable,
        or with the batch and the error if the store refuses them or fails.
        """
        batch = LogBatch(buffers, self._columns or self._runs)
        batch.received_s = self._service.received_s
        urgent, self._urgent = self._urgent, False
        copies, self._copies = self._copies, 0
        self._runs, self._columns, self._batch_bytes = [], None, 0
        self._service.count_adds(batch)
        if copies:
            self._service.counters.copies += copies
            batch.patient = copies == batch.entries
        self._hand_over(batch, urgent, done)

    def _hand_over(self, batch: LogBatch, urgent: bool, done: Done) -> None:
        try:
            self._service.store.append(batch, done, reserve=urgent)
        except StorageError as error:
            done(batch, error)
        except UsageError as error:  # the batch is larger than a segment of this bookie
            # The client learns only the code of the answer, so the log has to say why.
            self._service.limits.tell("entry_refused", error=str(error))
            done(batch, StorageError(error.args[0], remedy=error.remedy))
