"""The laws that hold whatever happens, checked at each event and at the end.

A law is a function that says what is wrong, or None. Those of one ledger look at its `Facts` after
every record of it and every change of its metadata; those of the whole look at metadata and disks
once all is quiet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quire.codec.ledger_metadata import LedgerMetadata
from quire.core.quorum import write_set
from quire.errors import NoSuchLedgerError, StorageError
from quire.storage.signals import NoLedger
from quire.testing.simulation.history import History, Record
from quire.testing.simulation.world import World


class LawError(Exception):
    """A law does not hold."""

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"{law}: {what}")
        self.law = law
        self.what = what


def _nothing() -> int:
    return -1


@dataclass
class Facts:
    """What is known of one ledger."""

    ledger_id: int
    handle_confirmed: Callable[[], int] = _nothing
    """The last entry that the writer's handle counts as acknowledged: also what the writer was
    not told yet."""
    acked: int = -1
    lac_seen: int = -1
    read_last: int = -1
    closes: list[tuple[int, int]] = field(default_factory=list)
    """(last entry, length) of each different close that was stored or seen."""
    acked_at_close: int = -1
    deleted: bool = False
    """Or about to be."""
    wrong: str = ""
    """An entry that was read and was not what had been appended."""
    denied: str = ""
    """An explicit "no" for something that is there."""
    segments: tuple[object, ...] = ()

    @property
    def confirmed(self) -> int:
        return max(self.acked, self.handle_confirmed())

    @property
    def closed_at(self) -> int | None:
        return self.closes[0][0] if self.closes else None


# -- laws of one ledger -----------------------------------------------------------------------


def acknowledged_is_kept(facts: Facts) -> str | None:
    """An acknowledged append is part of the closed ledger."""
    end = facts.closed_at
    if end is not None and end < facts.acked_at_close:
        return f"closed at {end}, but {facts.acked_at_close} had been acknowledged"
    return None


def nothing_acknowledged_beyond_the_close(facts: Facts) -> str | None:
    end = facts.closed_at
    if end is not None and facts.confirmed > end:
        return f"{facts.confirmed} was acknowledged, the ledger was closed at {end}"
    return None


def lac_is_acknowledged(facts: Facts) -> str | None:
    """LAC never passes the prefix that was acknowledged or recovered."""
    known = max(facts.confirmed, -1 if facts.closed_at is None else facts.closed_at)
    if facts.lac_seen > known:
        return f"LAC {facts.lac_seen} was seen, acknowledged or recovered is {known}"
    return None


def lac_is_within_the_close(facts: Facts) -> str | None:
    end = facts.closed_at
    if end is not None and facts.lac_seen > end:
        return f"LAC {facts.lac_seen} was seen, the ledger was closed at {end}"
    return None


def what_was_read_stays(facts: Facts) -> str | None:
    end = facts.closed_at
    if end is not None and facts.read_last > end:
        return f"entry {facts.read_last} was read, the ledger was closed at {end}"
    return None


def one_close_wins(facts: Facts) -> str | None:
    if len(facts.closes) > 1:
        return f"closed more than once: {facts.closes}"
    return None


def entries_are_what_was_appended(facts: Facts) -> str | None:
    return facts.wrong or None


def no_false_absence(facts: Facts) -> str | None:
    return facts.denied if facts.denied and not facts.deleted else None


LEDGER_LAWS: tuple[Callable[[Facts], str | None], ...] = (
    one_close_wins,
    acknowledged_is_kept,
    nothing_acknowledged_beyond_the_close,
    lac_is_acknowledged,
    lac_is_within_the_close,
    what_was_read_stays,
    entries_are_what_was_appended,
    no_false_absence,
)


class Checker:
    """Follows a history and the metadata; `broken` is the first law that did not hold."""

    def __init__(self, world: World, history: History, on_broken: Callable[[], None]) -> None:
        self.world = world
        self.ledgers: dict[int, Facts] = {}
        self.broken: LawError | None = None
        self.checks = 0
        self._on_broken = on_broken
        history.listener = self.heard
        world.cluster.observer = self.stored

    def facts(self, ledger_id: int) -> Facts:
        found = self.ledgers.get(ledger_id)
        if found is None:
            found = self.ledgers[ledger_id] = Facts(ledger_id)
        return found

    def fail(self, law: str, what: str) -> None:
        # What the clients of a world that is over do, when they are cleared away, is nothing.
        if self.broken is None and not self.world.loop.is_closed():
            self.broken = LawError(law, what)
            self.world.trace.record("checker", "broken", law=law, what=what)
            self._on_broken()

    def check(self, facts: Facts) -> None:
        self.checks += 1
        for law in LEDGER_LAWS:
            wrong = law(facts)
            if wrong is not None:
                self.fail(law.__name__, f"ledger {facts.ledger_id}: {wrong}")

    def check_all(self) -> None:
        for facts in self.ledgers.values():
            self.check(facts)

    # -- what happens -------------------------------------------------------------------------

    def heard(self, record: Record) -> None:
        if record.ledger_id < 0:
            return
        facts = self.facts(record.ledger_id)
        match record.kind:
            case "acked":
                facts.acked = max(facts.acked, record.last)
            case "observe":
                facts.lac_seen = max(facts.lac_seen, record.last)
            case "read":
                facts.read_last = max(facts.read_last, record.last)
            case "wrong":
                facts.wrong = facts.wrong or f"{record.client}: {record.note}"
            case "denied":
                facts.denied = facts.denied or f"{record.client}: {record.note}"
            case "delete":
                facts.deleted = True
            case "recovered":
                self._closed(facts, record.last, None)
        self.check(facts)

    def stored(self, ledger_id: int) -> None:
        """The metadata of a ledger was changed."""
        facts = self.facts(ledger_id)
        if ledger_id not in self.world.cluster.ledgers:
            return
        metadata = self.world.cluster.ledger(ledger_id).value
        segments = ",".join(f"{s.first_entry_id}:{'/'.join(s.ensemble)}" for s in metadata.segments)
        self.world.trace.record(
            "metadata", metadata.state.name, ledger=ledger_id,
            last=metadata.last_entry_id, segments=segments,
        )  # fmt: skip
        if metadata.closed:
            self._closed(facts, metadata.last_entry_id, metadata.length)
        elif facts.closes:
            self.fail(one_close_wins.__name__, f"ledger {ledger_id}: opened after its close")
        self.check(facts)

    def _closed(self, facts: Facts, last: int, length: int | None) -> None:
        if not facts.closes:
            facts.acked_at_close = facts.confirmed
        if all(last != known[0] or length not in (None, known[1]) for known in facts.closes):
            facts.closes.append((last, -1 if length is None else length))

    # -- the end ------------------------------------------------------------------------------

    async def replicated(self, destroyed: frozenset[str]) -> None:
        """Every entry that was acknowledged, or is part of a closed ledger, is on `ack_quorum`
        bookies of the write set that the metadata names, less those that were destroyed."""
        for ledger_id, facts in self.ledgers.items():
            if facts.deleted:
                continue
            try:
                metadata = self.world.cluster.ledger(ledger_id).value
            except NoSuchLedgerError:
                self.fail("live_ledgers_are_known", f"ledger {ledger_id} is gone")
                continue
            held = {
                f"{name}:3181": await self._held(name, ledger_id) for name in self.world.bookies
            }
            end = metadata.last_entry_id if metadata.closed else facts.confirmed
            for entry_id in range(end + 1):
                missing = lacking(metadata, entry_id, held, destroyed)
                if missing:
                    self.fail("replicated", f"ledger {ledger_id} entry {entry_id}: {missing}")
                    break

    async def _held(self, name: str, ledger_id: int) -> set[int]:
        try:
            ranges = await self.world.bookies[name].store.entry_ranges(ledger_id)
        except (NoLedger, StorageError):  # damaged is as good as lost here
            return set()
        return {entry for first, last in ranges for entry in range(first, last + 1)}

    def garbage_is_collected(self) -> None:
        for ledger_id, facts in self.ledgers.items():
            if not facts.deleted or ledger_id in self.world.cluster.ledgers:
                continue
            for name, bookie in self.world.bookies.items():
                if ledger_id in bookie.store.ledgers:
                    self.fail("garbage_is_collected", f"deleted ledger {ledger_id} is on {name}")


def lacking(
    metadata: LedgerMetadata,
    entry_id: int,
    held: Mapping[str, set[int]],
    destroyed: frozenset[str],
) -> str | None:
    ensemble = metadata.segment_of(entry_id).ensemble
    members = [
        ensemble[index]
        for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
    ]
    lost = [member for member in members if member.partition(":")[0] in destroyed]
    have = [m for m in members if m not in lost and entry_id in held.get(m, ())]
    if len(have) >= metadata.ack_quorum - len(lost):
        return None
    return f"held by {have or 'nobody'} of {members}, ack quorum {metadata.ack_quorum}"
