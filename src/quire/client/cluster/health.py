"""A client's record of unhealthy bookies: failures, slow answers, and wrong answers.

It decides the order in which bookies are asked and chosen, and what is reported. It never decides
whether data is valid. A bookie in quarantine is still asked if no other one is left.

    errors        `quarantine_errors` errors within `quarantine_window_s` lead to quarantine,
                  as with Apache's option `bookieHealthCheckEnabled`.
    slow          A speculative read of another bookie overtook the bookie.
    misbehaviour  An answer was wrong, as its digest or the other replicas show.

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
from quire.codec.entry.entry import BadEntryError, EntryCodec, WrongEntryError
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.config import ClientConfig
from quire.errors import QuireError

UNHEALTHY_MAX = 10_000
"""The largest number of pairs of a bookie and a kind of wrong answer that are counted. Further
pairs are only logged."""
REPORTED_MAX = 100_000
"""The largest number of replicas (a ledger on a bookie) that are remembered as reported for repair,
so that each is reported once. When it is reached, all of them are forgotten."""
LEVELS_MAX = 10_000
"""The largest number of replicas whose LAC is remembered, to detect that it decreases. When it is
reached, all of them are forgotten."""

OnDamage = Callable[[int, Sequence[str]], Awaitable[object]]
"""A function that receives a ledger id, and the ids of the bookies whose replicas need repair."""


class Misbehaviour(enum.StrEnum):
    """The kinds of wrong answers that a bookie can give."""

    BAD_DIGEST = "bad-digest"
    """The bytes of an entry do not match its digest."""
    WRONG_ENTRY = "wrong-entry"
    """The digest is valid, but the entry is another one than the client asked for, or most other
    replicas have another content."""
    MISSING = "missing"
    """The bookie denies an entry of a closed ledger that another replica has.

    The bookie has repeated the denial each time it was asked again (it is not asked again if
    `absence_recheck_s` is 0). It may never have had the entry.
    """
    DROPPED = "dropped"
    """The bookie denies an entry of a closed ledger, although every member of the entry's write set
    has acknowledged it.

    This assumes that no ledger id is used again. If an entry is left over from a deleted
    ledger with the same id, a bookie without it is reported although it has dropped nothing. The
    protocol cannot distinguish the two cases.
    """
    STALE_LAC = "stale-lac"
    """The bookie proved a LAC that is lower than one that it proved before for the same ledger."""


class Avoided(enum.StrEnum):
    """The reasons why a client avoids a bookie for a while, if others are left."""

    WRONG_ANSWERS = "wrong-answers"
    """It is in quarantine, because it gave an answer that no correct bookie gives."""
    ERRORS = "errors"
    """It is in quarantine, because it failed `quarantine_errors` requests."""
    FAILED = "failed"
    """It failed a request, refused it, or left it unanswered."""
    SLOW = "slow"
    """Another bookie answered a read sooner, although it was asked later."""


PROVEN = frozenset({Misbehaviour.BAD_DIGEST, Misbehaviour.WRONG_ENTRY, Misbehaviour.DROPPED})
"""The kinds of wrong answers that no honest bookie with a good disk gives, if ledger ids are not
used again. Each of them leads to quarantine, unless `quarantine_liars` is false."""
REPAIRABLE = PROVEN | {Misbehaviour.MISSING}
"""The kinds of wrong answers after which the replica is reported to `on_damage` for repair."""


@dataclass(frozen=True, slots=True)
class UnhealthyBookie:
    """A bookie that gave this client wrong answers of one kind.

    Attributes:
        bookie: The id of the bookie.
        kind: The kind of wrong answer.
        count: The number of these answers.
        last_ledger: The ledger id of the last wrong answer.
        last_entry: The entry id of the last wrong answer. It is -1 if the client had asked for the
            last entry or the LAC.
    """

    bookie: str
    kind: Misbehaviour
    count: int
    last_ledger: int
    last_entry: int


class BookieHealth:
    """The health of all bookies, as one client sees it. `now` is its clock, in seconds."""

    def __init__(self, config: ClientConfig, now: Callable[[], float], tasks: TaskSet) -> None:
        self._config = config
        self._now = now
        self._tasks = tasks
        self.on_damage: OnDamage | None = None
        self.unreported = 0
        """The number of calls of `on_damage` that failed."""
        self._errors: dict[str, deque[float]] = {}
        self._quarantined_until: dict[str, float] = {}
        self._accused_until: dict[str, float] = {}
        """When the quarantine of each bookie ends that gave a wrong answer."""
        self._slow_until: dict[str, float] = {}
        self._failed_until: dict[str, float] = {}
        """For how long each bookie that failed a request is not chosen for new ensembles."""
        self._unhealthy: dict[tuple[str, Misbehaviour], UnhealthyBookie] = {}
        self._reported: set[tuple[int, str]] = set()
        self._levels: dict[tuple[int, str], int] = {}
        self._absences = Absences(config, tasks)

    # -- what was seen ------------------------------------------------------------------------

    def error(self, bookie: str) -> None:
        """Record that a bookie failed, refused a request, or left it unanswered.

        `quarantine_errors` such errors within `quarantine_window_s` put the bookie into quarantine.
        """
        limit, now = self._config.quarantine_errors, self._now()
        self._failed_until[bookie] = now + self._config.avoid_failed_bookie_s
        if limit < 1:
            return
        times = self._errors.setdefault(bookie, deque(maxlen=limit))
        times.append(now)
        if len(times) == limit and now - times[0] <= self._config.quarantine_window_s:
            times.clear()
            self._quarantine(bookie, errors=limit)

    def overtaken(self, bookie: str) -> None:
        """Record that another bookie answered a read sooner, although it was asked later.

        The bookie counts as slow for `slow_bookie_s`.
        """
        self._slow_until[bookie] = self._now() + self._config.slow_bookie_s

    def misbehaved(self, bookie: str, kind: Misbehaviour, ledger_id: int, entry_id: int) -> None:
        """Record a wrong answer of a bookie about an entry of a ledger.

        Depending on the kind, the bookie is put into quarantine (`PROVEN`), and the replica is
        reported for repair (`REPAIRABLE`). `entry_id` is -1 if the last entry or the LAC was asked.
        """
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
            self._accused_until[bookie] = self._quarantined_until[bookie]
        if kind in REPAIRABLE:
            self._report(ledger_id, bookie)

    def bad_entry(
        self,
        bookie: str,
        error: BadEntryError,
        metadata: LedgerMetadata,
        codec: EntryCodec,
        entry_id: int,
    ) -> None:
        """Record that the bytes of an entry or a LAC failed verification with `codec`.

        A wrong digest blames the bookie only if the metadata of the ledger has the password, with
        which it also has the digest type. Otherwise this client may verify with a wrong type or a
        wrong key, and nothing is recorded. `entry_id` is -1 if the last entry or the LAC was asked.
        """
        if isinstance(error, WrongEntryError):
            self.misbehaved(bookie, Misbehaviour.WRONG_ENTRY, codec.ledger_id, entry_id)
        elif metadata.password is not None:
            self.misbehaved(bookie, Misbehaviour.BAD_DIGEST, codec.ledger_id, entry_id)

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

        The bookie is asked again in the background with `ask_again`, because it may merely lag. If
        it repeats the denial, that is recorded as a wrong answer. `acknowledged` says that every
        member has acknowledged the entry. Then no member can lag, and the bookie is asked only once
        more, mainly to see in the metadata whether it is still a member.
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
        """Record a LAC of an open ledger that a bookie has proved by a digest.

        The LAC of an honest bookie never decreases while the ledger is written. It may decrease
        while the ledger is recovered. So a decrease counts as `STALE_LAC`, but does not lead to
        quarantine.
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
        """Return whether another bookie overtook this one within the last `slow_bookie_s`."""
        return self._lasts(self._slow_until, bookie)

    def in_quarantine(self) -> list[str]:
        """Return the ids of the bookies that are in quarantine now."""
        return [bookie for bookie in list(self._quarantined_until) if self.quarantined(bookie)]

    def avoided(self) -> list[tuple[str, Avoided]]:
        """Return the bookies that the client avoids now, each with the reasons. Any thread may ask.

        A bookie that failed counts for `avoid_failed_bookie_s` after its last failure.
        """
        now = self._now()
        ends = {
            Avoided.WRONG_ANSWERS: self._accused_until,
            Avoided.ERRORS: self._quarantined_until,
            Avoided.FAILED: self._failed_until,
            Avoided.SLOW: self._slow_until,
        }
        found = [
            (bookie, reason)
            for reason, until in ends.items()
            for bookie, end in list(until.items())
            if end > now
        ]
        # One quarantine has one reason.
        accused = {bookie for bookie, reason in found if reason is Avoided.WRONG_ANSWERS}
        return sorted(one for one in found if one[1] is not Avoided.ERRORS or one[0] not in accused)

    def unhealthy(self) -> list[UnhealthyBookie]:
        """Return a record for each bookie and kind of wrong answer, sorted by bookie and kind."""
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
        until.pop(bookie, None)
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
