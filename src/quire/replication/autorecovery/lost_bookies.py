"""Which bookies are lost, and from when on their ledgers are to be copied (replication spec, 12.1).
Pure: the time is handed in.

- A bookie that was known and is not registered is missing.
- With a delay, a single missing bookie is waited for: one that comes back in time costs nothing.
  More than one are not waited for, for what is left of a ledger may be one copy.
- What was given up is not waited for again. It counts no more, until it comes back.
"""

from __future__ import annotations

from collections.abc import Collection


class LostBookies:
    def __init__(self, delay_s: int = 0) -> None:
        self.delay_s = delay_s
        self.missing: dict[str, float] = {}
        """Since when each was missed, by the clock that is handed in."""
        self.waits = 0
        """How often a bookie was waited for."""
        self.returns = 0
        """How often one came back while it was waited for."""
        self.known: set[str] = set()
        self.registered: frozenset[str] = frozenset()
        """As it was looked at last."""
        self._given_up: set[str] = set()
        self._overruled = False

    def learn(self, bookies: Collection[str]) -> None:
        """These belong to the cluster, wherever they are."""
        self.known.update(bookies)

    def look(self, registered: Collection[str], now_s: float) -> None:
        """These, and no others, are registered now."""
        self.known.update(registered)
        self.registered = frozenset(registered)
        self._given_up.difference_update(registered)
        gone = self.known.difference(registered) - self._given_up
        for bookie in sorted(gone - self.missing.keys()):
            self.missing[bookie] = now_s
            self.waits += self.delay_s > 0
        for bookie in sorted(self.missing.keys() - gone):
            del self.missing[bookie]
            self.returns += 1
        if not self.missing:
            self._overruled = False

    def set_delay(self, seconds: int) -> None:
        """Counts for the bookie that is waited for, too."""
        self.delay_s = seconds

    def overrule(self) -> None:
        """An operator wants what is missing now to be given up now."""
        self._overruled = True

    def due_s(self) -> float | None:
        """When what is missing is to be given up; None: nothing is missing."""
        if not self.missing:
            return None
        since_s = max(self.missing.values())
        if self._overruled or len(self.missing) > 1:
            return since_s
        return since_s + self.delay_s

    def waited_for(self, now_s: float) -> set[str]:
        """The bookies that are missing and not to be given up yet."""
        due_s = self.due_s()
        return set(self.missing) if due_s is not None and due_s > now_s else set()

    def give_up(self, bookies: Collection[str]) -> None:
        """All ledgers of these are marked."""
        self._given_up.update(bookies)
        for bookie in bookies:
            self.missing.pop(bookie, None)
        self._overruled = False
