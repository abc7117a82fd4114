"""A store on a simulated disk, whose workers and timers run when the test says so."""

from __future__ import annotations

import itertools
import random
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from quire.codec.log.group import ColumnarBatch
from quire.codec.wire.v2 import add_request
from quire.errors import StorageError
from quire.storage.background.compactor import Compaction
from quire.storage.config import StorageConfig
from quire.storage.directories import LedgerDirectories
from quire.storage.directory import ensure_directory
from quire.storage.interfaces import Disk
from quire.storage.recovery.log_recovery import RecoveryReport
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.store import LedgerStore
from quire_simulator.machine.disk import SimDisk

SMALL = StorageConfig(
    segment_bytes=64 * 1024,
    reserve_bytes=32 * 1024,
    max_group_bytes=8 * 1024,
    max_queued_bytes=64 * 1024,
    min_free_bytes=0,
    read_only_dwell_s=0.0,
    footer_cache_bytes=4096,
    max_open_files=2,
)
"""A configuration with segments that are small enough for a test to fill."""
EAGER = replace(SMALL, compact_minor_interval_s=0.0, compact_major_interval_s=0.0)
"""A configuration with which the store compacts at every check of its space."""


def key_of(ledger_id: int) -> bytes:
    return b"key %16d" % ledger_id


def make_entry(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    """Return an entry as a client sends it, but without a digest, which no test checks."""
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, len(payload)) + payload


Entries = dict[tuple[int, int], bytes]
"""Entries as a client sends them, by (ledger id, entry id)."""


