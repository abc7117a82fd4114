"""A store of one data directory whose threads and timers run step by step, and what it must have.

No bookie and no network are involved. So after each step it is known exactly what the store has,
what it has written, and what it may have read.
"""

from __future__ import annotations

import itertools
import random
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from quire.codec.log.group import ColumnarBatch
from quire.codec.wire.v2 import add_request
from quire.errors import StorageError
from quire.storage.background.compactor import Compaction
from quire.storage.config import StorageConfig
from quire.storage.directory import ensure_directory
from quire.storage.recovery.log_recovery import RecoveryReport
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.store import LedgerStore
from quire_simulator.machine.disk import SimDisk

BEGIN_MS = 1_750_000_000_000
CHECK_INTERVAL_S = 5.0
"""Seconds between two calls of `check_space`, as in a bookie."""
Item = tuple[int, int, bytes]
"""A ledger id, an entry id, and the entry without its frame."""


class Steps:
    """A worker whose step runs when `DrivenStore.pump` says so."""

    def __init__(self) -> None:
        self._step: Callable[[], None] | None = None
        self._awake = False
        self._posted: list[Callable[[], None]] = []

    def start(self, step: Callable[[], None]) -> None:
        self._step = step

    def wake(self) -> None:
        self._awake = True

    def post(self, callback: Callable[[], None]) -> None:
        self._posted.append(callback)

    def run(self) -> bool:
        """Run one step if the worker was woken, and what was posted. Return whether it was."""
        stepped = self._awake and self._step is not None
        if stepped:
            assert self._step is not None
            self._awake = False
            self._step()
        posted, self._posted = self._posted, []
        for callback in posted:
            callback()
        return stepped or bool(posted)

    async def stop(self) -> None:
        while self.run():
            pass


