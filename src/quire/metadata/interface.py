"""The interface of a metadata store.

The drivers `sqlite` and `zookeeper` implement it, and so does the store in memory of the package
quire-simulator. One conformance suite (`tests/conformance`) runs against all of them.

Everything that several processes must agree on is stored here and changed by compare-and-swap on
versions. All calls are coroutines that raise only errors of `quire.errors`. They may be cancelled;
the outcome of a cancelled write is unknown.

`open_metadata` returns a connected store. Until the cluster is initialised, every call except
`initialise` and `is_initialised` raises ClusterNotInitialisedError. The `tree` does not need a
cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.codec.metadata.registration import Endpoint
from quire.errors import KeyExistsError
from quire.metadata.tree import Tree
from quire.metadata.values import ANY_VERSION, UNKNOWN_CREATION, Versioned, Watch

__all__ = [
    "ANY_VERSION", "UNKNOWN_CREATION", "BookieAddress", "Bookies", "LedgerRange", "MetadataStore",
    "Registration", "Tree", "Versioned", "Watch",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class BookieAddress:
    """The addresses and properties of a bookie, as it registered them."""

    bookie_id: str
    host: str
    port: int
    properties: Mapping[str, str] = field(default_factory=dict)
    tls: bool = False
    """Whether clients may begin TLS on their connections."""
    others: tuple[Endpoint, ...] = ()
    """The endpoints that it serves besides the one for clients, such as HTTP."""
    assumed: bool = False
    """Whether the host and the port were derived from the bookie's id, and its registration was not
    read. The bookie may have another address, and the other fields are not known."""


@dataclass(frozen=True, slots=True)
class Bookies:
    """The registered bookies at one moment. A bookie may briefly be in both mappings."""

    writable: Mapping[str, BookieAddress]
    readonly: Mapping[str, BookieAddress]

    def find(self, bookie_id: str) -> BookieAddress | None:
        """Return the address of a bookie, or None if it is not registered."""
        return self.writable.get(bookie_id) or self.readonly.get(bookie_id)


RangeStamp = tuple[int, int]
KnownRanges = Mapping[tuple[int, int], RangeStamp]
"""The stamps of ranges that a caller has seen before, by the first and the last id of the range."""


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """The ledgers that exist with ids from `first` to `last`, both included.

    `ledger_ids` has the ids of all of them in ascending order, so any other id of the range is not
    the id of a ledger. Consecutive ranges of a listing have no gap between them.
    """

    first: int
    last: int
    ledger_ids: Sequence[int]
    stamp: RangeStamp | None = None
    """A value that changes whenever a ledger of the range is created or deleted. It is None if the
    store has no such value."""
    unchanged: bool = False
    """Whether the range still has the stamp that the caller knew. `ledger_ids` is empty then,
    because the range has the same ledgers as before."""


class Registration(Protocol):
    """The registration of a bookie, which is kept alive in the background until `close`.

    It is ephemeral: it disappears when the session of the process ends. If the session is lost, the
    driver begins a new one and registers the bookie again with the same data.
    """

    @property
    def lost(self) -> asyncio.Future[KeyExistsError]:
        """A future that is done when another process has taken over the bookie's id.

        The other process has then kept the id for a whole session time-out, and the session of this
        registration had ended before. The registration is over and is not tried again, so the
        bookie should stop. `close` never completes this future.
        """
        ...

    async def set_readonly(
        self, readonly: bool, properties: Mapping[str, str] | None = None
    ) -> None:
        """Move the bookie to the read-only list or to the writable list.

        If `properties` are given, they replace those of its address. If this fails, the driver
        tries again in the background until the next call or `close`.

        Raises:
            KeyExistsError: Another process has taken over the id (see `lost`).
            UsageError: The address is too large with these properties.
            ClientClosedError: The registration or the store is closed.
            MetadataError: The store fails. The outcome may be unknown.
        """
        ...

    async def close(self) -> None:
        """Withdraw the registration at once. Repeated calls do nothing.

        If the store fails, this is logged, and the registration ends with its session.
        """
        ...


class MetadataStore(Protocol):
    """The interface of a connection to a metadata store.

    A change is durable when its call returns. Every call may raise MetadataUnavailableError if the
    store does not answer; the outcome of a change is then unknown, unless `outcome_known` of the
    error is True. A call raises UsageError if an argument is not a valid id, version or key. After
    `close`, calls raise ClientClosedError.
    """

    uri: str
    """The URI with which the store was opened."""

    @property
    def tree(self) -> Tree:
        """The tree of nodes at paths that the caller chooses, changed in transactions.

        Streams, objects and datasets are stored in it, and also the marks, locks and elections of
        autorecovery, orders to bookies, announcements of jobs, and the locations of bookies.
        """
        ...

    async def close(self) -> None:
        """Close the connection and end its session. Watches and registrations end with it."""
        ...

    def on_outage(self, ended: Callable[[float], None]) -> Watch:
        """Call `ended` on the event loop whenever the store answers again after an outage.

        The argument is the duration of the outage in seconds. Only outages that the driver has
        logged as `metadata_lost` count. A store without servers has no outages.
        """
        ...

    # -- cluster ------------------------------------------------------------------------------
    async def initialise(self, ledger_manager: str | None = None) -> str:
        """Create a new, empty cluster and return its instance id.

        Args:
            ledger_manager: The arrangement of ledgers in ZooKeeper: 'hierarchical',
                'longhierarchical' or 'flat'. By default it is the one in the URI, and otherwise
                'hierarchical'. Other stores accept only None.

        Raises:
            KeyExistsError: The store has a cluster already, or what is left of an earlier one.
            UsageError: The store has no such ledger manager, or the URI names another one.
            MetadataError: The store fails.
        """
        ...

    async def is_initialised(self) -> bool:
        """Return whether the store has a cluster. Raises MetadataError if the store fails."""
        ...

    async def instance_id(self) -> str:
        """Return the id of the cluster, a UUID as text.

        Every bookie compares it with its cookie. The id is empty if the cluster has none, which
        ZooKeeper allows. Raises MetadataError if the store fails.
        """
        ...

    # -- ledgers ------------------------------------------------------------------------------
    async def create_ledger(
        self, metadata: LedgerMetadata, ledger_id: int | None = None
    ) -> tuple[int, Versioned[LedgerMetadata]]:
        """Create a ledger and return its id with the stored metadata, whose creation time is set.

        The metadata is stored in the format of its `format_version`. In format 3 it contains a
        creation token, by which the driver recognises its own ledger if the store's response was
        lost. Formats 1 and 2 store no token. A lost response may then leave behind an empty ledger
        with a generated id.

        Args:
            metadata: The metadata of the new ledger.
            ledger_id: The id of the ledger. By default the store generates one.

        Raises:
            LedgerExistsError: The given id is taken.
            UsageError: The metadata is too large, or cannot be stored in its format.
            MetadataUnavailableError: The store did not respond, or the response was lost, the id
                was given and the format stores no token. The outcome is unknown.
            MetadataError: No unused id was found.
        """
        ...

    async def read_ledger(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """Return the metadata of a ledger.

        Raises:
            NoSuchLedgerError: The ledger does not exist.
            UnreadableMetadataError: The metadata is damaged, or has an unknown format.
            MetadataError: The store fails.
        """
        ...

    async def write_ledger(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        known: Versioned[LedgerMetadata] | None = None,
    ) -> Versioned[LedgerMetadata]:
        """Replace the metadata of a ledger if its version is still `version`. Return the new value.

        Args:
            ledger_id: The ledger.
            metadata: The new metadata.
            version: The version that the caller has read.
            known: The value that the caller has read. With it, the call does not change another
                ledger that was created with the same id in the meantime. ZooKeeper cannot compare
                creations, so there the metadata is read just before the write.

        Raises:
            VersionConflictError: The version has changed. If the error's `outcome_known` is False,
                this write may have been done before others changed the ledger again. Read the
                metadata and decide by its content, as `update.update_ledger` does.
            NoSuchLedgerError: The ledger does not exist.
            LedgerRecreatedError: The id belongs to another ledger than `known`. Nothing was
                written. If the error's `outcome_known` is False, the ledger was replaced just
                before the write, which has changed the metadata of the new ledger.
            MetadataTooLargeError: The metadata is too large. Nothing was written.
            UsageError: The metadata cannot be stored in its format. Nothing was written.
            UnreadableMetadataError: The stored metadata cannot be compared with `known`, because it
                is damaged or has an unknown format.
            MetadataUnavailableError: The store does not answer. The outcome is unknown.
        """
        ...

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete the metadata of a ledger, whatever its version.

        It is no error if the ledger does not exist. The deletion is durable on return. Raises
        MetadataError if the store fails. The outcome may then be unknown.
        """
        ...

    def list_ledgers(
        self, first: int = 0, *, complete: bool = False, known: KnownRanges | None = None
    ) -> AsyncIterator[LedgerRange]:
        """Yield all ledgers from `first` on, in ascending ranges without a gap up to 2**63-1.

        Every failure raises an error, which is MetadataError for a missing root, a missing LAYOUT
        or a lost connection. A failure never yields a shorter list, because bookies delete what no
        list contains.

        Args:
            first: The first id of the first range.
            complete: Whether an id that is in no range must prove that the store has no such
                ledger. A name in the ledger tree that cannot be decoded then raises an error,
                because it may be the name of a ledger. Callers that delete what the list does not
                contain must set it.
            known: The ranges of an earlier list. Those with the same stamp are `unchanged`, and
                their ledgers are not listed. The names in them are not decoded again either.
        """
        ...

    def list_ledgers_down(self, last: int = LEDGER_ID_MAX) -> AsyncIterator[LedgerRange]:
        """Yield all ledgers up to `last`, in descending ranges without a gap down to 0.

        Generated ids grow, so the newest ledgers come first. The ids within a range ascend. Only
        the ranges that the caller takes are read. Failures raise errors as in `list_ledgers`, but
        this list proves nothing: use it to show ledgers, and never to delete what it lacks.

        Args:
            last: The last id of the first range.
        """
        ...

    async def skip_ledger_ids(self, last: int) -> None:
        """Let all clients generate only ids above `last` from now on.

        Ids that callers choose are not affected. The call may be repeated. ZooKeeper
        generates the skipped ids one by one, some thousands a second. If there are more than a
        million, a cluster whose ledger manager has long ids skips them in one step. A Java client
        that has generated ids before may then continue with short ids until it is restarted. Raises
        MetadataError if the store fails, or if all ids are used up.
        """
        ...

    def watch_ledger(
        self, ledger_id: int, changed: Callable[[Versioned[LedgerMetadata] | None], None]
    ) -> Watch:
        """Watch the metadata of a ledger until the ledger is deleted.

        `changed` is called on the event loop with the present value, then with newer ones; some may
        be skipped. It is called with None when the ledger is deleted or does not exist, and then
        the watch is over. The watch survives lost connections and sessions.
        """
        ...

    # -- bookies ------------------------------------------------------------------------------
    async def register_bookie(self, address: BookieAddress, readonly: bool = False) -> Registration:
        """Register a bookie, in the writable list or with `readonly` in the read-only one.

        If another live session holds the id, the call waits about a session time-out for it to end.

        Raises:
            KeyExistsError: The other session still holds the id after that time, or this process
                has registered the bookie already.
            UsageError: The address cannot be registered.
            MetadataError: The store fails.
        """
        ...

    async def bookies(self, *, addresses: bool = True) -> Bookies:
        """Return the bookies that are registered now.

        Without `addresses`, addresses may be `assumed`, as in `watch_bookies`. Raises MetadataError
        if the store fails.
        """
        ...

    async def registered(self) -> frozenset[str]:
        """Return the ids of the bookies that are registered now, writable or read-only.

        This costs the same few requests however many bookies there are, while `bookies` also reads
        the address of each. A bookie whose address cannot be decoded is included here. Raises
        MetadataError if the store fails.
        """
        ...

    async def learn_bookies(self, bookie_ids: Collection[str]) -> Mapping[str, BookieAddress]:
        """Return the addresses of these bookies, by bookie id, as they registered them.

        Bookies that are not registered, and those whose address cannot be decoded, are left out.
        From now on, no watch of this store reports an assumed address for these bookies. Raises
        MetadataError if the store fails.
        """
        ...

    def watch_bookies(self, changed: Callable[[Bookies], None], *, addresses: bool = True) -> Watch:
        """Watch the registered bookies.

        `changed` is called on the event loop with the present bookies, then after each change of
        the lists. Several changes in quick succession may be reported as one. The properties of a
        bookie may be those of an earlier moment. The watch survives lost connections and sessions.

        Args:
            changed: The function that receives the bookies.
            addresses: Whether the address of each bookie is needed. Without it, the addresses of
                bookies with an id of the form host:port may be `assumed`, which saves a request for
                each. The addresses of bookies that `learn_bookies` was called with are always read.
        """
        ...

    # -- cookies ------------------------------------------------------------------------------
    async def read_cookie(self, bookie_id: str) -> Versioned[bytes]:
        """Return the cookie of a bookie.

        Raises:
            NoSuchKeyError: The bookie has no cookie.
            MetadataError: The store fails.
        """
        ...

    async def write_cookie(self, bookie_id: str, cookie: bytes, version: int | None) -> int:
        """Write the cookie of a bookie and return its new version.

        Args:
            bookie_id: The bookie.
            cookie: The bytes of the cookie.
            version: The version to replace, or None to create the cookie.

        Raises:
            KeyExistsError: The version is None, and the bookie has a cookie.
            VersionConflictError: The cookie's version is not `version`.
            NoSuchKeyError: The bookie has no cookie to replace.
            UsageError: The cookie is too large.
            MetadataError: The store fails.
        """
        ...

    async def delete_cookie(self, bookie_id: str, version: int = ANY_VERSION) -> None:
        """Delete the cookie of a bookie, if there is one.

        Raises:
            VersionConflictError: The cookie's version is not `version`.
            MetadataError: The store fails.
        """
        ...

    async def list_cookies(self) -> list[str]:
        """Return the ids of all bookies that have a cookie, sorted.

        Raises MetadataError if the store fails.
        """
        ...

    # -- Quire's own values: datasets, jobs, subscriptions ------------------------------------
    # They are stored outside of the ledgers root, where they do not disturb Apache's tools. A key
    # is a path of names without '/', such as ("datasets", "flights").
    async def read_value(self, key: Sequence[str]) -> Versioned[bytes]:
        """Return the value that Quire has stored under a key of its own.

        Such values are separate from the nodes of Apache BookKeeper. A key is a sequence of names,
        such as ('datasets', 'flights').

        Raises:
            NoSuchKeyError: The key has no value.
            MetadataError: The store fails, or the value has an unknown form.
        """
        ...

    async def write_value(
        self,
        key: Sequence[str],
        value: bytes,
        version: int | None,
        *,
        known: bytes | None = None,
    ) -> int:
        """Write the value under a key of Quire's own, and return its new version.

        Versions begin again when a value is deleted and created again. If that can happen to a key,
        put a unique name into its value, and pass `known`.

        Args:
            key: The key.
            value: The new value.
            version: The version to replace, or None to create the value.
            known: The value that was read with this version, or None to compare only versions.
                ZooKeeper cannot compare values, so there the value is read just before the write.

        Raises:
            KeyExistsError: The version is None, and the key has a value.
            VersionConflictError: The value's version is not `version`, or the value is not `known`.
            NoSuchKeyError: The key has no value to replace. If `outcome_known` of one of these
                three errors is False, this write may have been done before others changed or
                deleted the value.
            UsageError: The value is too large, or the key cannot be used in every store.
            MetadataError: The store fails.
        """
        ...

    async def delete_value(
        self, key: Sequence[str], version: int = ANY_VERSION, *, known: bytes | None = None
    ) -> bool:
        """Delete the value under a key of Quire's own, if there is one.

        `known` is the value that was read with this version, or None to compare only versions.

        Returns:
            Whether the value was deleted. False means that there was none. If an answer of the
            store was lost, and there is none now, the result is True, because this call may have
            deleted it.

        Raises:
            VersionConflictError: The value's version is not `version`, or the value is not `known`.
            MetadataError: The store fails.
        """
        ...

    async def list_values(self, prefix: Sequence[str]) -> list[str]:
        """Return the names that follow `prefix` in the keys of values, sorted.

        Only the first name after the prefix is returned. The list is empty if there is none. Raises
        MetadataError if the store fails.
        """
        ...
