"""Power loss and process death at every operation of compactions, and of the start after them.

What was acknowledged must exist unchanged, fences must hold, and fenced and deleted ledgers must
stay refused. No crash may look like damage, and space must be freed nevertheless.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire.storage.read.read_exceptions import NoEntry, NoLedger
from quire.storage.segment.segment import SPARE_NAME
from quire_simulator.machine.disk import PowerLossError, SimDisk
from tests.support.long import long_after
from tests.support.storage.storage import SMALL, StoreOnDisk, sim_disk

EAGER = replace(
    SMALL, segment_bytes=128 * 1024, compact_minor_interval_s=0.0, compact_major_interval_s=0.0
)
ROOMY_BYTES = 1 << 30
Prepare = Callable[[StoreOnDisk], None]


def fill(subject: StoreOnDisk, ledgers: range, segments: int, seed: int) -> None:
    rng = random.Random(seed)
    wanted = subject.store.stats().sealed_segments + segments
    while subject.store.stats().sealed_segments < wanted:
        entries = []
        for ledger_id in ledgers:
            known = subject.store.ledgers.get(ledger_id)
            first = 0 if known is None else known.last_entry_id + 1
            count = rng.randrange(1, 6)
            entries += [
                (ledger_id, first + i, rng.randbytes(rng.randrange(1500))) for i in range(count)
            ]
        subject.append(entries)
        subject.pump()
    subject.idle()


def mostly_dead(subject: StoreOnDisk) -> None:
    """Three segments with so little alive that one output takes them all."""
    fill(subject, range(1, 8), 3, 1)
    subject.store.check_space()  # nothing to compact yet: it makes its reserve
    subject.pump()
    assert subject.disk.exists(SPARE_NAME)
    subject.fence(2)
    subject.fence(3)
    subject.store.write_explicit_lac(1, bytes(15) + b"\1", lambda error: None)
    subject.idle()
    subject.drop([3, 4, 5, 6, 7])
    subject.pump()


def half_dead(subject: StoreOnDisk) -> None:
    """Rewrite each segment in place while a ledger is deleted."""
    mostly_dead(subject)
    fill(subject, range(10, 14), 2, 2)
    subject.drop([10, 11])
    subject.pump()


def full(subject: StoreOnDisk) -> None:
    """Use up all free space, so that only the reserve is left."""
    mostly_dead(subject)
    assert isinstance(subject.disk, SimDisk)
    subject.disk.capacity_bytes -= subject.disk.free_bytes()


def compact(subject: StoreOnDisk) -> None:
    for turn in range(40):
        done = subject.store.stats().compactions
        subject.store.check_space()
        if turn == 2 and 13 in subject.store.ledgers:
            subject.fence(13)
            subject.drop([13])
        subject.pump()
        while subject.timers.fire():
            subject.pump()
        if subject.store.stats().compactions == done:
            return
    raise AssertionError("compaction does not finish")


def check(subject: StoreOnDisk) -> None:
    store = subject.store
    assert subject.report.problems == ()
    assert not store.negatives_unknown
    for key, entry in subject.acknowledged.items():
        assert subject.read(*key) == [entry]
    for ledger_id in subject.fenced:
        assert store.ledgers[ledger_id].fenced
    assert store.is_refused(3)
    assert store.ledgers[1].explicit_lac == bytes(15) + b"\1"


class Countdown:
    """Strikes at an operation counted from `begin` on; notes how many there were."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.count = 0
        self._operate = disk._operate

    def begin(self, strike_at: int, strike: Callable[[], None]) -> None:
        def operate(name: str = "") -> None:
            self.count += 1
            if self.count == strike_at:
                self.disk._operate = self._operate  # type: ignore[method-assign]
                strike()
                raise PowerLossError("struck")
            self._operate()

        self.disk._operate = operate  # type: ignore[method-assign]

    def end(self) -> None:
        self.disk._operate = self._operate  # type: ignore[method-assign]


def struck(prepare: Prepare, seed: int, operation: int, *, power: bool) -> tuple[StoreOnDisk, int]:
    disk = sim_disk(seed)
    subject = StoreOnDisk(disk, EAGER)
    subject.open()
    prepare(subject)
    countdown = Countdown(disk)
    countdown.begin(operation, disk.crash if power else disk.kill)
    try:
        compact(subject)
    except PowerLossError:
        pass
    countdown.end()
    return subject, countdown.count


def operations(prepare: Prepare) -> int:
    subject, count = struck(prepare, 1, -1, power=True)
    stats = subject.store.stats()
    assert stats.compactions >= 1
    assert stats.segments_removed >= 1
    check(subject)
    assert count > 10
    return count


@pytest.mark.parametrize(
    "prepare", long_after(1, [mostly_dead, half_dead, full]), ids=lambda one: one.__name__
)
def test_a_crash_at_any_operation_of_a_compaction_loses_nothing(prepare: Prepare) -> None:
    for operation in range(1, operations(prepare) + 1):
        for power in (True, False):
            subject, _ = struck(prepare, operation, operation, power=power)
            subject.open()
            check(subject)
            # And once more, when the start has settled nothing yet.
            disk = subject.disk
            assert isinstance(disk, SimDisk)
            disk.crash()
            subject.open()
            check(subject)
            disk.capacity_bytes = ROOMY_BYTES
            subject.idle()
            compact(subject)
            subject.idle()
            check(subject)
            for key in set(subject.written) - set(subject.acknowledged):
                with pytest.raises((NoEntry, NoLedger)):
                    subject.read(*key)
            stats = subject.store.stats()
            assert stats.sealed_bytes < 1.5 * stats.live_bytes + EAGER.segment_bytes
