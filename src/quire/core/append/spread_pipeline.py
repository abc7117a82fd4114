"""An add pipeline that also requires acknowledgements from several fault domains.

An entry is confirmed once an ack quorum has it in `domains_min` racks or zones, or in all that its
write set spans. Only writers that ask for this use the class; others pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quire.core.append.pipeline import AddPipeline
from quire.core.placement.search import windows


class SpreadPipeline(AddPipeline):
    """An add pipeline that also requires acknowledgements from several fault domains."""

    __slots__ = ("_domains", "_domains_min")

    def spread_over(self, domains: Sequence[str], domains_min: int) -> None:
        """Set the fault domain of each member, by index.

        Call this before the first entry. After an ensemble change, call it again while the pipeline
        is still frozen, so that nothing is confirmed with the old domains.

        Args:
            domains: The fault domain (rack or zone) of each ensemble member.
            domains_min: The number of different fault domains that must have an entry before it is
                confirmed. A write set that spans fewer domains needs all of its domains.
        """
        assert len(domains) == self._ensemble_size
        self._domains = tuple(domains)
        self._domains_min = domains_min

    def stored_through(self) -> int:
        size = self._ensemble_size
        first_open = self.last_pushed + 1
        groups = windows(size, self._write_quorum)
        for residue, window in enumerate(groups):
            through = self._spread_through(window)
            step = len(groups)
            # The first entry of this residue after `through`.
            candidate = through + 1 + (residue - through - 1) % step
            first_open = min(first_open, candidate)
        return first_open - 1

    def _spread_through(self, window: Sequence[int]) -> int:
        """Return the last entry up to which each entry is on enough members and fault domains.

        `window` has the ensemble indexes of one write set.
        """
        needed = self._needed(window)
        found: set[str] = set()
        ranked = sorted(window, key=lambda index: -self._next[index])
        for count, index in enumerate(ranked, 1):
            found.add(self._domains[index])
            if count >= self._ack_quorum and len(found) >= needed:
                return self._next[index] - 1
        raise AssertionError(
            "a bug in Quire: a whole write set does not span its own placement domains"
        )

    def _needed(self, window: Sequence[int]) -> int:
        return min(self._domains_min, len({self._domains[index] for index in window}))

    def spread_without(self, absent: Collection[int]) -> bool:
        """Return whether every write set spans enough fault domains without the absent members.

        `absent` has their ensemble indexes.
        """
        return all(
            len({self._domains[i] for i in window if i not in absent}) >= self._needed(window)
            for window in windows(self._ensemble_size, self._write_quorum)
        )
