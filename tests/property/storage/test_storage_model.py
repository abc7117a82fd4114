"""The store compared with a dict, while workers stop anywhere, power fails, and disks fill up."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from quire.errors import DiskFullError, StorageError
from quire.storage.read.read_exceptions import NoEntry, NoLedger
from quire.storage.segment import sealed_rows
from quire.storage.segment.batch import LogBatch
from quire.storage.segment.segment import LedgerInfo
from quire_simulator.machine.disk import SimDisk
from tests.support.storage.storage import SMALL, StoreOnDisk, key_of, make_batch, make_entry, run

LEDGERS = st.integers(1, 4)
EAGER = replace(SMALL, compact_minor_interval_s=0.0, compact_major_interval_s=0.0)
"""Compacts at every check."""
Key = tuple[int, int]


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    """An id is written with one payload only; some are large, some equal in size."""
    rng = random.Random(ledger_id * 1_000_003 + entry_id)
    return rng.randbytes(rng.choice((0, 100, 100, 100, rng.randrange(3000))))


def entry_of(key: Key) -> bytes:
    return make_entry(*key, payload_of(*key))


class StoreModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.visible: set[Key] = set()
        """Must be readable now."""
        self.acked: set[Key] = set()
        """Must be readable whatever happens."""
        self.possible: set[tuple[Key, int]] = set()
        """May be readable after a crash: with the incarnation of the ledger."""
        self.used: set[Key] = set()
        self.fenced: set[int] = set()
        self.refused: set[int] = set()
        """Fenced and deleted, durably."""
        self.lac_acked: dict[int, int] = {}
        self.lac_tried: dict[int, int] = {}
        self.incarnation: dict[int, int] = {}
        self.checked_after_crash = True

    @initialize(seed=st.integers(0, 1 << 20))
    def begin(self, seed: int) -> None:
        self.disk = SimDisk(random.Random(seed), "bookie")
        self.box = StoreOnDisk(self.disk, EAGER)
        self.box.open()

    @property
    def store(self) -> Any:
        return self.box.store

    # -- what a bookie does -------------------------------------------------------------------

    def _ledger(self, ledger_id: int) -> LedgerInfo | None:
        if ledger_id in self.store.ledgers:
            return self.store.ledgers[ledger_id]  # type: ignore[no-any-return]
        if self.store.is_refused(ledger_id):
            return None
        return self.store.create_ledger(ledger_id, key_of(ledger_id))  # type: ignore[no-any-return]

    def _may_fail(self, error: StorageError) -> None:
        """Return whether an operation may fail for lack of space, even with the reserve."""
        assert isinstance(error, DiskFullError) or "simulated disk is full" in str(error)

    def _append(self, keys: list[Key], cut: int = 0, reserve: bool = False) -> None:
        keys = [key for key in keys if self._ledger(key[0]) is not None]
        if not keys:
            return
        incarnations = dict(self.incarnation)

        def done(batch: LogBatch, error: StorageError | None) -> None:
            if error is None:
                self.acked.update(
                    key for key in keys if incarnations.get(key[0]) == self.incarnation.get(key[0])
                )
            else:
                self._may_fail(error)

        entries = [(*key, payload_of(*key)) for key in keys]
        failed = self.store.failed is not None
        try:
            self.store.append(make_batch(entries, [cut]), done, reserve=reserve)
        except DiskFullError:
            assert reserve or not self.store.writable
            return
        if failed:
            return
        self.visible.update(keys)
        self.possible.update((key, self.incarnation.get(key[0], 0)) for key in keys)
        self.used.update(keys)

    @rule(ledger_id=LEDGERS, count=st.integers(1, 30), cut=st.integers(0, 5000))
    def append_next(self, ledger_id: int, count: int, cut: int) -> None:
        info = self.store.ledgers.get(ledger_id)
        first = 0 if info is None else info.last_entry_id + 1
        self._append([(ledger_id, first + i) for i in range(count)], cut)

    @rule(count=st.integers(1, 20))
    def append_some_to_each(self, count: int) -> None:
        self.append_round_robin(count)

    def append_round_robin(self, count: int) -> None:
        keys = []
        for turn in range(count):
            ledger_id = 1 + turn % 4
            info = self.store.ledgers.get(ledger_id)
            first = 0 if info is None else info.last_entry_id + 1
            keys.append((ledger_id, first + turn // 4))
        self._append(keys)

    @rule(ledger_id=LEDGERS, ids=st.sets(st.integers(0, 60), min_size=1, max_size=15))
    def append_any_ids(self, ledger_id: int, ids: set[int]) -> None:
        """Striped, out of order, again: what recovery and re-replication do."""
        self._append([(ledger_id, entry_id) for entry_id in sorted(ids)], reserve=True)

    @rule(ledger_id=LEDGERS)
    def fence(self, ledger_id: int) -> None:
        if self._ledger(ledger_id) is None:
            return
        incarnation = self.incarnation.get(ledger_id)

        def done(error: StorageError | None) -> None:
            if error is not None:
                self._may_fail(error)
            elif incarnation == self.incarnation.get(ledger_id):
                self.fenced.add(ledger_id)

        self.store.fence(ledger_id, done)
        assert self.store.ledgers[ledger_id].fenced

    @rule(ledger_id=LEDGERS, lac=st.integers(0, 100))
    def explicit_lac(self, ledger_id: int, lac: int) -> None:
        if self._ledger(ledger_id) is None:
            return
        lac = max(lac, self.lac_tried.get(ledger_id, 0))
        self.lac_tried[ledger_id] = lac
        incarnation = self.incarnation.get(ledger_id)

        def done(error: StorageError | None) -> None:
            if error is None and incarnation == self.incarnation.get(ledger_id):
                self.lac_acked[ledger_id] = max(lac, self.lac_acked.get(ledger_id, 0))

        packet = ledger_id.to_bytes(8, "big") + lac.to_bytes(8, "big")
        self.store.write_explicit_lac(ledger_id, packet, done)

    @precondition(lambda self: self.store.ledgers)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self._drop(data.draw(st.sampled_from(sorted(self.store.ledgers))))

    def _drop(self, ledger_id: int) -> None:
        was_fenced = self.store.ledgers[ledger_id].fenced
        self.store.drop_ledgers([ledger_id])
        self.incarnation[ledger_id] = self.incarnation.get(ledger_id, 0) + 1
        gone = {one for one in self.possible if one[0][0] == ledger_id}
        self.visible = {key for key in self.visible if key[0] != ledger_id}
        self.acked = {key for key in self.acked if key[0] != ledger_id}
        self.fenced.discard(ledger_id)
        self.lac_acked.pop(ledger_id, None)
        self.lac_tried.pop(ledger_id, None)
        assert self.store.is_refused(ledger_id) == was_fenced

        def durable(error: StorageError | None) -> None:
            # On a full disk the deletion may wait for room. A crash then brings the ledger back,
            # with its fence.
            if error is None and self.store.deletions_logged:
                self.possible -= gone
                if was_fenced:
                    self.refused.add(ledger_id)

        self.store.barrier(durable)

    # -- what time does -----------------------------------------------------------------------

    @rule()
    def step_log(self) -> None:
        self.box.log.step()

    @rule()
    def deliver_log(self) -> None:
        self.box.log.deliver()

    @rule()
    def step_maintenance(self) -> None:
        self.box.maintenance.step()

    @rule()
    def deliver_maintenance(self) -> None:
        self.box.maintenance.deliver()

    @rule()
    def pump(self) -> None:
        self.box.pump()

    @rule()
    def idle(self) -> None:
        self.box.idle()

    @rule()
    def begin_compaction(self) -> None:
        self.store.check_space()

    @rule()
    def compact(self) -> None:
        self.store.check_space()
        self.box.pump()
        while self.box.timers.fire():
            self.box.pump()

    @rule(batches=st.integers(4, 12), ledger_id=LEDGERS)
    def turn_over(self, batches: int, ledger_id: int) -> None:
        """Segments that all ledgers share, and one of these goes."""
        for _ in range(batches):
            self.append_round_robin(20)
            self.box.pump()
        self.box.idle()
        if ledger_id in self.store.ledgers:
            self._drop(ledger_id)
            self.box.pump()
        self.store.check_space()

    @rule(room=st.sampled_from([0, 40_000, 1 << 30]))
    def set_room(self, room: int) -> None:
        self.disk.capacity_bytes += room - self.disk.free_bytes()
        self.store.check_space()

    # -- what goes wrong ----------------------------------------------------------------------

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        if power:
            self.disk.crash()
        else:
            self.disk.kill()
        self._reopen()
        assert self.box.report.problems == ()
        assert not self.store.negatives_unknown

    @rule()
    def stop_and_start(self) -> None:
        self.box.close()
        # Before the start, because stopping made everything durable, or had no space to report it.
        self._reopen()
        assert self.box.report.problems == ()

    def _reopen(self) -> None:
        # Without space for a segment there is no start, which is not tested here.
        self.disk.capacity_bytes += max(0, 300_000 - self.disk.free_bytes())
        self.box.open()
        self.visible = {key for key in self.used if self._present(key)}
        assert self.acked <= self.visible
        assert self.visible <= {key for key, _ in self.possible}
        self.acked = set(self.visible)
        for ledger_id in self.fenced:
            assert self.store.ledgers[ledger_id].fenced
        self.fenced = {i for i, info in self.store.ledgers.items() if info.fenced}
        for ledger_id in self.refused:
            assert self.store.is_refused(ledger_id)
        for ledger_id, lac in self.lac_acked.items():
            packet = self.store.ledgers[ledger_id].explicit_lac
            assert lac <= int.from_bytes(packet[8:], "big") <= self.lac_tried[ledger_id]
        for ledger_id, info in self.store.ledgers.items():
            assert info.master_key == key_of(ledger_id)
            if info.explicit_lac is not None:
                lac = int.from_bytes(info.explicit_lac[8:], "big")
                self.lac_acked[ledger_id] = lac
                self.lac_tried[ledger_id] = max(lac, self.lac_tried.get(ledger_id, 0))

    def _present(self, key: Key) -> bool:
        try:
            assert self.box.read(*key) == [entry_of(key)]
        except (NoEntry, NoLedger):
            return False
        return True

    # -- what must hold -----------------------------------------------------------------------

    @rule(
        ledger_id=LEDGERS,
        first=st.integers(0, 70),
        count=st.integers(1, 80),
        budget=st.integers(0, 20_000),
    )
    def read(self, ledger_id: int, first: int, count: int, budget: int) -> None:
        expected: list[bytes] = []
        left = budget
        for entry_id in range(first, first + count):
            if (ledger_id, entry_id) not in self.visible:
                break
            entry = entry_of((ledger_id, entry_id))
            left -= len(entry) + 4
            if expected and left < 0:
                break
            expected.append(entry)
        try:
            found = run(self.store.read_blocking(ledger_id, first, count, budget))
        except (NoEntry, NoLedger):
            found = []
        assert [bytes(entry) for entry in found] == expected

    @rule(ledger_id=LEDGERS)
    def list_entries(self, ledger_id: int) -> None:
        try:
            ranges = run(self.store.entry_ranges(ledger_id))
        except NoLedger:
            ranges = []
        found = [entry for first, last in ranges for entry in range(first, last + 1)]
        assert found == sorted(entry for ledger, entry in self.visible if ledger == ledger_id)

    @invariant()
    def last_entries_agree(self) -> None:
        ledgers = self.store.ledgers if hasattr(self, "box") else {}
        for ledger_id, info in ledgers.items():
            mine = [entry for ledger, entry in self.visible if ledger == ledger_id]
            assert info.last_entry_id == max(mine, default=-1)

    @invariant()
    def live_bytes_add_up(self) -> None:
        if not hasattr(self, "box"):
            return
        live: dict[int, int] = {}
        ledgers: dict[int, int] = {}
        for info in self.store.ledgers.values():
            for number, _, _, size in sealed_rows.unpack(info.sealed):
                live[number] = live.get(number, 0) + size
                ledgers[number] = ledgers.get(number, 0) + 1
        for usage in self.store.usage():
            assert usage.live_bytes >= 0
            if usage.state == "sealed":
                assert usage.live_bytes == live.get(usage.number, 0)
                assert usage.live_ledgers == ledgers.get(usage.number, 0)

    def teardown(self) -> None:
        if hasattr(self, "box"):
            self.disk.crash()
            self._reopen()


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
