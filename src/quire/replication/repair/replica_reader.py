"""Reading what one particular bookie has of a ledger.

Entries are returned as columns, with their digests checked. Ranges of entries that could not be
read are returned with the reason: the bookie says "no such entry", the entry is damaged, or the
bookie does not answer. Damage and silence never count as absence (rule 32 of
docs/internals/replication-rules.md).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

from quire._runtime.retry import Backoff, Retry
from quire._runtime.tasks import cancelled
from quire.client import Client
from quire.client.client import pool_of
from quire.codec.entry.entry import BadEntryError, EntryCodec, check_batch
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.wire.v2 import BATCH_RESPONSE_BYTES, LAST_ENTRY
from quire.config import KIB
from quire.core.fragments import stored_by
from quire.core.replicas import Bad, Copies, Kind
from quire.errors import (
    BookieBusyError,
    BookieError,
    BookieTimeoutError,
    BookieUnavailableError,
    DataUnknownError,
    LedgerError,
    NoSuchEntryError,
    QuireError,
    SilentConnectionError,
    UnauthorizedError,
)
from quire.net.answer_codes import NoEntryAnswer
from quire.net.channel import BookieChannel
from quire.replication.budget import UNBOUNDED, Budget

T = TypeVar("T")

FIRST_WINDOW_ENTRIES = 256
"""The number of entries that are requested before the size of entries is known."""
ASKED_BYTES_MIN = 256 * KIB
"""The least number of bytes that a batch read asks for, because entries may be larger than earlier
ones."""
WINDOW_ENTRIES_MAX = 4_096
SINGLE_ENTRIES_MAX = 64
"""The largest number of single reads at the same time. They replace batch reads if the ledger is
striped, or after a batch read has returned nothing."""
ATTEMPTS = 2
"""The number of attempts of a request that is not answered in time."""
LOST_ATTEMPTS = 4
"""The number of attempts of a request whose connection is lost. After a restart of the bookie, each
of several old connections may fail when it is used."""
BUSY_ATTEMPTS = 10
BUSY_BACKOFF = Backoff(0.2, 0.2)
"""The pauses between attempts while the bookie is busy."""
PATIENCE_ROUNDS = 6
"""The largest multiple of `read_timeout_s` that an answer may take, as long as the bookie sends
data."""
NO_LEDGER = 2**63 - 1
"""The ledger id of a request that only tests whether a bookie answers."""
LISTED_RANGES_MAX = 10_000
"""The largest number of ranges in a bookie's list of its entries. A longer list is not used."""

Part = Copies | Bad


class Unreachable(Exception):
    """The error for a bookie that does not answer, refuses this client, or is too busy.

    The message says why.
    """


class ReadAttempts:
    """The failed attempts of one request to a bookie."""

    def __init__(self) -> None:
        self._silent = self._lost = 0

    def are_used_up(self, error: QuireError) -> bool:
        """Count a failure, and return whether it was the last attempt.

        `error` is a BookieTimeoutError or a BookieUnavailableError.
        """
        if isinstance(error, BookieTimeoutError):
            self._silent += 1
        else:
            self._lost += 1
        return self._silent >= ATTEMPTS or self._lost >= LOST_ATTEMPTS


