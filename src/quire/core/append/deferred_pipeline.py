"""The add pipeline of a deferred-sync ledger: an acknowledgement says "accepted", not "durable".

The invariants of `pipeline` hold with these changes:

1. `accepted` moves as `last_confirmed` does there. `last_confirmed` moves only when every member
   that is there has answered a force: up to the last entry that an ack quorum of them had accepted
   *before* the force was sent, by members none of which has started again since.
2. What is not durable may be gone with a lost connection (the bookie may have restarted). So a
   member that is away counts for nothing behind `last_confirmed`, and one that starts again is sent
   everything behind it: blocks are kept until a force has covered them.
3. `generation` changes whenever a member starts again or goes away: answers to forces of an older
   generation prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.append.pipeline import AddPipeline


class DeferredPipeline(AddPipeline):
    __slots__ = ("generation",)

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        super().__init__(ensemble_size, write_quorum, ack_quorum)
        self.generation = 0

    def confirm(self) -> bool:
        """Advance `accepted` as far as the quorums allow. True if it moved."""
        if self.frozen:
            return False
        accepted = self.stored_through()
        if accepted <= self.accepted:
            return False
        self.accepted = accepted
        return True

    def forced(self, through: int, generation: int) -> bool:
        """Every member that is there has answered a force that was sent in `generation`, when an
        ack quorum had accepted everything up to `through`. True if `last_confirmed` moved."""
        if self.frozen or generation != self.generation or through <= self.last_confirmed:
            return False
        self._confirm_through(through)
        return True

    def present(self) -> list[int]:
        """The members that are not away."""
        return [i for i in range(self._ensemble_size) if i not in self._parked]

    def has_unforced(self, index: int) -> bool:
        """Whether entries that are not durable belong to member `index`."""
        return self._stripe_from(index, self.last_confirmed + 1) <= self.last_pushed

    def restart(self, indexes: Iterable[int], now: float) -> None:
        self.generation += 1
        super().restart(indexes, now)

    def park(self, indexes: Iterable[int]) -> None:
        self.generation += 1
        for index in indexes:
            self._ahead.pop(index, None)
            self._next[index] = self._stripe_from(index, self.last_confirmed + 1)
            super().park((index,))
