"""Reading ranges: windows in flight, replicas tried in turn, every digest verified.

Where every bookie has every entry (ensemble = write quorum) a window is one batch read; striped
ledgers are read entry by entry, many in one write. A window is answered by the first replica that
gives valid bytes; replicas take turns so that they share the load.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

from quire.client.hedge import Hedge
from quire.client.pool import BookiePool
from quire.codec.entry import BadEntryError, EntryCodec, EntryRun, check_batch
from quire.codec.frames import BATCH_RESPONSE_BYTES
from quire.codec.ledger_metadata import LedgerMetadata
from quire.config import ClientConfig
from quire.core.quorum import write_set
from quire.errors import (
    DigestError,
    NoSuchEntryError,
    QuireError,
    ReadError,
)
from quire.net.answer_codes import NoEntryAnswer

FIRST_WINDOW_ENTRIES = 256
"""Of a read that does not know yet how large the entries are."""
MAX_WINDOW_ENTRIES = 16_384


class ReadEngine:
    """Reads entries of one ledger; `metadata` gives its newest known metadata, `refresh` reads it
    again (rule 38: replicas may have moved)."""

    def __init__(
        self,
        codec: EntryCodec,
        metadata: Callable[[], LedgerMetadata],
        refresh: Callable[[], Awaitable[bool]],
        pool: BookiePool,
        config: ClientConfig,
    ) -> None:
        self._codec = codec
        self._metadata = metadata
        self._refresh = refresh
        self._pool = pool
        self._config = config
        self._entry_bytes = 0.0
        """A running mean, to cut ranges into windows."""
        self._turn = 0
        self._no_batches = False
        self._hedge = Hedge(config, pool.received_bytes)

    async def runs(
        self, first: int, last: int, near: str | None = None
    ) -> AsyncGenerator[EntryRun, None]:
        """Verified entries first..last, in order, as runs. The caller knows that they exist.
        `near`: the bookie to ask first, where batches are read; else they take turns."""
        windows: deque[asyncio.Task[list[EntryRun]]] = deque()
        upcoming = first
        try:
            while upcoming <= last or windows:
                # Until the size of entries is known there is one window only.
                limit = self._config.read_windows if self._entry_bytes else 1
                while upcoming <= last and len(windows) < limit:
                    end = self._window_end(upcoming, last)
                    windows.append(asyncio.ensure_future(self._window(upcoming, end, near)))
                    upcoming = end + 1
                for run in await windows[0]:
                    yield run
                windows.popleft()
        finally:
            for task in windows:
                task.cancel()
            await asyncio.gather(*windows, return_exceptions=True)

    @property
    def batches(self) -> bool:
        """Whether a bookie can be asked for many entries at once."""
        return not self._single(self._metadata())

    def _window_end(self, first: int, last: int) -> int:
        metadata = self._metadata()
        if self._single(metadata):
            count = self._config.single_reads_in_flight
        elif self._entry_bytes:
            count = int(self._config.read_window_bytes / self._entry_bytes)
        else:
            count = FIRST_WINDOW_ENTRIES
        count = min(max(count, 1), MAX_WINDOW_ENTRIES)
        segment = metadata.segment_of(first)
        return min(first + count - 1, metadata.segment_end(segment, last))

    def _single(self, metadata: LedgerMetadata) -> bool:
        return self._no_batches or metadata.ensemble_size != metadata.write_quorum

    async def _window(self, first: int, last: int, near: str | None) -> list[EntryRun]:
        turn, self._turn = self._turn, self._turn + 1
        runs: list[EntryRun] = []
        while first <= last:
            try:
                run = await self._fetch(first, last, turn, near)
            except ReadError:
                # Replicas may have moved since the metadata was read.
                if not await self._refresh():
                    raise
                run = await self._fetch(first, last, turn, near)
            runs.append(run)
            size = (run.ends[-1] - run.offsets[0]) / len(run)
            mean = self._entry_bytes
            self._entry_bytes = max(size if not mean else mean + (size - mean) / 4, 1.0)
            first = run.last + 1
        return runs

    async def _fetch(self, first: int, last: int, turn: int, near: str | None) -> EntryRun:
        """At least the first entry of first..last."""
        metadata = self._metadata()
        if not self._single(metadata):
            try:
                return await self._from_replicas(metadata, first, last, turn, self.batch, near)
            except NoSuchEntryError:
                raise
            except ReadError:
                run = await self._singles(metadata, first, first)
                self._no_batches = True  # they answer single reads only
                return run
        return await self._singles(metadata, first, last)

    # -- one request --------------------------------------------------------------------------

    async def _from_replicas(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        turn: int,
        ask: Callable[[str, int, int], Awaitable[EntryRun]],
        near: str | None = None,
    ) -> EntryRun:
        """The replicas take turns in being asked first."""
        ensemble = metadata.segment_of(first).ensemble
        members = write_set(first, metadata.ensemble_size, metadata.write_quorum)
        at = turn % len(members)
        order = [ensemble[index] for index in (*members[at:], *members[:at])]
        if near in order:
            order.remove(near)
            order.insert(0, near)
        found, errors = await self._hedge.first_good(order, lambda b: ask(b, first, last))
        if found is None:
            raise self._failed(first, errors)
        return found

    async def batch(self, bookie: str, first: int, last: int) -> EntryRun:
        """What one bookie has of first..last, at least the first of them."""
        channel = await self._pool.channel(bookie)
        count = last - first + 1
        answer = await channel.batch_read(
            self._codec.ledger_id, first, count, self._config.read_window_bytes * 2
        )
        run = check_batch(
            self._codec, answer, first, BATCH_RESPONSE_BYTES, len(answer), limit=count
        )
        if not run:
            raise DigestError(f"entry {first} from bookie {bookie} does not match its digest")
        return run

    async def _one(self, bookie: str, entry_id: int, last: int) -> EntryRun:
        channel = await self._pool.channel(bookie)
        data = await channel.read(self._codec.ledger_id, entry_id)
        return self.run_of(entry_id, [self._verified(data, entry_id)])

    # -- single reads -------------------------------------------------------------------------

    async def _singles(self, metadata: LedgerMetadata, first: int, last: int) -> EntryRun:
        """All of first..last, each from the first replica of its write set; what fails there is
        asked of the others."""
        ensemble = metadata.segment_of(first).ensemble
        by_bookie: dict[str, list[int]] = {}
        for entry in range(first, last + 1):
            by_bookie.setdefault(ensemble[entry % len(ensemble)], []).append(entry)
        found: dict[int, bytes] = {}
        async with asyncio.TaskGroup() as group:
            for bookie, entries in by_bookie.items():
                group.create_task(self._many(bookie, entries, found))
        for entry in range(first, last + 1):
            if entry not in found:
                run = await self._from_replicas(metadata, entry, entry, 1, self._one)
                found[entry] = memoryview(run.data)[:].tobytes()
        return self.run_of(first, [found[entry] for entry in range(first, last + 1)])

    async def _many(self, bookie: str, entries: list[int], found: dict[int, bytes]) -> None:
        """Fill `found` with what this bookie answers validly in time."""
        try:
            async with asyncio.timeout(self._config.speculative_read_s):
                channel = await self._pool.channel(bookie)
                answers = await channel.read_many(self._codec.ledger_id, entries)
        except (TimeoutError, QuireError):
            return
        for entry, answer in zip(entries, answers):
            if isinstance(answer, bytes):
                try:
                    self._codec.check(answer, entry)
                except BadEntryError:
                    continue
                found[entry] = answer

    def _verified(self, data: bytes, entry_id: int) -> bytes:
        try:
            self._codec.check(data, entry_id)
        except BadEntryError as error:
            raise DigestError(
                f"entry {entry_id} of ledger {self._codec.ledger_id}: {error}",
                ledger_id=self._codec.ledger_id,
                entry_id=entry_id,
            ) from error
        return data

    def run_of(self, first: int, entries: Iterable[bytes]) -> EntryRun:
        """Verified entry bytes, one behind the other, as a run."""
        head = self._codec.head_bytes
        offsets, ends, lengths = [], [], []
        at, highest = 0, -1
        pieces = list(entries)
        for data in pieces:
            offsets.append(at + head)
            at += len(data)
            ends.append(at)
            lengths.append(int.from_bytes(data[24:32], "big"))
            highest = max(highest, int.from_bytes(data[16:24], "big", signed=True))
        return EntryRun(
            self._codec.ledger_id, first, b"".join(pieces), offsets, ends, lengths, highest
        )

    def _failed(self, entry_id: int, errors: dict[str, QuireError]) -> ReadError:
        ledger_id = self._codec.ledger_id
        what = f"entry {entry_id} of ledger {ledger_id}"
        if errors and all(isinstance(e, NoEntryAnswer) for e in errors.values()):
            return NoSuchEntryError(
                f"{what}: every replica says that it never had it",
                ledger_id=ledger_id,
                entry_id=entry_id,
                causes=dict(errors),
            )
        kind = ReadError
        if any(isinstance(e, DigestError) for e in errors.values()) and all(
            isinstance(e, DigestError | NoEntryAnswer) for e in errors.values()
        ):
            kind = DigestError
        return kind(
            f"{what} could not be read from any replica; it may exist",
            ledger_id=ledger_id,
            entry_id=entry_id,
            causes=dict(errors),
            remedy="Bring its bookies back and try again",
        )
