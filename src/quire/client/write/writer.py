"""The handles of the one client that writes a ledger.

`WriteHandle` has what all of them can do. `LedgerWriter` assigns the entry ids itself. The handle
whose caller chooses the ids is in `caller_ids`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypedDict, Unpack

from quire._runtime.opening import open_or_closed, represented
from quire._runtime.tasks import TaskSet
from quire._runtime.units import end_text
from quire.client.cluster.pool import BookiePool
from quire.client.observability.tracing import note
from quire.client.write.add_session import AddSession, SharedByWriters
from quire.client.write.deferred_session import DeferredSession
from quire.client.write.explicit_lac import ExplicitLac
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState
from quire.codec.wire.v2 import Buffer
from quire.config import ClientConfig
from quire.core.ledger_changes import changed_ensemble, closed_by_writer
from quire.errors import (
    ArgumentTypeError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
    QuireError,
    UsageError,
    WriteError,
    whole_number,
)
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.ledgers.creation import recreated, same_creation
from quire.metadata.ledgers.update import update_ledger


def payload_bytes(payload: Buffer, what: str = "an entry") -> bytes:
    """Return a payload as immutable bytes.

    A mutable buffer is copied, because its owner may change it before it is sent. A view whose
    items have several bytes, such as a view of integers, is converted: its length counts items, so
    without the conversion only a part of it would be stored.

    Args:
        payload: The payload of an entry, as the caller gave it.
        what: The use of the payload, for the error message, such as "an entry".

    Returns:
        The bytes.

    Raises:
        ArgumentTypeError: The payload is not a buffer.
    """
    if type(payload) is bytes:
        return payload
    try:
        return bytes(memoryview(payload))
    except TypeError:
        raise ArgumentTypeError(
            f"{what} must be bytes, bytearray or memoryview, not {type(payload).__name__}. "
            "Nothing was sent",
            remedy="Encode it first: text with .encode()",
        ) from None


def payload_list(payloads: object, what: str = "an entry") -> Sequence[bytes]:
    """Return all payloads of a sequence as immutable bytes.

    Args:
        payloads: A sequence of payloads, as the caller gave it.
        what: The use of a payload, for the error message, such as "an entry".

    Returns:
        The payloads, as `payload_bytes` returns them.

    Raises:
        ArgumentTypeError: `payloads` is not a sequence of buffers.
    """
    if not isinstance(payloads, list | tuple):
        if not isinstance(payloads, Sequence) or isinstance(payloads, str | bytes | bytearray):
            raise ArgumentTypeError(
                f"several payloads must be a list of buffers, not {type(payloads).__name__}. "
                "Nothing was sent",
                remedy="For a single payload, use the call that takes one",
            )
        payloads = list(payloads)
    if {bytes}.issuperset(map(type, payloads)):
        return payloads
    return [payload_bytes(payload, what) for payload in payloads]


class HowToWrite(TypedDict):
    """The keyword arguments with which every `WriteHandle` is created."""

    ledger_id: int
    metadata: Versioned[LedgerMetadata]
    password: bytes
    store: MetadataStore
    pool: BookiePool
    shared: SharedByWriters
    config: ClientConfig
    tasks: TaskSet
    deferred_sync: bool


class WriteHandle:
    """A ledger that is open for writing: the calls that wait for entries, force them and close.

    Subclasses add the calls that append entries.
    """

    ledger_id: int
    """The id of the ledger."""
    deferred_sync: bool
    """Whether entries are acknowledged before they are durable."""

    def __init__(self, **how: Unpack[HowToWrite]) -> None:
        ledger_id, config, password = how["ledger_id"], how["config"], how["password"]
        self.ledger_id = ledger_id
        self.deferred_sync = how["deferred_sync"]
        self._metadata = how["metadata"]
        self._store = how["store"]
        self._max_batch_bytes = config.max_turn_bytes
        self._loop = asyncio.get_running_loop()
        value = self._metadata.value
        codec = EntryCodec(ledger_id, value.digest or DigestType.CRC32, password)
        key = master_key(password)
        # A force asks all members in all fault domains, so it needs no spreading.
        spread = config.placement.spread_acks and not self.deferred_sync
        kind = DeferredSession if self.deferred_sync else partial(AddSession, spread_acks=spread)
        self._session: AddSession = kind(
            codec=codec,
            key=key,
            pool=how["pool"],
            shared=how["shared"],
            config=config,
            tasks=how["tasks"],
            ensemble=value.last_segment.ensemble,
            write_quorum=value.write_quorum,
            ack_quorum=value.ack_quorum,
            change_ensemble=self._change_ensemble,
        )
        self._flush = how["shared"].flush
        self._traced = self._session.traced
        self._explicit_lac: ExplicitLac | None = None
        if config.explicit_lac_interval_s > 0:
            interval_s = config.explicit_lac_interval_s
            self._explicit_lac = ExplicitLac(self._session, codec, key, interval_s)
            self._explicit_lac.start()
        if config.watch_written_ledgers:
            # However the session ends, nobody else would end the watch, which keeps this handle.
            self._session.on_end = self._store.watch_ledger(ledger_id, self._on_metadata).close
        self._batch: list[Buffer] = []
        self._batch_bytes = 0
        self._unsent = False
        """Whether entries that had ids were dropped, because an error kept them from being sent."""
        self._closing: asyncio.Future[int] | None = None

    # -- state --------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata of the ledger, as this writer last knew it."""
        return self._metadata.value

    @property
    def custom(self) -> Mapping[str, bytes]:
        """The metadata that the application stored with the ledger."""
        return self._metadata.value.custom

    @property
    def last_add_confirmed(self) -> int:
        """The id of the last acknowledged entry, or -1 if there is none.

        With deferred sync, this is the last durable entry.
        """
        return self._session.pipeline.last_confirmed

    @property
    def last_add_pushed(self) -> int:
        """The id of the last entry that was handed over, or -1 if there is none.

        Entries that a `CallerIdWriter` holds do not count.
        """
        return self._session.pipeline.last_pushed + len(self._batch)

    @property
    def length(self) -> int:
        """The number of payload bytes of all entries up to `last_add_pushed`."""
        return self._session.pipeline.length + self._batch_bytes

    @property
    def closed(self) -> bool:
        """Whether this handle can no longer append."""
        return self._closing is not None or self._session.failure is not None

    def __repr__(self) -> str:
        state = open_or_closed(self.closed)
        last = f"last_acknowledged={self.last_add_confirmed}"
        return represented(self, state, last, ledger=self.ledger_id)

    # -- waiting ------------------------------------------------------------------------------

    async def room(self) -> None:
        """Wait until the writer may take further entries without using too much memory.

        The call waits while the slowest bookie of the ensemble still has to acknowledge
        `ClientConfig.max_unacked_bytes` or more. While too few bookies can be reached for an ack
        quorum, the bytes without an ack quorum count instead. With deferred sync, the call also
        waits while `ClientConfig.max_unforced_bytes` or more are not durable; the writer forces
        them meanwhile. Cancelling this call is safe.

        Raises:
            QuireError: The writer has failed or is closed. See `LedgerWriter.append`.
        """
        await self._session.room()

    async def wait(self, entry_id: int) -> int:
        """Wait until an entry and all entries before it are acknowledged.

        On return these entries are durable on an ack quorum, unless the ledger has deferred sync.
        Cancelling this call is safe: it takes no entry back.

        Args:
            entry_id: The id of an entry that was handed over.

        Returns:
            The same entry id.

        Raises:
            UsageError: The entry has not been handed over yet, or the id is not a whole number.
            QuireError: The writer failed before the entry was acknowledged. See
                `LedgerWriter.append`.
        """
        self._send_batch()
        return await self._waiter(entry_id)

    async def flush(self) -> int:
        """Wait until every entry up to `last_add_pushed` is acknowledged.

        On return these entries are durable on an ack quorum, unless the ledger has deferred sync.
        Cancelling this call is safe: it takes no entry back.

        Returns:
            The id of the last of these entries, or -1 if there is none.

        Raises:
            QuireError: The writer failed before the entries were acknowledged. See
                `LedgerWriter.append`.
        """
        self._send_batch()
        failure = self._session.failure
        if failure is not None and (self._batch or self._unsent):
            raise failure.with_traceback(None)
        return await self._waiter(self._session.pipeline.last_pushed)

    async def force(self) -> int:
        """Make durable all entries that are acknowledged when this call begins.

        This call is for deferred sync. Without deferred sync the entries are durable already, and
        the call returns at once. When it returns, each entry is written and fsynced on at least
        `ack_quorum` bookies of its write set. Every reachable bookie of the ensemble has then
        answered a force. A bookie that failed to answer was replaced, and its replacement received
        the entries again. Cancelling this call is safe.

        Returns:
            `last_add_confirmed`, which includes those entries.

        Raises:
            LedgerFencedError: Another client opened the ledger with recovery. Outcome unknown.
            NotEnoughBookiesError: Bookies failed, and none could replace them. Outcome unknown.
            LedgerClosedError: The handle or the ledger is closed. Outcome unknown, unless `close`
                has returned: then all entries are durable.
            QuireError: The writer failed for another reason. See `LedgerWriter.append`.
        """
        return await self._session.force()

    # -- closing ------------------------------------------------------------------------------

    async def close(self) -> int:
        """Close the ledger after its outstanding appends.

        On return the metadata store records the ledger as CLOSED with its last entry, and all
        entries are durable. With deferred sync they are forced first. Calling this again is safe.
        If the call is cancelled, the ledger may or may not be closed; the handle can no longer be
        used, and later calls report that.

        Returns:
            The id of the last entry, or -1 if the ledger is empty.

        Raises:
            LedgerRecreatedError: The ledger was deleted, and another ledger has its id. That other
                ledger is not closed, and the entries appended here are gone with the deleted
                ledger.
            NoSuchLedgerError: The ledger was deleted, and its entries with it.
            LedgerClosedError: Another client closed the ledger at another entry, or this handle was
                abandoned.
            MetadataUnavailableError: The metadata store does not answer. The ledger may or may not
                be closed. All entries are durable, unless the store was needed to replace a bookie
                before all of them were acknowledged: then `last_add_confirmed` is less than
                `last_add_pushed`.
            QuireError: The writer has failed (see `LedgerWriter.append`), or the metadata store
                refuses this client. The ledger then stays open until it is recovered.
        """
        if self._closing is not None:
            return await asyncio.shield(self._closing)
        self._closing = self._loop.create_future()
        try:
            with self._session.pool.tracing.span("close_ledger", ledger_id=self.ledger_id) as span:
                last = await self._close()
                note(span, last_entry=last)
        except BaseException as error:
            told = error if isinstance(error, QuireError) else self._cut_short()
            if told is not error:
                self._stop(told)  # the handle is closed, so no other call will do this
            self._closing.set_exception(told)
            self._closing.exception()
            raise
        self._closing.set_result(last)
        return last

    async def _close(self) -> int:
        session = self._session
        if session.failure is not None:
            raise session.failure.with_traceback(None)
        last = -1
        if self.last_add_pushed >= 0:
            await self.flush()
            last = await self.force()
            await session.reached()
        length = session.pipeline.length
        self._stop()
        updated = await update_ledger(
            self._store,
            self.ledger_id,
            self._metadata,
            lambda now: closed_by_writer(now, last, length),
        )
        self._metadata = updated
        if updated.value.last_entry_id != last:
            raise LedgerClosedError(
                f"ledger {self.ledger_id} was closed by another client and "
                f"{end_text(updated.value.last_entry_id)}, but the ledger of this writer "
                f"{end_text(last)}",
                ledger_id=self.ledger_id,
                remedy="Read the ledger to see which entries it has. Entries after its end are "
                "not part of it",
            )
        return last

    def abandon(self) -> None:
        """Stop at once without closing the ledger.

        Outstanding appends raise LedgerClosedError, and their outcome is unknown. The ledger stays
        open until a client opens it with recovery. Once `close` was called, or the writer has
        failed, this call does nothing.
        """
        if self._closing is None and self._session.failure is None:
            self._stop()

    async def __aenter__(self) -> Self:
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

    # -- internals ----------------------------------------------------------------------------

    def _stop(self, error: QuireError | None = None) -> None:
        if self._explicit_lac is not None:
            self._explicit_lac.stop()
        self._session.stop(error)

    def _begin_batch(self) -> None:
        """Schedule the sending of a new batch after this event-loop iteration."""
        if self._traced:
            self._loop.call_soon(self._send_batch)  # the span becomes a child of the caller's
        else:
            self._flush.at_end(self._send_batch)

    def _send_batch(self) -> None:
        batch, session = self._batch, self._session
        if batch and session.failure is None:
            self._batch = []
            self._batch_bytes = 0
            try:
                if len(batch) > 1 or not session.attach(batch[0]):
                    session.push(batch)
            except Exception as error:
                self._fail_unsent(error)
                if not isinstance(error, QuireError):
                    raise

    def _fail_unsent(self, error: Exception) -> None:
        """End the writer because an error kept entries that have ids from being sent.

        Later entries may be given these ids. The callers that wait for the entries must fail now,
        so that they never receive an acknowledgement of those later entries.
        """
        self._unsent = True
        self._session.fail(error if isinstance(error, QuireError) else self._unsent_error(error))

    def _waiter(self, entry_id: int) -> asyncio.Future[int]:
        if type(entry_id) is not int:
            entry_id = whole_number("an entry id", entry_id)
        if not self._handed_over(entry_id):
            if self._session.failure is not None:  # the failure may have dropped held entries
                raise self._session.failure.with_traceback(None)
            raise UsageError(
                f"entry {entry_id} of ledger {self.ledger_id} cannot be waited for, because it "
                "has not been appended yet",
                remedy="Append it first, and wait for the id that was returned",
            )
        return self._session.wait_for(entry_id)

    def _handed_over(self, entry_id: int) -> bool:
        return entry_id <= self._session.pipeline.last_pushed

    def _unsent_error(self, error: Exception) -> WriteError:
        return WriteError(
            f"the entries of ledger {self.ledger_id} from "
            f"{self._session.pipeline.last_pushed + 1} on could not be sent: {error!r}",
            ledger_id=self.ledger_id,
            remedy="Open the ledger with recovery to see which entries it has",
        )

    def _check_open(self) -> None:
        """Raise an error if this writer has failed or is closed."""
        if self._session.failure is not None:
            raise self._session.failure.with_traceback(None)
        if self._closing is not None:
            raise self._closed_error()

    def _cut_short(self) -> LedgerClosedError:
        return LedgerClosedError(
            f"closing ledger {self.ledger_id} was interrupted, so it may or may not be closed",
            ledger_id=self.ledger_id,
            remedy="Open the ledger with recovery, which closes it",
        )

    def _closed_error(self) -> LedgerClosedError:
        return LedgerClosedError(
            f"the writer of ledger {self.ledger_id} is closed",
            ledger_id=self.ledger_id,
            remedy="To write more, create a new ledger",
        )

    async def _change_ensemble(
        self, failed: dict[int, str], replacements: dict[int, str], first: int
    ) -> tuple[str, ...]:
        """Record the new ensemble in the metadata before any acknowledgement from it counts.

        See rules 8, 18 and 19 of docs/internals/replication-rules.md.
        """
        updated = await update_ledger(
            self._store,
            self.ledger_id,
            self._metadata,
            lambda now: changed_ensemble(now, failed, replacements, first),
        )
        self._metadata = updated
        over = self._over(updated.value)
        if over is not None:
            raise over
        return updated.value.last_segment.ensemble

    def _over(self, now: LedgerMetadata) -> QuireError | None:
        """Return the error that ends the writer, or None if the metadata allows it to continue.

        There is an error if the ledger is in recovery or closed.
        """
        if now.state is LedgerState.IN_RECOVERY:
            return LedgerFencedError(
                f"ledger {self.ledger_id} is being recovered by another client, so this writer "
                "can append no more. Entries in flight may or may not be in the ledger",
                ledger_id=self.ledger_id,
                remedy="Open the ledger to see which entries it has, and create a new ledger "
                "to write more",
            )
        if now.closed:
            return LedgerClosedError(
                f"ledger {self.ledger_id} was closed by another client and "
                f"{end_text(now.last_entry_id)}, so this writer can append no more",
                ledger_id=self.ledger_id,
                remedy="Append entries that are not in it to a new ledger",
            )
        return None

    def _on_metadata(self, stored: Versioned[LedgerMetadata] | None) -> None:
        """Handle a change of the ledger's metadata, by another client or by this one (rule 37).

        `stored` is the new metadata, or None if the ledger was deleted.
        """
        over: QuireError | None
        if stored is None:
            over = NoSuchLedgerError(
                f"ledger {self.ledger_id} was deleted while it was being written, so its entries "
                "cannot be read any more",
                remedy=(
                    "Create a new ledger, and append the entries again if they are still needed"
                ),
            )
        elif not same_creation(self._metadata, stored):
            over = recreated(self.ledger_id)
        else:
            over = self._over(stored.value)
        if over is not None and self._session.failure is None:
            self._stop(over)