def make_batch(entries: Iterable[tuple[int, int, bytes]], cuts: Sequence[int] = ()) -> LogBatch:
    """Return a batch of (ledger id, entry id, payload) in this order.

    Neighbours of one ledger with ascending ids become one run. If there are none and all frames
    have one size, the batch has a `ColumnarBatch`. `cuts` are the positions at which the bytes are
    cut into buffers.
    """
    frames: list[bytes] = []
    runs: list[Run] = []
    offset = 0
    for ledger_id, group in itertools.groupby(entries, key=lambda entry: entry[0]):
        rest = list(group)
        while rest:
            count = 1
            while count < len(rest) and rest[count][1] > rest[count - 1][1]:
                count += 1
            taken, rest = rest[:count], rest[count:]
            made = [add_request(key_of(ledger_id), make_entry(*entry)) for entry in taken]
            ids = [entry[1] for entry in taken]
            sizes = [len(frame) for frame in made]
            uniform = len(set(sizes)) == 1
            plain = ids[-1] - ids[0] == count - 1
            run_sizes = None if uniform else array("I", sizes)
            run_ids = None if plain else array("q", ids)
            frame_size = sizes[0] if uniform else 0
            runs.append(Run(ledger_id, ids[0], count, offset, frame_size, run_sizes, run_ids))
            frames += made
            offset += sum(sizes)
    data = b"".join(frames)
    bounds = [0, *sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    buffers = [data[a:b] for a, b in itertools.pairwise(bounds)]
    if runs and all(run.count == 1 and run.frame_size == runs[0].frame_size for run in runs):
        ledger_ids = [run.ledger_id for run in runs]
        return LogBatch(
            buffers, ColumnarBatch(ledger_ids, [run.first for run in runs], runs[0].frame_size)
        )
    return LogBatch(buffers, runs)


class HandWorker:
    """An `interfaces.Worker` whose step runs only when the test calls `run`."""

    def __init__(self) -> None:
        self._step: Callable[[], None] | None = None
        self._awake = False
        self._posted: list[Callable[[], None]] = []

    def start(self, step: Callable[[], None]) -> None:
        self._step = step

    @property
    def awake(self) -> bool:
        return self._awake and self._step is not None

    def wake(self) -> None:
        self._awake = True

    def post(self, callback: Callable[[], None]) -> None:
        self._posted.append(callback)

    def step(self) -> bool:
        """Run one step if the worker was woken, and return whether it was.

        Callbacks that the step has posted wait for `deliver`.
        """
        if not self._awake or self._step is None:
            return False
        self._awake = False
        self._step()
        return True

    def deliver(self) -> bool:
        posted, self._posted = self._posted, []
        for callback in posted:
            callback()
        return bool(posted)

    def run(self) -> bool:
        stepped = self.step()
        return self.deliver() or stepped

    async def stop(self) -> None:
        while self.run():
            pass


class HandTimers:
    """A replacement for `call_later`, whose timers run only when the test calls `fire`."""

    def __init__(self) -> None:
        self._waiting: list[_Timer] = []

    def __call__(self, delay: float, callback: Callable[[], None], /) -> _Timer:
        timer = _Timer(self, callback)
        self._waiting.append(timer)
        return timer

    def fire(self) -> int:
        waiting, self._waiting = self._waiting, []
        for timer in waiting:
            timer.callback()
        return len(waiting)


class _Timer:
    def __init__(self, timers: HandTimers, callback: Callable[[], None]) -> None:
        self._timers = timers
        self.callback = callback

    def cancel(self) -> None:
        if self in self._timers._waiting:
            self._timers._waiting.remove(self)


class HandClock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000
        self.set_ahead_ms = 0
        """The milliseconds by which somebody has set the wall clock forward. May be negative."""

    def now_ms(self) -> int:
        return self.ms + self.set_ahead_ms

    def monotonic(self) -> float:
        return self.ms / 1000


class StoreOnDisk:
    """A store that is opened again and again on one disk, and what it has acknowledged."""

    def __init__(self, disk: Disk, config: StorageConfig = SMALL) -> None:
        self.disk = disk
        self.config = config
        self.clock = HandClock()
        self.written: Entries = {}
        """Every entry that was ever appended, acknowledged or not."""
        self.acknowledged: Entries = {}
        self.fenced: set[int] = set()
        """The ids of the ledgers whose fence was reported durable."""
        self.errors: list[StorageError] = []
        self.acknowledged_order: list[int] = []
        self._batches = itertools.count()
        self.store: LedgerStore
        self.report: RecoveryReport

    def open(self) -> RecoveryReport:
        """Recover and start the store as a new process does. A fault of the disk may raise."""
        self.log, self.maintenance, self.timers = HandWorker(), HandWorker(), HandTimers()
        rng = random.Random(5)
        ensure_directory(self.disk, rng.randbytes)
        self.store = LedgerStore(
            self.disk, self.log, self.maintenance, self.config, self.clock, schedule=self.timers
        )
        self.before_recovery()
        self.report = self.store.recover()
        self.store.start()
        return self.report

    def before_recovery(self) -> None:
        """Do nothing. `open` calls this when the store exists but has not recovered yet."""

    def pump(self) -> None:
        """Run the workers until they have nothing left to do. Timers do not run."""
        while self.log.run() | self.maintenance.run():
            pass

    def idle(self) -> None:
        """Run the workers, and three times the timers that wait and then the workers."""
        self.pump()
        for _ in range(3):
            self.timers.fire()
            self.pump()

    def append(
        self,
        entries: Sequence[tuple[int, int, bytes]],
        *,
        reserve: bool = False,
        patient: bool = False,
        cuts: Sequence[int] = (),
    ) -> None:
        """Append entries without waiting, and create their ledgers if they do not exist.

        Each entry is (ledger id, entry id, payload). `cuts` are explained at `make_batch`.
        """
        for ledger_id in sorted({entry[0] for entry in entries}):
            if ledger_id not in self.store.ledgers:
                self.store.create_ledger(ledger_id, key_of(ledger_id))
        made = {(entry[0], entry[1]): make_entry(*entry) for entry in entries}
        number = next(self._batches)

        def done(batch: LogBatch, error: StorageError | None) -> None:
            self.acknowledged_order.append(number)
            if error is None:
                self.acknowledged.update(made)
            else:
                self.errors.append(error)

        self.written.update(made)
        batch = make_batch(entries, cuts)
        batch.patient = patient
        self.store.append(batch, done, reserve=reserve)

    def fence(self, ledger_id: int) -> None:
        if ledger_id not in self.store.ledgers:
            self.store.create_ledger(ledger_id, key_of(ledger_id))

        def done(error: StorageError | None) -> None:
            if error is None:
                self.fenced.add(ledger_id)
            else:
                self.errors.append(error)

        self.store.fence(ledger_id, done)

    def drop(self, ledger_ids: Iterable[int]) -> None:
        """Delete ledgers in the store, and expect nothing more of them."""
        gone = set(ledger_ids)
        self.store.drop_ledgers(sorted(gone))
        for entries in (self.written, self.acknowledged):
            for key in [key for key in entries if key[0] in gone]:
                del entries[key]
        self.fenced -= gone

    def read(self, ledger_id: int, entry_id: int, count: int = 1) -> list[bytes]:
        return [
            bytes(e) for e in run(self.store.read_blocking(ledger_id, entry_id, count, 1 << 30))
        ]

    def close(self) -> None:
        run(self.store.close())


def lacks(store: LedgerStore | LedgerDirectories) -> dict[int, list[tuple[int, int]]]:
    """Return the ranges of entries that the store lacks, by ledger."""
    return store.lacking(sorted(store.lacking_ledgers()))


def run(coroutine: object) -> list[memoryview]:
    """Run a coroutine that waits only for event-loop iterations, and return its result."""
    try:
        while True:
            assert coroutine.send(None) is None, "it waits"  # type: ignore[attr-defined]
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def sim_disk(seed: int = 1, **options: object) -> SimDisk:
    return SimDisk(random.Random(seed), "bookie", **options)  # type: ignore[arg-type]


def opened(config: StorageConfig = SMALL, **options: Any) -> StoreOnDisk:
    """Open a new store. Every read finds its data cached, unless `options` of the disk differ."""
    options.setdefault("cold_read_probability", 0.0)
    box = StoreOnDisk(sim_disk(1, **options), config)
    box.open()
    box.idle()
    return box


def disk_of(box: StoreOnDisk) -> SimDisk:
    assert isinstance(box.disk, SimDisk)
    return box.disk


def entries(
    ledger_id: int, first: int, count: int, size: int = 100
) -> list[tuple[int, int, bytes]]:
    """Return `count` entries of a ledger with different payloads, for `StoreOnDisk.append`.

    A payload is the entry id in decimal, repeated `size` times.
    """
    return [(ledger_id, first + i, b"%d" % (first + i) * size) for i in range(count)]


def fill_segments(box: StoreOnDisk, ledger_id: int, count: int) -> None:
    """Append entries of one ledger until `count` more segments are sealed."""
    wanted = box.store.stats().sealed_segments + count
    while box.store.stats().sealed_segments < wanted:
        first = box.store.last_entry_id(ledger_id) + 1 if ledger_id in box.store.ledgers else 0
        box.append(entries(ledger_id, first, 10, 200))
        box.pump()


def mixed(box: StoreOnDisk, segments: int = 3, ledgers: int = 6, size: int = 300) -> None:
    """Append entries of many ledgers in turn until `segments` more segments are sealed."""
    rng = random.Random(4)
    upcoming = dict.fromkeys(range(1, ledgers + 1), 0)
    wanted = box.store.stats().sealed_segments + segments
    while box.store.stats().sealed_segments < wanted:
        entries = []
        for ledger_id in upcoming:
            for _ in range(rng.randrange(1, 4)):
                entries.append(
                    (ledger_id, upcoming[ledger_id], rng.randbytes(rng.choice((0, size))))
                )
                upcoming[ledger_id] += 1
        box.append(entries)
        box.pump()
    box.idle()


def compact(box: StoreOnDisk) -> list[Compaction]:
    """Run compaction until there is nothing left to compact, and return all compactions."""
    done: list[Compaction] = []
    box.store.on_compaction = done.append
    for _ in range(200):
        before = len(done)
        box.store.check_space()
        box.pump()
        while box.timers.fire():
            box.pump()
        box.pump()
        if len(done) == before:
            return done
    raise AssertionError("compaction does not finish")


def sealed(box: StoreOnDisk) -> list[int]:
    """Return the numbers of the sealed segments."""
    return [one.number for one in box.store.usage() if one.state == "sealed"]


def check(box: StoreOnDisk) -> None:
    """Check that every acknowledged entry can be read, and that their ledgers have no others."""
    for (ledger_id, entry_id), entry in box.acknowledged.items():
        assert box.read(ledger_id, entry_id) == [entry]
    for ledger_id in {key[0] for key in box.acknowledged}:
        ids = [entry for ledger, entry in box.acknowledged if ledger == ledger_id]
        assert run(box.store.entry_ranges(ledger_id)) == [(min(ids), max(ids))]
        found = box.read(ledger_id, 0, len(ids) + 3)
        assert found == [box.acknowledged[ledger_id, entry] for entry in sorted(ids)]
