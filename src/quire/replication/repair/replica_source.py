"""Reading entries for repair, from any replica that is good."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quire.client import Client
from quire.client.client import pool_of
from quire.core.append.quorum import write_set
from quire.core.replicas import Copies
from quire.errors import ReadError
from quire.replication.repair.opened_ledger import OpenedLedger
from quire.replication.repair.replica_reader import Part, ReplicaReader, Unreachable

UNREADABLE_NAMED_MAX = 5
"""The largest number of entries that an error message names."""


class ReplicaSource:
    """A reader of one ledger for repair.

    The bookies in `last` are asked only for entries that no other bookie has.
    """

    def __init__(self, client: Client, ledger: OpenedLedger, last: Collection[str] = ()) -> None:
        self._client = client
        self._ledger = ledger
        self._last = last
        self._readers: dict[str, ReplicaReader] = {}
        self._silent: set[str] = set()
        self._turn = 0

    async def read(
        self, ensemble: Sequence[str], entries: Sequence[int], wrong: Collection[str] = ()
    ) -> Copies:
        """Read all of these entries and check their digests.

        The entries are ascending and of one segment. Bookies in `wrong` are not asked. Raises
        ReadError if an entry has no good replica. Cancel-safe.
        """
        copies, unread = await self.read_some(ensemble, entries, wrong)
        if unread is not None:
            raise unread
        return copies

    async def read_some(
        self, ensemble: Sequence[str], entries: Sequence[int], wrong: Collection[str] = ()
    ) -> tuple[Copies, ReadError | None]:
        """Read those of these entries that have a good replica, and check their digests.

        The arguments are those of `read`. Also returns an error that names the other entries, or
        None. Cancel-safe.
        """
        found: dict[int, tuple[bytes, int]] = {}
        orders = self._orders(ensemble, wrong)
        for attempt in range(self._ledger.metadata.write_quorum):
            by_bookie: dict[str, list[int]] = {}
            for entry in entries:
                if entry not in found:
                    order = orders[entry % len(orders)]
                    if attempt < len(order):
                        by_bookie.setdefault(order[attempt], []).append(entry)
            for bookie, wanted in by_bookie.items():
                parts = await self._parts(bookie, wanted)
                for part in parts:
                    if not isinstance(part, Copies):
                        continue
                    if len(part.ids) == len(entries):
                        return part, None  # the usual case: one bookie has all of them
                    for entry, payload, length in zip(part.ids, part.payloads, part.lengths):
                        found[entry] = (payload, length)
        missing = [entry for entry in entries if entry not in found]
        readable = [entry for entry in entries if entry in found]
        copies = Copies(
            readable,
            [found[entry][0] for entry in readable],
            [found[entry][1] for entry in readable],
        )
        return copies, self._unread(missing) if missing else None

    def _unread(self, missing: Sequence[int]) -> ReadError:
        named = ", ".join(map(str, missing[:UNREADABLE_NAMED_MAX]))
        more = len(missing) - UNREADABLE_NAMED_MAX
        return ReadError(
            f"ledger {self._ledger.ledger_id} cannot be copied: no replica of entry {named}"
            + (f" and {more} more" if more > 0 else "")
            + " can be read",
            ledger_id=self._ledger.ledger_id,
            entry_id=missing[0],
            remedy=f"`quire explain ledger {self._ledger.ledger_id}` shows the bookies that "
            "should have these entries. Start them, and try again",
        )

    def _orders(self, ensemble: Sequence[str], wrong: Collection[str]) -> list[list[str]]:
        """Return the orders in which to ask bookies for entries, each a list of bookie ids.

        The order that applies to an entry is at the index: entry id modulo the number of orders.
        """
        pool, metadata = pool_of(self._client), self._ledger.metadata
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        self._turn += 1
        orders = []
        for residue in range(size if size != quorum else 1):
            order = [ensemble[index] for index in write_set(residue, size, quorum)]
            order = [bookie for bookie in order if bookie not in wrong]
            # Begin with another bookie each time, so that the replicas share the load.
            start = self._turn % max(len(order), 1)
            order = order[start:] + order[:start]
            order.sort(key=lambda bookie: (bookie in self._last, pool.failed_lately(bookie)))
            orders.append(order)
        return orders

    async def _parts(self, bookie: str, entries: list[int]) -> list[Part]:
        """Return what a bookie has of these entries, or [] if it does not answer.

        A bookie that did not answer once is not asked again.
        """
        if bookie in self._silent:
            return []
        reader = self._readers.get(bookie)
        if reader is None:
            ledger = self._ledger
            reader = ReplicaReader(
                self._client, ledger.ledger_id, ledger.metadata, ledger.codec, bookie
            )
            self._readers[bookie] = reader
        try:
            return await reader.read(entries)
        except Unreachable:
            self._silent.add(bookie)
            return []
