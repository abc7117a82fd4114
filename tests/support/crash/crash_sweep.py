"""The loss of power at every disk operation of a script, in every possible way.

Each state that the disk may then have is opened by a new store and compared with the promises
(`promises`). In addition, for a share of the states:

- The start itself loses power at each of its operations.
- Only the process dies. It starts again on the remaining page cache, and then power is lost at
  each operation of that start, and after it has served what it found.
- The store continues with new adds, a clean stop and another start.
- The files beside the segments are missing or older. The index cache is missing, older, damaged,
  or newer than the segments.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quire.codec.log.footer import TRAILER_BYTES
from quire.storage.config import StorageConfig
from quire.storage.recovery.index_cache import CACHE_NAME
from quire.storage.segment.segment import LOG_DIRECTORY
from quire_simulator.machine.disk import SimDisk
from quire_simulator.machine.inode import Inode, InodeContent
from quire_simulator.machine.power_loss import PowerLoss
from tests.support.storage.interleave import Interleaving
from tests.support.storage.promises import Promises, PromisingStore
from tests.support.storage.storage import sim_disk

Step = Callable[[PromisingStore], object]
LOOP_TURN = 0.3
"""The probability that the event loop runs while a worker is at a disk operation."""

LATE = 0.3
"""The probability that one of two workers that were woken begins only after the other."""

CACHES_MAX = 3
"""The largest number of older index caches that are tried with one state."""

ROOM_BYTES = 1 << 20
"""The number of bytes that are freed on a disk that was full."""

EARLIER_MAX = 4
"""The largest number of states that are tried again with an index cache written later."""


class BrokenPromiseError(BaseException):
    """A broken promise, with the place at which it was found.

    It is raised in the code that was using the disk. That code must not handle it, so it is a
    BaseException.
    """


@dataclass(frozen=True, slots=True)
class Script:
    """The steps that a store runs before it is stopped, and the store's configuration."""

    steps: Callable[[], Iterator[Step]]
    config: StorageConfig

    @property
    def name(self) -> str:
        return self.steps.__name__


@dataclass(slots=True)
class Counts:
    """The numbers of operations, states and starts that were tried."""

    operations: int = 0
    states: int = 0
    """The number of distinct contents of the disk, each of which was opened at least once."""
    exhaustive: int = 0
    """The number of operations at which every possible state was tried."""
    starts: int = 0
    second: int = 0
    """The number of states after a power loss during or after a start."""
    index: int = 0
    """The number of states that were tried with other files beside the segments."""
    caches: int = 0
    """The number of states that were tried with another index cache, or with none."""
    cached: int = 0
    full: int = 0
    """The number of starts on a disk without space for adds."""
    early: int = 0
    """The number of entries that were read during starts."""
    searched: int = 0
    """The number of these that were found in an index cache while it was loaded."""

    def __str__(self) -> str:
        return (
            f"{self.states} distinct states of a disk at {self.operations} operations, every one "
            f"that there is at {self.exhaustive} of them; {self.second} after a second loss of "
            f"power, {self.index} with another index, {self.caches} with another index cache; "
            f"{self.starts} starts, {self.cached} of them from an index cache, {self.full} on a "
            f"full disk; {self.early} entries read before a start had come to its end, "
            f"{self.searched} of them from an index cache that was not loaded yet"
        )


class SideBySide(PromisingStore):
    """A store whose log worker, maintenance worker and event loop run side by side.

    While one of them is at a disk operation, the others may do anything.
    """

    def __init__(self, disk: SimDisk, config: StorageConfig, rng: random.Random) -> None:
        super().__init__(disk, config)
        self.feed: deque[Step] = deque()
        self._threads = Interleaving(rng)
        self._rng = rng

    def pause(self) -> None:
        """Perhaps let the other worker and the event loop run before a disk operation."""
        self._threads.pause()
        if self._threads.running and self._rng.random() < LOOP_TURN:
            self._turn()

    def _turn(self) -> bool:
        """Run one iteration of the event loop: posted callbacks, and the next step of `feed`.

        Returns whether there was anything to do.
        """
        busy = [one.deliver() for one in (self.log, self.maintenance)]
        if self.feed:
            self.feed.popleft()(self)
            busy.append(True)
        return any(busy)

    def pump(self) -> None:
        busy = True
        while busy:
            awake = [one for one in (self.log, self.maintenance) if one.awake]
            if len(awake) > 1 and self._rng.random() < LATE:
                awake.pop(self._rng.randrange(len(awake)))
            self._threads.run([one.step for one in awake])
            busy = self._turn() or bool(awake)


def together(*steps: Step) -> Step:
    """Return a step that runs these steps one by one while the workers are at work."""

    def feed(store: PromisingStore) -> None:
        assert isinstance(store, SideBySide)
        store.feed.extend(steps)
        store.pump()

    return feed


