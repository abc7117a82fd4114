"""Adds that a connection has accepted, on their way to the store: runs of one batch."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from quire.codec.frames import HIGH_PRIORITY, Buffer, Code
from quire.errors import StorageError, UsageError
from quire.storage.batch import Batch, Run

if TYPE_CHECKING:
    from quire.bookie.service import BookieService

Done = Callable[[Batch, StorageError | None], None]

MIN_ENTRY_BYTES = 24
"""Ids and LAC: what a bookie looks at."""


class Intake:
    """Between two `submit` the frames of what was taken lie back to back, in the order taken, in
    the buffers that `submit` gets."""

    __slots__ = ("_batch_bytes", "_service", "_urgent", "runs")

    def __init__(self, service: BookieService) -> None:
        self._service = service
        self.runs: list[Run] = []
        self._batch_bytes = 0
        self._urgent = False
        """The batch has high-priority adds, which may use the reserve of a full disk."""

    def take(
        self, flags: int, key: bytes, ledger: int, entries: Sequence[int], size: int, lac: int
    ) -> int:
        """Accept ascending entries of one ledger with frames of `size` bytes, the last of which
        carries `lac`; or the code of the refusal (of all of them). `flags` are those of v2."""
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
        if flags & HIGH_PRIORITY:
            self._urgent = True
        if lac > info.last_add_confirmed:
            info.last_add_confirmed = lac
            if ledger in service.long_polls:
                service.long_polls.wake(ledger, lac)
        consecutive = entries[-1] - first == count - 1
        if not (consecutive and self._extend_run(ledger, first, count, size)):
            ids = None if consecutive else array("q", entries)
            self.runs.append(Run(ledger, first, count, self._batch_bytes, size, None, ids))
        self._batch_bytes += count * size
        return Code.OK

    def take_each(
        self,
        flags: int,
        key: bytes,
        ledgers: Sequence[int],
        entries: Sequence[int],
        lacs: Sequence[int],
        start: int,
        size: int,
    ) -> int:
        """Accept rows from `start` on, which are of several ledgers; how many. The row behind them
        is for `take`: it is not plainly fine, or it does not go on where its ledger's last one
        ended."""
        runs, service = self.runs, self._service
        if not service.writable or (runs and runs[-1].ledger_id == ledgers[start]):
            return 0
        known, polls = service.store.ledgers.get, service.long_polls or ()
        begin = offset = self._batch_bytes
        run: Run | None = None
        for row in range(start, len(ledgers)):
            ledger, entry, lac = ledgers[row], entries[row], lacs[row]
            info = known(ledger)
            if info is None or info.fenced or info.master_key != key or entry < 0:
                break
            if run is None or run.ledger_id != ledger:
                run = Run(ledger, entry, 1, offset, size)
                runs.append(run)
            elif entry == run.first + run.count:
                run.count += 1
            else:
                break
            if lac > info.last_add_confirmed:
                info.last_add_confirmed = lac
                if ledger in polls:
                    service.long_polls.wake(ledger, lac)
            offset += size
        self._batch_bytes = offset
        if offset > begin and flags & HIGH_PRIORITY:
            self._urgent = True
        return (offset - begin) // size

    def _extend_run(self, ledger: int, first: int, count: int, size: int) -> bool:
        """Let the last run of this batch go on, where the entries follow it: frames of different
        sizes then make one run, not one each."""
        if not self.runs:
            return False
        run = self.runs[-1]
        if run.ledger_id != ledger or run.ids is not None or run.first + run.count != first:
            return False
        if run.sizes is None and run.frame_size != size:
            run.sizes = array("I", [run.frame_size]) * run.count
            run.frame_size = 0
        if run.sizes is not None:
            run.sizes.extend([size] * count)
        run.count += count
        return True

    def submit(self, buffers: Sequence[Buffer], done: Done) -> None:
        """Hand what was taken to the store. `done` is called with the error where it refuses."""
        batch = Batch(buffers, self.runs)
        batch.received_s = self._service.received_s
        urgent, self._urgent = self._urgent, False
        self.runs, self._batch_bytes = [], 0
        self._service.count_adds(batch)
        try:
            self._service.store.append(batch, done, reserve=urgent)
        except StorageError as error:
            done(batch, error)
        except UsageError as error:  # larger than a segment of this bookie
            done(batch, StorageError(str(error)))
