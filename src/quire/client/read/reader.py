"""The handle of a client that reads a ledger."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from quire._runtime.opening import open_or_closed, represented
from quire._runtime.units import acknowledged_text, end_text
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
from quire.errors import (
    NoSuchEntryError,
    ReadError,
    UsageError,
    client_closed,
    whole_number,
)
from quire.metadata.interface import MetadataStore, Versioned

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa


class LedgerReader:
    """A handle that reads one ledger. `Client.open_ledger` returns it.

    It reads entries up to `last_add_confirmed`, which are acknowledged and stay until the ledger is
    deleted. Only `read_unconfirmed` reads others. Every entry is checked against its digest; a
    replica that sends wrong bytes is skipped. Cancelling a read is always safe. The handle is an
    asynchronous context manager; otherwise call `close`.
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
        """The metadata of the ledger, as this reader last read it."""
        return self._view.metadata

    @property
    def custom(self) -> Mapping[str, bytes]:
        """The metadata that the application stored with the ledger."""
        return self.metadata.custom

    @property
    def ledger_closed(self) -> bool:
        """Whether the ledger is closed, so that no entry can ever follow `last_add_confirmed`."""
        return self._view.closed

    @property
    def closed(self) -> bool:
        """Whether this handle is closed. `ledger_closed` says whether the ledger is."""
        return self._closed

    @property
    def last_add_confirmed(self) -> int:
        """The id of the last entry that this handle knows to be acknowledged, or -1.

        While the ledger is still being written, `refresh` asks for a newer value, and `tail`
        follows it.
        """
        return self._view.last_add_confirmed

    @property
    def length(self) -> int:
        """The number of payload bytes of the ledger, according to its metadata.

        It is 0 until the ledger is closed. Readers do not find the end of the ledger with it. The
        settings `retention_bytes` and `bytes_max` of streams count with it.
        """
        return self.metadata.length

    def __repr__(self) -> str:
        state = open_or_closed(self._closed)
        last = f"last_acknowledged={self.last_add_confirmed}"
        return represented(self, state, last, ledger=self.ledger_id)

    async def refresh(self) -> int:
        """Ask the bookies and the metadata store for the newest `last_add_confirmed`.

        While a writer pauses, its last entry is usually not visible yet: the LAC travels with the
        next entry, unless the writer sends it in a message of its own
        (`ClientConfig.explicit_lac_interval_s`). Cancelling this call is safe.

        Returns:
            The new value of `last_add_confirmed`.

        Raises:
            ReadError: Too few bookies answer.
            UnauthorizedError: A bookie does not accept this client.
            NoSuchLedgerError: The ledger was deleted.
            LedgerRecreatedError: The ledger was deleted, and its id was used again.
            MetadataError: The metadata store does not answer or refuses this client, or the
                metadata of the ledger cannot be decoded.
            UsageError: This handle is closed.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        view = self._view
        if not view.closed:
            await view.refresh()
        if not view.closed:
            async with self._pool.opens:
                self._check_open()  # it may have been closed while this call waited
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
        """Read a range of entries, in order.

        Cancelling this call is safe. If an entry cannot be read, all entries before it are yielded
        first, and the error names it (`entry_id`).

        Args:
            first: The id of the first entry.
            last: The id of the last entry. The default is `last_add_confirmed`. Without `last`,
                nothing is yielded if `first` is the id after `last_add_confirmed`.

        Yields:
            Each entry.

        Raises:
            UsageError: The range is not valid, or this handle is closed.
            NoSuchEntryError: An entry is after the end of the closed ledger, or every replica says
                that it never had it.
            ReadError: No replica of an entry could be read, so the entry may exist. On an open
                ledger this is also raised for entries after `last_add_confirmed`: call `refresh`
                first.
            DigestError: At least one replica of an entry is damaged, and the others are damaged or
                deny the entry.
            NoSuchLedgerError: The ledger was deleted, and an entry could not be read.
            LedgerRecreatedError: As NoSuchLedgerError, and another ledger has the id.
            MetadataError: An entry could not be read, and the metadata store refuses this client,
                or the metadata of the ledger cannot be decoded.
            ClientClosedError: The client is closed.
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
        """Read a range of entries as runs of consecutive entries in one buffer.

        This is `read` without a Python object for each entry. Cancelling this call is safe.

        Args:
            first: The id of the first entry.
            last: The id of the last entry. The default is `last_add_confirmed`.

        Yields:
            Runs of entries, in order.

        Raises:
            QuireError: The errors of `read`.
        """
        first, last = self._range(first, last)
        if first > last:
            return
        async with aclosing(self._engine.runs(first, last)) as runs:
            async for run in runs:
                yield run

    async def read_unconfirmed(
        self, first: int, last: int | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Read a range of entries whether or not they are acknowledged, in order.

        Reading an entry this way proves nothing about its durability. While the ledger is open, a
        later recovery may drop the entry. On a closed ledger the entries are those of `read`. Every
        entry is checked against its digest. The result has no gaps. Cancelling this call is safe.

        Args:
            first: The id of the first entry.
            last: The id of the last entry. By default reading ends before the first entry that
                every replica denies, and in a closed ledger after its last entry.

        Yields:
            Each entry.

        Raises:
            NoSuchEntryError: `last` was given, and every replica denies an entry of the range, or
                the ledger is closed and ends before `last`.
            UsageError: The range is not valid, or this handle is closed.
            ReadError: No replica of an entry could be read. The entry may exist.
            DigestError: At least one replica of an entry is damaged, and the others are damaged or
                deny the entry.
            NoSuchLedgerError: The ledger was deleted.
            LedgerRecreatedError: The ledger was deleted, and its id was used again.
            MetadataError: The metadata store does not answer or refuses this client, or the
                metadata of the ledger cannot be decoded.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        first = _entry_id(first)
        last = None if last is None else _entry_id(last)
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
            raise UsageError(
                f"entries {first}..{'' if last is None else last} of ledger {self.ledger_id} are "
                "not a valid range: ids begin at 0, and the first must not be greater than the last"
            )
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
        """Follow the ledger while it is being written, and read each entry once, in order.

        An entry is yielded as soon as it is known to be acknowledged. The iteration ends after the
        last entry once the ledger is closed. Bookies may fail and ensembles may change meanwhile.
        While the ledger is being recovered, nothing new is yielded until it is closed.

        While a writer pauses, its newest entry is yielded only when the next entry follows, or when
        the writer sends its explicit LAC (`ClientConfig.explicit_lac_interval_s`).

        An entry is yielded only if a digest proves that a writer of the ledger has recorded it as
        acknowledged: the digest of an entry that contains the LAC, or of an explicit LAC. The LAC
        that a bookie claims without proof (`maxLAC`, which Apache's client believes) is only a hint
        to look again. A wrong bookie can therefore delay a reader, but it cannot make the reader
        yield an entry that a recovery drops.

        Any number of tails of one ledger in one client share their long polls, and they share the
        reading and checking of new entries. None waits for a slower one, and none notices when
        another one ends. Memory is limited by `ClientConfig.read_windows`.

        Cancelling this call is safe. Continue with the entry after the last one that was yielded.

        Args:
            first: The id of the first entry. The default is the first entry after
                `last_add_confirmed`.

        Yields:
            Each entry.

        Raises:
            NoSuchLedgerError: The ledger was deleted.
            LedgerRecreatedError: The ledger was deleted, and its id was used again.
            ReadError: An acknowledged entry could not be read from any replica in several attempts.
            DigestError: At least one replica of an acknowledged entry is damaged, and the others
                are damaged or deny the entry.
            MetadataError: An entry could not be read, and the metadata store refuses this client,
                or the metadata of the ledger cannot be decoded.
            UsageError: `first` is negative, or this handle is closed.
            ClientClosedError: The client was closed.
        """
        async with aclosing(self.tail_runs(first)) as runs:
            async for run in runs:
                entry_id, ledger_id = run.first, self.ledger_id
                for payload, length in zip(run.payloads(), run.ledger_lengths):
                    yield Entry(ledger_id, entry_id, length, payload)
                    entry_id += 1

    async def tail_runs(self, first: int | None = None) -> AsyncGenerator[EntryRun, None]:
        """Follow the ledger as `tail` does, without a Python object for each entry.

        Cancelling this call is safe, as for `tail`.

        Args:
            first: The id of the first entry. The default is the first entry after
                `last_add_confirmed`.

        Yields:
            Runs of entries, in order.

        Raises:
            QuireError: The errors of `tail`.
        """
        self._check_open()
        if first is None:
            first = self.last_add_confirmed + 1
        first = _entry_id(first)
        if first < 0:
            raise UsageError(
                f"a tail of ledger {self.ledger_id} cannot begin at entry {first}: ids begin at 0"
            )
        follower = LedgerFollower(self._view, self._engine, first)
        with self._following(follower) as feed:
            async with aclosing(follower.runs(feed)) as runs:
                async for run in runs:
                    yield run

    async def wait_confirmed(self, entry_id: int) -> int:
        """Wait until an entry is known to be acknowledged, or until the ledger is closed.

        Waiting costs next to nothing: one or two bookies are asked at a time, in a long poll.
        Cancelling this call is safe.

        Args:
            entry_id: The id of the entry.

        Returns:
            The value of `last_add_confirmed` at the end of the wait. It is smaller than `entry_id`
            if the ledger was closed before that entry.

        Raises:
            NoSuchLedgerError: The ledger was deleted.
            LedgerRecreatedError: The ledger was deleted, and its id was used again.
            UsageError: `entry_id` is not a whole number, or this handle is closed.
            ClientClosedError: The client was closed.
        """
        self._check_open()
        entry_id = _entry_id(entry_id)
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
        """Read one entry. Cancelling this call is safe.

        Args:
            entry_id: The id of the entry.

        Returns:
            The entry.

        Raises:
            QuireError: The errors of `read`.
        """
        async for entry in self.read(entry_id, entry_id):
            return entry
        raise NoSuchEntryError(  # pragma: no cover - read() gives the entry or raises
            f"entry {entry_id} of ledger {self.ledger_id} was not read",
            ledger_id=self.ledger_id,
            entry_id=entry_id,
        )

    async def read_last(self) -> Entry:
        """Read the entry at `last_add_confirmed`. Cancelling this call is safe.

        Returns:
            The entry.

        Raises:
            NoSuchEntryError: The ledger is closed and has no entries.
            ReadError: The ledger is open, and no entry is known to be acknowledged yet.
            QuireError: The other errors of `read`.
        """
        return await self.read_entry(self.last_add_confirmed)

    async def to_arrow(self, first: int = 0, last: int | None = None) -> pa.Table:
        """Read a range of entries into an Arrow table.

        The columns are ledger_id, entry_id, length (the payload bytes of the entry) and value. The
        whole range is held in memory. Cancelling this call is safe.

        Args:
            first: The id of the first entry.
            last: The id of the last entry. The default is `last_add_confirmed`.

        Returns:
            The table, with one row for each entry.

        Raises:
            UsageError: pyarrow or numpy is not installed.
            QuireError: The errors of `read`.
        """
        async with aclosing(self.read_runs(first, last)) as runs:
            return arrow.table([run async for run in runs])

    async def to_pandas(self, first: int = 0, last: int | None = None) -> pandas.DataFrame:
        """Read a range of entries into a pandas data frame, with the columns of `to_arrow`.

        Cancelling this call is safe.

        Args:
            first: The id of the first entry.
            last: The id of the last entry. The default is `last_add_confirmed`.

        Returns:
            The data frame, with one row for each entry.

        Raises:
            UsageError: pandas is not installed.
            QuireError: The errors of `to_arrow`.
        """
        return arrow.to_pandas(await self.to_arrow(first, last))

    async def to_polars(self, first: int = 0, last: int | None = None) -> polars.DataFrame:
        """Read a range of entries into a Polars data frame, with the columns of `to_arrow`.

        Cancelling this call is safe.

        Args:
            first: The id of the first entry.
            last: The id of the last entry. The default is `last_add_confirmed`.

        Returns:
            The data frame, with one row for each entry.

        Raises:
            UsageError: polars is not installed.
            QuireError: The errors of `to_arrow`.
        """
        return arrow.to_polars(await self.to_arrow(first, last))

    def close(self) -> None:
        """Close this handle. All later reads raise UsageError.

        So do the calls of `tail`, `tail_runs` and `wait_confirmed` that are in progress. A call of
        `read` that is in progress continues to its end. Bookies keep nothing for a reader, so none
        is contacted. Calling this again does nothing.
        """
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
        first = _entry_id(first)
        last = None if last is None else _entry_id(last)
        end = self.last_add_confirmed
        if last is None:
            # Without entries from `first` on, the error names `first`, which the caller has given.
            last = end if first <= end + 1 else first
        if first == last == end == NO_ENTRY:  # `read_last`
            if self.ledger_closed:
                raise NoSuchEntryError(
                    f"ledger {self.ledger_id} is closed and has no entries",
                    ledger_id=self.ledger_id,
                )
            raise ReadError(
                f"no entry of ledger {self.ledger_id} is known to be acknowledged yet",
                ledger_id=self.ledger_id,
                remedy="Call refresh() for a newer view, or wait for the writer",
            )
        if first < 0 or last < first - 1:
            raise UsageError(
                f"entries {first}..{last} of ledger {self.ledger_id} are not a valid range: ids "
                "begin at 0, and the first must not be greater than the last"
            )
        if last > end or first > end + 1:
            what = f"entry {max(first, last)} of ledger {self.ledger_id} cannot be read: "
            if self.ledger_closed:
                raise NoSuchEntryError(
                    what + f"the ledger is closed and {end_text(end)}",
                    ledger_id=self.ledger_id,
                    entry_id=max(first, last),
                )
            raise ReadError(
                what + acknowledged_text(end),
                ledger_id=self.ledger_id,
                entry_id=max(first, last),
                remedy="Call refresh() for a newer view, or wait for the writer",
            )
        return first, last

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()
        if self._pool.closed:
            raise client_closed()

    def _closed_error(self) -> UsageError:
        return UsageError(
            f"the reader of ledger {self.ledger_id} is closed", remedy="Open the ledger again"
        )


def _entry_id(entry_id: int) -> int:
    return whole_number("an entry id", entry_id)
