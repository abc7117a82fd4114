"""The one interface to metadata. The drivers `sqlite` and `zookeeper` implement it, and so does the
store in memory of the package quire-simulator.

Everything that several processes must agree on goes through here, by versioned compare-and-swap.
One conformance suite (`tests/conformance`) runs against all drivers. All calls are coroutines,
raise only errors of `quire.errors`, and may be cancelled: a cancelled write has an unknown outcome.

A driver is *connected* when `open_metadata` returns it. Calls before the cluster is initialised
raise `ClusterNotInitialisedError` (all but `initialise` and `is_initialised`). The `tree` needs no
cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quire.codec.metadata.ledger_metadata import LedgerMetadata
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
    """Where a bookie listens, as it registered."""

    bookie_id: str
    host: str
    port: int
    properties: Mapping[str, str] = field(default_factory=dict)
    tls: bool = False
    """Whether clients may begin TLS on their connections."""
    others: tuple[Endpoint, ...] = ()
    """What it serves besides the protocol of clients, such as HTTP."""


@dataclass(frozen=True, slots=True)
class Bookies:
    """The registered bookies at one moment. An id may briefly be in both."""

    writable: Mapping[str, BookieAddress]
    readonly: Mapping[str, BookieAddress]

    def find(self, bookie_id: str) -> BookieAddress | None:
        return self.writable.get(bookie_id) or self.readonly.get(bookie_id)


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """All ledgers in [first, last] that exist. Ranges ascend and leave no gap: an id in a range but
    not in `ledger_ids` does not exist."""

    first: int
    last: int
    ledger_ids: Sequence[int]


class Registration(Protocol):
    """A bookie's presence: ephemeral, kept alive in the background until `close`. A session that
    was lost is followed by another, in which the bookie is registered again with the same data."""

    @property
    def lost(self) -> asyncio.Future[KeyExistsError]:
        """Done when another process has the bookie's id, and has kept it for a session time-out
        (ours must have lost its session first). The registration is over then: it is not tried
        again, and the bookie should stop. Never done by `close`."""
        ...

    async def set_readonly(self, readonly: bool) -> None:
        """Move between the lists, at once. After an error it is tried again in the background,
        until the next call or `close`. `KeyExistsError` once `lost`."""
        ...

    async def close(self) -> None:
        """Withdraw at once. Safe to call twice."""
        ...


class MetadataStore(Protocol):
    uri: str

    @property
    def tree(self) -> Tree:
        """Nodes at paths of the caller's choice, changed in transactions: what streams keep."""
        ...

    async def close(self) -> None: ...

    # -- cluster ------------------------------------------------------------------------------
    async def initialise(self, ledger_manager: str | None = None) -> str:
        """Make a new, empty cluster and return its instance id. `KeyExistsError` if one exists.
        `ledger_manager` says how ZooKeeper arranges its ledgers: 'hierarchical' (also where neither
        this nor the URI says anything), 'longhierarchical' or 'flat'."""
        ...

    async def is_initialised(self) -> bool: ...

    async def instance_id(self) -> str:
        """The cluster's identity (a UUID as text), checked by every bookie against its cookie.
        '' where the cluster has none (allowed in ZooKeeper)."""
        ...

    # -- ledgers ------------------------------------------------------------------------------
    async def create_ledger(
        self, metadata: LedgerMetadata, ledger_id: int | None = None
    ) -> tuple[int, Versioned[LedgerMetadata]]:
        """Store `metadata` under a new id (or the given one: `LedgerExistsError` if taken), in
        its `format_version`. Idempotent under lost answers by the metadata's ctoken. Formats 1 and
        2 store none: there an answer that was lost may leave an empty ledger behind, and with an id
        that was given it is MetadataUnavailableError. The value returned has its creation time."""
        ...

    async def read_ledger(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """`NoSuchLedgerError` when there is none."""
        ...

    async def write_ledger(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        known: Versioned[LedgerMetadata] | None = None,
    ) -> Versioned[LedgerMetadata]:
        """Replace the metadata of a ledger if it still has this version (compare-and-swap).

        Raises VersionConflictError and NoSuchLedgerError. After a conflict whose `outcome_known` is
        False, this write may have been done, and others after it: decide again by the content, as
        `update.update_ledger` does.

        `known` is the value that the caller has read. If the store has another creation of the
        ledger by now, LedgerRecreatedError is raised and nothing is written."""
        ...

    async def delete_ledger(self, ledger_id: int) -> None:
        """Remove, whatever its version; a ledger that does not exist is success."""
        ...

    def list_ledgers(self, first: int = 0, *, complete: bool = False) -> AsyncIterator[LedgerRange]:
        """Yield all ledgers from `first` on in ascending ranges that cover [first, 2**63-1] without
        a gap.

        Any failure (root missing, layout missing, connection lost) raises an error: it never gives
        an empty list (metadata spec, 3.2).

        With `complete`, an id that is in no range proves that the store has no such ledger. A name
        in the ledger tree that cannot be decoded then raises an error, because it may be a
        ledger's. Callers that delete by the list must set it."""
        ...

    async def skip_ledger_ids(self, last: int) -> None:
        """Give new ledgers no id up to `last` from now on.

        Ids that callers choose are not affected. The call may be repeated. It takes a while in
        ZooKeeper, which counts ids one by one.
        """
        ...

    def watch_ledger(
        self, ledger_id: int, changed: Callable[[Versioned[LedgerMetadata] | None], None]
    ) -> Watch:
        """Call `changed` (on the event loop) with the value there is, with each newer one (some
        may be skipped), and with None once deleted or if there is none; then the watch is over.
        It outlives lost connections and sessions."""
        ...

    # -- bookies ------------------------------------------------------------------------------
    async def register_bookie(self, address: BookieAddress, readonly: bool = False) -> Registration:
        """Announce a bookie. If another live session holds the id: wait for it to go, for about
        the session time-out, then `KeyExistsError`."""
        ...

    async def bookies(self) -> Bookies: ...

    def watch_bookies(self, changed: Callable[[Bookies], None]) -> Watch:
        """Call `changed` (on the event loop) with the first view and after each change (changes
        close together may come as one). It outlives lost connections and sessions."""
        ...

    # -- cookies ------------------------------------------------------------------------------
    async def read_cookie(self, bookie_id: str) -> Versioned[bytes]:
        """`NoSuchKeyError` when there is none."""
        ...

    async def write_cookie(self, bookie_id: str, cookie: bytes, version: int | None) -> int:
        """Create (version None: `KeyExistsError` if there) or compare-and-swap. Returns the new
        version."""
        ...

    async def delete_cookie(self, bookie_id: str, version: int = ANY_VERSION) -> None:
        """`VersionConflictError`. A missing cookie is success."""
        ...

    async def list_cookies(self) -> list[str]: ...

    # -- Quire's own values: datasets, jobs, subscriptions ------------------------------------
    # Kept outside the ledgers root, so that Apache's tools are not disturbed. Keys are paths of
    # names without '/', e.g. ("datasets", "flights").
    async def read_value(self, key: Sequence[str]) -> Versioned[bytes]:
        """`NoSuchKeyError` when there is none."""
        ...

    async def write_value(self, key: Sequence[str], value: bytes, version: int | None) -> int:
        """Create (version None: `KeyExistsError` if there) or compare-and-swap
        (`VersionConflictError`, `NoSuchKeyError`). Returns the new version. A conflict whose
        `outcome_known` is False may hide that this write was done, and others after it. Versions
        begin anew when a value is deleted and created again: put a name of your own into a value
        that may come back."""
        ...

    async def delete_value(self, key: Sequence[str], version: int = ANY_VERSION) -> None:
        """A missing value is success."""
        ...

    async def list_values(self, prefix: Sequence[str]) -> list[str]:
        """The names directly under `prefix`, sorted; empty when there are none."""
        ...
