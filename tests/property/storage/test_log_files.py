"""A store whose log files are deleted, exchanged or restored never denies what it acknowledged.

Stores live through random histories of adds, fences, deletions, compactions, stops and repairs.
Between two starts, somebody changes single files of the log. After each start, an acknowledged
entry or fence is there, or the store says that its absence proves nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire.errors import DamagedError
from quire.storage.read.read_exceptions import NoEntry, NoLedger
from quire.storage.recovery.incarnation import ExpectedLog
from quire.storage.recovery.log_recovery import LogRecovery
from quire.storage.recovery.replay import Replayer
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.segment import LOG_DIRECTORY, segment_name
from quire_simulator.faults.log_files import CHANGES, begun_segments, restore_of
from tests.sim.mutants.mutant import edit
from tests.support.storage.storage import SMALL, StoreOnDisk, disk_of, entries, sim_disk

CONFIG = replace(
    SMALL,
    segment_bytes=32 * 1024,
    compact_minor_interval_s=0.0,
    compact_major_interval_s=0.0,
    index_cache_interval_s=0.0,
    index_cache_segments=2,
)
HISTORIES = 30
STARTS = 12
LEDGERS = 4
"""The number of ledgers that are written at the same time."""


class History(StoreOnDisk):
    """One store, and what somebody does to its files."""

    def __init__(self, seed: int) -> None:
        super().__init__(sim_disk(seed, cold_read_probability=0.0), CONFIG)
        self.rng = random.Random(seed)
        self.expected = ExpectedLog()
        self.steps: list[str] = []
        self.losses = self.repairs = 0
        self._ledgers = list(range(1, LEDGERS + 1))
        self._next = dict.fromkeys(self._ledgers, 0)
        """The next entry id of each ledger."""
        self._exchanged: tuple[str, str] | None = None

    def before_recovery(self) -> None:
        self.store.expect(self.store.path, self.expected)

    def run(self) -> None:
        self.open()
        for _ in range(STARTS):
            self._live()
            self._stop()
            self.open()
            self.losses += self.store.negatives_unknown
            self._check()
            if self.store.negatives_unknown and self.rng.random() < 0.5:
                self._repair()

    def _live(self) -> None:
        """Do some of what a bookie does between two starts."""
        for _ in range(self.rng.randrange(8)):
            kind = self.rng.random()
            if kind < 0.65:
                for _ in range(self.rng.randrange(1, 12)):
                    self._add()
            elif kind < 0.75:
                self.fence(self.rng.choice(self._ledgers))
            elif kind < 0.9:
                at = self.rng.randrange(LEDGERS)
                self.drop([self._ledgers[at]])
                self._ledgers[at] = max(self._ledgers) + 1
            else:
                self.store.check_space()
            (self.pump if self.rng.random() < 0.7 else self.idle)()

    def _add(self) -> None:
        ledger_id = self.rng.choice(self._ledgers)
        first = self._next.setdefault(ledger_id, 0)
        count, payload_bytes = self.rng.randrange(1, 9), self.rng.randrange(200)
        self._next[ledger_id] += count
        self.append(entries(ledger_id, first, count, payload_bytes), reserve=True)
        self.pump()

    def _stop(self) -> None:
        """Stop in some way, after the bookie has reported the end of its log, and change a file."""
        disk = disk_of(self)
        strike = self.rng.random() < 0.6
        restore = restore_of(disk, self.rng) if strike and self.rng.random() < 0.3 else None
        if restore is not None:
            self._live()
        self.pump()
        self.expected = ExpectedLog(self.store.positions()[self.store.path])
        how = self.rng.choice(["close", "close", "kill", "crash"])
        if how == "close":
            self.close()
        getattr(disk, "kill" if how == "close" else how)()
        what = "nothing"
        if restore is not None:
            what = f"old segment: {restore(disk)}"
        elif strike:
            what = self.rng.choice([*CHANGES, "exchange back"])
            before = begun_segments(disk)
            if what == "exchange back":
                self._exchange()
            elif what == "swap segments":
                if len(before) > 1:
                    one, other = map(segment_name, self.rng.sample(before, 2))
                    self._exchanged = one, other
                    self._exchange()
            else:
                CHANGES[what](self.rng)(disk)
            what = f"{what} of {before} -> {begun_segments(disk)}"
        self.steps.append(f"{how}, {what}")

    def _exchange(self) -> None:
        disk = disk_of(self)
        if self._exchanged is None or not all(map(disk.exists, self._exchanged)):
            return
        one, other = self._exchanged
        aside = f"{LOG_DIRECTORY}/aside"
        for old, new in ((one, aside), (other, one), (aside, other)):
            disk.rename(old, new)
        disk.sync_directory(LOG_DIRECTORY)

    def _absent(self) -> list[tuple[int, int]]:
        found = []
        for (ledger_id, entry_id), entry in self.acknowledged.items():
            try:
                assert self.read(ledger_id, entry_id) == [entry]
            except (NoLedger, NoEntry):
                found.append((ledger_id, entry_id))
            except DamagedError:
                pass
        return found

    def _check(self) -> None:
        self.steps.append(str(self.report))
        if self.store.negatives_unknown:
            return
        absent = self._absent()
        assert not absent, f"denies {absent[0]} .. {absent[-1]}: " + "\n".join(self.steps)
        for ledger_id in self.fenced:
            assert self.store.ledgers[ledger_id].fenced, "\n".join((*self.steps, str(ledger_id)))

    def _repair(self) -> None:
        """Restore what is absent, as autorecovery does."""
        for ledger_id, entry_id in self._absent():
            payload = self.written[ledger_id, entry_id][32:]
            self.append([(ledger_id, entry_id, payload)], reserve=True)
            self.pump()
        for ledger_id in list(self.fenced):
            self.fence(ledger_id)
        self.pump()
        self.store.mark_repaired(lambda error: None)
        (self.pump if self.rng.random() < 0.5 else self.idle)()
        self.repairs += 1
        self.steps.append("repaired")
        assert not self.store.negatives_unknown
        assert not self._absent()


def run_all() -> tuple[int, int]:
    """Run all histories. Return the number of starts with a loss, and that of repairs."""
    losses = repairs = 0
    for seed in range(HISTORIES):
        history = History(seed)
        history.run()
        losses += history.losses
        repairs += history.repairs
    return losses, repairs


@pytest.mark.long
def test_acknowledged_entries_are_never_denied() -> None:
    losses, repairs = run_all()
    print(f"{HISTORIES} histories: {losses} starts with a loss, {repairs} repairs")
    assert losses > HISTORIES
    assert repairs > HISTORIES // 2


def a_loss_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Catalogue, "live_numbers", ("return present | self.lossy", "return present"))


def a_cache_hides_a_loss(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LogRecovery,
        "_restore",
        ("cache.check(set(live))", "cache.check(set(live)); self._catalogue.lossy.clear()"),
    )


def lost_groups_do_not_count(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Replayer, "unsealed", ("self.catalogue.lossy.add(number)", "pass"))


def the_position_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    edit(patch, ExpectedLog, "held_against", ("found.end_group < wanted.end_group", "False"))


@pytest.mark.parametrize(
    "defect",
    [
        a_loss_is_forgotten, a_cache_hides_a_loss, lost_groups_do_not_count,
        pytest.param(the_position_is_not_compared, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_a_defect_is_noticed(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    with pytest.raises(AssertionError, match="denies"):
        run_all()
