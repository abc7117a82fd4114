"""The decision which bookies are lost, and when the auditor marks their ledgers for repair.

This module has no I/O, and receives the time as an argument. docs/explanation/autorecovery.md
describes the delay.

- A bookie that was known and is not registered is missing.
- With a delay, the auditor waits for a single missing bookie. If the bookie returns in time,
  nothing is copied. It does not wait for several missing bookies, because only one copy of a ledger
  may be left.
- The auditor does not wait for a missing bookie without a cookie, because somebody has taken it
  away, as a decommissioning does. It is given up at once, and the wait for another one goes on.
- A bookie that was given up is not waited for again, and no longer counts as missing, until it
  returns.
"""

from __future__ import annotations

from collections.abc import Collection


class LostBookies:
    """The bookies of a cluster that are missing, and until when the auditor waits for them."""

    def __init__(self, delay_s: int = 0) -> None:
        self.delay_s = delay_s
        self.missing: dict[str, float] = {}
        """The time at which each missing bookie was first missed, by bookie id."""
        self.waits = 0
        """The number of times that the auditor began to wait for a single missing bookie. Each
        absence of a bookie counts once."""
        self.returns = 0
        """The number of times that a bookie that was waited for returned before it was given
        up."""
        self.known: set[str] = set()
        """The bookies that belong to the cluster: those that were registered, have a cookie, or are
        named by a ledger."""
        self.registered: frozenset[str] = frozenset()
        """The bookies that were registered at the last call of `look`."""
        self._given_up: set[str] = set()
        self._taken_away: frozenset[str] = frozenset()
        """The bookies that had no cookie at the last call of `look`, if they were missing."""
        self._waited: set[str] = set()
        """The missing bookies that `waits` has counted."""
        self._overruled = False

    def learn(self, bookies: Collection[str]) -> None:
        """Add bookies that belong to the cluster, registered or not."""
        self.known.update(bookies)

    def gone(self, registered: Collection[str]) -> set[str]:
        """Return the known bookies that are not registered, without those that were given up."""
        return self.known.difference(registered) - self._given_up

    def look(
        self, registered: Collection[str], now_s: float, taken_away: Collection[str] = ()
    ) -> None:
        """Compare the known bookies with those that are registered at `now_s`.

        `now_s` is a time of any clock that does not go back, and the same clock must be used for
        `waited_for`. `taken_away` has the missing bookies that have no cookie.
        """
        self._taken_away = frozenset(taken_away)
        self.known.update(registered)
        self.registered = frozenset(registered)
        self._given_up.difference_update(registered)
        gone = self.gone(registered)
        for bookie in sorted(gone - self.missing.keys()):
            self.missing[bookie] = now_s
        for bookie in sorted(self.missing.keys() - gone):
            del self.missing[bookie]
            self.returns += bookie in self._waited
            self._waited.discard(bookie)
        if not self.missing:
            self._overruled = False
        begun = self.waited_for(now_s) - self._waited
        self.waits += len(begun)
        self._waited |= begun

    def set_delay(self, seconds: int) -> None:
        """Change the delay, also for a bookie that is already waited for."""
        self.delay_s = seconds

    def overrule(self) -> None:
        """End the wait for the bookies that are missing now, as an operator requested."""
        self._overruled = True

    def due_s(self) -> float | None:
        """Return when the next missing bookies are to be given up, or None if none are missing.

        The time is one of the clock of `look`, and may be in the past.
        """
        away = [at_s for bookie, at_s in self.missing.items() if bookie in self._taken_away]
        return min(away) if away else self.wait_until_s()

    def wait_until_s(self) -> float | None:
        """Return until when the auditor waits for missing bookies that may return.

        The result is None if there are none. The time may be in the past.
        """
        since = [at_s for bookie, at_s in self.missing.items() if bookie not in self._taken_away]
        if not since:
            return None
        since_s = max(since)
        if self._overruled or len(since) > 1:
            return since_s
        return since_s + self.delay_s

    def waited_for(self, now_s: float) -> set[str]:
        """Return the missing bookies that are not to be given up yet.

        `now_s` is a time of the clock of `look`.
        """
        until_s = self.wait_until_s()
        if until_s is None or until_s <= now_s:
            return set()
        return self.missing.keys() - self._taken_away

    def give_up(self, bookies: Collection[str]) -> None:
        """Stop counting bookies as missing until they return, once their ledgers are marked."""
        self._given_up.update(bookies)
        for bookie in bookies:
            self.missing.pop(bookie, None)
            self._waited.discard(bookie)
        self._overruled = False
