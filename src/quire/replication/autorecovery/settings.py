"""Every limit of autorecovery, with its unit, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from quire._runtime.limits import Limits, PositiveInt, PositiveSeconds
from quire._runtime.retry import Backoff
from quire.config import MIB, CheckedSettings

BYTES_PER_S = 16 * MIB
"""Of a process, unless it is told otherwise: so much leaves room for who writes and reads."""
OPEN_GRACE_S = 30.0
"""How long the writer of an open ledger has to replace a lost bookie by itself: as Java's."""
BACKOFF_JITTER = 0.25
"""The largest share of a pause between two attempts that random jitter subtracts."""
PARALLEL = 4
"""Ledgers that a job copies at one time."""
TARGET_SPREAD_PERCENT = 10.0
"""Bookies whose space differs by so much, in percent of the mean, are in balance."""


@dataclass(frozen=True, slots=True)
class AutorecoverySettings(CheckedSettings):
    """Intervals of 0 mean never. Where Java has a setting of the same meaning, the default is
    Java's."""

    lost_bookie_delay_s: int = 0
    """How long a single lost bookie is waited for, in a cluster that has not set it: afterwards
    what the metadata store holds counts (`quire autorecovery delay`)."""
    bookie_check_interval_s: float = 86_400.0
    """Between two looks at all ledgers for bookies that are not there."""
    ledger_check_interval_s: float = 604_800.0
    """Between two checks of the first and the last entry of every replica of every fragment."""
    ledger_check_percent: Annotated[float, Limits(0, 100)] = 0.0
    """So many of the other entries are read in that check, by chance."""
    replicas_check_interval_s: float = 0.0
    """Between two checks of which entries bookies say that they have."""
    placement_check_interval_s: float = 0.0
    """Between two counts of ledgers whose placement is not what the policy wants."""
    repair_placement: bool = False
    """Auditors mark what they find by that, where other bookies would do, and workers move it."""
    open_grace_s: float = OPEN_GRACE_S
    """How long the writer of an open ledger has to replace a lost bookie by itself. A ledger to
    which nothing happens in that time is fenced and closed."""
    backoff_s: float = 5.0
    """After a failure with a ledger, or of the metadata store. It doubles with each one in a row,
    up to `backoff_max_s`."""
    backoff_max_s: float = 300.0
    """The longest wait between two attempts."""
    poll_s: PositiveSeconds = 5.0
    """Between two looks for marked ledgers where nothing was to do."""
    ledgers_at_once: PositiveInt = 2
    """That one process works on."""
    bytes_per_s: Annotated[float, Limits(1)] | None = BYTES_PER_S
    """What one process copies, and reads to compare, in slices of 8 ms each. None: no bound."""

    @property
    def backoff(self) -> Backoff:
        """The pauses after failures."""
        return Backoff(self.backoff_s, self.backoff_max_s, BACKOFF_JITTER)

    @property
    def election_backoff(self) -> Backoff:
        """The pauses before a process stands for auditor again."""
        return Backoff(self.backoff_s, self.backoff_s, BACKOFF_JITTER)


@dataclass(slots=True)
class AutorecoveryStats:
    """Since the process began. What is not said to be otherwise counts events."""

    elections_won: int = 0
    sessions_lost: int = 0
    store_errors: int = 0
    """The metadata store did not answer, or what it holds was not understood: tried again."""
    ledgers_unreadable: int = 0
    """The number of ledgers that the last pass of this auditor skipped, because it could not read
    their metadata or mark."""
    marks_malformed: int = 0
    """The number of nodes in the tree of marks that are not marks, as of this worker's last full
    walk."""
    audits: int = 0
    """For lost bookies, that came to their end."""
    bookies_waited_for: int = 0
    bookies_returned: int = 0
    """While they were waited for: nothing was copied."""
    ledgers_marked: int = 0
    """By our auditor, for any reason."""
    ledger_checks: int = 0
    replicas_checks: int = 0
    placement_checks: int = 0
    replicas_lagged: int = 0
    """The number of ledgers whose replicas were short in a check, and whole when it asked again."""
    replicas_missing: int = 0
    """Entries that bookies lacked, of the last check of replicas."""
    ledgers_misplaced: int = 0
    """Of the last check of placement."""
    fragments_moved: int = 0
    """To where the placement policy wants them."""
    ledgers_done: int = 0
    """Marked ledgers that lack nothing any more."""
    ledgers_failed: int = 0
    """Attempts that failed."""
    ledgers_fenced: int = 0
    """Whose writers were taken for dead."""
    locks_missed: int = 0
    """Somebody else had the ledger."""
    replicas_read: int = 0
    """Entries that were read to see whether a living bookie has them."""
    replicas_repaired: int = 0
    """Entries that were written again to the bookie that lacked them."""
    fragments: int = 0
    """In which a bookie was replaced."""
    entries_copied: int = 0
    bytes_copied: int = 0
    """Payload that was written to bookies."""
