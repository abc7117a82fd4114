"""The client: create, open, list and delete ledgers of one cluster."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeVar, overload
from weakref import WeakValueDictionary

from quire._runtime.clock import Clock, SystemClock
from quire._runtime.former_names import deprecated
from quire._runtime.metrics import exposition
from quire._runtime.opening import Opening, open_or_closed, opening, represented
from quire._runtime.tasks import TaskSet
from quire._runtime.units import counted
from quire.client.checks import check_config, check_ledger_id, check_new_ledger
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
    BookieTimeoutError,
    ClientClosedError,
    NoSuchEntryError,
    QuireError,
    UnauthorizedError,
    UsageError,
    check_type,
)
from quire.metadata import ZooKeeperOptions, open_metadata
from quire.metadata.interface import Bookies, MetadataStore
from quire.net.answer_codes import NoEntryAnswer
from quire.net.control import BookieInfo, ControlChannel
from quire.net.network import AsyncioNetwork, Network

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

T = TypeVar("T")
C = TypeVar("C", bound="LedgerClient")

DEFAULT_ENSEMBLE_SIZE = 3
DEFAULT_WRITE_QUORUM = 3
DEFAULT_ACK_QUORUM = 2
CTOKEN_BITS = 63


class EndsWithClient(Protocol):
    """A handle that was opened from a client and has work under way that ends with the client."""

    async def _client_closed(self, error: ClientClosedError) -> None:
        """End the work. Those who wait for it, or use the handle later, get `error`."""
        ...


class LedgerClient:
    """A connection to one cluster, for its ledgers. `quire.Client` adds what is built on them.

    One per process is enough; it belongs to the event loop that made it. Time, randomness
    and the network are handed in (`clock`, `rng`, `network`), so that the simulator runs this very
    code.
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
    ) -> None:
        self.metadata = metadata
        self.config = config or ClientConfig()
        self.clock = clock or SystemClock()
        self.rng = rng or random.Random()
        """The generator of all random choices: ids, bookies, and the jitter of retries."""
        self._tasks = TaskSet()
        self._pool = BookiePool(
            metadata,
            network or AsyncioNetwork(self.config.dead_link_s),
            self.config,
            self.rng,
            self._tasks,
            Tracing(tracer),
        )
        self._shared = SharedByWriters.of_client(self.config, self._pool.counters)
        self._feeds = Feeds(self._pool, self.config)
        self._handles: WeakValueDictionary[int, EndsWithClient] = WeakValueDictionary()
        """The handles to end when the client is closed, in the order in which they were opened."""
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

        Entries go to `write_quorum` of `ensemble_size` bookies and are acknowledged once
        `ack_quorum` have them on disk. `custom` is stored with the ledger. On return the ledger
        exists in the metadata store (durably); no bookie has been asked yet.

        `deferred_sync`: entries are acknowledged before they are durable, which `force` makes them
        (see `LedgerWriter`). `caller_ids`: a `CallerIdWriter`, whose entries get their ids from
        you; `ledger_id`: so does the ledger.

        Raises UsageError, NotEnoughBookiesError (nothing was created), LedgerExistsError,
        MetadataUnavailableError (unknown). If cancelled, an empty ledger may have been created.
        """
        self._check_open()
        kind = self._digest(digest)
        check_new_ledger(password, custom, ledger_id)
        for what, size in (
            ("ensemble_size", ensemble_size),
            ("write_quorum", write_quorum),
            ("ack_quorum", ack_quorum),
        ):
            check_type(what, size, int)
        if not ensemble_size >= write_quorum >= ack_quorum >= 1:
            raise UsageError(
                f"ensemble {ensemble_size} >= write quorum {write_quorum} >= ack quorum "
                f"{ack_quorum} >= 1 does not hold"
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

        With `recover` the writer is fenced, if there is one, and the ledger is closed at a place
        that includes every acknowledged entry. Use it to take over from a writer that died. Without
        it a ledger that is still written is read up to the last entry that is known to be
        acknowledged now.

        `assume_liars` is the number of Byzantine bookies that each ensemble may have (default: that
        of the configuration). They may deny entries that they acknowledged, or invent entries and
        digests. The client then loses no acknowledged entry and reads no invented one, but more
        bookies have to answer and agree.

        `unverified_password` also recovers a ledger whose password cannot be checked. That is an
        empty ledger whose metadata stores no password (format 1), because bookies know the password
        of a ledger from its entries. Recovery closes such a ledger as empty.

        Raises NoSuchLedgerError, and UnauthorizedError if the password is wrong or cannot be
        checked. Raises RecoveryError or ReadError if too few bookies answer: nothing is lost, open
        the ledger again. Raises LedgerRecreatedError if the ledger was deleted meanwhile and its id
        was used again, and UsageError if the ack quorum is too small for `assume_liars`. Without
        `recover`, no bookie checks the password of a ledger whose metadata stores none.
        Cancel-safe.
        """
        self._check_open()
        check_ledger_id(ledger_id)
        check_type("a password", password, bytes)
        if assume_liars is not None:
            check_type("assume_liars", assume_liars, int)
        with self._pool.tracing.span("open_ledger", ledger_id=ledger_id, recover=recover) as span:
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
                f"wrong password for ledger {ledger_id}",
                ledger_id=ledger_id,
                remedy="Open it with the password that it was created with",
            )
        codec = EntryCodec(ledger_id, value.digest or DigestType.CRC32, password)
        byzantine = self.config.assume_liars if assume_liars is None else assume_liars
        self._check_byzantine(byzantine, value.ack_quorum)
        # Whoever knows the password can make HMAC digests, and everybody knows the empty one.
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
        """Remove the ledger from the metadata; bookies free its space at their next garbage
        collection. A ledger that does not exist is success. Cancel-safe.

        Streams, objects and datasets use this method themselves, so it also deletes ledgers that
        one of them needs, and it requires no password.
        `quire.streams.ownership.owners.refuse_owned` checks whether a ledger has an owner; `quire
        ledger delete` and the HTTP API call it first."""
        self._check_open()
        check_ledger_id(ledger_id)
        with self._pool.tracing.span("delete_ledger", ledger_id=ledger_id):
            await self.metadata.delete_ledger(ledger_id)

    async def list_ledgers(self, first: int = 0) -> AsyncIterator[int]:
        """All ledger ids from `first` on, ascending."""
        self._check_open()
        check_type("a ledger id", first, int)
        async for found in self.metadata.list_ledgers(first):
            for ledger_id in found.ledger_ids:
                yield ledger_id

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """What the metadata store says of a ledger. NoSuchLedgerError."""
        self._check_open()
        check_ledger_id(ledger_id)
        return (await self.metadata.read_ledger(ledger_id)).value

    async def bookies(self) -> Bookies:
        """The bookies registered now."""
        self._check_open()
        return await self.metadata.bookies()

    async def bookie_info(self, bookie_id: str) -> BookieInfo:
        """The disk space of one bookie, as it says. Raises BookieUnavailableError,
        BookieTimeoutError (after `read_timeout_s`), BookieIOError. Cancel-safe."""
        self._check_open()
        check_type("a bookie id", bookie_id, str)
        return await self._ask(bookie_id, lambda channel: channel.bookie_info())

    async def list_entries(self, bookie_id: str, ledger_id: int) -> list[tuple[int, int]]:
        """Which entries of a ledger one bookie has: ascending ranges (first, last).

        Raises NoSuchEntryError if it has none; else as `bookie_info`. Apache's bookie gives no
        answer where it keeps its entries in DbLedgerStorage: that is a BookieTimeoutError.
        Cancel-safe.
        """
        self._check_open()
        check_type("a bookie id", bookie_id, str)
        check_ledger_id(ledger_id)
        try:
            return await self._ask(bookie_id, lambda channel: channel.list_entries(ledger_id))
        except NoEntryAnswer as error:
            raise NoSuchEntryError(
                f"bookie {bookie_id} has no entry of ledger {ledger_id}", ledger_id=ledger_id
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
                f"bookie {bookie_id} gave no answer within {limit:g} s"
            ) from None

    def suspects(self) -> list[UnhealthyBookie]:
        """The bookies that gave this client answers which cannot be right, or lack what others
        have, by name and kind: how often, and of which ledger and entry the last time."""
        return self._pool.health.unhealthy()

    def metrics(self) -> str:
        """What this client has done since it was made, in Prometheus' text format."""
        return exposition(self._pool.metrics())

    @property
    def on_damage(self) -> OnDamage | None:
        """Awaited with (ledger, [bookie]) once for each replica that is seen to need repair, in the
        background. `ReplicationLocks.mark` fits: then replication workers repair it."""
        return self._pool.health.on_damage

    @on_damage.setter
    def on_damage(self, call: OnDamage | None) -> None:
        self._pool.health.on_damage = call

    @property
    def placement(self) -> Placement:
        """On which bookies ensembles are, where those stand, and how well a ledger keeps to it."""
        self._check_open()
        return self._pool.placement

    @property
    def pool(self) -> BookiePool:
        """Deprecated: the connections to bookies are no part of the public API."""
        deprecated("Client.pool", "the methods of Client, such as `bookie_info` and `suspects`")
        return pool_of(self)

    @property
    def datasets(self) -> Datasets:
        """Named sets of ledgers, published atomically."""
        return Datasets(self.metadata, clock=self.clock, rng=self.rng)

    # -- life ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close connections. Writers that are open are abandoned: their ledgers stay open for
        recovery. Whatever else was opened from the client ends, too: calls that wait raise
        ClientClosedError. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            for _, handle in sorted(self._handles.items(), reverse=True):
                await handle._client_closed(ClientClosedError("the client is closed"))
        finally:
            await self._pool.close()
            self._feeds.interrupt()
            await self._tasks.close()
            await self.metadata.close()

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
        """Whether the client was closed."""
        return self._closed

    def __repr__(self) -> str:
        return represented(self, open_or_closed(self._closed), cluster=self.metadata.uri)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the client is closed")

    @staticmethod
    def _check_byzantine(count: int, ack_quorum: int) -> None:
        """Raise UsageError unless an acknowledged entry is on an honest bookie for certain."""
        if count < 0 or (count and ack_quorum - count < 1):
            raise UsageError(
                f"with an ack quorum of {ack_quorum} no more than "
                f"{counted(ack_quorum - 1, 'bookie')} of an ensemble can be assumed to lie, "
                f"not {count}",
                remedy="An acknowledged entry must be on a bookie that does not: create ledgers "
                "with a larger ack quorum",
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


def pool_of(client: LedgerClient) -> BookiePool:
    """The connections of a client to bookies, for the rooms above that ask single bookies.

    This is internal to Quire. Raises ClientClosedError."""
    client._check_open()
    return client._pool


def end_with_client(client: LedgerClient, handle: EndsWithClient) -> TaskSet:
    """Have a handle of a room above ended when the client is closed, the newest handle first.

    The client does not keep the handle alive, except while one of its tasks runs. This is internal
    to Quire. Raises ClientClosedError.

    Returns:
        A set for the background work of the handle.
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
) -> LedgerClient:
    """Connect to a cluster: `client = await connect(uri)` or `async with connect(uri) as client`.

    `uri` names the metadata store: `sqlite:///FILE` or `zk+hierarchical://HOST:PORT/ledgers`.
    `zookeeper` says who we are to ZooKeeper; without it the environment does
    (`QUIRE_ZOOKEEPER_AUTH_FILE`). `tracer`: of OpenTelemetry, for spans of calls and batches
    (docs/guides/client-observability.md). Raises MetadataURIError, MetadataUnavailableError,
    MetadataDeniedError, ClusterNotInitialisedError.
    """
    return await connected(LedgerClient, uri, config=config, zookeeper=zookeeper, tracer=tracer)


async def connected(
    kind: type[C],
    uri: str,
    *,
    config: ClientConfig | None,
    zookeeper: ZooKeeperOptions | None,
    tracer: Tracer | None,
) -> C:
    """Return a client of the given class. See `connect`."""
    config = ClientConfig() if config is None else config
    check_config(config)
    metadata = await open_metadata(uri, zookeeper=zookeeper)
    try:
        await metadata.instance_id()
        client = kind(metadata, config=config, tracer=tracer)
        client._tasks.start(watch(client))
        return client
    except BaseException:
        await metadata.close()
        raise
