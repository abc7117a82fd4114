"""A client's record of unhealthy bookies: failures, slow answers, and wrong answers.

It decides the order in which bookies are asked and chosen, and what is reported. It never decides
whether data is valid. A bookie in quarantine is still asked if no other one is left.

    errors        `quarantine_errors` errors within `quarantine_window_s` lead to quarantine,
                  as with Apache's option `bookieHealthCheckEnabled`
    slow          a speculative read of another bookie overtook the bookie
    misbehaviour  an answer was wrong, as its digest or the other replicas show

A replica that lacks an entry is not always at fault. An entry of a closed ledger is on an ack
quorum of its write set, not on all of it (rule 40), so a member that was away when it was written
truthfully denies it. Only if ack quorum and write quorum are equal has every member acknowledged
the entry; then the denial is misbehaviour. Either way the bookie is asked again first
(`quire.client.cluster.absences`), because a replica that merely lags is not missing.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from quire._runtime.tasks import TaskSet
from quire.client.cluster.absences import CHECKS, Absences, AskAgain
from quire.client.observability.logs import Field, log_event
from quire.codec.entry.entry import BadEntryError, WrongEntryError
from quire.config import ClientConfig
from quire.errors import QuireError

UNHEALTHY_MAX = 10_000
"""The number of pairs of a bookie and a kind that are counted. More are only logged."""
REPORTED_MAX = 100_000
"""The number of replicas (a ledger on a bookie) reported for repair that are remembered, so that
each is reported once. When it is reached, all of them are forgotten."""
LEVELS_MAX = 10_000
"""The number of replicas whose LAC is remembered, to detect that it decreases."""

OnDamage = Callable[[int, Sequence[str]], Awaitable[object]]
"""A function that receives a ledger and the bookies whose replicas of it need repair."""


class Misbehaviour(enum.StrEnum):
    """The kinds of wrong answers that a bookie can give."""

    BAD_DIGEST = "bad-digest"
    """The bytes of an entry do not match its digest."""
    WRONG_ENTRY = "wrong-entry"
    """The digest is valid, but the entry is another one than the client asked for, or most other
    replicas have another content."""
    MISSING = "missing"
    """The bookie repeatedly denies an entry of a closed ledger that another replica has.

    It may never have had the entry.
    """
    DROPPED = "dropped"
    """The bookie denies an entry of a closed ledger, although every member of the entry's write set
    has acknowledged it."""
    STALE_LAC = "stale-lac"
    """The bookie proved a LAC that is lower than one that it proved before for the same ledger."""


PROVEN = frozenset({Misbehaviour.BAD_DIGEST, Misbehaviour.WRONG_ENTRY, Misbehaviour.DROPPED})
"""The kinds that no honest bookie with a good disk produces. Each is a reason for quarantine."""
REPAIRABLE = PROVEN | {Misbehaviour.MISSING}
"""The kinds that are reported, so that the replica is repaired."""


def misbehaviour_of(error: BadEntryError) -> Misbehaviour:
    """Return the kind of misbehaviour that this error shows."""
    wrong = isinstance(error, WrongEntryError)
    return Misbehaviour.WRONG_ENTRY if wrong else Misbehaviour.BAD_DIGEST


@dataclass(frozen=True, slots=True)
class UnhealthyBookie:
    """A bookie that gave this client wrong answers of one kind.

    Attributes:
        bookie: The id of the bookie.
        kind: The kind of wrong answer.
        count: The number of these answers.
        last_ledger: The ledger of the last one.
        last_entry: The entry of the last one, or -1 if it concerned the last entry or the LAC.
    """

    bookie: str
    kind: Misbehaviour
    count: int
    last_ledger: int
    last_entry: int


class BookieHealth:
    """The health of all bookies, as one client sees it. Times are those of `now`, in seconds."""

    def __init__(self, config: ClientConfig, now: Callable[[], float], tasks: TaskSet) -> None:
        self._config = config
        self._now = now
        self._tasks = tasks
        self.on_damage: OnDamage | None = None
        self.unreported = 0
        """The number of replicas that could not be reported to `on_damage`."""
        self._errors: dict[str, deque[float]] = {}
        self._quarantined_until: dict[str, float] = {}
        self._slow_until: dict[str, float] = {}
        self._unhealthy: dict[tuple[str, Misbehaviour], UnhealthyBookie] = {}
        self._reported: set[tuple[int, str]] = set()
        self._levels: dict[tuple[int, str], int] = {}
        self._absences = Absences(config, tasks)

    # -- what was seen ------------------------------------------------------------------------

    def error(self, bookie: str) -> None:
        """Record that the bookie failed, refused a request, or left it unanswered."""
        limit = self._config.quarantine_errors
        if limit < 1:
            return
        now = self._now()
        times = self._errors.setdefault(bookie, deque(maxlen=limit))
        times.append(now)
        if len(times) == limit and now - times[0] <= self._config.quarantine_window_s:
            times.clear()
            self._quarantine(bookie, errors=limit)

    def overtaken(self, bookie: str) -> None:
        """Record that another bookie, asked later, answered earlier."""
        self._slow_until[bookie] = self._now() + self._config.slow_bookie_s

    def misbehaved(self, bookie: str, kind: Misbehaviour, ledger_id: int, entry_id: int) -> None:
        """Record a wrong answer, and report the replica for repair if it needs one."""
        key = bookie, kind
        known = self._unhealthy.get(key)
        count = 1 if known is None else known.count + 1
        if known is not None or len(self._unhealthy) < UNHEALTHY_MAX:
            self._unhealthy[key] = UnhealthyBookie(bookie, kind, count, ledger_id, entry_id)
        # Log at 1, 10, 100 ..., because a broken bookie gives many wrong answers.
        if str(count).strip("0") == "1":
            log_event(
                logging.WARNING, "bookie_misbehaved", bookie=bookie, kind=kind.value, count=count,
                ledger=ledger_id, entry=entry_id,
            )  # fmt: skip
        if kind in PROVEN and self._config.quarantine_liars:
            self._quarantine(bookie, kind=kind.value)
        if kind in REPAIRABLE:
            self._report(ledger_id, bookie)

    def denied(
        self,
        bookie: str,
        ledger_id: int,
        entry_id: int,
        ask_again: AskAgain,
        *,
        acknowledged: bool,
    ) -> None:
        """Record that a bookie denies an entry of a closed ledger which another replica has.

        This has no effect until the bookie has denied the entry again, because it may merely lag
        (`absences`). `acknowledged` says that every member has acknowledged the entry. Then no
        member can lag, and the bookie is asked only once more, mainly to see in the metadata
        whether it is still a member.
        """
        kind = Misbehaviour.DROPPED if acknowledged else Misbehaviour.MISSING
        self._absences.denied(
            bookie,
            ledger_id,
            entry_id,
            ask_again,
            lambda: self.misbehaved(bookie, kind, ledger_id, entry_id),
            1 if acknowledged else CHECKS,
        )

    @property
    def lagged(self) -> int:
        """The number of replicas that denied an entry and had it when they were asked again."""
        return self._absences.lagged

    def lac(self, bookie: str, ledger_id: int, lac: int) -> None:
        """Record the LAC of an open ledger that a bookie has proved.

        The LAC of an honest bookie never decreases while the ledger is written. It may while the
        ledger is recovered, so a decrease is reported but does not lead to quarantine.
        """
        key = ledger_id, bookie
        known = self._levels.get(key, -1)
        if lac < known:
            self.misbehaved(bookie, Misbehaviour.STALE_LAC, ledger_id, -1)
        elif lac > known:
            if key not in self._levels and len(self._levels) >= LEVELS_MAX:
                self._levels.clear()
            self._levels[key] = lac

    # -- what follows -------------------------------------------------------------------------

    def quarantined(self, bookie: str) -> bool:
        """Return whether placement and readers should avoid the bookie if there are others."""
        return self._lasts(self._quarantined_until, bookie)

    def slow(self, bookie: str) -> bool:
        """Return whether the bookie was slow recently."""
        return self._lasts(self._slow_until, bookie)

    def in_quarantine(self) -> list[str]:
        """Return the bookies in quarantine."""
        return [bookie for bookie in list(self._quarantined_until) if self.quarantined(bookie)]

    def unhealthy(self) -> list[UnhealthyBookie]:
        """Return the bookies with wrong answers, in the order of bookie and kind."""
        return [self._unhealthy[key] for key in sorted(self._unhealthy)]

    @property
    def unhealthy_count(self) -> int:
        """The number of pairs of a bookie and a kind of wrong answer. Any thread may ask."""
        return len(self._unhealthy)

    def _lasts(self, until: dict[str, float], bookie: str) -> bool:
        end = until.get(bookie)
        if end is None:
            return False
        if end > self._now():
            return True
        del until[bookie]
        return False

    def _quarantine(self, bookie: str, **why: Field) -> None:
        if not self.quarantined(bookie):
            seconds = self._config.quarantine_s
            log_event(logging.WARNING, "bookie_quarantined", bookie=bookie, **why, seconds=seconds)
        self._quarantined_until[bookie] = self._now() + self._config.quarantine_s

    def _report(self, ledger_id: int, bookie: str) -> None:
        if self.on_damage is None or (ledger_id, bookie) in self._reported:
            return
        if len(self._reported) >= REPORTED_MAX:
            self._reported.clear()
        self._reported.add((ledger_id, bookie))
        self._tasks.start(self._tell(self.on_damage, ledger_id, bookie))

    async def _tell(self, on_damage: OnDamage, ledger_id: int, bookie: str) -> None:
        try:
            await on_damage(ledger_id, [bookie])
        except QuireError as error:
            self.unreported += 1
            self._reported.discard((ledger_id, bookie))
            log_event(
                logging.WARNING, "damage_not_reported", bookie=bookie, ledger=ledger_id,
                error=str(error),
            )  # fmt: skip
