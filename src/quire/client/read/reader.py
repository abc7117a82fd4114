"""The handle of a client that reads a ledger."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from quire._runtime.opening import open_or_closed, represented
from quire.client.cluster.pool import BookiePool
from quire.client.read import arrow
from quire.client.read.engine import ReadEngine
from quire.client.read.follow import Feed, Feeds, LedgerFollower
from quire.client.read.last_confirmed import read_last_confirmed
from quire.client.read.ledger_view import LedgerView
from quire.codec.entry.entry import MAX_ENTRY_ID, Entry, EntryCodec, EntryRun
from quire.codec.metadata.ledger_metadata import NO_ENTRY, LedgerMetadata
from quire.config import ClientConfig
from quire.core.recovery import HONEST_BOOKIES, TrustModel
from quire.errors import NoSuchEntryError, ReadError, UsageError, check_type
from quire.metadata.interface import MetadataStore, Versioned

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

    ledger_id: int
    """The id of the ledger."""

    def __init__(
        self,
        *,
        metadata: Versioned[LedgerMetadata],
        codec: EntryCodec,
        store: MetadataStore,
        pool: BookiePool,
        config: ClientConfig,
        last_add_confirmed: int,
        feeds: Feeds,
        password: bytes,
        trust: TrustModel = HONEST_BOOKIES,
    ) -> None:
        self.ledger_id = codec.ledger_id
        self._feeds = feeds
        self._password = password
        self._trust = trust
        self._codec = codec
        self._pool = pool
        self._config = config
        self._view = LedgerView(codec.ledger_id, store, metadata, last_add_confirmed)
        self._engine = ReadEngine(
            codec, lambda: self._view.metadata, self._view.refresh, pool, config, trust
        )
        self._tails: dict[LedgerFollower, None] = {}
        self._closed = False

    @property
    def metadata(self) -> LedgerMetadata:
        """As last read."""
        return self._view.metadata

    @property
    def custom(self) -> Mapping[str, bytes]:
        """The metadata that the application stored with the ledger."""
        return self.metadata.custom

    @property
    def ledger_closed(self) -> bool:
        """Whether the ledger is sealed: nothing will ever follow `last_add_confirmed`."""
        return self._view.closed

    @property
    def closed(self) -> bool:
        """Whether this handle was closed. `ledger_closed` says whether the ledger is."""
        return self._closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that this handle knows to be acknowledged; -1 if none. For a ledger that
        is still written, `refresh` asks for a newer one, and `tail` follows it."""
        return self._view.last_add_confirmed

    @property
    def length(self) -> int:
        """The payload bytes of the ledger, as its metadata records them; 0 until it is closed.
        Advisory."""
        return self.metadata.length

    def __repr__(self) -> str:
        state = open_or_closed(self._closed)
        last = f"last_acknowledged={self.last_add_confirmed}"
        return represented(self, state, last, ledger=self.ledger_id)

    async def refresh(self) -> int:
        """Ask the bookies (and the metadata store) for the newest `last_add_confirmed`.

        The last entry of a writer that has paused is usually known one entry late: the LAC travels
        with the next entry, unless the writer tells it by itself (`explicit_lac_interval_s`).
        Raises ReadError when too few bookies answer, NoSuchLedgerError. Cancel-safe.
        """
        self._check_open()
        view = self._view
        if not view.closed:
            await view.refresh()
        if not view.closed:
            known = await read_last_confirmed(
                view.metadata,
                self._codec,
                self._pool,
                self._config.read_timeout_s,
                trust=self._trust,
            )
            view.confirmed(known.lac)
        return view.last_add_confirmed

    async def read(self, first: int = 0, last: int | None = None) -> AsyncIterator[Entry]:
        """Entries first..last (default: up to `last_add_confirmed`), in order.

        Raises UsageError for a bad range, NoSuchEntryError beyond the end, ReadError (outcome
        unknown) when no replica of an entry could be read, DigestError when all were damaged; all
        entries before that one are given first, and `error.entry_id` says which it is.
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

    async def read_unconfirmed(
        self, first: int, last: int | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Entries first..last (default: as many as there are), acknowledged or not, in order.

        Of a ledger that is not closed an entry that was read so may be dropped by a later recovery,
        and one that was acknowledged may not be found while its bookies are away: it proves nothing
        about durability. Where the ledger is closed this is `read`. Every entry is checked against
        its digest.

        With `last`: NoSuchEntryError at the first entry that every replica denies; without it that
        is the end. UsageError for a bad range; ReadError, DigestError as `read`. Cancel-safe.
        """
        self._check_open()
        _check_entry_ids(first, last)
        if not self.ledger_closed:
            await self._view.refresh()
        if self.ledger_closed:
            end = self.last_add_confirmed if last is None else last
            if last is None and first > end:
                return
            async for entry in self.read(first, end):
                yield entry
            return
        if first < 0 or (last is not None and last < first):
            raise UsageError(f"entries {first}..{last} are no range")
        runs = self._engine.runs_there_are(first, MAX_ENTRY_ID if last is None else last)
        try:
            async with aclosing(runs):
                async for run in runs:
                    lengths, entry_id = run.ledger_lengths, run.first
                    for payload, length in zip(run.payloads(), lengths):
                        yield Entry(self.ledger_id, entry_id, length, payload)
                        entry_id += 1
        except NoSuchEntryError:
            if last is not None:
                raise

    async def tail(self, first: int | None = None) -> AsyncGenerator[Entry, None]:
        """Follow the ledger while it is written: every entry from `first` on (None: the first one
        behind `last_add_confirmed`), each once and in order, as soon as it is known to be
        acknowledged. Ends behind the last entry once the ledger is closed.

        The newest entry of a writer that pauses comes with the next one, or with the writer's
        explicit LAC (`ClientConfig.explicit_lac_interval_s`). Bookies may die and ensembles change
        meanwhile. While the ledger is being recovered nothing new comes, until it is closed.

        An entry is given only when a digest proves that a writer of the ledger has called it
        acknowledged: the one in the LAC field of an entry, or of a LAC packet. What a bookie claims
        of the LAC beside (`maxLAC`, which Apache's client believes) is taken for a hint to look: a
        bookie that is wrong can delay a reader but not show it an entry that a recovery drops.

        Raises NoSuchLedgerError when the ledger is deleted; ReadError, DigestError when an
        acknowledged entry cannot be read from any replica in several attempts; UsageError and
        ClientClosedError when this handle or the client is closed. Cancel-safe: begin again with
        the entry behind the last one that was given. Memory is bounded by `read_windows`.

        Any number of tails of one ledger in one client share a poll, one read of what is new and
        its verification (`quire.client.read.follow`); none waits for a slower one, and none hears
        of another one's end.
        """
        async with aclosing(self.tail_runs(first)) as runs:
            async for run in runs:
                entry_id, ledger_id = run.first, self.ledger_id
                for payload, length in zip(run.payloads(), run.ledger_lengths):
                    yield Entry(ledger_id, entry_id, length, payload)
                    entry_id += 1

    async def tail_runs(self, first: int | None = None) -> AsyncGenerator[EntryRun, None]:
        """As `tail`, without an object per entry."""
        self._check_open()
        if first is None:
            first = self.last_add_confirmed + 1
        _check_entry_ids(first)
        if first < 0:
            raise UsageError(f"entry {first} is none to begin with: ids begin at 0")
        follower = LedgerFollower(self._view, self._engine, first)
        with self._following(follower) as feed:
            async with aclosing(follower.runs(feed)) as runs:
                async for run in runs:
                    yield run

    async def wait_confirmed(self, entry_id: int) -> int:
        """Wait until `entry_id` is known to be acknowledged, or the ledger is closed; the
        `last_add_confirmed` then. One bookie at a time is asked to tell, in a long poll: waiting
        costs next to nothing. Raises as `tail` does. Cancel-safe."""
        self._check_open()
        _check_entry_ids(entry_id)
        if entry_id <= self.last_add_confirmed or self.ledger_closed:
            return self.last_add_confirmed
        follower = LedgerFollower(self._view, self._engine, entry_id, reads=False)
        with self._following(follower) as feed:
            await follower.wait(feed)
        return self.last_add_confirmed

    @contextmanager
    def _following(self, follower: LedgerFollower) -> Iterator[Feed]:
        self._tails[follower] = None
        joined = self._feeds.joined(follower, self._view, self._codec, self._password, self._trust)
        try:
            with joined as feed:
                yield feed
        finally:
            del self._tails[follower]

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
        return await self.read_entry(self.last_add_confirmed)

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
        """Nothing is held on bookies; reads after this, and tails, raise UsageError."""
        self._closed = True
        for follower in list(self._tails):
            follower.stop(self._closed_error())

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
        _check_entry_ids(first, last)
        end = self.last_add_confirmed
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
            raise self._closed_error()

    def _closed_error(self) -> UsageError:
        return UsageError(f"the reader of ledger {self.ledger_id} is closed")


def _check_entry_ids(first: int, last: int | None = None) -> None:
    if type(first) is not int:
        check_type("an entry id", first, int)
    if last is not None and type(last) is not int:
        check_type("an entry id", last, int)
