"""The add pipeline of a deferred-sync ledger: an acknowledgement means accepted, not durable.

The invariants of `pipeline` hold with these changes:

1. `accepted` moves as `last_confirmed` does there. `last_confirmed` moves only when every present
   member has answered a force. It then moves to the last entry up to which an ack quorum had
   accepted everything *before* the force was sent, if no member has restarted since.
2. Entries that are not durable may be lost with a connection, because the bookie may have
   restarted. So a member that is away counts as having nothing after `last_confirmed`, and a member
   that restarts is sent everything after it. Blocks are kept until a force has covered them.
3. `generation` changes whenever a member restarts or goes away. Answers to forces of an older
   generation prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.append.pipeline import AddPipeline


class DeferredPipeline(AddPipeline):
    """The add pipeline of a deferred-sync ledger, where only a force makes entries durable."""

    __slots__ = ("generation",)

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        super().__init__(ensemble_size, write_quorum, ack_quorum)
        self.generation = 0

    def confirm(self) -> bool:
        """Advance `accepted` as far as the quorums allow, and return whether it moved."""
        if self.frozen:
            return False
        accepted = self.stored_through()
        if accepted <= self.accepted:
            return False
        self.accepted = accepted
        return True

    def forced(self, through: int, generation: int) -> bool:
        """Advance `last_confirmed` after every present member has answered a force.

        Nothing changes if a member has restarted or gone away since the force was sent.

        Args:
            through: The entry up to which an ack quorum had accepted everything when the force was
                sent.
            generation: The value of `generation` when the force was sent.

        Returns:
            Whether entries became durable.
        """
        if self.frozen or generation != self.generation or through <= self.last_confirmed:
            return False
        self._confirm_through(through)
        return True

    def present(self) -> list[int]:
        """Return the ensemble indexes of the members that are not parked."""
        return [i for i in range(self._ensemble_size) if i not in self._parked]

    def has_unforced(self, index: int) -> bool:
        """Return whether member `index` is to store an entry that was pushed and is not durable."""
        return self._stripe_from(index, self.last_confirmed + 1) <= self.last_pushed

    def restart(self, indexes: Iterable[int], now: float, *, same: bool = False) -> None:
        """Restart the members at these ensemble indexes at loop time `now`.

        From now on they count as having no entry after `last_confirmed`. See `AddPipeline.restart`.
        """
        self.generation += 1
        super().restart(indexes, now, same=same)

    def park(self, indexes: Iterable[int]) -> None:
        """Park the members at these ensemble indexes: nothing is sent to them until they restart.

        They count as having no entry after `last_confirmed`.
        """
        self.generation += 1
        for index in indexes:
            self._ahead.pop(index, None)
            self._next[index] = self._stripe_from(index, self.last_confirmed + 1)
            super().park((index,))
