"""When the index cache is written: at a clean stop, and while the store runs so often that a start
behind a crash has few footers to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from quire.codec.log.footer import Trailer
from quire.errors import StorageError
from quire.storage.background.job import PacedChore, Tools
from quire.storage.log.appender import Done
from quire.storage.log.preallocation import may_pass
from quire.storage.recovery.index_cache import CacheFile, Snapshot

WRITE_BYTES_PER_S = 16 * 1024 * 1024
"""While it is written, so that adds do not wait for it: a million ledgers take five seconds."""
MEAN_BYTES_PER_S = 2 * 1024 * 1024
"""From one cache to the next: a large one is written less often."""


class IndexCacheWriter(PacedChore):
    def __init__(
        self,
        tools: Tools,
        may_begin: Callable[[], bool],
        compactions: Callable[[], int],
        end_group: Callable[[], int],
        barrier: Callable[[Done], None],
    ) -> None:
        """`may_begin`: there is room, and no deletion waits to be logged. `compactions`: how many
        have changed the index. `end_group`: the group behind the last that is synced. `barrier`:
        calls back when all that was appended is durable."""
        super().__init__(tools)
        self._may_begin = may_begin
        self._compactions = compactions
        self._end_group = end_group
        self._barrier = barrier
        self._known: dict[int, Trailer] = {}
        """What the one on the disk covers."""
        self._next_s = self._monotonic() + self._config.index_cache_interval_s
        self._busy = False
        self._file: CacheFile | None = None
        self.written = 0
        """Since the start."""

    def loaded(self, trailers: Mapping[int, Trailer]) -> None:
        """The start has used one that covers these."""
        self._known = dict(trailers)

    def tick(self) -> None:
        """Begin to write one, where that is due."""
        now = self._monotonic()
        if self._busy or self.closed or now < self._next_s or not self._may_begin():
            return
        self._next_s = now + self._config.index_cache_interval_s
        snapshot = Snapshot(self._catalogue, self._directory_id)
        if not self._is_due(snapshot):
            return
        self._busy = True
        self._file = CacheFile(self._disk, snapshot)
        self._step(snapshot, self._file, self._compactions())

    def _is_due(self, snapshot: Snapshot) -> bool:
        """The one on the disk is of no use any more, or says nothing of many segments."""
        segments = self._catalogue.segments
        for number, trailer in self._known.items():
            segment = segments.get(number)
            if segment is None or segment.trailer != trailer:
                return bool(snapshot.covered)
        newer = len(snapshot.covered) - len(self._known)
        return newer >= self._config.index_cache_segments

    def _step(self, snapshot: Snapshot, file: CacheFile, compactions: int) -> None:
        self._timer = None
        done = partial(self._on_step, snapshot, file, compactions)
        self._maintenance.run(file.step, done)

    def _on_step(
        self,
        snapshot: Snapshot,
        file: CacheFile,
        compactions: int,
        size: int | None,
        error: Exception | None,
    ) -> None:
        if size is None or self.closed:
            self._give_up(file, error)
        elif size:
            again = partial(self._step, snapshot, file, compactions)
            self._timer = self._schedule(size / WRITE_BYTES_PER_S, again)
        else:
            self._barrier(partial(self._on_durable, snapshot, file, compactions))

    def _on_durable(
        self, snapshot: Snapshot, file: CacheFile, compactions: int, error: StorageError | None
    ) -> None:
        """What is in the snapshot is in the log, too."""
        changed = self._compactions() != compactions or not snapshot.still_holds(self._catalogue)
        if error is not None or changed or self.closed:
            self._give_up(file, None)
            return
        publish = partial(file.publish, self._end_group())
        self._maintenance.run(publish, partial(self._on_published, snapshot, file))

    def _on_published(
        self, snapshot: Snapshot, file: CacheFile, _: None, error: Exception | None
    ) -> None:
        if error is not None:
            self._give_up(file, error)
            return
        self._note(snapshot, file)

    def _note(self, snapshot: Snapshot, file: CacheFile) -> None:
        self._busy, self._file = False, None
        self._known = {one.segment.number: one.trailer for one in snapshot.covered}
        pause_s = max(self._config.index_cache_interval_s, file.size_bytes / MEAN_BYTES_PER_S)
        self._next_s = self._monotonic() + pause_s
        self.written += 1

    def _give_up(self, file: CacheFile, error: Exception | None) -> None:
        """The one before stays; the next tick that is due tries again."""
        self._busy, self._file = False, None
        if error is not None and not may_pass(error):
            self._broken(error)
        elif self.closed:
            file.close()
        else:
            self._maintenance.run(file.discard, self._on_discarded)

    def _on_discarded(self, _: None, error: Exception | None) -> None:
        self._look_at(error)

    # -- the stop ---------------------------------------------------------------------------------

    def write_last(self) -> None:
        """Of a store in which nothing goes on any more, and of which all is durable. Blocks;
        `OSError`."""
        if self._file is not None:
            self._file.close()
        if not self._may_begin():
            return
        snapshot = Snapshot(self._catalogue, self._directory_id)
        file = CacheFile(self._disk, snapshot)
        try:
            while file.step():
                pass
            file.publish(self._end_group())
        except OSError:
            file.discard()
            raise
        self._note(snapshot, file)
