"""Power loss and process death at every operation of the store on its disk.

What was acknowledged must exist unchanged, and fences that were reported durable must hold.
Anything else is complete or absent, and no crash looks like damage.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from quire.errors import StorageError
from quire.storage.read.read_exceptions import NoEntry, NoLedger
from quire_simulator.machine.disk import PowerLossError, SimDisk, SimFile
from tests.support.long import long_after
from tests.support.storage.storage import StoreOnDisk, sim_disk

Step = Callable[[StoreOnDisk], None]


def payload(rng: random.Random, most: int = 900) -> bytes:
    return rng.randbytes(rng.randrange(most))


def workload() -> Iterator[Step]:
    """Enough to roll over several segments, seal, fence, drop, remove, stop and start again."""
    rng = random.Random(11)
    upcoming = dict.fromkeys((1, 2, 3, 4), 0)

    def add(ledger_id: int, count: int, most: int = 900) -> Step:
        first = upcoming[ledger_id]
        upcoming[ledger_id] += count
        entries = [(ledger_id, first + i, payload(rng, most)) for i in range(count)]
        return lambda s: s.append(entries)

    for turn in range(6):
        yield add(1, 3)
        yield add(2, 8)
        if turn % 2:
            yield add(3, 1)
        yield StoreOnDisk.pump
    yield lambda s: s.fence(3)
    yield add(1, 40, 1500)
    yield StoreOnDisk.pump
    yield lambda s: s.fence(99)
    yield add(2, 40, 1500)
    yield StoreOnDisk.idle
    yield lambda s: s.drop([1])
    yield StoreOnDisk.pump
    yield add(4, 30, 1500)
    yield add(2, 5)
    yield StoreOnDisk.idle
    yield lambda s: s.fence(2)
    yield StoreOnDisk.pump
    yield StoreOnDisk.close
    yield lambda s: s.open()
    yield add(4, 3)
    yield StoreOnDisk.pump


def play(subject: StoreOnDisk) -> None:
    subject.open()
    for step in workload():
        step(subject)


def check(subject: StoreOnDisk) -> None:
    """Against what was promised."""
    store = subject.store
    assert subject.report.problems == ()
    assert not store.negatives_unknown
    for (ledger_id, entry_id), entry in subject.acknowledged.items():
        assert subject.read(ledger_id, entry_id) == [entry]
    for (ledger_id, entry_id), entry in subject.written.items():
        try:
            assert subject.read(ledger_id, entry_id) == [entry]
        except (NoEntry, NoLedger):
            assert (ledger_id, entry_id) not in subject.acknowledged
    for ledger_id in subject.fenced:
        assert store.ledgers[ledger_id].fenced


def count_operations() -> int:
    disk = sim_disk()
    seen = 0

    def operate(name: str = "") -> None:
        nonlocal seen
        seen += 1

    disk._operate = operate  # type: ignore[method-assign]
    subject = StoreOnDisk(disk)
    play(subject)
    subject.idle()
    assert subject.store.stats().segments_removed == 0  # since the second start
    check(subject)
    return seen


OPERATIONS = count_operations()


def test_the_workload_covers_rolls_seals_and_removals() -> None:
    """Rolls, seals, removes a segment, and stops: else the crashes below prove little."""
    disk = sim_disk()
    subject = StoreOnDisk(disk)
    subject.open()
    removed = 0
    for step in workload():
        step(subject)
        removed = max(removed, subject.store.stats().segments_removed)
    assert removed >= 1
    assert subject.store.stats().sealed_segments >= 3
    assert subject.fenced == {2, 3, 99}
    assert OPERATIONS > 100


def crash_at(operation: int, seed: int) -> StoreOnDisk:
    disk = sim_disk(seed)
    subject = StoreOnDisk(disk)
    disk.crash_after(operation, lambda: None)
    try:
        play(subject)
        disk.crash()
    except PowerLossError:
        pass
    return subject


@pytest.mark.parametrize("seed", long_after(1, range(3)))
def test_acknowledged_entries_survive_a_power_loss_at_any_operation(seed: int) -> None:
    for operation in range(1, OPERATIONS + 1):
        subject = crash_at(operation, seed * 1000 + operation)
        subject.open()
        check(subject)
        go_on(subject)


def go_on(subject: StoreOnDisk) -> None:
    """After the start: new adds, a clean stop, another start."""
    rng = random.Random(7)
    last = subject.store.ledgers[4].last_entry_id if 4 in subject.store.ledgers else -1
    subject.append([(4, last + 1 + i, payload(rng)) for i in range(20)])
    subject.idle()
    assert (4, last + 20) in subject.acknowledged
    subject.close()
    report = subject.open()
    assert report.clean
    check(subject)


@pytest.mark.parametrize("offset", long_after(1, range(4)))
def test_acknowledged_entries_survive_a_power_loss_during_the_next_start(offset: int) -> None:
    """Power is also lost several times in a row, at any operation of the start."""
    for operation in range(1 + offset, OPERATIONS + 1, 4):
        subject = crash_at(operation, operation)
        disk = subject.disk
        assert isinstance(disk, SimDisk)
        for again in range(1, 30):
            disk.crash_after(again, lambda: None)
            try:
                subject.open()
                subject.idle()
            except PowerLossError:
                continue
            disk.kill()
            break
        subject.open()
        check(subject)


def test_entries_served_after_a_start_survive_a_power_loss() -> None:
    """The process dies, its page cache does not. What the next start serves was maybe never synced
    by the first; once it has been served it must not vanish with the power."""
    for operation in range(1, OPERATIONS + 1, 2):
        disk = sim_disk(operation)
        subject = StoreOnDisk(disk)
        countdown = operation

        def die(name: str = "") -> None:
            nonlocal countdown
            countdown -= 1
            if not countdown:
                disk.kill()  # noqa: B023 - of this turn
                raise PowerLossError("killed")

        operate = disk._operate
        disk._operate = die  # type: ignore[method-assign]
        try:
            play(subject)
            disk.kill()
        except PowerLossError:
            pass
        disk._operate = operate  # type: ignore[method-assign]
        subject.open()
        check(subject)
        served = {}
        for key in subject.written:
            try:
                served[key] = subject.read(*key)
            except (NoEntry, NoLedger):
                continue
        fenced = {ledger_id for ledger_id, info in subject.store.ledgers.items() if info.fenced}
        disk.crash()
        subject.open()
        check(subject)
        assert {key: subject.read(*key) for key in served} == served
        assert all(subject.store.ledgers[ledger_id].fenced for ledger_id in fenced)


def test_a_failed_sync_is_final_and_loses_no_acknowledged_entry() -> None:
    """The kernel drops what it could not write and reports it once: nothing may be trusted."""
    for nth in range(1, 40):
        disk = sim_disk(nth)
        subject = StoreOnDisk(disk)
        subject.open()
        syncs = 0
        maybe_fail = disk._maybe_fail

        def fail_nth(operation: str, name: str) -> None:
            nonlocal syncs
            if operation == "sync" and name.endswith(".seg"):
                syncs += 1
                if syncs == nth:  # noqa: B023 - of this turn
                    disk.fail_sync_once()  # noqa: B023
            maybe_fail(operation, name)  # noqa: B023

        disk._maybe_fail = fail_nth  # type: ignore[method-assign]
        failures: list[StorageError] = []
        subject.store.on_failure = failures.append
        rng = random.Random(nth)
        for turn in range(30):
            subject.append([(1, turn * 4 + i, payload(rng, 2000)) for i in range(4)])
            if turn % 3 == 0:
                subject.pump()
        subject.fence(1)
        subject.idle()
        failed = subject.store.failed
        assert len(failures) == (failed is not None)
        if failed is not None:
            assert subject.errors
            assert 1 not in subject.fenced
        assert subject.acknowledged_order == sorted(subject.acknowledged_order)
        assert len(subject.acknowledged_order) == 30
        disk._maybe_fail = maybe_fail  # type: ignore[method-assign]
        if nth % 2:
            disk.crash()
        else:
            disk.kill()
        subject.open()
        check(subject)
        disk.crash()
        subject.open()
        check(subject)


def seal(subject: StoreOnDisk) -> None:
    """Segments whose footers have many sectors, most of them rows: runs of entries of all sizes."""
    rng = random.Random(3)
    for turn in range(100):
        subject.append([(turn % 2, turn * 4 + i, payload(rng)) for i in range(4)])
        subject.log.run()
    subject.idle()


def seals(patch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the operations that write footers, counted from the beginning of `seal`."""
    disk = sim_disk()
    found: list[int] = []
    operations, cut = 0, SimFile.truncate

    def truncate(file: SimFile, size: int) -> None:  # Nothing else truncates a segment.
        found.extend(range(operations, operations + 5))  # from the write before, to the last sync
        cut(file, size)

    def operate(name: str = "") -> None:
        nonlocal operations
        operations += 1

    subject = StoreOnDisk(disk)
    subject.open()
    with patch.context() as patched:
        patched.setattr(SimFile, "truncate", truncate)
        patched.setattr(disk, "_operate", operate)
        seal(subject)
    return found


def test_a_torn_footer_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power is lost while footers are written, and the disk keeps any part of them."""
    found = seals(monkeypatch)
    assert found
    for operation in found:
        for seed in range(20):
            disk = sim_disk(seed)
            subject = StoreOnDisk(disk)
            subject.open()
            disk.crash_after(operation, lambda: None)
            with pytest.raises(PowerLossError):
                seal(subject)
            subject.open()
            check(subject)