class ReplicaReader:
    """A reader of the entries of one ledger on one bookie."""

    def __init__(
        self,
        client: Client,
        ledger_id: int,
        metadata: LedgerMetadata,
        codec: EntryCodec,
        bookie: str,
        *,
        budget: Budget = UNBOUNDED,
    ) -> None:
        self.bookie = bookie
        self._client = client
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._codec = codec
        self._budget = budget
        self._batches = metadata.ensemble_size == metadata.write_quorum
        self._entry_bytes = 0.0
        self._listed: Sequence[tuple[int, int]] | None = None
        self._asked_for_list = False

    async def parts(self, index: int, first: int, last: int) -> AsyncGenerator[Part, None]:
        """Read the entries from `first` to `last` that the member `index` should hold, in order.

        Both ends are included and are of one segment. Good entries are yielded as `Copies`, and
        ranges that cannot be read as `Bad`. If the bookie cannot be reached, the rest is one
        UNREACHABLE part. Cancel-safe.
        """
        windows: deque[asyncio.Task[list[Part]]] = deque()
        limit = 1 if self._budget.bounded else self._client.config.read_windows
        starts: deque[int] = deque()
        upcoming = first
        try:
            while upcoming <= last or windows:
                while upcoming <= last and len(windows) < (limit if self._entry_bytes else 1):
                    end = min(upcoming + self._window() - 1, last)
                    windows.append(asyncio.ensure_future(self._stripe(index, upcoming, end)))
                    starts.append(upcoming)
                    upcoming = end + 1
                try:
                    found = await windows[0]
                except Unreachable as error:
                    yield Bad(starts[0], last, Kind.UNREACHABLE, str(error))
                    return
                windows.popleft()
                starts.popleft()
                for part in found:
                    yield part
        finally:
            await cancelled(windows)

    def _window(self) -> int:
        if not self._entry_bytes:
            return FIRST_WINDOW_ENTRIES
        size = self._budget.slice_bytes(self._client.config.read_window_bytes)
        count = int(size / self._entry_bytes)
        return min(max(count, 1), WINDOW_ENTRIES_MAX)

    async def _stripe(self, index: int, first: int, last: int) -> list[Part]:
        entries = stored_by(self._metadata, index, first, last)
        return await self.read(entries) if entries else []

    async def read(self, entries: Sequence[int]) -> list[Part]:
        """Read these ascending entries, and return the parts that they are divided into, in order.

        Good entries are in `Copies`, and those that are missing or damaged in `Bad`. Raises
        `Unreachable`. Cancel-safe.
        """
        parts: list[Part] = []
        at = 0
        while at < len(entries):
            more: list[Part] = []
            if self._batches and entries[-1] - entries[at] == len(entries) - at - 1:
                more = await self._batch(entries[at], entries[-1])
            if not more:
                more = await self._singles(entries[at : at + SINGLE_ENTRIES_MAX])
            for part in more:
                at += len(part.ids) if isinstance(part, Copies) else 0
                if isinstance(part, Bad):
                    while at < len(entries) and entries[at] <= part.last:
                        at += 1
            parts += more
        size = sum(part.size_bytes for part in parts if isinstance(part, Copies))
        count = sum(len(part.ids) for part in parts if isinstance(part, Copies))
        if count:
            mean = size / count + self._codec.head_bytes
            self._entry_bytes = (
                (self._entry_bytes * 3 + mean) / 4 if self._entry_bytes else max(mean, 1.0)
            )
            await self._budget.take(size + count * self._codec.head_bytes)
        return parts

    # -- requests -----------------------------------------------------------------------------

    async def _batch(self, first: int, last: int) -> list[Part]:
        """Return the entries from `first` on that one batch read returns.

        If the bookie does not have the first entry, the result is the missing range (see
        `_missing`). It is empty if the batch read gave nothing; a single read then shows why.
        """
        count = last - first + 1
        size = self._client.config.read_window_bytes * 2
        if self._entry_bytes:
            # A bookie answers small requests at once, and larger ones on another thread.
            size = min(size, max(int(2 * count * self._entry_bytes), ASKED_BYTES_MIN))

        async def ask(channel: BookieChannel) -> bytes:
            return await channel.batch_read(self._ledger_id, first, count, size)

        try:
            answer = await self._patiently(ask)
        except NoEntryAnswer:
            return await self._missing(first, last)
        except (BookieError, LedgerError):
            return []
        except Unreachable as error:
            # Apache's bookies before 4.17 close a connection that requests a batch read.
            others = BookieTimeoutError | SilentConnectionError | BookieBusyError
            if self._entry_bytes or isinstance(error.__cause__, others):
                raise
            self._batches = False
            return []
        try:
            run = check_batch(
                self._codec, answer, first, BATCH_RESPONSE_BYTES, len(answer), limit=count
            )
        except BadEntryError:
            return []
        return [Copies(range(first, run.last + 1), run.payloads(), run.ledger_lengths)]

    async def _singles(self, entries: Sequence[int]) -> list[Part]:
        async def ask(channel: BookieChannel) -> list[bytes | BaseException]:
            answers = await channel.read_many(self._ledger_id, list(entries))
            for answer in answers:
                if isinstance(answer, BookieUnavailableError | BookieBusyError):
                    raise answer
            return answers

        answers = await self._patiently(ask)
        parts: list[Part] = []
        ids: list[int] = []
        payloads: list[bytes] = []
        lengths: list[int] = []

        def flush() -> None:
            if ids:
                parts.append(Copies(ids[:], payloads[:], lengths[:]))
                ids.clear()
                payloads.clear()
                lengths.clear()

        for entry, answer in zip(entries, answers):
            if isinstance(answer, bytes):
                try:
                    whole = self._codec.unpack(answer, entry)
                except BadEntryError as error:
                    flush()
                    parts.append(Bad(entry, entry, Kind.DAMAGED, str(error)))
                else:
                    ids.append(entry)
                    payloads.append(whole.payload)
                    lengths.append(whole.ledger_length)
            else:
                flush()
                parts.append(self._why(entry, answer))
        flush()
        return parts

    def _why(self, entry: int, error: BaseException) -> Bad:
        if isinstance(error, NoEntryAnswer):
            return Bad(entry, entry, Kind.MISSING, "no such entry")
        if isinstance(error, DataUnknownError):
            return Bad(
                entry, entry, Kind.DAMAGED, "the bookie lost data, and does not know which entries"
            )
        if isinstance(error, UnauthorizedError):
            raise Unreachable(
                "the bookie refuses to serve this client: check the ledger's password and the "
                "TLS settings"
            ) from error
        if isinstance(error, BookieError):
            return Bad(entry, entry, Kind.DAMAGED, "I/O error")
        if isinstance(error, LedgerError):
            return Bad(entry, entry, Kind.DAMAGED, "the bookie's answer makes no sense for a read")
        raise error

    async def _missing(self, first: int, last: int) -> list[Part]:
        """Return the range of missing entries that begins with `first`, according to the bookie.

        The bookie's list of its entries shows how long the range is. The result is empty if the
        bookie gives no list, or if the list has `first`; single reads then show what is missing.
        """
        if not self._asked_for_list:
            self._asked_for_list = True
            self._listed = await self._list()
        if self._listed is None:
            return []
        end = last
        for low, high in self._listed:
            if low <= first <= high:
                return []
            if low > first:
                end = min(end, low - 1)
                break
        return [Bad(first, end, Kind.MISSING, "no such entry")]

    async def _list(self) -> Sequence[tuple[int, int]] | None:
        try:
            found = await self._client.list_entries(self.bookie, self._ledger_id)
        except NoSuchEntryError:
            return []
        except QuireError:
            return None  # some bookies cannot list their entries
        return found if len(found) <= LISTED_RANGES_MAX else None

    async def _patiently(self, ask: Callable[[BookieChannel], Awaitable[T]]) -> T:
        """Send a request, and repeat it after a lost connection, a time-out, or a busy answer.

        Raises `Unreachable` when the attempts are used up.
        """
        busy = Retry(BUSY_BACKOFF, self._client.rng, attempts=BUSY_ATTEMPTS)
        attempts = ReadAttempts()
        while True:
            try:
                return await self._in_time(ask)
            except BookieBusyError as error:
                if not await busy.pause():
                    raise Unreachable(
                        "the bookie is too busy to answer: try again later"
                    ) from error
            except (BookieTimeoutError, BookieUnavailableError) as error:
                pool = pool_of(self._client)
                given_up = isinstance(error, BookieTimeoutError) and pool.failed_lately(self.bookie)
                if attempts.are_used_up(error) or given_up:
                    pool.mark_failed(self.bookie)
                    raise Unreachable(str(error.args[0])) from error

    async def _in_time(self, ask: Callable[[BookieChannel], Awaitable[T]]) -> T:
        """Send a request. Raises BookieTimeoutError if no answer arrives within `read_timeout_s`.

        While the bookie sends data, the wait is extended to at most `PATIENCE_ROUNDS` times the
        limit, because large answers follow each other on one connection.
        """
        pool, limit = pool_of(self._client), self._client.config.read_timeout_s

        loop, left = asyncio.get_running_loop(), PATIENCE_ROUNDS
        before = pool.received_bytes(self.bookie)
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal before, left, timer
            received, left = pool.received_bytes(self.bookie), left - 1
            if received == before or not left:
                bound.reschedule(loop.time())
                return
            before = received
            timer = loop.call_later(limit, look)

        # A timer is cheaper than a task, and each slice of a copy is one request.
        timer = loop.call_later(limit, look)
        try:
            async with asyncio.timeout(None) as bound:
                return await ask(await pool.channel(self.bookie))
        except QuireError:
            raise
        except TimeoutError:
            waited_s = limit * (PATIENCE_ROUNDS - left)
            raise BookieTimeoutError(
                f"bookie {self.bookie} did not answer a read of a replica within {waited_s:g} s"
            ) from None
        finally:
            timer.cancel()


LAG_S = 2.0
"""Seconds until a bookie that lacks entries is asked again, because it may merely lag."""


async def answers(client: Client, bookie: str) -> str:
    """Return '' if the bookie answers, over an existing connection or a new one, else the reason.

    This takes at most six times `read_timeout_s`. Cancel-safe.
    """
    attempts = ReadAttempts()
    while True:
        try:
            async with asyncio.timeout(client.config.read_timeout_s):
                await (await pool_of(client).channel(bookie)).read(NO_LEDGER, LAST_ENTRY)
        except (BookieTimeoutError, BookieUnavailableError) as lost:
            error: QuireError = lost
        except QuireError:
            return ""
        except TimeoutError:
            limit_s = client.config.read_timeout_s
            error = BookieTimeoutError(f"the bookie did not answer within {limit_s:g} s")
        else:
            return ""
        if attempts.are_used_up(error):
            anew = await pool_of(client).answers_anew(bookie, client.config.read_timeout_s)
            return "" if anew else str(error.args[0])
