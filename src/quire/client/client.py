"""The ledger client: create, open, list and delete the ledgers of one cluster."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, overload
from weakref import WeakValueDictionary

from quire._runtime.clock import Clock, SystemClock
from quire._runtime.metrics import Metric, exposition
from quire._runtime.names.former_names import deprecated
from quire._runtime.opening import Opening, open_or_closed, opening, represented
from quire._runtime.tasks import TaskSet
from quire.client.checks import check_config, check_new_ledger, checked_ledger_id
from quire.client.cluster.health import OnDamage, UnhealthyBookie
from quire.client.cluster.placement import Placement
from quire.client.cluster.pool import BookiePool
from quire.client.datasets.datasets import Datasets
from quire.client.forgotten import watch
from quire.client.observability.tracing import Tracing, note
from quire.client.read.follow import Feeds
from quire.client.read.last_confirmed import read_last_confirmed
from quire.client.read.reader import LedgerReader
from quire.client.recovery import LedgerRecovery
from quire.client.write.add_session import SharedByWriters
from quire.client.write.caller_ids import CallerIdWriter
from quire.client.write.writer import LedgerWriter
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.config import ClientConfig
from quire.core.recovery import TrustModel
from quire.errors import (
    ArgumentTypeError,
    BookieTimeoutError,
    ClientClosedError,
    NoSuchEntryError,
    QuireError,
    UnauthorizedError,
    UsageError,
    check_type,
    client_closed,
    whole_number,
)
from quire.metadata import ZooKeeperOptions, open_metadata
from quire.metadata.interface import Bookies, MetadataStore
from quire.net.answer_codes import NoEntryAnswer
from quire.net.certificates import CertificateExpiry, expiries, expiry_metric
from quire.net.control import BookieInfo, ControlChannel
from quire.net.network import AsyncioNetwork, Network

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Tracer

T = TypeVar("T")
C = TypeVar("C", bound="LedgerClient")

DEFAULT_ENSEMBLE_SIZE = 3
DEFAULT_WRITE_QUORUM = 3
DEFAULT_ACK_QUORUM = 2
CTOKEN_BITS = 63


class EndsWithClient(Protocol):
    """A handle with work in progress that ends when the client is closed."""

    async def _client_closed(self, error: ClientClosedError) -> None:
        """End the work of this handle, because its client was closed.

        Callers that wait for the work, or that use the handle later, receive `error`.
        """
        ...


class LedgerClient:
    """A connection to one cluster, for its ledgers.

    `quire.Client` extends this class with streams, objects and state machines. One client per
    process is enough. It can be used only in the event loop in which it was made. Clock, random
    numbers and network are arguments, so that the simulator runs this code unchanged.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        config: ClientConfig | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        tracer: Tracer | None = None,
        meter: Meter | None = None,
        lazy_addresses: bool = False,
    ) -> None:
        self.metadata = metadata
        self.config = config or ClientConfig()
        self.clock = clock or SystemClock()
        self.rng = rng or random.Random()
        """The generator of all random choices: ids, bookies, and the jitter of retries."""
        self.remembered: dict[str, Any] = {}
        """The values that higher modules keep as long as the client, each under its own key."""
        self._tasks = TaskSet()
        self._pool = BookiePool(
            metadata,
            network or AsyncioNetwork(self.config.dead_link_s),
            self.config,
            self.rng,
            self._tasks,
            Tracing(tracer),
            lazy_addresses=lazy_addresses,
        )
        self.counters = self._pool.counters
        """The counters of the client's metrics. Streams, which use the client, count here too."""
        self._end_metrics: Callable[[], None] = lambda: None
        if meter is not None:
            from quire.client.observability.otel_metrics import attach

            self._end_metrics = attach(meter, self._pool.metrics)
        self._shared = SharedByWriters.of_client(self.config, self._pool.counters)
        self._feeds = Feeds(self._pool, self.config)
        self._handles: WeakValueDictionary[int, EndsWithClient] = WeakValueDictionary()
        """The handles to end when the client is closed, by a number that grows with each handle."""
        self._handle_numbers = itertools.count()
        self._closed = False

    # -- ledgers ------------------------------------------------------------------------------

    @overload
    def create_ledger(
        self,
        *,
        ensemble_size: int = ...,
        write_quorum: int = ...,
        ack_quorum: int = ...,
        digest: DigestType | str = ...,
        password: bytes = ...,
        custom: Mapping[str, bytes] | None = ...,
        ledger_id: int | None = ...,
        deferred_sync: bool = ...,
        caller_ids: Literal[False] = ...,
    ) -> Opening[LedgerWriter]: ...

    @overload
    def create_ledger(
        self,
        *,
        ensemble_size: int = ...,
        write_quorum: int = ...,
        ack_quorum: int = ...,
        digest: DigestType | str = ...,
        password: bytes = ...,
        custom: Mapping[str, bytes] | None = ...,
        ledger_id: int | None = ...,
        deferred_sync: bool = ...,
        caller_ids: Literal[True],
    ) -> Opening[CallerIdWriter]: ...

    @overload
    def create_ledger(
        self,
        *,
        ensemble_size: int = ...,
        write_quorum: int = ...,
        ack_quorum: int = ...,
        digest: DigestType | str = ...,
        password: bytes = ...,
        custom: Mapping[str, bytes] | None = ...,
        ledger_id: int | None = ...,
        deferred_sync: bool = ...,
        caller_ids: bool,
    ) -> Opening[LedgerWriter | CallerIdWriter]: ...

    @opening
    async def create_ledger(
        self,
        *,
        ensemble_size: int = DEFAULT_ENSEMBLE_SIZE,
        write_quorum: int = DEFAULT_WRITE_QUORUM,
        ack_quorum: int = DEFAULT_ACK_QUORUM,
        digest: DigestType | str = DigestType.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
        caller_ids: bool = False,
    ) -> LedgerWriter | CallerIdWriter:
        """Create a ledger and return the handle that writes it.

        Each entry goes to `write_quorum` of the `ensemble_size` bookies, and it is acknowledged
        once `ack_quorum` of them have it on disk. On return the ledger exists durably in the
        metadata store; no bookie has been contacted yet. If the call is cancelled, an empty ledger
        may have been created.

        Args:
            ensemble_size: The number of bookies that store the ledger.
            write_quorum: The number of bookies that store each entry.
            ack_quorum: The number of bookies that must have an entry on disk before it is
                acknowledged.
            digest: The checksum of the entries: a `DigestType`, or "crc32c", "crc32", "hmac" or
                "dummy".
            password: The password that opens the ledger again. It is also the key of HMAC digests.
            custom: Metadata of the application, stored with the ledger.
            ledger_id: The id of the new ledger. By default the metadata store chooses one.
            deferred_sync: Whether entries are acknowledged before they are durable.
                `LedgerWriter.force` and `close` make them durable.
            caller_ids: Whether the caller chooses the entry ids. The handle is then a
                `CallerIdWriter`.

        Returns:
            The writer. Close it to close the ledger.

        Raises:
            UsageError: An argument is not valid, or the placement policy can never be satisfied
                with these quorums. Nothing was created.
            NotEnoughBookiesError: Too few bookies are writable, or too few satisfy the placement
                policy. Nothing was created.
            LedgerExistsError: There is already a ledger with the id `ledger_id`.
            MetadataUnavailableError: The metadata store does not answer. An empty ledger may have
                been created.
            MetadataDeniedError: The metadata store refuses this client. Nothing was created.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        kind = self._digest(digest)
        check_new_ledger(password, custom)
        check_type("deferred_sync", deferred_sync, bool)
        check_type("caller_ids", caller_ids, bool)
        if ledger_id is not None:
            ledger_id = checked_ledger_id(ledger_id)
        ensemble_size = whole_number("ensemble_size", ensemble_size)
        write_quorum = whole_number("write_quorum", write_quorum)
        ack_quorum = whole_number("ack_quorum", ack_quorum)
        if not ensemble_size >= write_quorum >= ack_quorum >= 1:
            raise UsageError(
                "the quorums must satisfy ensemble_size >= write_quorum >= ack_quorum >= 1, but "
                f"they are {ensemble_size}, {write_quorum} and {ack_quorum}"
            )
        self._check_byzantine(self.config.assume_liars, ack_quorum)
        with self._pool.tracing.span("create_ledger") as span:
            ensemble = await self._pool.new_ensemble(ensemble_size, write_quorum, ack_quorum)
            metadata = LedgerMetadata(
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                segments=(Segment(0, ensemble),),
                digest=kind,
                password=password,
                custom=dict(custom or {}),
                ctime_ms=self.clock.now_ms(),
                ctoken=self.rng.getrandbits(CTOKEN_BITS),
                format_version=self.config.ledger_metadata_version,
            )
            new_id, stored = await self.metadata.create_ledger(metadata, ledger_id)
            note(span, ledger_id=new_id, ensemble=list(ensemble))
            make = CallerIdWriter if caller_ids else LedgerWriter
            return make(
                ledger_id=new_id,
                metadata=stored,
                password=password,
                store=self.metadata,
                pool=self._pool,
                shared=self._shared,
                config=self.config,
                tasks=self._tasks,
                deferred_sync=deferred_sync,
            )

    @opening
    async def open_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        recover: bool = False,
        assume_liars: int | None = None,
        unverified_password: bool = False,
    ) -> LedgerReader:
        """Open a ledger for reading.

        Without `recover`, a ledger that is still being written can be read up to the last entry
        that is known to be acknowledged now. With `recover`, the writer is fenced if there is one,
        and the ledger is closed at an entry that includes every acknowledged entry. Use it to take
        over from a writer that died. Cancelling this call is safe: open the ledger again.

        A client opens 128 ledgers at once, and recovers 128 at once. Further calls wait for them.
        Time-outs do not count this waiting.

        Args:
            ledger_id: The id of the ledger.
            password: The password with which the ledger was created. Without `recover`, no bookie
                checks it if the metadata of the ledger stores none.
            recover: Whether to fence the writer and close the ledger first.
            assume_liars: The number of Byzantine bookies that each ensemble may have. The default
                is `ClientConfig.assume_liars`. Such bookies may deny entries that they
                acknowledged, and may invent entries and digests. The client then still loses no
                acknowledged entry and reads no invented one, but more bookies have to answer and
                agree.
            unverified_password: Whether to recover a ledger whose password cannot be checked. This
                concerns empty ledgers whose metadata stores no password (format 1), because bookies
                know the password of a ledger from its entries. Recovery closes such a ledger as
                empty.

        Returns:
            The reader. After `recover` the ledger is closed, and every acknowledged entry is on an
            ack quorum of bookies.

        Raises:
            NoSuchLedgerError: The ledger does not exist.
            UnauthorizedError: The password is wrong or cannot be checked.
            RecoveryError: Too few bookies answer to recover the ledger. Nothing is lost; open it
                again.
            WriteError: Recovery could not write the last entries back, for example because too
                many bookies failed one after the other. Nothing is lost; open it again.
            ReadError: Without `recover`, too few bookies answer to find the last acknowledged
                entry. Open it again.
            LedgerRecreatedError: The ledger was deleted meanwhile, and its id was used again.
            MetadataError: The metadata store does not answer or refuses this client, or the
                metadata of the ledger cannot be decoded.
            UsageError: An argument is not valid, or the ack quorum is too small for `assume_liars`.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        ledger_id = checked_ledger_id(ledger_id)
        check_type("a password", password, bytes)
        check_type("recover", recover, bool)
        check_type("unverified_password", unverified_password, bool)
        if assume_liars is not None:
            assume_liars = whole_number("assume_liars", assume_liars)
        with self._pool.tracing.span("open_ledger", ledger_id=ledger_id, recover=recover) as span:
            async with self._pool.recoveries if recover else self._pool.opens:
                self._check_open()  # it may have been closed while this call waited
                reader = await self._open(
                    ledger_id, password, recover, assume_liars, unverified_password
                )
            note(span, last_entry=reader.last_add_confirmed)
            return reader

    async def _open(
        self,
        ledger_id: int,
        password: bytes,
        recover: bool,
        assume_liars: int | None,
        unverified_password: bool,
    ) -> LedgerReader:
        stored = await self.metadata.read_ledger(ledger_id)
        value = stored.value
        if value.password is not None and value.password != password:
            raise UnauthorizedError(
                f"the password for ledger {ledger_id} is wrong",
                ledger_id=ledger_id,
                remedy="Open it with the password that it was created with",
            )
        codec = EntryCodec(ledger_id, value.digest or DigestType.CRC32, password)
        byzantine = self.config.assume_liars if assume_liars is None else assume_liars
        self._check_byzantine(byzantine, value.ack_quorum)
        # Anyone who knows the password can make HMAC digests, and everybody knows the empty one.
        trust = TrustModel(byzantine, codec.digest is not DigestType.HMAC or not password)
        lac = value.last_entry_id
        if recover and not value.closed:
            recovery = LedgerRecovery(
                ledger_id,
                stored,
                password,
                codec,
                self.metadata,
                self._pool,
                self._shared,
                self.config,
                self._tasks,
                trust,
                unverified_password=unverified_password,
            )
            stored = await recovery.run()
            lac = stored.value.last_entry_id
        elif not value.closed:
            known = await read_last_confirmed(
                value, codec, self._pool, self.config.read_timeout_s, trust=trust
            )
            lac = max(known.lac, value.last_segment.first_entry_id - 1)
        return LedgerReader(
            metadata=stored,
            codec=codec,
            store=self.metadata,
            pool=self._pool,
            config=self.config,
            last_add_confirmed=lac,
            feeds=self._feeds,
            password=password,
            trust=trust,
        )

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger from the metadata store.

        On return the deletion is durable. Bookies free the space at their next garbage collection.
        Deleting a ledger that does not exist succeeds. Cancelling this call is safe; the ledger may
        then have been deleted.

        A writer of the ledger is not fenced. Unless it has `watch_written_ledgers`, its appends are
        acknowledged until it closes or changes its ensemble, and are lost. Open the ledger with
        `recover=True` first if it may have a writer.

        This call requires no password. It also deletes a ledger that a stream, an object or a
        dataset needs, because Quire itself deletes their ledgers with this call. Call
        `quire.streams.refuse_owned` first to check for an owner, as `quire ledger delete` and the
        HTTP API do.

        Args:
            ledger_id: The id of the ledger.

        Raises:
            MetadataUnavailableError: The metadata store does not answer. The outcome is unknown;
                call it again.
            MetadataDeniedError: The metadata store refuses this client. Nothing was deleted.
            UsageError: The id is not valid.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        ledger_id = checked_ledger_id(ledger_id)
        with self._pool.tracing.span("delete_ledger", ledger_id=ledger_id):
            await self.metadata.delete_ledger(ledger_id)

    async def list_ledgers(self, first: int = 0) -> AsyncIterator[int]:
        """List the ids of all ledgers, in ascending order.

        Cancelling this call is safe.

        Args:
            first: The smallest id to list, from 0 on.

        Yields:
            The id of each ledger.

        Raises:
            MetadataError: The list could not be read completely. A failure never ends the list
                early without an error.
            UsageError: `first` is not a ledger id.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        first = whole_number("a ledger id", first)
        async for found in self.metadata.list_ledgers(first):
            for ledger_id in found.ledger_ids:
                yield ledger_id

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return the metadata of a ledger, as the metadata store has it now.

        Cancelling this call is safe.

        Args:
            ledger_id: The id of the ledger.

        Returns:
            The metadata: quorums, ensembles, state and the application's own values.

        Raises:
            NoSuchLedgerError: The ledger does not exist.
            UnreadableMetadataError: The metadata of the ledger cannot be decoded.
            MetadataUnavailableError: The metadata store does not answer.
            MetadataDeniedError: The metadata store refuses this client.
            UsageError: The id is not valid.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        ledger_id = checked_ledger_id(ledger_id)
        return (await self.metadata.read_ledger(ledger_id)).value

    async def bookies(self) -> Bookies:
        """Return the bookies that are registered now.

        Cancelling this call is safe.

        Returns:
            The writable and the read-only bookies.

        Raises:
            MetadataUnavailableError: The metadata store does not answer.
            MetadataDeniedError: The metadata store refuses this client.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        return await self.metadata.bookies()

    async def bookie_info(self, bookie_id: str) -> BookieInfo:
        """Ask a bookie for the size of its disks and for its free space, in bytes.

        Cancelling this call is safe.

        Args:
            bookie_id: The id of the bookie, such as "10.0.0.1:3181".

        Returns:
            The sizes that the bookie reports.

        Raises:
            BookieUnavailableError: The bookie is not registered, or cannot be reached.
            BookieTimeoutError: The bookie did not answer within `ClientConfig.read_timeout_s`.
            BookieError: The bookie answered with an error.
            UnauthorizedError: The bookie does not accept this client.
            MetadataError: The metadata store did not return the address of the bookie.
            UsageError: The id is not text.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        check_type("a bookie id", bookie_id, str)
        return await self._ask(bookie_id, lambda channel: channel.bookie_info())

    async def list_entries(self, bookie_id: str, ledger_id: int) -> Sequence[tuple[int, int]]:
        """Ask a bookie which entries of a ledger it has.

        Cancelling this call is safe.

        Args:
            bookie_id: The id of the bookie.
            ledger_id: The id of the ledger.

        Returns:
            Ranges of entry ids, ascending, as pairs of the first and the last id. A range is made
            when it is needed, because a list of a few bytes can have billions of them.

        Raises:
            NoSuchEntryError: The bookie has no entry of the ledger.
            BookieUnavailableError: The bookie is not registered, or cannot be reached.
            BookieTimeoutError: The bookie did not answer within `ClientConfig.read_timeout_s`.
                Apache's bookie never answers this request if it uses DbLedgerStorage.
            BookieError: The bookie answered with another error.
            UnauthorizedError: The bookie does not accept this client.
            MetadataError: The metadata store did not return the address of the bookie.
            UsageError: An id is not valid.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        check_type("a bookie id", bookie_id, str)
        ledger_id = checked_ledger_id(ledger_id)
        try:
            return await self._ask(bookie_id, lambda channel: channel.list_entries(ledger_id))
        except NoEntryAnswer as error:
            raise NoSuchEntryError(
                f"bookie {bookie_id} says that it has no entry of ledger {ledger_id}",
                ledger_id=ledger_id,
            ) from error

    async def _ask(self, bookie_id: str, call: Callable[[ControlChannel], Awaitable[T]]) -> T:
        limit = self.config.read_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await self._pool.ask_control(bookie_id, call)
        except QuireError:
            raise
        except TimeoutError:
            raise BookieTimeoutError(
                f"bookie {bookie_id} did not answer a request within {limit:g} s",
                remedy="Check that it is running, or raise read_timeout_s",
            ) from None

    def suspects(self) -> list[UnhealthyBookie]:
        """Return the bookies that gave this client wrong answers, or denied entries that exist.

        A bookie is listed once for each kind of wrong answer. The list is sorted by bookie and then
        by kind.

        Returns:
            For each bookie and kind, the number of wrong answers, and the ledger and entry of the
            last one.
        """
        return self._pool.health.unhealthy()

    def metrics(self) -> str:
        """Return the metrics of this client, in Prometheus' text format.

        Returns:
            The text. It counts from the moment at which the client was made.
            docs/reference/metrics.md lists the metrics.

        Raises:
            ClientClosedError: The client is closed.
        """
        return exposition(metrics_of(self))

    @property
    def on_damage(self) -> OnDamage | None:
        """A coroutine function that is called when a replica needs repair, or None.

        It is called in the background with the ledger id and a list that contains the bookie's id,
        once for each pair of a ledger and a bookie. After a call that failed, it is called again
        when the client next finds that replica damaged or missing. Set this property to
        `ReplicationLocks.mark` to have autorecovery repair these replicas.
        """
        return self._pool.health.on_damage

    @on_damage.setter
    def on_damage(self, call: OnDamage | None) -> None:
        self._pool.health.on_damage = call

    @property
    def placement(self) -> Placement:
        """The placement of this client: its policy, and the locations of the bookies.

        Raises:
            ClientClosedError: The client is closed.
        """
        self._check_open()
        return self._pool.placement

    @property
    def pool(self) -> BookiePool:
        """Deprecated: the connections to bookies are not part of the public API."""
        deprecated("Client.pool", "the methods of Client, such as `bookie_info` and `suspects`")
        return pool_of(self)

    @property
    def datasets(self) -> Datasets:
        """The datasets of the cluster: named sets of ledgers that are published atomically."""
        return Datasets(self.metadata, clock=self.clock, rng=self.rng)

    # -- life ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connections to bookies and to the metadata store.

        Open writers are abandoned: their ledgers stay open until they are recovered. Everything
        else that was opened from the client ends as well, and calls that wait raise
        ClientClosedError. Calling this again does nothing. If the call is cancelled,
        everything is closed all the same, but the call does not wait for the connections.
        """
        if self._closed:
            return
        self._closed = True
        # Each step is carried out even if an earlier one fails or is cancelled.
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self.metadata.close)
            last_first.push_async_callback(self._tasks.close)
            last_first.callback(self._feeds.interrupt)
            last_first.callback(self._end_metrics)
            last_first.callback(self._shared.timeouts.end_sessions)
            last_first.push_async_callback(self._pool.close)
            for _, handle in sorted(self._handles.items()):
                error = client_closed()
                last_first.push_async_callback(handle._client_closed, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return self._closed

    def __repr__(self) -> str:
        return represented(self, open_or_closed(self._closed), cluster=self.metadata.uri)

    def _check_open(self) -> None:
        if self._closed:
            raise client_closed()

    @staticmethod
    def _check_byzantine(count: int, ack_quorum: int) -> None:
        """Raise UsageError unless each ack quorum has an honest member if `count` are Byzantine."""
        if count < 0 or (count and ack_quorum - count < 1):
            raise UsageError(
                f"assume_liars must be from 0 to {ack_quorum - 1} with an ack quorum of "
                f"{ack_quorum}, not {count}",
                remedy="Choose another number, or create ledgers with a larger ack quorum: an "
                "acknowledged entry must be on an honest bookie",
            )

    @staticmethod
    def _digest(digest: DigestType | str) -> DigestType:
        if isinstance(digest, DigestType):
            return digest
        check_type("a digest", digest, str)
        try:
            return DigestType.parse(digest)
        except ValueError as error:
            raise UsageError(str(error)) from None


def metrics_of(client: LedgerClient) -> Iterator[Metric]:
    """Yield the metrics of a client, including the expiry times of its TLS certificates.

    OpenTelemetry meters receive no expiry times, because a meter reports the sum over all clients
    of a program.
    """
    yield from pool_of(client).metrics()
    yield expiry_metric("client", certificates_of(client))


def certificates_of(client: LedgerClient) -> list[CertificateExpiry]:
    """Return the times at which a client's TLS files have to be replaced, one value for each file.

    The result is empty without TLS.
    """
    return expiries(pool_of(client).certificates(), client.clock.now_ms())


def pool_of(client: LedgerClient) -> BookiePool:
    """Return the connections of a client to bookies.

    This is for packages built on the client that contact single bookies. It is internal to Quire.

    Args:
        client: The client.

    Returns:
        Its pool of connections.

    Raises:
        ClientClosedError: The client is closed.
    """
    client._check_open()
    return client._pool


def end_with_client(client: LedgerClient, handle: EndsWithClient) -> TaskSet:
    """Register a handle that the client ends when it is closed, the newest handle first.

    The client does not keep the handle alive, except while a task of the handle runs. This is
    internal to Quire.

    Args:
        client: The client from which the handle was opened.
        handle: The handle.

    Returns:
        An empty set for the background tasks of the handle. The client cancels them when it is
        closed.

    Raises:
        ClientClosedError: The client is closed.
    """
    client._check_open()
    client._handles[next(client._handle_numbers)] = handle
    return TaskSet(client._tasks)


@opening
async def connect(
    uri: str,
    *,
    config: ClientConfig | None = None,
    zookeeper: ZooKeeperOptions | None = None,
    tracer: Tracer | None = None,
    meter: Meter | None = None,
) -> LedgerClient:
    """Connect to a cluster, for its ledgers only. See `quire.connect`.

    No bookie has to answer. If the call fails or is cancelled, nothing stays open.

    Args:
        uri: The metadata store: `sqlite:///FILE` or `zk+hierarchical://HOST:PORT/ledgers`.
        config: Limits, time-outs, TLS and placement. The default is `ClientConfig()`.
        zookeeper: The client's identity in ZooKeeper, and the access to the nodes that it creates.
            By default both are taken from the environment (`QUIRE_ZOOKEEPER_AUTH_FILE`).
        tracer: An OpenTelemetry tracer for spans of calls and batches.
        meter: An OpenTelemetry meter for the metrics of the client.

    Returns:
        The client. Close it, or enter it with `async with`.

    Raises:
        MetadataURIError: `uri` is not the URI of a metadata store.
        MetadataUnavailableError: The metadata store does not answer.
        MetadataDeniedError: The metadata store refuses this identity.
        ClusterNotInitialisedError: The metadata store holds no cluster.
        MetadataError: The metadata store holds something that cannot be used.
        UsageError: An argument is not valid, the placement policy cannot be used, or the identity
            for ZooKeeper cannot be read.
        TlsConfigError: A certificate, key or authority file cannot be used.
    """
    return await connected(
        LedgerClient, uri, config=config, zookeeper=zookeeper, tracer=tracer, meter=meter
    )


async def connected(
    kind: type[C],
    uri: str,
    *,
    config: ClientConfig | None,
    zookeeper: ZooKeeperOptions | None,
    tracer: Tracer | None,
    meter: Meter | None,
    lazy_addresses: bool = False,
) -> C:
    """Connect to a cluster with a client of the given class.

    Args:
        kind: The class of the client.
        uri: As for `connect`.
        config: As for `connect`.
        zookeeper: As for `connect`.
        tracer: As for `connect`.
        meter: As for `connect`.
        lazy_addresses: Whether the client reads the address of a bookie when it first uses the
            bookie, instead of all addresses at once (`BookiePool`). Processes that run beside every
            bookie set it.

    Returns:
        The connected client.

    Raises:
        QuireError: The errors of `connect`. Nothing stays open then, nor if the call is cancelled.
    """
    config = ClientConfig() if config is None else config
    check_config(config)
    if zookeeper is not None and not isinstance(zookeeper, ZooKeeperOptions):
        raise ArgumentTypeError(
            f"zookeeper must be a quire.ZooKeeperOptions, not {type(zookeeper).__name__}"
        )
    metadata = await open_metadata(uri, zookeeper=zookeeper)
    try:
        await metadata.instance_id()
        client = kind(
            metadata, config=config, tracer=tracer, meter=meter, lazy_addresses=lazy_addresses
        )
        client._tasks.start(watch(client))
        return client
    except BaseException:
        await metadata.close()
        raise
