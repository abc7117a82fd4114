"""The knowledge of a reader about its ledger, which only grows.

The LAC of a handle never decreases, except if the metadata says that the ledger was closed at an
earlier entry (rules 39 and 20 of docs/internals/replication-rules.md). Older metadata never
replaces newer metadata.
"""

from __future__ import annotations

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.ledgers.creation import check_same_creation


class LedgerView:
    """The newest metadata and the highest LAC of one ledger that a reader knows."""

    def __init__(
        self,
        ledger_id: int,
        store: MetadataStore,
        stored: Versioned[LedgerMetadata],
        last_add_confirmed: int,
    ) -> None:
        self.ledger_id = ledger_id
        self.store = store
        self.last_add_confirmed = last_add_confirmed
        self._stored = stored

    def copy(self) -> LedgerView:
        """Return an independent view with the same knowledge."""
        return LedgerView(self.ledger_id, self.store, self._stored, self.last_add_confirmed)

    @property
    def metadata(self) -> LedgerMetadata:
        """The newest known metadata of the ledger."""
        return self._stored.value

    @property
    def closed(self) -> bool:
        """Whether the ledger is closed according to the newest known metadata."""
        return self._stored.value.closed

    async def refresh(self, newest: bool = False) -> bool:
        """Read the metadata again, and return whether it changed.

        A server of the metadata store may lag behind other servers. With `newest` it catches up
        first, so that the metadata contains everything that was written before this call.

        Raises NoSuchLedgerError if the ledger was deleted, LedgerRecreatedError if another ledger
        has its id by now, and another MetadataError if the store does not answer or refuses this
        client, or if the metadata cannot be decoded.
        """
        if newest:
            await self.store.tree.sync()
        return self.adopt(await self.store.read_ledger(self.ledger_id))

    @property
    def creation(self) -> tuple[int, int]:
        """An identity of this ledger, which differs from that of any other ledger with the same
        id."""
        return self._stored.value.ctoken, self._stored.created

    def adopt(self, stored: Versioned[LedgerMetadata]) -> bool:
        """Replace the metadata by `stored` unless that is older. Return whether the value changed.

        `last_add_confirmed` follows the metadata: it is the last entry of a closed ledger, and of
        an open one at least the last entry before the last segment.

        Raises LedgerRecreatedError for the metadata of another ledger with the same id.
        """
        check_same_creation(self.ledger_id, self._stored, stored)
        if stored.version < self._stored.version:
            return False
        changed = stored.value != self._stored.value
        self._stored = stored
        metadata = stored.value
        if metadata.closed:
            # Even if more was read, the ledger ends where its metadata says (rule 20).
            self.last_add_confirmed = metadata.last_entry_id
        else:
            # A writer begins a segment right after the entries that it has confirmed. A recovery
            # does not publish its segments until it closes the ledger.
            floor = metadata.last_segment.first_entry_id - 1
            self.last_add_confirmed = max(self.last_add_confirmed, floor)
        return changed

    def confirmed(self, lac: int) -> None:
        """Raise `last_add_confirmed` to a LAC that an entry or an explicit LAC has proved.

        The caller has verified the digest. A lower LAC is ignored, and so is every LAC unless the
        ledger is open: a recovery may write back entries that a concurrent one cuts off.
        """
        if lac > self.last_add_confirmed and self._stored.value.state is LedgerState.OPEN:
            self.last_add_confirmed = lac

    def learn(self, other: LedgerView) -> bool:
        """Adopt newer metadata and a higher LAC of another view. Return whether anything changed.

        The other view must be of this ledger, and have verified its LACs with the same password and
        trust model. Raises LedgerRecreatedError if it is of another ledger with the same id.
        """
        if other._stored is not self._stored:
            check_same_creation(self.ledger_id, self._stored, other._stored)
        before = self.last_add_confirmed
        newer = other._stored.version > self._stored.version
        changed = newer and self.adopt(other._stored)
        self.confirmed(other.last_add_confirmed)
        return changed or self.last_add_confirmed > before
