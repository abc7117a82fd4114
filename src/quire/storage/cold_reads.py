"""Reads that may have to wait for the device, or that take more than one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from quire.codec.log_parts import Buffer
from quire.storage.blocking import BlockingReader
from quire.storage.cache import SegmentFiles
from quire.storage.reader import SLICE_BYTES, Fetched, Reader
from quire.storage.segment import LedgerInfo, SegmentState
from quire.storage.signals import NoLedger, WouldBlock

InfoOf = Callable[[int], LedgerInfo]
"""The ledger now: it may be deleted while a read waits. `NoLedger`."""


class ColdReads:
    """Used on the event loop."""

    def __init__(
        self, reader: Reader, files: SegmentFiles, blocking: BlockingReader, info_of: InfoOf
    ) -> None:
        self._reader = reader
        self._files = files
        self._blocking = blocking
        self._info_of = info_of
        self.closed = False

    async def read(
        self, ledger_id: int, first: int, max_count: int, max_bytes: int, overhead_bytes: int
    ) -> list[Buffer]:
        """See `LedgerStore.read_blocking`."""
        have: dict[Fetched, Buffer] = {}
        entries: list[Buffer] = []
        while True:
            try:
                more = self._reader.slice(
                    self._info_of(ledger_id), first + len(entries), max_count - len(entries),
                    max_bytes, overhead_bytes, have, begun=bool(entries), wait=False,
                )  # fmt: skip
            except WouldBlock as missing:
                await self._fetch(missing, have)
                continue
            except NoLedger:
                if entries:
                    return entries  # It was deleted meanwhile.
                raise
            entries += more
            if not more or len(entries) >= max_count:
                return entries
            have = {}  # What was fetched is used up.
            size = sum(map(len, more)) + overhead_bytes * len(more)
            max_bytes -= size
            if size > SLICE_BYTES // 2:  # Else it ended at the end of a run, or of the ledger.
                await asyncio.sleep(0)

    async def ranges(self, ledger_id: int) -> list[tuple[int, int]]:
        """See `LedgerStore.entry_ranges`."""
        have: dict[Fetched, Buffer] = {}
        while True:
            try:
                return self._reader.ranges(self._info_of(ledger_id), have)
            except WouldBlock as missing:
                await self._fetch(missing, have)

    async def _fetch(self, missing: WouldBlock, have: dict[Fetched, Buffer]) -> None:
        segment = missing.segment
        try:
            file = self._files.get(segment)
            segment.readers += 1
            try:
                data = await self._blocking.run(partial(file.read, missing.offset, missing.size))
            finally:
                segment.readers -= 1
                # Not as soon as `close` begins: the log may still be written and sealed.
                if segment.state is SegmentState.RETIRED or self.closed:
                    self._files.close(segment)
        except OSError:
            data = b""  # Does not match its checksums: damaged.
        have[segment, missing.offset, missing.size] = data or b""
