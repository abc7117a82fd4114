"""One page of the list of ledgers: in either order, filtered, and within a time limit.

A filter by state, owner or replication needs the metadata of each ledger. A page therefore ends
after `LOOK_S` seconds even if it is not full, and the next page goes on where it ended. So no
request reads all ledgers of a large cluster.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from quire._runtime.tasks import each, pages
from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.http.views.ledger_json import described_or_error, ledger_as_json
from quire.metadata.ledgers.unreadable import UNREADABLE
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.marks.marks import ReplicationMarks
from quire.streams.ownership.owner_index import OwnerIndex, owners_as_json

LOOK_S = 0.15
"""Seconds after which a filtered page ends with what was found."""
LOOKED_AT_ONCE = 64
"""The number of ledgers whose metadata is read before the time is checked again."""
MARKS_MAX = 100_000
"""The largest number of marks that a page of marked ledgers, newest first, collects."""
OWNER_KINDS = ("stream", "object", "dataset", "state machine")
OWNERS = (*OWNER_KINDS, "other", "none", "unknown")
"""The values of the filter by owner. `other` is another application, `none` means that nothing
needs the ledger, and `unknown` that the owner is not known."""
MARKS = ("marked", "repairing")
"""The states of a ledger's replicas that its mark shows, without its metadata."""
REPLICATION = ("any", "complete", "lacking", *MARKS)
"""The states of a ledger's replicas. `any` is no filter.

complete: every bookie that the metadata names is registered, and the ledger is not marked.
lacking: a bookie that the metadata names is not registered, and the ledger is not marked yet.
marked: the ledger is marked for repair. repairing: a process repairs it now.
"""


@dataclass(frozen=True, slots=True)
class LedgerQuery:
    """The order, the range and the filters of a page of ledgers."""

    limit: int
    """The largest number of ledgers on the page."""
    newest: bool = False
    """Whether ids descend."""
    after: int | None = None
    """The id after which the page begins, in the order of the page, or None for the first page."""
    first: int = 0
    """The smallest id that may be on a page."""
    last: int = LEDGER_ID_MAX
    """The largest id that may be on a page."""
    state: str | None = None
    """The name of a `LedgerState`, or None for any."""
    owner: str | None = None
    """One of `OWNERS`, or None for any."""
    owner_name: str = ""
    """A text that the name of the owner, or of its namespace or bucket, must contain."""
    replication: str | None = None
    """One of `REPLICATION`. With None, the page does not include the state of the replicas."""

    @property
    def filters(self) -> bool:
        """Whether there is a filter by state, owner or replication, which reads each ledger."""
        return self.filters_metadata or self.replication not in (None, "any")

    @property
    def filters_metadata(self) -> bool:
        """Whether there is a filter by state or owner, which only the metadata can answer."""
        wanted = self.state, self.owner, self.owner_name or None
        return any(one is not None for one in wanted)


async def ledger_page(client: Client, index: OwnerIndex, query: LedgerQuery) -> dict[str, Any]:
    """Return a page of ledgers as the HTTP API shows it.

    `ledgers` has the ledgers, `looked_at` the number of examined ledgers, and `next` the `after` of
    the next page, or None at the end. `index` has the owners of ledgers. Raises MetadataError.
    """
    replication = None
    if query.replication is not None:
        replication = await Replication.of(client)
    first, last = query.first, query.last
    if query.after is not None:
        first, last = (
            (first, min(last, query.after - 1))
            if query.newest
            else (max(first, query.after + 1), last)
        )
    clock = client.clock
    until_s = clock.monotonic() + LOOK_S
    found: list[dict[str, Any]] = []
    looked_at, passed, more = 0, None, False

    def described(ledger_id: int, metadata: LedgerMetadata) -> dict[str, Any]:
        owners = owners_as_json(index.of(ledger_id, metadata))
        return {**ledger_as_json(ledger_id, metadata), "owners": owners}

    async def look(ledger_id: int) -> dict[str, Any] | None:
        one = await described_or_error(client.metadata, ledger_id, described)
        if one is None:
            return None
        if "error" in one:
            if query.filters_metadata:
                return None
            if query.replication not in MARKS or replication is None:
                return None if query.filters else one
            # A mark is known without the metadata, and no worker can repair such a ledger.
            one["replication"] = await replication.state({**one, "segments": ()})
            return one if one["replication"]["state"] == query.replication else None
        if not _wanted(one, query):
            return None
        if replication is None:
            return one
        one["replication"] = await replication.state(one)
        return one if query.replication in ("any", one["replication"]["state"]) else None

    size = LOOKED_AT_ONCE if query.filters else min(query.limit, 1_000)
    ids = pages(_candidates(client, query, first, last), size)
    async with aclosing(ids) as pieces:
        async for piece in pieces:
            if len(found) >= query.limit or (looked_at and clock.monotonic() >= until_s):
                more = True
                break
            for ledger_id, one in zip(piece, await each(piece, look)):
                if len(found) >= query.limit:
                    more = True
                    break
                looked_at, passed = looked_at + 1, ledger_id
                if one is not None:
                    found.append(one)
    return {"ledgers": found, "next": passed if more else None, "looked_at": looked_at}


