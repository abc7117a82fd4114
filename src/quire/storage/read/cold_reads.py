"""Reads that may have to wait for the device, or that take more than one event-loop iteration.

Threads read extents and compute the checksums of their blocks. The event loop compares the
checksums and takes the frames apart. While it processes one extent, the next one is being read. If
a large extent is in the system's cache, for instance because it was read ahead, the event loop
reads it itself. Copying it takes less time than waking a thread and being woken by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Generic, TypeVar

from quire.codec.entry.frame_runs import Entries, FrameRun
from quire.codec.log.footer import CONSECUTIVE, LedgerRows
from quire.codec.log.segment_header import ranges_of
from quire.core.ranges import Range, merged
from quire.errors import StorageError
from quire.storage.interfaces import BlockingReader, File
from quire.storage.read.cache import SegmentFiles
from quire.storage.read.fetched import ExtentKey, FetchedExtent, ScratchBuffer, checksums_of
from quire.storage.read.gather_read import BlockExtent
from quire.storage.read.read_ahead import ReadAhead
from quire.storage.read.read_budget import ReadBudget
from quire.storage.read.read_exceptions import NoEntry, NoLedger, WouldBlock
from quire.storage.read.reader import (
    MAX_READ_BYTES,
    SCATTERED_BYTES,
    UNSHARED_BYTES,
    Reader,
    raise_if_no_descriptor,
)
from quire.storage.segment.segment import LedgerInfo, LedgerPart, LogSegment

T = TypeVar("T")

InfoOf = Callable[[int], LedgerInfo]
"""A function that returns what the store knows about a ledger now. It raises `NoLedger` if the
ledger is unknown, because it may be deleted while a read waits."""

ROWS_PER_TURN = 4096
"""The number of rows of an index that are examined in one event-loop iteration."""

LARGE_BYTES = 64 * 1024
"""The size in bytes from which an extent is read on the event loop if it is cached."""
TRIES = 2
"""The number of small extents that a read looks for in the page cache before it asks a thread.
There is more than one because the first may be the short rest of a run."""

_FAILED = FetchedExtent(b"", [])


def untraced(missing: WouldBlock) -> WouldBlock:
    """Remove the traceback of an error, and return the error.

    The frames of the traceback refer to the error. That reference cycle would keep megabytes of a
    cancelled read in memory.
    """
    missing.__traceback__ = None
    return missing


def fetch(file: File, offset: int, size: int, blocks: bool, ask: bool) -> FetchedExtent:
    """Read an extent of a file. This runs on a thread.

    With `blocks`, compute the checksums of the blocks. With `ask`, find out whether the read had to
    wait for the device (`FetchedExtent.waited`). If reading fails, return an extent without bytes,
    which fails every check.
    """
    try:
        data = file.read(offset, size, wait=False) if ask else None
        waited = ask and data is None
        if data is None:
            data = file.read(offset, size) or b""
        return FetchedExtent(data, checksums_of(data) if blocks else None, waited)
    except (OSError, MemoryError):
        return _FAILED  # The read that waits for this must get an answer.


def fetch_each(file: File, wanted: Sequence[tuple[int, int]]) -> list[FetchedExtent]:
    """Read extents of a file, each given as (offset, size). This runs on a thread.

    The device learns about all of them before the first one is read.
    """
    try:
        for offset, size in wanted if len(wanted) > 1 else ():
            file.prefetch(offset, size)
    except OSError:
        pass  # The reads below report it.
    return [fetch(file, offset, size, True, False) for offset, size in wanted]


class _Fetch(Generic[T]):
    """A call that runs on a thread, or its result. Nobody has to wait for it."""

    __slots__ = ("done", "found", "waiter")

    def __init__(self) -> None:
        self.done = False
        self.found: T | None = None
        """The result of the call. If it is None once `done` is True, the call was not run."""
        self.waiter: asyncio.Future[None] | None = None


class _Read:
    """The state of one read, with the extents that were fetched for it."""

    __slots__ = (
        "at_hand", "cost_bytes", "fetched", "ledger_id", "overhead_bytes", "scattered",
        "singly_until", "under_way",
    )  # fmt: skip

    def __init__(self, ledger_id: int, overhead_bytes: int) -> None:
        self.ledger_id = ledger_id
        self.overhead_bytes = overhead_bytes
        self.fetched: dict[ExtentKey, FetchedExtent] = {}
        self.under_way: dict[ExtentKey, _Fetch[FetchedExtent]] = {}
        self.at_hand = TRIES
        """The number of further small extents to look for in the page cache before asking a
        thread."""
        self.cost_bytes = 0
        """The bytes that were read since the budget was last charged."""
        self.singly_until = 0
        """The id of an entry. Entries before it are read one run at a time, because something among
        them failed its check in a gather read."""
        self.scattered = 0
        """The number of extents in `fetched` that are not used yet."""

    def took_a_piece(self) -> None:
        """Note that one of the fetched extents was used, and drop them after the last one."""
        self.scattered -= 1
        if self.scattered <= 0:
            self.fetched = {}  # Everything that was fetched is used up.


class ColdReads:
    """The reads of one store that may wait for the device. They belong to the event loop."""

    def __init__(
        self,
        reader: Reader,
        files: SegmentFiles,
        ahead: ReadAhead,
        blocking: BlockingReader,
        info_of: InfoOf,
        budget: ReadBudget,
    ) -> None:
        self._reader = reader
        self._files = files
        self._ahead = ahead
        self._blocking = blocking
        self._info_of = info_of
        self._budget = budget
        self._scratch = ScratchBuffer(MAX_READ_BYTES)
        self.closed = False

    async def read(
        self, ledger_id: int, first: int, max_count: int, max_bytes: int, overhead_bytes: int
    ) -> Entries:
        """Read entries; see `LedgerStore.read_blocking`."""
        read = _Read(ledger_id, overhead_bytes)
        entries = Entries()
        while len(entries) < max_count:
            at, most = first + len(entries), max_count - len(entries)
            wanted: WouldBlock | None = None
            run: FrameRun | None = None
            try:
                info = self._info_of(ledger_id)
                run = self._run(read, info, at, most, max_bytes, begun=bool(entries))
            except WouldBlock as missing:
                wanted = untraced(missing)
            except NoLedger:
                if entries:
                    return entries  # The ledger was deleted in the meantime.
                raise
            if wanted is not None:
                run = await self._gather(read, wanted, info, at, most, max_bytes)
                if run is None:
                    continue
            if not run:
                break
            if max_count > 1:
                # Pack the run while its bytes are in the processor's cache. The whole answer may
                # have megabytes.
                self._scratch.pack(run)
            entries.add(run)
            max_bytes -= run.size_bytes + overhead_bytes * run.count
            read.took_a_piece()
            read.cost_bytes += run.frame_bytes
            if read.cost_bytes > UNSHARED_BYTES:
                await self._budget.spend(read.cost_bytes)
                read.cost_bytes = 0
        if not entries:
            raise NoEntry
        return entries

    def _run(
        self, read: _Read, info: LedgerInfo, at: int, most: int, max_bytes: int, *, begun: bool
    ) -> FrameRun | None:
        """Read the next run of entries, on the event loop if it is probably cached.

        The arguments and the result are those of `Reader.run`.
        """
        asked = info, at, most, max_bytes, read.overhead_bytes
        if not read.fetched and not read.under_way and self._is_at_hand(read, at):
            left, read.at_hand = read.at_hand, 0
            with suppress(WouldBlock, MemoryError):  # If it is not cached, a thread reads it below.
                where = self._scratch if begun or most > 1 else None
                run = self._reader.run(*asked, where, begun=begun)
                large = run is not None and run.frame_bytes >= LARGE_BYTES
                read.at_hand = TRIES if large else max(0, left - 1)
                return run
        return self._reader.run(*asked, read.fetched, begun=begun)

    def _is_at_hand(self, read: _Read, at: int) -> bool:
        """Return whether the entry `at` is probably in the page cache."""
        ahead = self._ahead.may_be_at_hand
        return read.at_hand > 0 or ahead(read.ledger_id, at, LARGE_BYTES)

    async def _gather(
        self, read: _Read, missing: WouldBlock, info: LedgerInfo, at: int, most: int, max_bytes: int
    ) -> FrameRun | None:
        """Read many scattered entries from `at` on with one call of a thread.

        Return None if they are not scattered. Something else was then fetched, and the caller
        should look again.
        """
        gather, wanted = None, missing
        if _is_one_of_many(missing, most) and at >= read.singly_until:
            asked = info, at, most, max_bytes, read.overhead_bytes
            try:
                gather = self._reader.gather(*asked, read.fetched)
            except WouldBlock as index:
                wanted = untraced(index)
        if gather is None or gather.segment is not missing.segment:
            await self._fetch(read, wanted, info, at, most, max_bytes)
            return None
        extents = await self._each(gather.segment, gather.extents)
        run = self._reader.gathered(gather, extents, read.fetched)
        if run is None:
            read.singly_until = at + len(gather.sizes)
        else:
            read.cost_bytes += gather.cost_bytes - run.frame_bytes
        return run

    async def _fetch(
        self, read: _Read, missing: WouldBlock, info: LedgerInfo, at: int, most: int, max_bytes: int
    ) -> None:
        """Fetch the extent that the entries from `at` on need.

        Also begin to fetch the extent after it, so that the device and the thread have work.
        """
        begun = read.under_way.pop(missing.key, None)
        if begun is None and _is_one_of_many(missing, most):
            wanted = self._reader.scattered(info, at, most, max_bytes, read.overhead_bytes)
            if len(wanted) > 1 and wanted[0].key == missing.key:
                extents = await self._each(missing.segment, wanted)
                read.fetched = {one.key: extent for one, extent in zip(wanted, extents)}
                read.scattered = len(wanted)
                return
        if begun is None:
            begun = self._begin(read.ledger_id, missing)
        if 0 < missing.entries < most and not self._is_at_hand(read, at):
            rest_bytes = max_bytes - missing.entry_bytes - read.overhead_bytes * missing.entries
            behind = self._reader.upcoming(
                info, at + missing.entries, most - missing.entries, rest_bytes, read.overhead_bytes
            )
            if behind is not None and behind.key not in read.fetched:
                # This replaces an extent that was begun on a wrong guess.
                read.under_way = {}
                with suppress(StorageError):  # It is tried again when it is needed.
                    read.under_way = {behind.key: self._begin(read.ledger_id, behind)}
        extent = read.fetched[missing.key] = await _of(begun)
        if extent.waited:
            self._ahead.waits(read.ledger_id, at, missing.segment)

    async def ranges(self, ledger_id: int) -> list[tuple[int, int]]:
        """Return the ranges of entries that are stored; see `LedgerStore.entry_ranges`."""
        found: list[Range] = []
        number = taken = -1
        fetched: dict[ExtentKey, FetchedExtent] = {}
        while True:
            # Go from the oldest segment to the newest. If a compaction or the sealing of a segment
            # moves entries in the meantime, it moves them to a segment that comes later here, or
            # they are taken before their segment is passed.
            info = self._info_of(ledger_id)
            segment = self._reader.next_sealed(info, number)
            if segment is None:
                break
            try:
                rows = self._reader.rows_in(segment, ledger_id, fetched)
            except WouldBlock as missing:
                fetched[missing.key] = await _of(self._begin(ledger_id, missing))
                continue
            fetched, number = {}, segment.number
            # A segment that had to wait for space may be sealed after newer ones.
            passed = [part for part in info.open_parts if taken < part.segment.number < number]
            if passed:
                taken = passed[-1].segment.number
                await _put(found, _of_parts(passed))
            if rows is not None:
                await _put(found, _of_rows(rows))
        # These parts are read in the same event-loop iteration that found no further sealed
        # segment. So whatever is sealed later is among them.
        await _put(found, _of_parts(info.open_parts))
        return merged(found)

    def _begin(self, ledger_id: int, missing: WouldBlock) -> _Fetch[FetchedExtent]:
        blocks = missing.entries > 0
        ask = blocks and not self._ahead.is_followed(ledger_id, missing.segment)
        return self._on_thread(
            missing.segment, _FAILED, fetch, missing.offset, missing.size, blocks, ask
        )

    async def _each(
        self, segment: LogSegment, wanted: Sequence[WouldBlock | BlockExtent]
    ) -> list[FetchedExtent]:
        """Fetch several extents of one segment with one call on a thread."""
        places = [(one.offset, one.size) for one in wanted]
        failed = [_FAILED] * len(places)
        return await _of(self._on_thread(segment, failed, fetch_each, places))

    def _on_thread(
        self, segment: LogSegment, failed: T, call: Callable[..., T], *given: object
    ) -> _Fetch[T]:
        """Run `call(file, *given)` on a thread, with the file of a segment.

        The result is `failed` if the file cannot be opened. If that is only for lack of a file
        descriptor, this raises StorageError.
        """
        fetching = _Fetch[T]()
        try:
            file = self._files.borrow(segment)
        except OSError as error:
            raise_if_no_descriptor(segment, error)
            fetching.done, fetching.found = True, failed
            return fetching
        self._blocking.read(partial(call, file, *given), partial(self._fetched, fetching, segment))
        return fetching

    def _fetched(self, fetching: _Fetch[T], segment: LogSegment, found: T | None) -> None:
        """Store the result of a call on a thread, and wake the read that waits for it.

        This also runs after the read was cancelled, because the file stays open until here.
        """
        # Check `closed` only here. When `close` has just begun, the log may still be written and
        # sealed.
        self._files.give_back(segment, close=self.closed)
        fetching.done, fetching.found = True, found
        if fetching.waiter is not None and not fetching.waiter.done():
            fetching.waiter.set_result(None)


def _is_one_of_many(missing: WouldBlock, most: int) -> bool:
    """Return whether a small extent of entries is missing, and more entries are wanted after it."""
    return 0 < missing.entries < most and missing.size <= SCATTERED_BYTES


def _of_rows(rows: LedgerRows) -> Iterator[tuple[int, int, Sequence[int] | None]]:
    """Yield the first and last entry id of each run, and all ids if they are not consecutive."""
    for row, at in enumerate(rows.ids_at):
        ids = None if at == CONSECUTIVE else rows.ids[at : at + rows.counts[row]]
        yield rows.firsts[row], rows.last(row), ids


def _of_parts(parts: Iterable[LedgerPart]) -> Iterator[tuple[int, int, Sequence[int] | None]]:
    """Do the same as `_of_rows` for the runs in memory now. More may be added in the meantime."""
    runs = list(chain.from_iterable(part.runs for part in parts))
    return ((run.first, run.last, run.ids) for run in runs)


async def _put(found: list[Range], runs: Iterable[tuple[int, int, Sequence[int] | None]]) -> None:
    """Append the entries of these runs to `found` as ranges, and join adjacent ranges.

    Most runs continue the one before, so few ranges are created.
    """
    for number, (first, last, ids) in enumerate(runs, 1):
        for one in ((first, last),) if ids is None else ranges_of(ids):
            if found and found[-1][1] + 1 == one[0]:
                found[-1] = found[-1][0], one[1]
            else:
                found.append(one)
        if number % ROWS_PER_TURN == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0)


async def _of(fetching: _Fetch[T]) -> T:
    """Wait for a call on a thread, and return its result."""
    if not fetching.done:
        fetching.waiter = asyncio.get_running_loop().create_future()
        await fetching.waiter
    if fetching.found is None:
        raise asyncio.CancelledError  # The threads have ended because the bookie stops.
    return fetching.found
