"""The state that all connections of a bookie share.

It decides who may add, how reads are answered, and when clients are slowed down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from quire._runtime.clock import Clock
from quire._runtime.event_log import EventLog
from quire._runtime.metrics import Histogram
from quire._runtime.tasks import TaskSet
from quire.bookie.protocol.answer_budget import Account, AnswerBudget, AnswerSink
from quire.bookie.protocol.connection_limits import ConnectionLimits, Limited
from quire.bookie.protocol.loading_store import LoadingStore
from quire.bookie.protocol.long_polls import LongPoll, LongPolls, PollTarget
from quire.bookie.protocol.read_failures import ReadFailures
from quire.bookie.protocol.security import Security
from quire.codec.entry.frame_runs import entry_bytes
from quire.codec.wire.v2 import (
    BATCH_READ_BASE_BYTES,
    HIGH_PRIORITY,
    KEY_BYTES,
    LAST_ENTRY,
    RECOVERY_ADD,
    Buffer,
    Code,
)
from quire.config import BookieConfig
from quire.errors import DiskFullError, StorageError
from quire.net.network import Network
from quire.storage.directories import Store
from quire.storage.read.read_exceptions import NoEntry, NoLedger, WouldBlock
from quire.storage.read.reader import UNSHARED_BYTES
from quire.storage.segment.batch import LogBatch

ANSWER_HEAD_BYTES = 1024
"""The most bytes that an answer to a read has in addition to its entries."""
FAREWELL_TIMEOUT_S = 1.0
FAREWELL_POLL_S = 0.01


class ClientConnection(Limited, AnswerSink, Protocol):
    """The connection of a client, as its requests and the service see it."""

    service: BookieService
    account: Account
    """The memory that the answers of this connection use."""
    out: list[Buffer]
    """The answers to be sent after this event-loop iteration."""
    polls: dict[PollTarget, LongPoll]
    """The requests of this connection that wait for a new LAC, each with its long poll."""
    secured: bool

    @property
    def interrupted(self) -> bool:
        """Whether the received bytes after the current request must not be parsed now."""
        ...

    @property
    def may_wait(self) -> bool:
        """Whether one more request of this connection may wait for a new LAC."""
        ...

    def wait(self, request: PendingRead, previous_lac: int, timeout_s: float) -> None:
        """Call `request.ready` once the LAC of its ledger is greater than `previous_lac`.

        It is also called after `timeout_s`, when the ledger is fenced or dropped, and when the
        bookie stops. It is not called if the client disconnects.
        """
        ...

    def answer(self, request: PendingRead) -> None:
        """Answer a request that had to wait, at once or when the disk has delivered its entries."""
        ...

    def write(self, data: Buffer) -> None:
        """Send an answer with the other answers of this event-loop iteration, after its end."""
        ...

    def refused(self) -> None:
        """Count a request that was refused because of missing TLS or a missing role."""
        ...

    def may_secure(self) -> bool:
        """Whether the client may begin TLS now."""
        ...

    def start_tls(self, answer: bytes) -> None:
        """Send `answer` and begin the TLS handshake."""
        ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class PendingRead:
    """A read of protocol v2 or v3 until it is answered."""

    __slots__ = ("connection", "entry_id", "ledger_id")

    max_count = 1
    max_bytes = 0

    def __init__(self, connection: ClientConnection, ledger_id: int, entry_id: int) -> None:
        self.connection = connection
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        """The id of the first entry to read. LAST_ENTRY stands for the last entry of the ledger on
        this bookie."""

    def failed(self, code: int) -> bytes:
        """Return the frame of the answer with this error code."""
        raise NotImplementedError

    def found(self, entries: Sequence[Buffer]) -> bytes:
        """Return the frame of the answer with these entries."""
        raise NotImplementedError

    def parts(self, entries: Sequence[Buffer]) -> Sequence[Buffer]:
        """Return the frame of the answer with these entries as several buffers.

        An answer of megabytes then need not be joined.
        """
        return (self.found(entries),)

    def answer_fenced(self, code: int) -> None:
        """Answer a read that fences: with its entry if `code` is 0, or else with the error code."""
        if code:
            self.connection.write(self.failed(code))
        else:
            self.connection.answer(self)

    def ready(self, moved: bool) -> None:
        """Answer the read now that its wait for a new LAC is over; see `PollTarget.ready`."""
        self.connection.answer(self)


@dataclass(slots=True)
class Counters:
    """The numbers of requests, entries and events since the start, which the metrics read."""

    connections: int = 0
    adds: int = 0
    add_bytes: int = 0
    add_batches: int = 0
    copies: int = 0
    """The number of added entries that were replicated from other bookies."""
    adds_refused: int = 0
    reads: int = 0
    reads_from_disk: int = 0
    reads_failed: int = 0
    """The number of reads that failed because of damage, a failed disk, or a ledger that may be
    lost or is not loaded yet."""
    reads_missing: int = 0
    """The number of reads of entries and ledgers that this bookie does not have."""
    read_bytes: int = 0
    fences: int = 0
    long_polls: int = 0
    """The number of long polls of protocol v3 that had to wait for a new LAC. Waiting batch reads
    of v2 are not counted."""
    forces: int = 0
    holds: int = 0
    """The number of times that a connection was paused because too much was queued for the disk."""
    tls_connections: int = 0
    tls_failures: int = 0
    """The number of TLS handshakes that failed or took too long."""
    tls_refusals: int = 0
    """The number of secured connections that were refused because the client has no authorised
    role."""
    requests_refused: int = 0
    """The number of requests that were refused because they came in clear text, or from a client
    without an authorised role."""


class ServiceTimes:
    """Histograms of the seconds from the receipt of a request until its answer was ready.

    `adds_failed` counts entries, the others count requests. A request was received when its chunk
    was. Reads that do not wait for the disk are timed once for each chunk, and each of them counts
    with that time.
    """

    def __init__(self) -> None:
        self.adds_failed = Histogram()
        self.reads = Histogram()
        self.reads_failed = Histogram()
        """Seconds until a read was answered that failed or whose entry or ledger is not here."""
        self.fences = Histogram()
        """Seconds from the receipt of a request to fence a ledger until the fence was durable."""
        self.fences_failed = Histogram()


class BookieService:
    """The part of a bookie that answers the requests of all connections."""

    def __init__(
        self,
        store: Store,
        config: BookieConfig,
        clock: Clock,
        network: Network,
        log: EventLog,
    ) -> None:
        self.store = store
        self.loading_store: LoadingStore | None = None
        """The substitute that is in `store` while the log is being loaded, and None otherwise."""
        self.config = config
        self.clock = clock
        self.log = log
        self._read_failures = ReadFailures(log, clock.monotonic)
        self.long_polls = LongPolls(config.max_long_polls)
        self.counters = Counters()
        self.times = ServiceTimes()
        self.received_s = 0.0
        """The monotonic time in seconds when the chunk that is being handled was received."""
        self.security = Security(config, network, clock, log, self.counters)
        self.writable = True
        """Whether ordinary adds are accepted for any ledger."""
        self.loading = False
        """Whether the log is still being loaded. Then `store` is a `LoadingStore`, no adds are
        accepted, nothing is fenced, and an entry that is not found may still exist here."""
        self.partly_writable = False
        """Whether some data directories may accept ordinary adds while `writable` is False. Then
        the store must be asked about each ledger."""
        self.limits = ConnectionLimits(config, clock.monotonic, log)
        self.answers = AnswerBudget(
            config.max_answer_bytes, config.max_unsent_bytes, clock.monotonic
        )
        # A dictionary serves as an ordered set, so that the same seed gives the same run.
        self._held: dict[ClientConnection, None] = {}
        self._reads = TaskSet()
        store.on_drained = self._drained

    # -- connections --------------------------------------------------------------------------

    @property
    def connections(self) -> dict[ClientConnection, None]:
        return cast(dict[ClientConnection, None], self.limits.connections)

    def admit(self, connection: ClientConnection) -> bool:
        self.counters.connections += 1
        return self.limits.admit(connection)

    def forget(self, connection: ClientConnection) -> None:
        self.limits.forget(connection)
        self.answers.forget(connection.account)
        self._held.pop(connection, None)
        for poll in connection.polls.values():
            poll.cancel()
        connection.polls.clear()

    @property
    def held_bytes(self) -> int:
        """The number of bytes that answers and unfinished requests take in memory now."""
        return self.answers.held_bytes + self.limits.partial_bytes

    def take_peak_bytes(self) -> int:
        """Return an upper bound of `held_bytes` since the last call of this method.

        It is the sum of the peaks of answers and of unfinished requests, which may be at different
        times.
        """
        answers, limits = self.answers, self.limits
        peak = answers.peak_bytes + limits.peak_bytes
        answers.peak_bytes, limits.peak_bytes = answers.held_bytes, limits.partial_bytes
        return peak

    async def sweep(self) -> None:
        """Close the connections that are late with a request or with receiving their answers.

        The bookie calls this every `SWEEP_S`.
        """
        self.limits.sweep()
        if self.config.unsent_timeout_s:
            self.answers.cut_stalled(self.config.unsent_timeout_s)

    def hold(self, connection: ClientConnection) -> None:
        """Pause a connection because too much is queued for the disk.

        The connection is resumed when the store calls `on_drained`.
        """
        if connection not in self._held:
            self._held[connection] = None
            self.counters.holds += 1
            connection.pause("disk")

    def _drained(self) -> None:
        held, self._held = self._held, {}
        for connection in held:
            connection.resume("disk")

    async def drain(self) -> None:
        """Accept no more requests, and wait until all accepted adds are durable and answered.

        Readers that wait for a new LAC are answered as if their time were up. Queued reads are not
        started any more.
        """
        self.long_polls.release_all()
        self.answers.close()
        for connection in self.connections:
            connection.pause("stopping")
        if self.store.failed is None and self.connections:
            synced = asyncio.Event()
            self.store.barrier(lambda error: synced.set())
            await synced.wait()

    async def close(self) -> None:
        """Close all connections.

        Answers that are ready are sent first. Reads that still wait for the disk are cancelled.
        """
        await self.security.close()
        self.answers.close()
        for connection in list(self.connections):
            connection.close()
        await self._reads.close()
        await self._farewell()

    async def _farewell(self) -> None:
        """Wait for the closing handshake of secured connections.

        Abort those that do not finish it within `FAREWELL_TIMEOUT_S`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FAREWELL_TIMEOUT_S
        while any(c.secured for c in self.connections) and loop.time() < deadline:
            await asyncio.sleep(FAREWELL_POLL_S)
        for connection in list(self.connections):
            if connection.secured:
                connection.abort()

    # -- adds and fences ----------------------------------------------------------------------

    def may_add(self, ledger_id: int, key: bytes, flags: int) -> int:
        """Return 0 if an add to the ledger may be accepted, or the code of the refusal.

        The checks have the order of Apache's bookie: whether the bookie is writable, the key, the
        fence. If the store does not have the ledger, it is created before 0 is returned.
        `AddBatcher` calls this only if its own checks do not already show that the add may be
        accepted.
        """
        store = self.store
        code: int = Code.OK
        if self.loading:
            code = Code.READ_ONLY
        elif store.failed is not None or store.is_lost(ledger_id):
            code = Code.IO_ERROR
        elif not flags & HIGH_PRIORITY and not self._takes(ledger_id):
            code = Code.READ_ONLY
        elif not flags & RECOVERY_ADD and store.absence_unknown(ledger_id):
            code = Code.READ_ONLY  # the fence of the ledger may be lost
        else:
            # A replicated copy belongs to a ledger that exists, even if its entries were dropped
            # here as superfluous before. Only the former writer of the ledger must not continue.
            again = bool(flags & RECOVERY_ADD)
            code = self._open(
                ledger_id, key, deleted=Code.FENCED, key_lost=Code.IO_ERROR, again=again
            )
            if not code and store.ledgers[ledger_id].fenced and not flags & RECOVERY_ADD:
                code = Code.FENCED
        if code:
            self.counters.adds_refused += 1
        return code

    def _takes(self, ledger_id: int) -> bool:
        return self.writable or (self.partly_writable and self.store.takes(ledger_id))

    def _open(
        self, ledger_id: int, key: bytes, *, deleted: int, key_lost: int, again: bool = False
    ) -> int:
        """Check the key of a ledger, or create an unknown ledger. Return 0 or an error code.

        `deleted` is the code for a ledger that was fenced and then deleted, unless it is to be
        created `again`. `key_lost` is the code for a ledger whose key was lost to damage, unless
        `again` says that the key may be adopted.
        """
        if ledger_id < 0:
            # Such an id appears in no listing, so the ledger would never be collected.
            return Code.BAD_REQUEST
        if len(key) != KEY_BYTES:
            return Code.UNAUTHORIZED  # a key is a SHA-1, so no ledger has a key of another length
        info = self.store.ledgers.get(ledger_id)
        if info is None:
            if self.store.is_refused(ledger_id) and not again:
                return deleted
            self.store.create_ledger(ledger_id, key, again=again)
        elif info.master_key != key:
            if info.master_key:
                return Code.UNAUTHORIZED
            # The ledger's key was lost to damage, so the client's key is not known to be wrong. A
            # client that writes copies supplies the key, as it does for a ledger that is not here.
            if not again:
                return key_lost
            self.store.adopt_key(ledger_id, key)
        return Code.OK

    def count_adds(self, batch: LogBatch) -> None:
        counters = self.counters
        counters.add_batches += 1
        batch.entries = entries = batch.entry_count
        counters.adds += entries
        counters.add_bytes += batch.size_bytes

    def add_failed(self, batch: LogBatch) -> None:
        """Record how long a batch of adds took that failed.

        `StorageTimes` records the others.
        """
        took_s = self.clock.monotonic() - batch.received_s
        self.times.adds_failed.observe(took_s, batch.entries)

    def fence(self, ledger_id: int, key: bytes, answer: Callable[[int], None]) -> int:
        """Begin to fence a ledger, and return 0, or the code of the refusal if nothing was fenced.

        After 0, `answer` is called with 0 once the fence is durable, or with an error code if it
        could not be made durable. An unknown ledger is created and fenced, so that a late first add
        fails.
        """
        store = self.store
        if self.loading:
            return Code.TOO_MANY_REQUESTS
        if store.failed is not None or store.is_lost(ledger_id):
            return Code.IO_ERROR
        code = self._open(
            ledger_id, key, deleted=Code.NO_LEDGER, key_lost=Code.UNKNOWN_LEDGER_STATE
        )
        if code:
            return code
        self.counters.fences += 1
        received_s = self.received_s

        def fenced(error: StorageError | None) -> None:
            times = self.times.fences_failed if error else self.times.fences
            times.observe(self.clock.monotonic() - received_s)
            answer(self.code_of(error) if error else int(Code.OK))

        store.fence(ledger_id, fenced)
        self.long_polls.release(ledger_id)
        return Code.OK

    def write_lac(
        self, ledger_id: int, lac: int, key: bytes, packet: bytes, answer: Callable[[int], None]
    ) -> int:
        """Begin to store an explicit LAC, and return 0, or the code of the refusal.

        After 0, `answer` is called with 0 once the LAC is durable, or with an error code if it
        could not be made durable. After a refusal, `answer` is not called. A fenced ledger accepts
        an explicit LAC, and an unknown ledger is created, as on Apache's bookies.
        """
        store = self.store
        if self.loading:
            return Code.READ_ONLY
        if store.failed is not None or store.is_lost(ledger_id):
            return Code.IO_ERROR
        if not self._takes(ledger_id):
            return Code.READ_ONLY
        code = self._open(ledger_id, key, deleted=Code.NO_LEDGER, key_lost=Code.IO_ERROR)
        if code:
            return code
        info = store.ledgers[ledger_id]
        try:
            store.write_explicit_lac(
                ledger_id,
                packet,
                lambda error: answer(self.code_of(error) if error else int(Code.OK)),
            )
        except StorageError as error:
            return self.code_of(error)
        if lac > info.last_add_confirmed:
            info.last_add_confirmed = lac
            self.long_polls.wake(ledger_id, lac)
        return Code.OK

    def last_add_confirmed(self, ledger_id: int) -> int:
        info = self.store.ledgers.get(ledger_id)
        return -1 if info is None else info.last_add_confirmed

    async def entry_ranges(self, ledger_id: int) -> tuple[int, list[tuple[int, int]]]:
        """Return an error code, and the ascending ranges (first, last) of the entries here.

        The code is 0 if the entries are known. Otherwise there are no ranges. No read is counted,
        because no entry is read.
        """
        try:
            return Code.OK, await self.store.entry_ranges(ledger_id)
        except NoLedger as error:
            return self.code_of_missing(error, ledger_id), []
        except StorageError as error:
            self._read_failures.add(error)
            return Code.IO_ERROR, []

    def background(
        self, account: Account, size: int, work: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """Answer a slow request in the background, as soon as there is memory for its answer.

        The answer has at most `size` bytes. `work` returns the coroutine that builds and writes the
        answer.
        """
        self.answers.run(
            account, size, lambda: self.answers.track(account, self._reads.start(work()), size)
        )

    # -- reads --------------------------------------------------------------------------------

    def answer(self, request: PendingRead) -> bytes | None:
        """Return the frame that answers a read, or None if the answer is written later.

        It is written later if the disk has to be read, if it may be so large that adds should not
        wait for it, or if the memory for answers is used up. Requests of a connection that has
        ended get no answer.
        """
        account = request.connection.account
        if self.answers.has_room(account):
            return self._answer(request, self.received_s)
        self.answers.wait(account, partial(self._answer_late, request, self.received_s))
        return None

    def _answer(self, request: PendingRead, received_s: float) -> bytes | None:
        self.counters.reads += 1
        account = request.connection.account
        first_bytes: int | None = None
        small = request.max_count == 1 or self._budget(request) <= UNSHARED_BYTES
        if (small and not self.loading) or request.entry_id < 0:
            try:
                answer = self._look_up(request)
                self.answers.built(account, len(answer))
                return answer
            except WouldBlock as missing:
                if missing.entries and request.max_count == 1:
                    first_bytes = missing.entry_bytes
        self.counters.reads_from_disk += 1
        if self.loading_store is not None:
            # The loading store reserves memory for each attempt.
            self._start_reading(request, received_s, 0)
            return None
        if first_bytes is None:
            first_bytes = self._entry_size(request)
        size = max(self._budget(request), first_bytes) + ANSWER_HEAD_BYTES
        read = partial(self._start_reading, request, received_s, size)
        self.answers.run(account, size, read, first=True)
        return None

    def _answer_late(self, request: PendingRead, received_s: float) -> None:
        """Answer a request that has waited for memory, as `answer` does."""
        counters = self.counters
        reads, from_disk = counters.reads, counters.reads_from_disk
        bad = counters.reads_failed + counters.reads_missing
        answer = self._answer(request, received_s)
        if answer is not None:
            request.connection.write(answer)
        self.received_s = received_s
        self.answered(reads, from_disk, bad)

    def _entry_size(self, request: PendingRead) -> int:
        """Return the size in bytes of the first requested entry, or its limit if unknown."""
        try:
            size = self.store.entry_size(request.ledger_id, self._entry_id(request))
        except NoLedger:
            return 0
        return self.config.max_frame_bytes if size is None else size

    def _start_reading(self, request: PendingRead, received_s: float, size: int) -> None:
        """Start to read from the disk, with `size` bytes reserved for the answer."""
        task = self._reads.start(self._answer_from_disk(request, received_s))
        self.answers.track(request.connection.account, task, size)

    def answered(self, reads: int, from_disk: int, bad: int) -> None:
        """Record the times of the reads of one chunk, except those that wait for the disk.

        `reads`, `from_disk` and `bad` are the counters as they were before the chunk: all reads,
        those that wait for the disk, and those that failed or found nothing.
        """
        counters = self.counters
        took_s = self.clock.monotonic() - self.received_s
        bad = counters.reads_failed + counters.reads_missing - bad
        good = counters.reads - reads - (counters.reads_from_disk - from_disk) - bad
        if good > 0:
            self.times.reads.observe(took_s, good)
        if bad > 0:
            self.times.reads_failed.observe(took_s, bad)

    def _look_up(self, request: PendingRead) -> bytes:
        try:
            entry_id = self._entry_id(request)
            if entry_id < 0:
                if request.entry_id != LAST_ENTRY:
                    return request.failed(Code.BAD_REQUEST)
                return request.failed(self._read_code(NoEntry(), request.ledger_id))
            entries = self.store.read(
                request.ledger_id, entry_id, request.max_count, self._budget(request)
            )
        except (NoLedger, NoEntry, StorageError) as error:
            return request.failed(self._read_code(error, request.ledger_id))
        self.counters.read_bytes += entry_bytes(entries)
        return request.found(entries)

    async def _answer_from_disk(self, request: PendingRead, received_s: float) -> None:
        try:
            await self._read_from_disk(request, received_s)
        except Exception:
            # The error is reported as one of background work. Without an answer, the client would
            # keep fencing reads of the entry back until this connection ends.
            self.counters.reads_failed += 1
            request.connection.write(request.failed(Code.IO_ERROR))
            raise

    async def _read_from_disk(self, request: PendingRead, received_s: float) -> None:
        times = self.times.reads
        loading, most = self.loading_store, (request.max_count, self._budget(request))
        try:
            asked = request.ledger_id, self._entry_id(request), *most
            if loading is not None:
                size = max(most[1], self.config.max_frame_bytes) + ANSWER_HEAD_BYTES
                room = partial(self.answers.room, request.connection.account, size)
                entries = await loading.read_blocking(*asked, room=room)
            else:
                entries = await self.store.read_blocking(*asked)
            self.counters.read_bytes += entry_bytes(entries)
            answer = request.parts(entries)
        except (NoLedger, NoEntry, StorageError) as error:
            times = self.times.reads_failed
            answer = (request.failed(self._read_code(error, request.ledger_id)),)
        times.observe(self.clock.monotonic() - received_s)
        self.answers.settle(request.connection.account, sum(map(len, answer)))
        for part in answer:
            request.connection.write(part)

    def _entry_id(self, request: PendingRead) -> int:
        if request.entry_id != LAST_ENTRY:
            return request.entry_id
        last: int = self.store.last_entry_id(request.ledger_id)
        return last

    def _budget(self, request: PendingRead) -> int:
        return max(request.max_bytes - BATCH_READ_BASE_BYTES, 0)

    def _read_code(self, error: Exception, ledger_id: int) -> int:
        if isinstance(error, StorageError):
            self.counters.reads_failed += 1
            self._read_failures.add(error)
            return Code.IO_ERROR
        if self.loading or self.store.is_lost(ledger_id):
            self.counters.reads_failed += 1
        else:
            self.counters.reads_missing += 1
        return self.code_of_missing(error, ledger_id)

    def code_of_missing(self, error: Exception, ledger_id: int) -> int:
        """Return the error code for an entry or ledger that was not found.

        The code says that the entry or ledger does not exist only if that is certain. It may be
        lost, or be in a directory that failed, or in a part of the log that is not loaded yet.
        """
        if self.loading:
            return Code.TOO_MANY_REQUESTS
        if self.store.is_lost(ledger_id):
            return Code.IO_ERROR
        if self.store.absence_unknown(ledger_id):
            return Code.UNKNOWN_LEDGER_STATE
        return Code.NO_LEDGER if isinstance(error, NoLedger) else Code.NO_ENTRY

    def code_of(self, error: StorageError) -> int:
        return Code.READ_ONLY if isinstance(error, DiskFullError) else Code.IO_ERROR