async def _candidates(
    client: Client, query: LedgerQuery, first: int, last: int
) -> AsyncGenerator[int, None]:
    """Yield the ids from `first` to `last` that may be on the page, in its order."""
    if first > last:
        return
    if query.replication in MARKS:
        async for ledger_id in _marked(client, query, first, last):
            yield ledger_id
        return
    store = client.metadata
    spans = store.list_ledgers_down(last) if query.newest else store.list_ledgers(first)
    try:
        async for span in spans:
            for ledger_id in reversed(span.ledger_ids) if query.newest else span.ledger_ids:
                if not first <= ledger_id <= last:
                    return
                yield ledger_id
    finally:
        if isinstance(spans, AsyncGenerator):
            await spans.aclose()


async def _marked(client: Client, query: LedgerQuery, first: int, last: int) -> AsyncIterator[int]:
    marks = ReplicationMarks(client.metadata)
    if query.replication == "repairing":
        found = sorted(one for one in await marks.locked() if first <= one <= last)
    else:
        found = []
        async for ledger_id in marks.walk():
            if first <= ledger_id <= last:
                found.append(ledger_id)
            if len(found) >= MARKS_MAX or (not query.newest and ledger_id > last):
                break
        found.sort()
    for ledger_id in reversed(found) if query.newest else found:
        yield ledger_id


class Replication:
    """The state of ledgers' replicas, from the metadata store alone."""

    def __init__(
        self, locks: ReplicationLocks, registered: frozenset[str], locked: Collection[int]
    ) -> None:
        self._locks = locks
        self.registered = registered
        """The bookies that were registered when this object was made."""
        self._locked = locked

    @classmethod
    async def of(cls, client: Client) -> Replication:
        """Return the state as of now. Raises MetadataError."""
        store = client.metadata
        bookies = await client.bookies()
        registered = frozenset((*bookies.writable, *bookies.readonly))
        return cls(
            ReplicationLocks(store, "", client.clock),
            registered,
            await ReplicationMarks(store).locked(),
        )

    async def state(self, described: dict[str, Any]) -> dict[str, Any]:
        """Return the state of the ledger's replicas.

        The keys are `state` (`complete`, `lacking`, `marked` or `repairing`) and `gone`, the
        bookies of the ledger that are not registered.
        """
        named = {bookie for one in described["segments"] for bookie in one["bookies"]}
        gone = sorted(named.difference(self.registered))
        if described["ledger_id"] in self._locked:
            return {"state": "repairing", "gone": gone}
        try:
            marked = await self._locks.marked(described["ledger_id"]) is not None
        except UNREADABLE:
            marked = True  # its mark exists
        return {"state": "marked" if marked else "lacking" if gone else "complete", "gone": gone}


def _wanted(described: dict[str, Any], query: LedgerQuery) -> bool:
    """Return whether the filters by state and owner let a ledger pass."""
    if query.state is not None and described["state"] != query.state:
        return False
    if query.owner is None and not query.owner_name:
        return True
    owners = described["owners"]
    if not owners:
        kind = "unknown" if owners is None else "none"
        return kind == query.owner and not query.owner_name
    return any(
        query.owner in (None, _kind(one["kind"]))
        and query.owner_name in f"{one['place']}/{one['name']}"
        for one in owners
    )


def _kind(kind: str) -> str:
    return kind if kind in (*OWNER_KINDS, "unknown") else "other"