class LedgerWriter(WriteHandle):
    """A handle that appends entries to one open ledger. `Client.create_ledger` returns it.

    An entry is *acknowledged* when `append`, or a call that waits for it, returns. The entry and
    all entries before it are then written and fsynced on at least `ack_quorum` bookies. When a call
    raises, its entries may or may not be in the ledger: open the ledger with recovery to find out.
    The handle can no longer be used then. UsageError and EntryTooLargeError are different: nothing
    was sent, and the handle can still be used.

    With deferred sync (`create_ledger(deferred_sync=True)`) "acknowledged" means less: `ack_quorum`
    bookies have *accepted* the entry, and a crash of those machines loses it. Once `force` or
    `close` has returned, the entry is durable, and `last_add_confirmed` includes it.

    The handle is an asynchronous context manager: leaving the block closes the ledger, or abandons
    it after an error.
    """

    # -- appending ----------------------------------------------------------------------------

    async def append(self, payload: Buffer) -> int:
        """Append one entry and wait until it is acknowledged.

        On return the entry is durable on an ack quorum, unless the ledger has deferred sync. Calls
        made in one event-loop iteration are sent together, and thousands may be outstanding. The
        call first waits as `room` does. Cancelling the call after that does not take the entry
        back: it may still become part of the ledger.

        Args:
            payload: The bytes of the entry. A mutable buffer may be reused when the call returns.

        Returns:
            The id of the entry.

        Raises:
            EntryTooLargeError: The payload does not fit into one frame. Nothing was sent.
            ArgumentTypeError: The payload is not a buffer. Nothing was sent.
            LedgerFencedError: Another client opened the ledger with recovery. Outcome unknown.
            LedgerClosedError: The handle or the ledger is closed. Outcome unknown.
            NoSuchLedgerError: The ledger was deleted. Its entries are gone.
            LedgerRecreatedError: The ledger was deleted, and its id was used again. Its entries are
                gone.
            NotEnoughBookiesError: Bookies failed, and none could replace them. Outcome unknown.
            UnauthorizedError: A bookie does not accept this client. Outcome unknown.
            ClientClosedError: The client was closed. Outcome unknown.
            MetadataError: The metadata store failed during an ensemble change. Outcome unknown.
            WriteError: The writer failed for another reason, for example AddQuorumTimeoutError.
                Outcome unknown.
        """
        session = self._session
        if session.full:
            await session.room()
        entry_id = self.submit(payload)
        return await session.wait_for(entry_id)

    def submit(self, payload: Buffer) -> int:
        """Hand over one entry without waiting.

        Nothing is durable on return: `wait` or `flush` reports when it is. This call does not limit
        the unacknowledged bytes. Await `room()` from time to time to do so.

        Args:
            payload: The bytes of the entry. A mutable buffer may be reused when the call returns.

        Returns:
            The id of the entry.

        Raises:
            EntryTooLargeError: The payload does not fit into one frame. Nothing was sent.
            ArgumentTypeError: The payload is not a buffer. Nothing was sent.
            QuireError: The writer has failed or is closed. Nothing was sent.
        """
        session = self._session
        if session.failure is not None or self._closing is not None:
            self._check_open()
        if type(payload) is not bytes:
            payload = payload_bytes(payload)
        size = len(payload)
        if size > session.max_payload_bytes:
            session.check_payload(payload)
        batch = self._batch
        if not batch:
            self._begin_batch()
        batch.append(payload)
        entry_id = session.pipeline.last_pushed + len(batch)
        self._batch_bytes += size
        if self._batch_bytes >= self._max_batch_bytes:
            self._send_batch()
        return entry_id

    async def append_many(self, payloads: Sequence[Buffer]) -> int:
        """Append consecutive entries and wait until all are acknowledged.

        On return they are durable on an ack quorum, unless the ledger has deferred sync. If the
        call is cancelled, any number of the entries, from the first on, may be in the ledger.

        Args:
            payloads: The bytes of each entry.

        Returns:
            The id of the last entry, or `last_add_pushed` if there are no payloads.

        Raises:
            QuireError: The errors of `append`. After EntryTooLargeError or UsageError no entry was
                sent. After any other error, any number of the entries, from the first on, may be in
                the ledger.
        """
        payloads = payload_list(payloads)
        any_payload = bool(payloads)  # the caller may change the list while this call waits
        last = await self.submit_many(payloads)
        return await self._session.wait_for(last) if any_payload else last

    async def submit_many(self, payloads: Sequence[Buffer]) -> int:
        """Hand over entries with consecutive ids, without waiting until they are acknowledged.

        Nothing is durable on return: `wait` or `flush` reports when it is. The call waits only as
        `room` does. If it is cancelled, a first part of the entries may have been sent.

        Args:
            payloads: The bytes of each entry.

        Returns:
            The id of the last entry, or `last_add_pushed` if there are no payloads.

        Raises:
            QuireError: The errors of `append_many`. After any error but EntryTooLargeError and
                UsageError, a first part of the entries may have been sent.
        """
        session = self._session
        payloads = payload_list(payloads)
        last = self.last_add_pushed
        for chunk in self._chunks(payloads):
            if session.full:
                await session.room()
            self._check_open()
            self._send_batch()
            self._check_open()  # the batch may have filled the ledger
            try:
                last = session.push(chunk)
            except Exception as error:
                # Earlier chunks may have been sent. The caller cannot tell which, so this handle
                # must not append the entries that the caller tries next.
                self._fail_unsent(error)
                raise
        return last

    def _chunks(self, payloads: Sequence[bytes]) -> list[Sequence[Buffer]]:
        """Return the payloads in chunks of at least `_max_batch_bytes` bytes, except the last one.

        A payload that is too large raises EntryTooLargeError, before any payload is sent.
        """
        chunks: list[Sequence[Buffer]] = []
        start = size = 0
        for at, payload in enumerate(payloads):
            size += len(payload)
            if size >= self._max_batch_bytes:
                chunks.append(payloads[start : at + 1])
                start, size = at + 1, 0
        if start < len(payloads):
            chunks.append(payloads[start:])
        if payloads:
            self._session.check_payload(max(payloads, key=len))
        return chunks
