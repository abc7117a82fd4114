"""The settings and the counters of autorecovery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from quire._runtime.limits import Limits, PositiveInt, PositiveSeconds
from quire._runtime.retry import Backoff
from quire.config import MIB, CheckedSettings

BYTES_PER_S = 16 * MIB
"""The default rate, in bytes per second, at which one process copies and reads entries. It leaves
throughput to writers and readers."""
OPEN_GRACE_S = 30.0
"""The default time, in seconds, that the writer of an open ledger has to replace a lost bookie. It
is also the default in Java."""
BACKOFF_JITTER = 0.25
"""The largest share of a pause between two attempts that random jitter subtracts."""
PARALLEL = 4
"""The default number of ledgers that a job copies at the same time."""
TARGET_SPREAD_PERCENT = 10.0
"""The default difference between the fullest and the emptiest bookie up to which bookies count as
balanced, in percent of their mean."""


@dataclass(frozen=True, slots=True)
class AutorecoverySettings(CheckedSettings):
    """The settings of autorecovery. An interval of 0 means never.

    If Java has a setting with the same meaning, the default is Java's.
    """

    lost_bookie_delay_s: int = 0
    """Seconds that the auditor waits for a single lost bookie to return before its ledgers are
    repaired. If the metadata store has no delay yet, this value is stored there. From then on, the
    stored value applies; `quire autorecovery delay` changes it."""
    bookie_check_interval_s: float = 86_400.0
    """Seconds between two searches of all ledgers for bookies that are lost. Whatever this value
    is, an auditor also searches when it starts, and when it sees that a bookie is lost. 0: only
    then."""
    ledger_check_interval_s: float = 604_800.0
    """Seconds between two checks of the first and the last entry of every replica of every
    segment. A smaller value finds missing replicas sooner and reads more. 0: never."""
    ledger_check_percent: Annotated[float, Limits(0, 100)] = 0.0
    """The share of the other entries, in percent, that the check of the first and the last entry of
    every replica reads as well, but at most 1,000 entries of a replica of a segment. They are
    chosen at random."""
    replicas_check_interval_s: float = 0.0
    """Seconds between two checks that compare the entries that bookies report to have with those
    that they should have. 0: never."""
    placement_check_interval_s: float = 0.0
    """Seconds between two checks that count the ledgers whose placement does not follow the policy.
    0: never."""
    repair_placement: bool = False
    """Whether ledgers that violate the placement policy are repaired, if better bookies exist: the
    auditor's check of placement marks them, and workers move their entries. Set it on all
    processes: a worker without it removes the mark and moves nothing."""
    open_grace_s: float = OPEN_GRACE_S
    """Seconds that the writer of an open ledger has to replace a lost bookie by itself. If nothing
    happens to the ledger in that time, autorecovery fences and closes it. The time begins when
    there is a bookie that can replace the lost one."""
    backoff_s: float = 5.0
    """Seconds to wait after a failure with a ledger or of the metadata store. The wait doubles with
    each further failure, up to `backoff_max_s`."""
    backoff_max_s: float = 300.0
    """The longest wait, in seconds, between two attempts."""
    poll_s: PositiveSeconds = 5.0
    """The longest time, in seconds, between two searches for marked ledgers while a process has
    nothing to do. Random jitter subtracts up to a quarter of it."""
    ledgers_at_once: PositiveInt = 2
    """The number of ledgers that one process repairs at the same time."""
    bytes_per_s: Annotated[float, Limits(1)] | None = BYTES_PER_S
    """The rate at which one process copies entries, and reads them to examine replicas. A larger
    value restores the replicas sooner and leaves less throughput to clients. The rate is applied
    in slices of 8 ms. `"none"`: no limit."""

    @property
    def backoff(self) -> Backoff:
        """The pauses after failures, made of `backoff_s` and `backoff_max_s`."""
        return Backoff(self.backoff_s, self.backoff_max_s, BACKOFF_JITTER)

    @property
    def election_backoff(self) -> Backoff:
        """The pauses before a process becomes a candidate for auditor again."""
        return Backoff(self.backoff_s, self.backoff_s, BACKOFF_JITTER)


@dataclass(slots=True)
class AutorecoveryStats:
    """Counters of autorecovery since the process began."""

    elections_won: int = 0
    """The number of times that this process became the auditor."""
    sessions_lost: int = 0
    """The number of times that this process lost its session with the metadata store."""
    store_errors: int = 0
    """The number of times that the metadata store did not answer, or a value in it could not be
    decoded. Each is retried."""
    ledgers_unreadable: int = 0
    """The number of ledgers that the last pass of an auditor skipped, because it could not read
    their metadata or mark. 0 while this process is not the auditor."""
    marks_malformed: int = 0
    """The number of nodes in the tree of marks that are not marks, as of this worker's last full
    walk."""
    audits: int = 0
    """The number of completed searches of all ledgers for lost bookies."""
    bookies_waited_for: int = 0
    """The number of times that the auditor began to wait for a single missing bookie."""
    bookies_returned: int = 0
    """The number of times that a bookie that the auditor waited for returned before it was given up
    as lost."""
    ledgers_marked: int = 0
    """The number of ledgers that this auditor marked, for any reason."""
    ledger_checks: int = 0
    """The number of completed checks of the first and the last entry of every replica."""
    replicas_checks: int = 0
    """The number of completed checks of the entries that bookies report to have."""
    placement_checks: int = 0
    """The number of completed checks of the placement of all ledgers."""
    replicas_lagged: int = 0
    """The number of ledgers whose replicas lacked entries in a check, and were complete when the
    check of the ledger was repeated some seconds later."""
    replicas_missing: int = 0
    """The number of entries that bookies lacked in the last check of replicas. 0 while this process
    is not the auditor, and before its first check."""
    replicas_uncompared: int = 0
    """The number of replicas that the last check of replicas could not compare, because their
    bookies gave no list of entries. 0 while this process is not the auditor."""
    ledgers_misplaced: int = 0
    """The number of misplaced ledgers in the last check of placement. 0 while this process is not
    the auditor."""
    fragments_moved: int = 0
    """The number of fragments that were moved to follow the placement policy."""
    ledgers_done: int = 0
    """The number of marked ledgers whose replicas were restored, or that were deleted."""
    ledgers_failed: int = 0
    """The number of failed attempts to repair a ledger."""
    ledgers_fenced: int = 0
    """The number of ledgers that were fenced because their writers were taken for dead."""
    locks_missed: int = 0
    """The number of times that another process was repairing a ledger already."""
    replicas_read: int = 0
    """The number of entries that were read to find out whether a bookie has them."""
    replicas_repaired: int = 0
    """The number of entries that were written back to the bookie that lacked them."""
    fragments: int = 0
    """The number of fragments in which a bookie was replaced, for whatever reason."""
    entries_copied: int = 0
    """The number of entries that were written to bookies."""
    bytes_copied: int = 0
    """The bytes of payload that were written to bookies."""
