"""Entries read from whichever replica has them right; from the bookies to be repaired last."""

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
"""Entries, in a message."""


class ReplicaSource:
    """Reads one ledger for repair. Bookies of `last` are asked where no other has an entry."""

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
        """All of these ascending entries of one segment, digests checked; `wrong`: bookies that are
        not asked for these. ReadError where no replica has one of them. Cancel-safe."""
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
                        return part  # all of them, as most often
                    for entry, payload, length in zip(part.ids, part.payloads, part.lengths):
                        found[entry] = (payload, length)
        missing = [entry for entry in entries if entry not in found]
        if missing:
            named = ", ".join(map(str, missing[:UNREADABLE_NAMED_MAX]))
            more = len(missing) - UNREADABLE_NAMED_MAX
            raise ReadError(
                f"ledger {self._ledger.ledger_id}: no replica gives entry {named}"
                + (f" and {more} more" if more > 0 else ""),
                ledger_id=self._ledger.ledger_id,
                entry_id=missing[0],
                remedy="Bring the bookies back that have them, and try again",
            )
        return Copies(
            entries,
            [found[entry][0] for entry in entries],
            [found[entry][1] for entry in entries],
        )

    def _orders(self, ensemble: Sequence[str], wrong: Collection[str]) -> list[list[str]]:
        """In which order bookies are asked for an entry, by its id modulo the length of this."""
        pool, metadata = pool_of(self._client), self._ledger.metadata
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        self._turn += 1
        orders = []
        for residue in range(size if size != quorum else 1):
            order = [ensemble[index] for index in write_set(residue, size, quorum)]
            order = [bookie for bookie in order if bookie not in wrong]
            # Another one first each time, so that the replicas share the load.
            start = self._turn % max(len(order), 1)
            order = order[start:] + order[:start]
            order.sort(key=lambda bookie: (bookie in self._last, pool.failed_lately(bookie)))
            orders.append(order)
        return orders

    async def _parts(self, bookie: str, entries: list[int]) -> list[Part]:
        """What it has of these; nothing where it does not answer."""
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
