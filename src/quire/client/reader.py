"""The handle of a client that reads a ledger."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING

from quire.client import arrow
from quire.client.last_confirmed import read_last_confirmed
from quire.client.pool import BookiePool
from quire.client.read_engine import ReadEngine
from quire.codec.entry import Entry, EntryCodec, EntryRun
from quire.codec.ledger_metadata import NO_ENTRY, LedgerMetadata
from quire.config import ClientConfig
from quire.errors import NoSuchEntryError, ReadError, UsageError
from quire.metadata.base import MetadataStore, Versioned

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa


class LedgerReader:
    """Reads one ledger. Made by `Client.open_ledger`.

    Only entries up to `last_add_confirmed` are read: those are acknowledged and stay. Every entry
    is checked against its digest; a replica that gives wrong bytes is passed over. All reads are
    cancel-safe. Use as `async with`, or call `close`.
    """

    def __init__(
        self,
        *,
        metadata: Versioned[LedgerMetadata],
        codec: EntryCodec,
        store: MetadataStore,
        pool: BookiePool,
        config: ClientConfig,
        last_add_confirmed: int,
    ) -> None:
        self.ledger_id = codec.ledger_id
        self._metadata = metadata
        self._codec = codec
        self._store = store
        self._pool = pool
        self._config = config
        self._last_add_confirmed = last_add_confirmed
        self._engine = ReadEngine(
            codec, lambda: self._metadata.value, self._refresh_metadata, pool, config
        )
        self._closed = False

    @property
    def metadata(self) -> LedgerMetadata:
        """As last read."""
        return self._metadata.value

    @property
    def custom(self) -> Mapping[str, bytes]:
        return self._metadata.value.custom

    @property
    def ledger_closed(self) -> bool:
        """Whether the ledger is sealed: nothing will ever follow `last_add_confirmed`."""
        return self._metadata.value.closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that this handle knows to be acknowledged; -1 if none. For a ledger that
        is still written, `refresh` asks for a newer one."""
        return self._last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes in total once the ledger is closed (advisory), else 0."""
        return self._metadata.value.length

    async def refresh(self) -> int:
        """Ask the bookies (and the metadata store) for the newest `last_add_confirmed`.

        The last entry of a writer that has paused is usually known one entry late: the LAC travels
        with the next entry. Raises ReadError when too few bookies answer.
        """
        self._check_open()
        if not self.ledger_closed:
            await self._refresh_metadata()
        if not self.ledger_closed:
            known = await read_last_confirmed(
                self.metadata, self._codec, self._pool, self._config.read_timeout_s
            )
            floor = self.metadata.last_segment.first_entry_id - 1
            self._last_add_confirmed = max(self._last_add_confirmed, known.lac, floor)
        return self._last_add_confirmed

    async def read(self, first: int = 0, last: int | None = None) -> AsyncIterator[Entry]:
        """Entries first..last (default: up to `last_add_confirmed`), in order.

        Raises UsageError for a bad range, NoSuchEntryError beyond the end, ReadError (outcome
        unknown) when no replica of an entry could be read, DigestError when all were damaged.
        """
        async with aclosing(self.read_runs(first, last)) as runs:
            async for run in runs:
                entry_id, ledger_id = run.first, self.ledger_id
                for payload, length in zip(run.payloads(), run.ledger_lengths):
                    yield Entry(ledger_id, entry_id, length, payload)
                    entry_id += 1

    async def read_runs(
        self, first: int = 0, last: int | None = None
    ) -> AsyncGenerator[EntryRun, None]:
        """As `read`, without an object per entry: runs of consecutive entries in one buffer."""
        first, last = self._range(first, last)
        if first > last:
            return
        async with aclosing(self._engine.runs(first, last)) as runs:
            async for run in runs:
                yield run

    async def read_entry(self, entry_id: int) -> Entry:
        """One entry."""
        async for entry in self.read(entry_id, entry_id):
            return entry
        raise NoSuchEntryError(  # pragma: no cover - read() gives the entry or raises
            f"entry {entry_id} of ledger {self.ledger_id} was not read",
            ledger_id=self.ledger_id,
            entry_id=entry_id,
        )

    async def read_last(self) -> Entry:
        """The entry at `last_add_confirmed`. NoSuchEntryError if the ledger is empty."""
        return await self.read_entry(self._last_add_confirmed)

    async def to_arrow(self, first: int = 0, last: int | None = None) -> pa.Table:
        """Entries first..last as an Arrow table: ledger_id, entry_id, length (payload bytes of the
        entry), value. The whole range is held in memory."""
        async with aclosing(self.read_runs(first, last)) as runs:
            return arrow.table([run async for run in runs])

    async def to_pandas(self, first: int = 0, last: int | None = None) -> pandas.DataFrame:
        """As `to_arrow`, as a pandas frame."""
        return (await self.to_arrow(first, last)).to_pandas()

    async def to_polars(self, first: int = 0, last: int | None = None) -> polars.DataFrame:
        """As `to_arrow`, as a Polars frame."""
        return arrow.to_polars(await self.to_arrow(first, last))

    def close(self) -> None:
        """Nothing is held on bookies; reads after this raise UsageError."""
        self._closed = True

    async def __aenter__(self) -> LedgerReader:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _range(self, first: int, last: int | None) -> tuple[int, int]:
        self._check_open()
        end = self._last_add_confirmed
        if last is None:
            last = end
        if first == last == end == NO_ENTRY:  # `read_last`
            raise NoSuchEntryError(
                f"ledger {self.ledger_id} has no entries", ledger_id=self.ledger_id
            )
        if first < 0 or last < first - 1:
            raise UsageError(f"entries {first}..{last} are no range")
        if last > end or first > end + 1:
            what = f"entry {max(first, last)} of ledger {self.ledger_id}: "
            if self.ledger_closed:
                raise NoSuchEntryError(
                    what + f"the ledger ends at entry {end}",
                    ledger_id=self.ledger_id,
                    entry_id=last,
                )
            raise ReadError(
                what + f"the ledger is known to be acknowledged up to entry {end} only",
                ledger_id=self.ledger_id,
                entry_id=last,
                remedy="Call refresh() for a newer view",
            )
        return first, last

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the reader of ledger {self.ledger_id} is closed")

    async def _refresh_metadata(self) -> bool:
        """Whether the segments or the state changed."""
        newer = await self._store.read_ledger(self.ledger_id)
        changed = newer.value != self._metadata.value
        self._metadata = newer
        if newer.value.closed:
            self._last_add_confirmed = newer.value.last_entry_id
        return changed
