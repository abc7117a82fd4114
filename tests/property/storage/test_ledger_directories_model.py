"""Several data directories, compared with a dict.

There are power losses, kills, and directories that fail, fill up or cannot be read at a start. What
was acknowledged exists or is lost, but never absent. A ledger is in one directory.
"""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quire.errors import DiskFullError, StorageError
from quire.storage.read.read_exceptions import NoEntry
from quire.storage.segment.batch import LogBatch
from tests.support.storage.directories import DirectoriesOnDisks
from tests.support.storage.storage import SMALL, key_of, make_batch, make_entry, run

LEDGERS = st.integers(1, 6)
DISKS = 3
NUMBERS = st.integers(0, DISKS - 1)
EAGER = replace(SMALL, compact_minor_interval_s=0.0, compact_major_interval_s=0.0)
Key = tuple[int, int]


def payload_of(key: Key) -> bytes:
    return bytes([key[0] + key[1] % 7]) * (50 + 37 * (key[1] % 40))


class DirectoriesModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.acked: set[Key] = set()
        self.fenced: set[int] = set()
        self.refused: set[int] = set()
        """Fenced and then dropped, durably."""
        self.lives: dict[int, int] = {}
        """The number of times that each ledger was dropped and created again."""
        self.upcoming: dict[int, int] = {}
        self.aside: set[int] = set()
        self.homes: dict[int, int] = {}
        """The directory of each acknowledged entry or fence."""

    @initialize(seed=st.integers(0, 1 << 20))
    def begin(self, seed: int) -> None:
        self.box = DirectoriesOnDisks(DISKS, seed, EAGER)
        self.open(frozenset())

    def open(self, broken: frozenset[int]) -> None:
        for disk in self.box.disks:
            disk.calm()
        try:
            self.box.open(broken)
        except StorageError:  # the others have no room to begin
            for disk in self.box.disks:
                disk.kill()
                disk.capacity_bytes = 1 << 34
            self.box.open(broken)
        states = self.box.store.directories()
        # Besides, one without any room cannot begin.
        self.aside = {n for n, one in enumerate(states) if one.state == "failed"}
        assert broken <= self.aside
        for ledger_id in self.box.store.ledgers:
            last = self.box.store.last_entry_id(ledger_id)
            self.upcoming[ledger_id] = max(self.upcoming.get(ledger_id, 0), last + 1)

    def home(self, ledger_id: int) -> int | None:
        found = [n for n in range(DISKS) if ledger_id in self.box.stores[n].ledgers]
        assert len(found) <= 1, f"ledger {ledger_id} is in {found}"
        return found[0] if found else None

    def have(self, ledger_id: int) -> bool:
        """Make the ledger, unless it is here; whether it may be used."""
        store = self.box.store
        if ledger_id in store.ledgers:
            return True
        try:
            store.create_ledger(ledger_id, key_of(ledger_id), again=True)
        except StorageError:
            assert self.aside, "nothing is aside, and a ledger cannot be made"
            return False
        return True

    # -- what a bookie does -------------------------------------------------------------------

    @rule(ledgers=st.lists(LEDGERS, min_size=1, max_size=12), cut=st.integers(0, 5000))
    def append(self, ledgers: list[int], cut: int) -> None:
        keys = []
        for ledger_id in ledgers:
            if self.have(ledger_id):
                entry = self.upcoming.get(ledger_id, 0)
                self.upcoming[ledger_id] = entry + 1
                keys.append((ledger_id, entry))
        if not keys:
            return
        lives = dict(self.lives)
        waiting = set(keys)

        def done(batch: LogBatch, error: StorageError | None) -> None:
            for one in batch.runs:
                for entry in range(one.first, one.last + 1) if one.ids is None else one.ids:
                    key = (one.ledger_id, entry)
                    waiting.remove(key)  # each once, whatever part it was in
                    if error is None and lives.get(key[0]) == self.lives.get(key[0]):
                        self.acked.add(key)

        entries = [(*key, payload_of(key)) for key in keys]
        try:
            self.box.store.append(make_batch(entries, [cut]), done, reserve=False)
        except DiskFullError:
            return
        for key in waiting:
            if key[0] in self.box.store.ledgers:
                assert self.read(key) == make_entry(*key, payload_of(key))

    def read(self, key: Key) -> bytes:
        return bytes(run(self.box.store.read_blocking(*key, 1, 1 << 20))[0])

    @rule(ledger_id=LEDGERS)
    def fence(self, ledger_id: int) -> None:
        life = self.lives.get(ledger_id)
        if not self.have(ledger_id):
            return

        def done(error: StorageError | None) -> None:
            if error is None and life == self.lives.get(ledger_id):
                self.fenced.add(ledger_id)

        self.box.store.fence(ledger_id, done)

    @rule(ledger_id=LEDGERS)
    def drop(self, ledger_id: int) -> None:
        if ledger_id not in self.box.store.ledgers:
            return
        fenced = ledger_id in self.fenced
        self.box.store.drop_ledgers([ledger_id])
        self.lives[ledger_id] = life = self.lives.get(ledger_id, 0) + 1
        self.acked = {key for key in self.acked if key[0] != ledger_id}
        self.fenced.discard(ledger_id)

        def done(error: StorageError | None) -> None:
            if error is None and fenced and life == self.lives[ledger_id]:
                self.refused.add(ledger_id)

        self.box.store.barrier(done)

    @rule(number=NUMBERS)
    def one_disk_works(self, number: int) -> None:
        self.box.pump([number])

    @rule()
    def time_passes(self) -> None:
        self.box.store.check_space()
        self.box.idle()

    # -- what befalls it ----------------------------------------------------------------------

    @rule(broken=st.frozensets(NUMBERS, max_size=DISKS - 1), power=st.booleans())
    def start_again(self, broken: frozenset[int], power: bool) -> None:
        self.box.crash() if power else self.box.kill()
        self.open(broken)

    @rule()
    def stop_cleanly(self) -> None:
        self.box.pump()
        run(self.box.store.close())
        self.open(frozenset())

    @rule(number=NUMBERS)
    def a_sync_fails(self, number: int) -> None:
        if len(self.aside | {number}) < DISKS:
            self.box.disks[number].fail_sync_once()
            self.aside.add(number)

    @rule(number=NUMBERS, room=st.sampled_from((0, 100_000, 1 << 34)))
    def room_changes(self, number: int, room: int) -> None:
        disk = self.box.disks[number]
        disk.capacity_bytes += room - disk.free_bytes()

    # -- what must hold -----------------------------------------------------------------------

    @invariant()
    def nothing_is_absent_that_was_acknowledged(self) -> None:
        if not hasattr(self, "box"):
            return
        store = self.box.store
        for key in self.acked:
            if key[0] in store.ledgers:
                try:
                    assert self.read(key) == make_entry(*key, payload_of(key))
                except NoEntry:
                    raise AssertionError(f"{key} is absent") from None
            else:
                self.is_lost(key[0])
        for ledger_id in self.fenced:
            if ledger_id in store.ledgers:
                assert store.ledgers[ledger_id].fenced
            else:
                self.is_lost(ledger_id)
        for ledger_id in self.refused - self.fenced:
            assert (
                ledger_id in store.ledgers
                or store.is_refused(ledger_id)
                or store.is_lost(ledger_id)
            )

    def is_lost(self, ledger_id: int) -> None:
        store = self.box.store
        assert store.is_lost(ledger_id)
        assert store.absence_unknown(ledger_id)
        assert store.negatives_unknown
        assert not store.takes(ledger_id)
        assert self.aside

    @invariant()
    def a_ledger_is_in_one_directory(self) -> None:
        if hasattr(self, "box"):
            for ledger_id in range(1, 7):
                self.home(ledger_id)

    @invariant()
    def what_serves_is_not_lost(self) -> None:
        if hasattr(self, "box"):
            assert len(self.box.store.ledgers) == len(list(self.box.store.ledgers))
            assert not any(map(self.box.store.is_lost, self.box.store.ledgers))
            states = self.box.store.directories()
            assert {n for n, one in enumerate(states) if one.state == "failed"} <= self.aside

    def teardown(self) -> None:
        if hasattr(self, "box"):
            self.box.crash()
            for disk in self.box.disks:
                disk.capacity_bytes = 1 << 34
            self.open(frozenset())
            self.nothing_is_absent_that_was_acknowledged()
            assert not self.box.store.negatives_unknown, self.box.report


TestDirectoriesModel = DirectoriesModel.TestCase
TestDirectoriesModel.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