class Timer:
    """A timer that was set and has not run."""

    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class StepClock:
    """A clock that shows what `DrivenStore` says."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def now_ms(self) -> int:
        return BEGIN_MS + int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


@dataclass
class HeldLedger:
    """What a store or a bookie must have of one ledger."""

    key: bytes
    entries: dict[int, bytes] = field(default_factory=dict)
    fenced: bool = False

    @property
    def last(self) -> int:
        return max(self.entries, default=-1)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for one in sorted(self.entries):
            if found and found[-1][1] + 1 == one:
                found[-1] = found[-1][0], one
            else:
                found.append((one, one))
        return found


@dataclass
class Ledger(HeldLedger):
    """What a store must have of one ledger."""

    explicit_lac: bytes | None = None

    def read(self, first: int, count: int, max_bytes: int, overhead: int) -> list[bytes]:
        """Return what a read returns at most."""
        found: list[bytes] = []
        left = max_bytes
        for number in range(first, first + count):
            one = self.entries.get(number)
            if one is None:
                break
            left -= len(one) + overhead
            if left < 0 and found:
                break
            found.append(one)
        return found


class DrivenStore:
    """A store that is opened again and again on one disk."""

    def __init__(self, disk: SimDisk, config: StorageConfig, chance: random.Random) -> None:
        self.disk = disk
        self.config = config
        self.chance = chance
        self.clock = StepClock()
        self.ledgers: dict[int, Ledger] = {}
        self.refused: set[int] = set()
        """The ledgers that were fenced and then dropped."""
        self.answered: list[int] = []
        """The numbers of the batches that were answered, in this order."""
        self.errors: list[StorageError] = []
        self.compactions: list[Compaction] = []
        self.damaged: list[tuple[int, bool]] = []
        """The segments whose damage was reported, and whether it was reported as repaired."""
        self.appended = self.appended_bytes = self.batches = 0
        """The number of entries, their bytes with frames, and batches since the last start."""
        self.again: set[tuple[int, int]] = set()
        """Entries that were ever appended twice, as (ledger id, entry id)."""
        self._appended = 0
        self._timers: list[Timer] = []
        self._next_check_s = 0.0
        self.store: LedgerStore
        self.report: RecoveryReport

    # -- time and life ------------------------------------------------------------------------

    def open(self) -> None:
        """Recover and start the store, as a new process does."""
        self._log, self._keeper, self._timers = Steps(), Steps(), []
        ensure_directory(self.disk, self.chance.randbytes)
        self.disk.lock()
        self.store = store = LedgerStore(
            self.disk, self._log, self._keeper, self.config, self.clock, schedule=self._schedule
        )
        self.appended = self.appended_bytes = self.batches = 0
        self.report = store.recover()
        self.compactions = []
        store.on_compaction = self.compactions.append
        store.on_failure = self.errors.append
        store.on_damage = lambda path, damage, repaired: self.damaged.append(
            (damage.number, repaired)
        )
        store.start()
        store.end_early()

    def _schedule(self, delay_s: float, callback: Callable[[], None], /) -> Timer:
        timer = Timer(self.clock.now_s + delay_s, callback)
        self._timers.append(timer)
        return timer

    def pump(self) -> None:
        """Run the workers until they have nothing left to do. No time passes."""
        while self._log.run() | self._keeper.run():
            pass

    def later(self, seconds: float) -> None:
        """Let time pass, and do everything that becomes due."""
        end_s = self.clock.now_s + seconds
        while True:
            self.pump()
            self._timers = [one for one in self._timers if not one.cancelled]
            timer = min(self._timers, key=lambda one: one.due_s, default=None)
            due_s = end_s if timer is None else timer.due_s
            if self._next_check_s <= min(due_s, end_s):
                self.clock.now_s = max(self.clock.now_s, self._next_check_s)
                self._next_check_s = self.clock.now_s + CHECK_INTERVAL_S
                self.store.check_space()
            elif timer is not None and due_s <= end_s:
                self.clock.now_s = max(self.clock.now_s, due_s)
                self._timers.remove(timer)
                timer.callback()
            else:
                self.clock.now_s = end_s
                return

    async def close(self) -> None:
        await self.store.close()
        self.disk.close()

    # -- changes ------------------------------------------------------------------------------

    def append(self, items: Sequence[Item], *, reserve: bool = False) -> None:
        """Append entries without waiting, and create the ledgers that are not there."""
        for ledger_id in sorted({one[0] for one in items}):
            if ledger_id not in self.ledgers:
                self.create(ledger_id)
        number = self._appended

        def done(batch: LogBatch, error: StorageError | None) -> None:
            self.answered.append(number)
            if error is not None:
                self.errors.append(error)

        batch = self._batch(items)
        size = batch.size_bytes
        self.store.append(batch, done, reserve=reserve)
        self._appended += 1
        self.appended += len(items)
        self.appended_bytes += size
        self.batches += 1
        for ledger_id, entry_id, entry in items:
            entries = self.ledgers[ledger_id].entries
            if entry_id in entries:
                self.again.add((ledger_id, entry_id))
            entries[entry_id] = entry

    def create(self, ledger_id: int) -> None:
        key = b"key %16d" % ledger_id
        again = ledger_id in self.refused
        self.store.create_ledger(ledger_id, key, again=again)
        self.ledgers[ledger_id] = Ledger(key, fenced=again)
        self.refused.discard(ledger_id)

    def note(self, error: StorageError | None) -> None:
        """Be the callback of a fence or of another record."""
        if error is not None:
            self.errors.append(error)

    def drop(self, ledger_ids: Iterable[int]) -> None:
        gone = sorted(ledger_ids)
        self.store.drop_ledgers(gone)
        for one in gone:
            if self.ledgers.pop(one).fenced:
                self.refused.add(one)

    def _batch(self, items: Sequence[Item]) -> LogBatch:
        """Return a batch: neighbours of one ledger with ascending ids are one run.

        Single entries of one size become columns, as the bookie does it.
        """
        frames: list[bytes] = []
        runs: list[Run] = []
        offset = 0
        for ledger_id, group in itertools.groupby(items, key=lambda one: one[0]):
            rest = list(group)
            while rest:
                count = 1
                while count < len(rest) and rest[count][1] > rest[count - 1][1]:
                    count += 1
                taken, rest = rest[:count], rest[count:]
                key = self.ledgers[ledger_id].key
                made = [add_request(key, one[2]) for one in taken]
                ids, sizes = [one[1] for one in taken], [len(one) for one in made]
                uniform, plain = len(set(sizes)) == 1, ids[-1] - ids[0] == count - 1
                runs.append(
                    Run(
                        ledger_id, ids[0], count, offset, sizes[0] if uniform else 0,
                        None if uniform else array("I", sizes), None if plain else array("q", ids),
                    )
                )  # fmt: skip
                frames += made
                offset += sum(sizes)
        data = b"".join(frames)
        cuts = sorted(self.chance.randrange(len(data)) for _ in range(self.chance.randrange(3)))
        bounds = [0, *dict.fromkeys(one for one in cuts if one), len(data)]
        buffers = [data[low:high] for low, high in itertools.pairwise(bounds)]
        if all(run.count == 1 and run.frame_size == runs[0].frame_size for run in runs):
            columns = ColumnarBatch(
                [run.ledger_id for run in runs], [run.first for run in runs], runs[0].frame_size
            )
            return LogBatch(buffers, columns)
        return LogBatch(buffers, runs)


def entry_of(ledger_id: int, entry_id: int, size: int) -> bytes:
    """Return an entry as a client sends it, but without a digest, which no store looks at."""
    head = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, size)
    return head + random.Random(ledger_id * 1_000_003 + entry_id).randbytes(size)
