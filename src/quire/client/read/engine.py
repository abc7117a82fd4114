"""Reads of ranges: windows in flight, replicas tried in turn, every digest verified.

If every bookie has every entry (ensemble size = write quorum), a window is one batch read. Striped
ledgers are read entry by entry, with many reads in one write. The first replica that returns valid
bytes answers a window. Replicas take turns, so that they share the load.

If copies have to be compared (`TrustModel.compares_copies`), every replica of an entry is asked,
and the content on which `copies_needed` of them agree is the entry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from quire._runtime.tasks import TaskGroup, cancelled
from quire.client.cluster.health import Misbehaviour
from quire.client.cluster.pool import BookiePool
from quire.client.read.hedge import Hedge
from quire.codec.entry.entry import BadEntryError, EntryCodec, EntryRun, check_batch
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.wire.v2 import BATCH_RESPONSE_BYTES
from quire.config import ClientConfig
from quire.core.append.quorum import stripe, write_set
from quire.core.recovery import HONEST_BOOKIES, EntryVotes, TrustModel
from quire.errors import (
    BookieTimeoutError,
    DigestError,
    MetadataUnavailableError,
    NoSuchEntryError,
    QuireError,
    ReadError,
    SilentConnectionError,
)
from quire.net.answer_codes import NoEntryAnswer

FIRST_WINDOW_ENTRIES = 256
"""The number of entries in the first window of batch reads, when their size is not known yet."""
FIRST_SINGLE_READS = 32
"""The number of entries in the first window of single reads. A single read has no limit in bytes,
so this number alone limits the size of the answers."""
MOVES_MAX = 10
"""The number of times that one read follows replicas which have moved while it was in progress."""
MAX_WINDOW_ENTRIES = 16_384
"""The largest number of entries in one window of batch reads."""

_Window = tuple[list[EntryRun], QuireError | None]
"""The result of reading one window: the runs that were read, and the error that ended the reading
early, or None."""


class ReadEngine:
    """A reader of ranges of entries of one ledger, which verifies every entry.

    `metadata` is a function that returns the newest known metadata. `refresh` is one that reads it
    again from the store, because replicas may have moved (rule 38). Its argument says whether a
    server that lags behind must catch up first.
    """

    def __init__(
        self,
        codec: EntryCodec,
        metadata: Callable[[], LedgerMetadata],
        refresh: Callable[[bool], Awaitable[object]],
        pool: BookiePool,
        config: ClientConfig,
        trust: TrustModel = HONEST_BOOKIES,
    ) -> None:
        self.trust = trust
        self._codec = codec
        self._metadata = metadata
        self._refresh = refresh
        self._pool = pool
        self._config = config
        self._entry_bytes = 0.0
        """A running mean of the size of entries in bytes, or 0 before the first read. It decides
        the number of entries in a window."""
        self._turn = 0
        self._no_batches = False
        """Whether the bookies have answered a single read, and never a batch read."""
        self._batched = False
        """Whether a bookie has answered a batch read."""
        self._hedge = Hedge(config, pool.received_bytes, pool.health.overtaken)

    async def runs(
        self, first: int, last: int, near: str | None = None
    ) -> AsyncGenerator[EntryRun, None]:
        """Yield the entries first..last, verified and in order, as runs.

        The caller must know that the entries exist. `near` is the bookie to ask first for batches;
        without it the replicas take turns. If an entry cannot be read, all entries before it are
        yielded first. Then NoSuchEntryError, DigestError or another ReadError is raised, or the
        error of `refresh` if that fails for another reason than MetadataUnavailableError.
        """
        windows: deque[asyncio.Task[_Window]] = deque()
        upcoming = first
        try:
            while upcoming <= last or windows:
                # Use one window until the size of entries is known.
                limit = self._config.read_windows if self._entry_bytes else 1
                while upcoming <= last and len(windows) < limit:
                    end = self._window_end(upcoming, last)
                    windows.append(asyncio.ensure_future(self._window(upcoming, end, near)))
                    upcoming = end + 1
                found, error = await windows[0]
                for run in found:
                    yield run
                if error is not None:
                    raise error
                windows.popleft()
        finally:
            await cancelled(windows)

    async def runs_there_are(self, first: int, last: int) -> AsyncGenerator[EntryRun, None]:
        """Yield those of the entries first..last that exist, verified and in order, as runs.

        At the first entry that every replica denies, NoSuchEntryError is raised. All entries before
        it have been yielded then. Other errors are raised as by `runs`.
        """
        while first <= last:
            found, error = await self._window(first, self._window_end(first, last), None)
            for run in found:
                yield run
                first = run.last + 1
            if error is not None:
                raise error

    @property
    def batches(self) -> bool:
        """Whether entries of this ledger are read in batches, with one request for many entries."""
        return not self._single(self._metadata())

    def _window_end(self, first: int, last: int) -> int:
        metadata = self._metadata()
        single, window_bytes = self._single(metadata), self._config.read_window_bytes
        if single:
            window_bytes *= metadata.ensemble_size
        if self._entry_bytes:
            count = int(window_bytes / self._entry_bytes)
        else:
            count = FIRST_SINGLE_READS if single else FIRST_WINDOW_ENTRIES
        most = self._config.single_reads_in_flight if single else MAX_WINDOW_ENTRIES
        count = min(max(count, 1), most)
        segment = metadata.segment_of(first)
        return min(first + count - 1, metadata.segment_end(segment, last))

    def _single(self, metadata: LedgerMetadata) -> bool:
        striped = metadata.ensemble_size != metadata.write_quorum
        return striped or self._no_batches or self.trust.compares_copies

    async def _window(self, first: int, last: int, near: str | None) -> _Window:
        with self._span("read", first, last):
            return await self._read_window(first, last, near)

    def _span(
        self, name: str, first: int, last: int, **more: str
    ) -> AbstractContextManager[object]:
        return self._pool.tracing.span(
            name, ledger_id=self._codec.ledger_id, first_entry=first, last_entry=last, **more
        )

    async def _read_window(self, first: int, last: int, near: str | None) -> _Window:
        turn, self._turn = self._turn, self._turn + 1
        runs: list[EntryRun] = []
        while first <= last:
            try:
                run = await self._fetch_moved(first, last, turn, near)
            except QuireError as error:
                return runs, error
            runs.append(run)
            size = (run.ends[-1] - run.offsets[0]) / len(run)
            mean = self._entry_bytes
            self._entry_bytes = max(size if not mean else mean + (size - mean) / 4, 1.0)
            first = run.last + 1
        return runs, None

    async def _fetch_moved(self, first: int, last: int, turn: int, near: str | None) -> EntryRun:
        """Return entries as `_fetch` does. If replicas have moved, try again with new metadata.

        The old metadata is compared with the new one, because another read may have read the new
        one first. That an entry does not exist is said only after a look at the newest metadata:
        its present replicas have not denied it otherwise.
        """
        for _ in range(MOVES_MAX):
            asked = self._metadata().segment_of(first)
            try:
                return await self._fetch(first, last, turn, near)
            except ReadError as error:
                try:
                    await self._refresh(isinstance(error, NoSuchEntryError))
                except MetadataUnavailableError as away:
                    raise self._undecided(first, error) from away
                if self._metadata().segment_of(first) == asked:
                    raise
        return await self._fetch(first, last, turn, near)

    async def _fetch(self, first: int, last: int, turn: int, near: str | None) -> EntryRun:
        """Return one or more consecutive verified entries from `first` on, and none after `last`.

        `turn` decides which replica is asked first. Raises ReadError if entry `first` cannot be
        read.
        """
        metadata = self._metadata()
        if self.trust.compares_copies:
            return await self._agreed(metadata, first, last)
        if not self._single(metadata):
            try:
                return await self._from_replicas(metadata, first, last, turn, self.batch, near)
            except NoSuchEntryError:
                raise
            except ReadError:
                run = await self._singles(metadata, first, first)
                # Otherwise the bookies could not be reached for a moment.
                self._no_batches = not self._batched
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
        """Ask one replica after the other, and return the first good answer.

        `turn` is the number of the replica to begin with, modulo the write quorum. Raises
        NoSuchEntryError if all of them deny entry `first`, and otherwise ReadError or DigestError.
        """
        ensemble = metadata.segment_of(first).ensemble
        members = write_set(first, metadata.ensemble_size, metadata.write_quorum)
        at = turn % len(members)
        order = [ensemble[index] for index in (*members[at:], *members[:at])]
        order = self._pool.read_order(order, near)
        found, errors = await self._hedge.first_good(order, lambda b: ask(b, first, last))
        self._note(metadata, first, errors, found is not None)
        if found is None:
            raise self._failed(first, errors)
        return found

    def _note(
        self, metadata: LedgerMetadata, entry_id: int, errors: dict[str, QuireError], found: bool
    ) -> None:
        """Record, in the health of the bookies, the errors of those that did not return an entry.

        `errors` has the error of each bookie. `found` says whether another bookie returned the
        entry.
        """
        health, ledger_id = self._pool.health, self._codec.ledger_id
        for bookie, error in errors.items():
            if isinstance(error, NoEntryAnswer):
                if found and metadata.closed:
                    every = metadata.ack_quorum == metadata.write_quorum
                    ask_again = partial(self._denies, bookie, entry_id)
                    health.denied(bookie, ledger_id, entry_id, ask_again, acknowledged=every)
            elif not isinstance(error, DigestError | SilentConnectionError):
                health.error(bookie)

    async def _denies(self, bookie: str, entry_id: int) -> bool | None:
        """Ask a bookie again for an entry that it denied, and return whether it still denies it.

        Returns None if the check failed. Returns False also if the metadata no longer names the
        bookie for the entry, because it was replaced and may have dropped its copy.
        """
        try:
            async with asyncio.timeout(self._config.read_timeout_s):
                await self._refresh(True)
                metadata = self._metadata()
                ensemble = metadata.segment_of(entry_id).ensemble
                members = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
                if bookie not in {ensemble[index] for index in members}:
                    return False
                await self._one(bookie, entry_id, entry_id)
        except NoEntryAnswer:
            return True
        except (QuireError, TimeoutError):
            return None
        return False

    def _bad(self, bookie: str, error: BadEntryError, entry_id: int) -> DigestError:
        """Record that a bookie sent bytes that fail verification, and return the error to raise."""
        ledger_id = self._codec.ledger_id
        self._pool.health.bad_entry(bookie, error, self._metadata(), self._codec, entry_id)
        return DigestError(
            f"entry {entry_id} of ledger {ledger_id}: {error}",
            ledger_id=ledger_id,
            entry_id=entry_id,
        )

    async def batch(
        self,
        bookie: str,
        first: int,
        last: int,
        max_bytes: int | None = None,
        *,
        flags: int = 0,
    ) -> EntryRun:
        """Ask one bookie for consecutive entries from `first` on, and return them verified.

        The result has at least entry `first` and ends at `last` at the latest. It ends earlier
        where the bookie lacks an entry, or where the answer would exceed `max_bytes`.
        """
        count = last - first + 1
        size = self._config.read_window_bytes * 2 if max_bytes is None else max_bytes
        with self._span("read_batch", first, last, bookie=bookie):
            ledger_id = self._codec.ledger_id
            answer = await self._pool.ask(
                bookie, lambda channel: channel.batch_read(ledger_id, first, count, size, flags)
            )
            self._batched = True
            try:
                return check_batch(
                    self._codec, answer, first, BATCH_RESPONSE_BYTES, len(answer), limit=count
                )
            except BadEntryError as error:
                raise self._bad(bookie, error, first) from error

    async def _one(self, bookie: str, entry_id: int, last: int) -> EntryRun:
        ledger_id = self._codec.ledger_id
        data = await self._pool.ask(bookie, lambda channel: channel.read(ledger_id, entry_id))
        try:
            self._codec.check(data, entry_id)
        except BadEntryError as error:
            raise self._bad(bookie, error, entry_id) from error
        return self.run_of(entry_id, [data])

    # -- single reads -------------------------------------------------------------------------

    async def _singles(self, metadata: LedgerMetadata, first: int, last: int) -> EntryRun:
        """Return the entries from `first` to `last`, or to the one before the first unreadable one.

        All entries must be of one segment. Raises ReadError if entry `first` itself cannot be read.
        Entries with the same write set are requested together, in one write, from one replica after
        the other. Entries that are then still missing are requested one by one.
        """
        found: dict[int, bytes] = {}
        denied: dict[int, dict[str, QuireError]] = {}
        ensemble = metadata.segment_of(first).ensemble
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        async with TaskGroup() as group:
            for start in range(first, min(last + 1, first + size)):
                replicas = [ensemble[at] for at in write_set(start, size, quorum)]
                entries = range(start, last + 1, size)
                group.create_task(self._striped(replicas, entries, found, denied))
        for entry in range(first, last + 1):
            if entry not in found:
                try:
                    run = await self._from_replicas(metadata, entry, entry, 1, self._one)
                except ReadError:
                    if entry == first:
                        raise
                    last = entry - 1  # the caller's next read begins at `entry` and raises
                    break
                found[entry] = memoryview(run.data)[:].tobytes()
        for entry, errors in denied.items():
            if entry in found:
                self._note(metadata, entry, errors, True)
        return self.run_of(first, [found[entry] for entry in range(first, last + 1)])

    async def _striped(
        self,
        replicas: list[str],
        entries: Sequence[int],
        found: dict[int, bytes],
        denied: dict[int, dict[str, QuireError]],
    ) -> None:
        """Read entries of one write set from its replicas, one replica after the other.

        Valid bytes are added to `found` by entry id, and denials to `denied` by entry id and
        bookie. Entries that no replica returned are missing from `found`.
        """

        async def ask(bookie: str) -> None:
            left = [entry for entry in entries if entry not in found]
            if not left:
                return  # a slow bookie has returned them meanwhile
            with self._span("read_stripe", left[0], left[-1], bookie=bookie):
                answers = await self._pool.ask_many(bookie, self._codec.ledger_id, left)
            self._take(bookie, dict(zip(left, answers)), found, denied)

        _, errors = await self._hedge.first_good(self._pool.read_order(replicas), ask)
        for bookie, error in errors.items():
            if not isinstance(error, NoEntryAnswer | DigestError | SilentConnectionError):
                self._pool.health.error(bookie)

    def _take(
        self,
        bookie: str,
        answers: dict[int, bytes | BaseException],
        found: dict[int, bytes],
        denied: dict[int, dict[str, QuireError]],
    ) -> None:
        """Add the answers of one bookie to `found` and `denied`, as `_striped` describes.

        If this bookie did not return an entry that is still missing, its error is raised, so that
        the next replica is asked.
        """
        problem: BaseException | None = None
        for entry, answer in answers.items():
            if isinstance(answer, bytes):
                try:
                    self._codec.check(answer, entry)
                except BadEntryError as error:
                    answer = self._bad(bookie, error, entry)
                else:
                    found[entry] = answer
                    continue
            elif isinstance(answer, NoEntryAnswer):
                denied.setdefault(entry, {})[bookie] = answer
            if entry not in found:
                problem = answer
        if problem is not None:
            raise problem

    # -- copies that are compared -------------------------------------------------------------

    async def _agreed(self, metadata: LedgerMetadata, first: int, last: int) -> EntryRun:
        """Return the entries of first..last on which `copies_needed` members agree.

        The result ends before the first entry without agreement. If that is entry `first`, raises
        NoSuchEntryError if all of its replicas deny it, and otherwise ReadError.
        """
        ensemble = metadata.segment_of(first).ensemble
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        copies: dict[int, dict[int, bytes]] = {entry: {} for entry in range(first, last + 1)}
        agreed: dict[int, bytes] = {}
        denied: dict[str, QuireError] = {}  # by the replicas of entry `first`
        errors: dict[str, QuireError] = {}

        async def ask(index: int) -> None:
            entries = list(stripe(index, first, last, size, quorum))
            answers = await self._copies(ensemble[index], index, entries, copies, errors)
            if isinstance(denial := answers.get(first), NoEntryAnswer):
                denied[ensemble[index]] = denial

        tasks = {asyncio.ensure_future(ask(index)) for index in range(size)}
        try:
            while tasks and len(agreed) < len(copies):
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                for entry in copies.keys() - agreed.keys():
                    value = self._agreement(ensemble, entry, copies[entry])
                    if value is not None:
                        agreed[entry] = value
        finally:
            await cancelled(tasks)
        if first not in agreed:
            if len(denied) == quorum:
                raise self._failed(first, denied)
            raise self._disagree(first, len(copies[first]), errors)
        end = next((entry for entry in copies if entry not in agreed), last + 1)
        return self.run_of(first, [agreed[entry] for entry in range(first, end)])

    async def _copies(
        self,
        bookie: str,
        index: int,
        entries: list[int],
        copies: dict[int, dict[int, bytes]],
        errors: dict[str, QuireError],
    ) -> dict[int, bytes | BaseException]:
        """Read entries from the member at ensemble `index`, and return its answers by entry id.

        Valid copies are added to `copies` by entry id and index, and errors to `errors` by bookie.
        """
        limit = self._config.read_timeout_s
        try:
            async with asyncio.timeout(limit):
                answers = await self._pool.ask_many(bookie, self._codec.ledger_id, entries)
        except QuireError as error:
            errors[bookie] = error
            return {}
        except TimeoutError:
            errors[bookie] = BookieTimeoutError(f"the bookie did not answer within {limit:g} s")
            return {}
        for entry, answer in zip(entries, answers):
            if isinstance(answer, QuireError):
                errors[bookie] = answer
            elif isinstance(answer, bytes):
                try:
                    self._codec.check(answer, entry)
                except BadEntryError as error:
                    errors[bookie] = self._bad(bookie, error, entry)
                else:
                    copies[entry][index] = answer
        return dict(zip(entries, answers))

    def _agreement(
        self, ensemble: tuple[str, ...], entry: int, copies: dict[int, bytes]
    ) -> bytes | None:
        """Return the bytes of an entry on which `copies_needed` members agree, or None.

        `copies` has the bytes of each member, by ensemble index. If there is agreement, members
        that have another content are recorded as misbehaving.
        """
        votes = EntryVotes()
        for index, data in copies.items():
            votes.copies.setdefault(self._codec.content(data), set()).add(index)
        content, count = votes.most()
        if count < self.trust.copies_needed:
            return None
        for index in copies.keys() - votes.copies[content]:
            health, ledger_id = self._pool.health, self._codec.ledger_id
            health.misbehaved(ensemble[index], Misbehaviour.WRONG_ENTRY, ledger_id, entry)
        # The LACs in copies of one entry may differ, because recovery writes entries again. The
        # lowest of them is not higher than that of an honest bookie.
        equal = [copies[index] for index in sorted(votes.copies[content])]
        return min(equal, key=lambda data: int.from_bytes(data[16:24], "big", signed=True))

    def _disagree(self, entry_id: int, copies: int, errors: dict[str, QuireError]) -> ReadError:
        ledger_id = self._codec.ledger_id
        return ReadError(
            f"entry {entry_id} of ledger {ledger_id} cannot be decided: no "
            f"{self.trust.copies_needed} of the {copies} copies that could be read agree, as "
            f"assume_liars = {self.trust.byzantine} demands",
            ledger_id=ledger_id,
            entry_id=entry_id,
            causes=dict(errors),
            remedy=(
                "Start the other bookies of the ledger and try again, or open it without "
                "assume_liars"
            ),
        )

    def run_of(self, first: int, entries: Iterable[bytes]) -> EntryRun:
        """Return consecutive verified entries as a run. The first of them has the id `first`.

        Each entry is given as the bytes that bookies store.
        """
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

    def _undecided(self, entry_id: int, error: ReadError) -> ReadError:
        """Return the error for an entry that may have other replicas than the known ones.

        `error` is what reading from the known ones has raised. The metadata store does not answer.
        """
        if not isinstance(error, NoSuchEntryError):
            return error
        ledger_id = self._codec.ledger_id
        return ReadError(
            f"entry {entry_id} of ledger {ledger_id} could not be read from any known replica, and "
            "the metadata store does not say whether it has others; it may exist",
            ledger_id=ledger_id,
            entry_id=entry_id,
            causes=error.causes,
            remedy="Try again when the metadata store answers",
        )

    def _failed(self, entry_id: int, errors: dict[str, QuireError]) -> ReadError:
        ledger_id = self._codec.ledger_id
        what = f"entry {entry_id} of ledger {ledger_id}"
        if errors and all(isinstance(e, NoEntryAnswer) for e in errors.values()):
            return NoSuchEntryError(
                f"{what} does not exist: every replica says that it never had it",
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
            remedy="Start the bookies of the ledger and try again. If digests do not match, check "
            "the password",
        )
