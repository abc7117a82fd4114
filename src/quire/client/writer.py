"""The handle of the one client that writes a ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType

from quire.client.add_session import AddSession
from quire.client.pool import BookiePool
from quire.codec.digest import DigestType, master_key
from quire.codec.entry import EntryCodec
from quire.codec.frames import Buffer
from quire.codec.ledger_metadata import LedgerMetadata, LedgerState
from quire.config import ClientConfig
from quire.errors import LedgerClosedError, LedgerFencedError, QuireError, UsageError
from quire.metadata.base import MetadataStore, Versioned
from quire.metadata.update import update_ledger
from quire.tasks import TaskSet


class LedgerWriter:
    """Appends entries to one open ledger. Made by `Client.create_ledger`.

    An entry is *acknowledged* when `append` (or a call that waits for it) returns: it is written
    and fsynced on at least `ack_quorum` bookies, and so are all entries before it. When a call
    raises, the entries it was about may or may not be in the ledger: open it with recovery and
    look. After LedgerFencedError or any other final error the handle is dead.

    Use as `async with`: leaving the block closes the ledger.
    """

    def __init__(
        self,
        *,
        ledger_id: int,
        metadata: Versioned[LedgerMetadata],
        password: bytes,
        store: MetadataStore,
        pool: BookiePool,
        config: ClientConfig,
        tasks: TaskSet,
    ) -> None:
        self.ledger_id = ledger_id
        self._metadata = metadata
        self._store = store
        self._tasks = tasks
        self._max_turn_bytes = config.max_turn_bytes
        self._loop = asyncio.get_running_loop()
        value = metadata.value
        digest = value.digest or DigestType.CRC32
        self._session = AddSession(
            codec=EntryCodec(ledger_id, digest, password),
            key=master_key(password),
            pool=pool,
            config=config,
            tasks=tasks,
            ensemble=value.last_segment.ensemble,
            write_quorum=value.write_quorum,
            ack_quorum=value.ack_quorum,
            change_ensemble=self._change_ensemble,
        )
        self._turn: list[Buffer] = []
        self._turn_bytes = 0
        self._closing: asyncio.Future[int] | None = None

    # -- what is known ------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata.value

    @property
    def custom(self) -> Mapping[str, bytes]:
        return self._metadata.value.custom

    @property
    def last_add_confirmed(self) -> int:
        """The last acknowledged entry, -1 if there is none."""
        return self._session.pipeline.last_confirmed

    @property
    def last_add_pushed(self) -> int:
        """The last entry that was given an id."""
        return self._session.pipeline.last_pushed + len(self._turn)

    @property
    def length(self) -> int:
        """Payload bytes of all entries that were given an id."""
        return self._session.pipeline.length + self._turn_bytes

    @property
    def closed(self) -> bool:
        return self._closing is not None or self._session.failure is not None

    # -- appending ----------------------------------------------------------------------------

    async def append(self, payload: Buffer) -> int:
        """Append one entry and wait until it is acknowledged; its entry id.

        Calls made in one turn of the event loop travel together: thousands may be outstanding.
        Waits first while `ClientConfig.max_unacked_bytes` are unacknowledged. If cancelled after
        it began, the entry may still become part of the ledger.

        Raises EntryTooLargeError, UsageError (nothing was sent); LedgerFencedError,
        LedgerClosedError, NotEnoughBookiesError, WriteError (outcome unknown).
        """
        session = self._session
        if session.full:
            await session.room()
        entry_id = self.submit(payload)
        return await session.wait_for(entry_id)

    def submit(self, payload: Buffer) -> int:
        """Hand over one entry without waiting; its entry id. Nothing is durable on return: `wait`
        or `flush` tell. The caller minds the bound: `await room()` from time to time."""
        session = self._session
        if session.failure is not None:
            raise session.failure
        if self._closing is not None:
            raise self._closed_error()
        session.check_payload(payload)
        turn = self._turn
        if not turn:
            self._loop.call_soon(self._send_turn)
        turn.append(payload)
        entry_id = session.pipeline.last_pushed + len(turn)
        self._turn_bytes += len(payload)
        if self._turn_bytes >= self._max_turn_bytes:
            self._send_turn()
        return entry_id

    async def append_many(self, payloads: Sequence[Buffer]) -> int:
        """Append entries with consecutive ids and wait until all are acknowledged; the id of the
        last one (`last_add_pushed` if there are none). Errors and cancellation as for `append`;
        on an error a prefix of them may be in the ledger."""
        session = self._session
        first = self.last_add_pushed
        last = first
        for chunk in self._chunks(payloads):
            if session.full:
                await session.room()
            if self._closing is not None:
                raise self._closed_error()
            self._send_turn()
            last = session.push(chunk)
        if last == first:
            return last
        return await session.wait_for(last)

    async def room(self) -> None:
        """Wait until less than `max_unacked_bytes` are unacknowledged. Cancel-safe."""
        await self._session.room()

    async def wait(self, entry_id: int) -> int:
        """Wait until this entry and all before it are acknowledged. Cancel-safe."""
        self._send_turn()
        return await self._waiter(entry_id)

    async def flush(self) -> int:
        """Wait until everything handed over is acknowledged; the last entry id. Cancel-safe."""
        self._send_turn()
        return await self._waiter(self._session.pipeline.last_pushed)

    # -- the end ------------------------------------------------------------------------------

    async def close(self) -> int:
        """Wait for what was handed over, then close the ledger; its last entry id (-1 if empty).

        When this returns the metadata store says CLOSED with that entry. Raises what the
        outstanding appends raise; then the ledger stays open for recovery. Safe to call again.
        If cancelled, the ledger may or may not be closed.
        """
        if self._closing is not None:
            return await asyncio.shield(self._closing)
        self._closing = self._loop.create_future()
        try:
            last = await self._close()
        except BaseException as error:
            if isinstance(error, QuireError):
                self._closing.set_exception(error)
                self._closing.exception()
            else:
                self._closing.cancel()
            raise
        self._closing.set_result(last)
        return last

    async def _close(self) -> int:
        session = self._session
        if session.failure is not None:
            raise session.failure
        last = await self.flush() if self.last_add_pushed >= 0 else -1
        length = session.pipeline.length
        session.stop()
        updated = await update_ledger(
            self._store,
            self.ledger_id,
            self._metadata,
            lambda now: None if now.closed else now.with_close(last, length),
        )
        self._metadata = updated
        if updated.value.last_entry_id != last:
            raise LedgerClosedError(
                f"ledger {self.ledger_id} was closed by another client at entry "
                f"{updated.value.last_entry_id}, this writer has {last}",
                ledger_id=self.ledger_id,
            )
        return last

    def abandon(self) -> None:
        """Stop without closing the ledger: the next opener recovers it. Nothing is waited for."""
        if self._closing is None and self._session.failure is None:
            self._session.stop()

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abandon()

    # -- inside -------------------------------------------------------------------------------

    def _send_turn(self) -> None:
        turn = self._turn
        if turn and self._session.failure is None:
            self._turn = []
            self._turn_bytes = 0
            self._session.push(turn)

    def _waiter(self, entry_id: int) -> asyncio.Future[int]:
        if entry_id > self._session.pipeline.last_pushed:
            raise UsageError(
                f"entry {entry_id} of ledger {self.ledger_id} has not been appended yet"
            )
        return self._session.wait_for(entry_id)

    def _chunks(self, payloads: Sequence[Buffer]) -> list[Sequence[Buffer]]:
        """Pieces of about `max_turn_bytes`, after checking every payload: all or none is sent."""
        chunks: list[Sequence[Buffer]] = []
        start = size = 0
        for at, payload in enumerate(payloads):
            size += len(payload)
            if size >= self._max_turn_bytes:
                chunks.append(payloads[start : at + 1])
                start, size = at + 1, 0
        if start < len(payloads):
            chunks.append(payloads[start:])
        if payloads:
            self._session.check_payload(max(payloads, key=len))
        return chunks

    def _closed_error(self) -> LedgerClosedError:
        return LedgerClosedError(
            f"the writer of ledger {self.ledger_id} is closed", ledger_id=self.ledger_id
        )

    async def _change_ensemble(
        self, failed: dict[int, str], replacements: dict[int, str], first: int
    ) -> tuple[str, ...]:
        """Name the new ensemble in the metadata, before any acknowledgement of it counts
        (replication spec, 4.2; rules 8, 18, 19)."""

        def change(now: LedgerMetadata) -> LedgerMetadata | None:
            if now.state is not LedgerState.OPEN:
                return None
            ensemble = list(now.last_segment.ensemble)
            hit = [i for i, bookie in failed.items() if ensemble[i] == bookie]
            if not hit:
                return None
            for index in hit:
                ensemble[index] = replacements[index]
            return now.with_ensemble_from(first, tuple(ensemble))

        updated = await update_ledger(self._store, self.ledger_id, self._metadata, change)
        self._metadata = updated
        if updated.value.state is LedgerState.IN_RECOVERY:
            raise LedgerFencedError(
                f"ledger {self.ledger_id} is being recovered by another client",
                ledger_id=self.ledger_id,
            )
        if updated.value.closed:
            raise LedgerClosedError(
                f"ledger {self.ledger_id} was closed by another client at entry "
                f"{updated.value.last_entry_id}",
                ledger_id=self.ledger_id,
            )
        return updated.value.last_segment.ensemble