class Sweep:
    def __init__(
        self,
        script: Script,
        *,
        states_max: int,
        seed: int = 1,
        every: int = 10,
    ) -> None:
        """Create a sweep that tries up to `states_max` states of the disk for each operation.

        One in `every` states is tried in depth, and the process is killed at one in `every`
        operations.
        """
        self._script = script
        self._states_max = states_max
        self._every = every
        self._config = script.config
        self._rng = random.Random(seed)
        self._seen: set[tuple[bytes, tuple[int, int]]] = set()
        self._digests: set[bytes] = set()
        self._older: dict[str, InodeContent] = {}
        """The first version of each file beside the segments, by name."""
        self._caches: list[InodeContent] = []
        """All index caches that the store has written so far, oldest first."""
        self._earlier: list[tuple[SimDisk, Promises, str]] = []
        """A few states since the last index cache was written: disk, promises, and place."""
        self._subject: SideBySide
        self.counts = Counts()

    def run(self) -> Counts:
        """Run the sweep, and return the counts.

        Raises BrokenPromiseError, which describes the place and the broken promise.
        """
        disk = sim_disk(1, cold_read_probability=0.0)
        self._subject = subject = SideBySide(disk, self._config, self._rng)
        disk.before_operation = self._at_operation
        subject.open()
        for step in self._script.steps():
            step(subject)
        self._at_operation()
        disk.before_operation = None
        subject.check()
        return self.counts

    def _at_operation(self) -> None:
        subject = self._subject
        subject.pause()
        self.counts.operations += 1
        where = f"{self._script.name}, operation {self.counts.operations}"
        promises = subject.promises.copy()
        states = PowerLoss(subject.sim, self._rng, self._states_max)
        self.counts.exhaustive += states.exhaustive
        for number, (digest, disk) in enumerate(states):
            if (digest, promises.mark) in self._seen:
                continue
            self._seen.add((digest, promises.mark))
            self._note(digest)
            deep = self.counts.starts % self._every == 0
            self._try(disk, promises, f"{where}, state {number}", deep=deep)
        if self.counts.operations % self._every == 0:
            self._kill(subject.sim, promises, f"{where}, killed")

    def _note(self, digest: bytes) -> None:
        self._digests.add(digest)
        self.counts.states = len(self._digests)

    # -- one state --------------------------------------------------------------------------------

    def _try(self, disk: SimDisk, promises: Promises, where: str, *, deep: bool) -> None:
        if not deep:
            self._start(disk, promises, where)
            return
        self._index(disk, promises, where)
        self._index_cache(disk, promises, where)
        subject = self._start(disk, promises, where, then="power is lost again")
        self._held(where, lambda: go_on(subject))

    def _start(
        self, disk: SimDisk, promises: Promises, where: str, *, then: str = ""
    ) -> PromisingStore:
        """Start a store on the disk, check it, and return it.

        With `then`, power is also lost at each operation of the start. `then` describes that in
        errors.
        """
        subject = PromisingStore(disk, self._config, promises.copy())
        operations = 0

        def lose_power() -> None:
            nonlocal operations
            operations += 1
            # This start may have stored the cookie.
            now = promises.copy()
            now.cookies = dict(subject.promises.cookies)
            self._again(disk, now, f"{where}; {then} at operation {operations}")

        if then:
            disk.before_operation = lose_power
        self.counts.starts += 1
        self._held(where, subject.open)
        self.counts.cached += subject.report.index_cache.startswith("used")
        self.counts.full += not subject.store.writable
        self.counts.early += subject.early_entries
        self.counts.searched += subject.searched_entries
        disk.before_operation = None
        self._held(where, subject.check)
        return subject

    def _again(self, disk: SimDisk, promises: Promises, where: str) -> None:
        for digest, found in PowerLoss(disk, self._rng, max(4, self._states_max // 4)):
            if (digest, promises.mark) not in self._seen:
                self._seen.add((digest, promises.mark))
                self._note(digest)
                self.counts.second += 1
                self._start(found, promises, where)

    def _kill(self, disk: SimDisk, promises: Promises, where: str) -> None:
        """Kill the process, start it again on the page cache that is left, and then lose power.

        What the start has served must survive the loss of power.
        """
        left = disk.copy()
        left.kill()
        subject = self._start(left, promises, where, then="then power is lost")
        served = subject.promises.copy()
        served.acknowledged.update(subject.readable())
        served.fenced |= {one.ledger_id for one in subject.store.ledgers.values() if one.fenced}
        served.version = -self.counts.operations  # It has its own promises.
        self._again(left, served, f"{where}; then power is lost behind the start")
        self._held(where, lambda: go_on(subject))

    def _held(self, where: str, check: Callable[[], object]) -> None:
        try:
            check()
        except Exception as error:
            raise BrokenPromiseError(f"{where}: {type(error).__name__}: {error}") from error

    # -- other files beside the segments ----------------------------------------------------------

    def _index(self, disk: SimDisk, promises: Promises, where: str) -> None:
        """Start with the same segments but fewer files beside them.

        A start must need nothing but the segments, without their footers, and the identity of the
        directory.
        """
        contents = contents_of(disk)
        beside = {name: one for name, one in contents.items() if one is not None and aside(name)}
        for name, content in contents_of(self._subject.sim).items():
            if content is not None and aside(name):
                self._older.setdefault(name, content.copy())
        others = {
            "without footers": {name: without_trailer(one) for name, one in contents.items()},
            "nothing beside": {name: contents[name] for name in contents if name not in beside},
            "older files beside": {**contents, **self._older},
        }
        for what, changed in others.items():
            if any(changed.get(name) is not contents.get(name) for name in {*changed, *contents}):
                self.counts.index += 1
                self._start(disk.holding(changed), promises, f"{where}, {what}")

    def _index_cache(self, disk: SimDisk, promises: Promises, where: str) -> None:
        """Start with other index caches. A start may use only one that belongs to the segments."""
        contents = contents_of(disk)
        there = contents.get(CACHE_NAME)
        now = contents_of(self._subject.sim).get(CACHE_NAME)
        if now is not None and (not self._caches or now != self._caches[-1]):
            self._caches.append(now.copy())
            for earlier, promised, at in self._earlier:
                self._with_cache(earlier, promised, f"{at}, with the cache of {where}", now)
            self._earlier = []
        if there is not None:
            self._with_cache(disk, promises, f"{where}, without its cache", None)
            spoilt = there.copy()
            offset = self._rng.randrange(spoilt.size)
            wrong = spoilt.read(offset, offset + 1)[0] ^ 1 << self._rng.randrange(8)
            spoilt.apply(offset, bytes([wrong]))
            self._with_cache(disk, promises, f"{where}, with a wrong bit in its cache", spoilt)
        older = self._rng.sample(self._caches, min(CACHES_MAX, len(self._caches)))
        for number, cache in enumerate(older):
            if cache != there:
                self._with_cache(disk, promises, f"{where}, with older cache {number}", cache)
        if len(self._earlier) == EARLIER_MAX:
            self._earlier.pop(self._rng.randrange(EARLIER_MAX))
        self._earlier.append((disk.copy(), promises.copy(), where))

    def _with_cache(
        self, disk: SimDisk, promises: Promises, where: str, cache: InodeContent | None
    ) -> None:
        contents = {name: one for name, one in contents_of(disk).items() if name != CACHE_NAME}
        if cache is not None:
            contents[CACHE_NAME] = cache.copy()
        self.counts.caches += 1
        self._start(disk.holding(contents), promises, where)


def aside(name: str) -> bool:
    """Return whether a file is in the log's directory and is not a segment.

    Examples are the mark of a clean stop, preallocated files, and index caches. An index cache that
    is newer than the segments is among the states of the disk itself.
    """
    return name.startswith(f"{LOG_DIRECTORY}/") and not name.endswith(".seg")


def contents_of(disk: SimDisk) -> dict[str, InodeContent | None]:
    entries = disk.durable_entries
    return {n: one.durable if isinstance(one, Inode) else None for n, one in entries.items() if n}


def without_trailer(content: InodeContent | None) -> InodeContent | None:
    if content is None or content.size < TRAILER_BYTES:
        return content
    at = content.size - TRAILER_BYTES
    if content.read(at, content.size)[:7] != b"QSEALED":
        return content
    cut = content.copy()
    cut.apply(at, bytes(TRAILER_BYTES))
    return cut


def go_on(subject: PromisingStore) -> None:
    """Continue with new adds, a fence, a clean stop and another start, and check everything.

    No files of segments may be left over. On a full disk, space is freed first, which the store
    must notice.
    """
    rng = random.Random(7)
    if not subject.store.writable:
        subject.sim.capacity_bytes += ROOM_BYTES
        for _ in range(3):
            subject.store.check_space()
            subject.idle()
        assert subject.store.writable, "there is free space, but the store accepts no adds"
        subject.errors.clear()
    for ledger_id in (1, 71):
        info = subject.store.ledgers.get(ledger_id)
        used = [key[1] for key in subject.written if key[0] == ledger_id]
        first = max([*used, -1 if info is None else info.last_entry_id, -1]) + 1
        subject.append([(ledger_id, first + at, rng.randbytes(600)) for at in range(3)])
    subject.fence(71)
    subject.idle()
    assert 71 in subject.fenced
    assert not subject.errors, subject.errors
    subject.check()
    subject.close()
    report = subject.open()
    assert report.clean
    subject.check()
    subject.idle()
    files = [name for name in subject.disk.list(LOG_DIRECTORY) if name.endswith(".seg")]
    assert len(files) <= len(subject.store.usage()) + 2, "files of segments are left over"
    subject.check()
