"""Write the index cache, which `recovery.index_cache` reads at a start.

The cache is written at a clean stop, and also while the store runs. This happens often enough that
a start after a crash has only a few footers to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from quire._runtime.batches import batches
from quire.codec.log import index_cache as fmt
from quire.codec.log.footer import Trailer
from quire.codec.log.index_cache import CachedLedger, CachedSegment
from quire.codec.log.state_records import Buffer
from quire.errors import StorageError
from quire.storage.background.job import JobContext, PacedJob
from quire.storage.interfaces import Disk, File
from quire.storage.log.appender import Done
from quire.storage.log.preallocation import may_pass
from quire.storage.recovery.index_cache import CACHE_NAME, TEMPORARY_NAME
from quire.storage.segment import sealed_rows
from quire.storage.segment.catalogue import Catalogue
from quire.storage.segment.ledger_ids import LedgerIdSet
from quire.storage.segment.segment import LOG_DIRECTORY, LedgerInfo, LogSegment, SegmentState

LEDGERS_PER_BLOCK = 4_096
"""The most ledgers in a block of the index cache. One step of the writing thread handles at least
one block."""
BLOCK_BYTES_MAX = 8 * 1024 * 1024
"""The most bytes of rows in a block of the index cache, which may then have fewer ledgers. The file
is also synced each time that this many bytes were written."""
STEP_BYTES = 256 * 1024
"""The fewest bytes of the index cache to write in one step."""
WRITE_BYTES_PER_S = 16 * 1024 * 1024
"""The rate in bytes per second at which one index cache is written, so that adds do not wait for
it. A cache of a million ledgers takes five seconds."""
MEAN_BYTES_PER_S = 2 * 1024 * 1024
"""The mean rate in bytes per second at which index caches are written, including the pauses between
them. It makes large caches less frequent."""


@dataclass(frozen=True, slots=True)
class Covered:
    """A segment that the index cache covers, as it was when the snapshot was taken."""

    segment: LogSegment
    trailer: Trailer
    mentions: LedgerIdSet
    live_ledgers: int
    live_bytes: int

    def encode(self) -> list[Buffer]:
        return CachedSegment(
            self.segment.number, self.trailer.encode(), self.live_ledgers, self.live_bytes,
            self.segment.payload_bytes, self.mentions.base, self.mentions.offsets,
        ).encode()  # fmt: skip


class Snapshot:
    """The contents of an index cache, taken while the store continues to run.

    The snapshot is created on the event loop and written by another thread. A ledger is written as
    it is at some moment during the writing. Adds, fences and deletions of that time are in segments
    that the cache does not cover, so a start applies them again, with the same result. They must be
    durable before the cache may be used.
    """

    def __init__(self, catalogue: Catalogue, directory_id: bytes) -> None:
        """Take a snapshot of the catalogue.

        For a million ledgers, this takes about ten milliseconds.
        """
        self._directory_id = directory_id
        self.covered: list[Covered] = []
        for _, segment in sorted(catalogue.segments.items()):
            trailer = segment.trailer
            if segment.state is not SegmentState.SEALED or trailer is None:
                break
            self.covered.append(
                Covered(
                    segment, trailer, segment.mentions, segment.live_ledgers, segment.live_bytes
                )
            )
        self.through = self.covered[-1].segment.number if self.covered else 0
        # Ledgers that are deleted from now on stay in the snapshot. Their rows and the sums of the
        # segments must be of the same moment.
        self._ledgers = list(catalogue.ledgers.values())
        self._tombstones = dict(catalogue.tombstones)
        self.ledgers = 0
        """The number of ledgers in the blocks that `blocks` has yielded so far."""

    def still_holds(self, catalogue: Catalogue) -> bool:
        """Return whether the covered segments still exist unchanged."""
        return all(
            catalogue.segments.get(one.segment.number) is one.segment
            and one.segment.state is SegmentState.SEALED
            and one.segment.trailer is one.trailer
            for one in self.covered
        )

    def blocks(self) -> Iterator[list[Buffer]]:
        """Yield the contents of the index cache in blocks of buffers, without the end mark."""
        yield fmt.CacheHead(self._directory_id, self.through, len(self.covered)).encode()
        for covered in self.covered:
            yield covered.encode()
        yield fmt.encode_dead(self._tombstones)
        rowless: list[LedgerInfo] = []
        for at in range(0, len(self._ledgers), LEDGERS_PER_BLOCK):
            found = []
            for info in self._ledgers[at : at + LEDGERS_PER_BLOCK]:
                if info.born > self.through:
                    continue
                one = _cached(info, self.through)
                if one.rows:
                    found.append(one)
                else:
                    rowless.append(info)
            for part in batches(found, lambda one: len(one.rows), BLOCK_BYTES_MAX):
                self.ledgers += len(part)
                yield fmt.encode_ledgers(part)
        for at in range(0, len(rowless), LEDGERS_PER_BLOCK):
            found = [
                _cached(info, self.through)
                for info in self._spoken_of(rowless[at : at + LEDGERS_PER_BLOCK])
            ]
            self.ledgers += len(found)
            yield fmt.encode_ledgers(found)

    def _spoken_of(self, rowless: list[LedgerInfo]) -> list[LedgerInfo]:
        """Return the ledgers without entries that covered segments mention in state records.

        The others must not be in the cache. The segments do not mention them, so the record of
        their deletion may be dropped one day, and then a start would take them from the cache.
        """
        return [info for info in rowless if any(info.ledger_id in c.mentions for c in self.covered)]


def _cached(info: LedgerInfo, through: int) -> CachedLedger:
    # Read `ordered` first. A row that is added in between may end the order, but is cut off below.
    ordered, packed = info.ordered, info.sealed
    rows = sealed_rows.up_to(packed, through)
    lasts = [row[2] for row in sealed_rows.unpack(rows)] if not ordered else []
    if ordered and rows:
        lasts = [sealed_rows.row_at(rows, sealed_rows.count(rows) - 1)[2]]
    return CachedLedger(
        info.ledger_id, info.master_key, info.fenced, info.fence_durable, info.explicit_lac,
        max(lasts, default=-1), info.last_add_confirmed, info.born, min(info.touched, through),
        ordered, rows,
    )  # fmt: skip


class CacheFile:
    """The temporary file in which a new index cache is written.

    `publish` replaces the previous cache with it. All calls block and may raise `OSError`.
    """

    def __init__(self, disk: Disk, snapshot: Snapshot) -> None:
        self._disk = disk
        self._snapshot = snapshot
        self._blocks = snapshot.blocks()
        self._file: File | None = None
        self._unsynced_bytes = 0
        self.size_bytes = 0

    def step(self) -> int:
        """Write the next part of the file, and return the number of bytes written.

        The number is 0 if only the end mark is left, which `publish` writes.
        """
        if self._file is None:
            if self._disk.exists(TEMPORARY_NAME):
                self._disk.remove(TEMPORARY_NAME)
            self._file = self._disk.create(TEMPORARY_NAME)
        pieces: list[Buffer] = []
        size = 0
        for block in self._blocks:
            pieces += block
            size += sum(map(len, block))
            if size >= STEP_BYTES:
                break
        if size:
            self._file.write(pieces, self.size_bytes)
            self.size_bytes += size
            self._unsynced_bytes += size
        if self._unsynced_bytes >= BLOCK_BYTES_MAX:
            # Sync now and then, because a large sync at the end would delay those of the log.
            self._file.sync()
            self._unsynced_bytes = 0
        return size

    def publish(self, end_group: int) -> None:
        """Write the end of the file, and replace the previous index cache, durably.

        `end_group` is the number after that of the last synced group. The groups before it have
        everything that is in the snapshot.
        """
        assert self._file is not None
        self._file.write(fmt.CacheEnd(self._snapshot.ledgers, end_group).encode(), self.size_bytes)
        self._file.sync()
        self.close()
        self._disk.rename(TEMPORARY_NAME, CACHE_NAME)
        self._disk.sync_directory(LOG_DIRECTORY)

    def discard(self) -> None:
        """Close and remove the unfinished file."""
        self.close()
        if self._disk.exists(TEMPORARY_NAME):
            self._disk.remove(TEMPORARY_NAME)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class IndexCacheWriter(PacedJob):
    """The job that decides when to write the index cache of one store, and writes it in steps."""

    def __init__(
        self,
        context: JobContext,
        may_begin: Callable[[], bool],
        compactions: Callable[[], int],
        end_group: Callable[[], int],
        barrier: Callable[[Done], None],
    ) -> None:
        """Create a writer.

        Args:
            context: The parts of the store that the job uses.
            may_begin: Returns whether there is space and no deletion waits to be logged.
            compactions: Returns how many compactions have changed the index.
            end_group: Returns the number after that of the last synced group.
            barrier: Calls back once everything that was appended is durable.
        """
        super().__init__(context)
        self._may_begin = may_begin
        self._compactions = compactions
        self._end_group = end_group
        self._barrier = barrier
        self._known: dict[int, Trailer] = {}
        """The trailers of the segments that the cache on disk covers, by segment number."""
        self._next_s = self._monotonic() + self._config.index_cache_interval_s
        self._busy = False
        self._file: CacheFile | None = None
        self.written = 0
        """The number of index caches written since the start."""

    def loaded(self, trailers: Mapping[int, Trailer]) -> None:
        """Note that the start has read an index cache that covers segments with these trailers."""
        self._known = dict(trailers)

    def tick(self) -> None:
        """Begin to write a cache if one is due."""
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
        """Return whether a new index cache should be written.

        It should if a segment that the cache on disk covers has changed, or if
        `index_cache_segments` newer segments are sealed.
        """
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
        self._jobs.run(file.step, done)

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
        """Publish a cache, now that everything in its snapshot is durable in the log."""
        changed = self._compactions() != compactions or not snapshot.still_holds(self._catalogue)
        if error is not None or changed or self.closed:
            self._give_up(file, None)
            return
        publish = partial(file.publish, self._end_group())
        self._jobs.run(publish, partial(self._on_published, snapshot, file))

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
        """Discard an unfinished cache, and keep the previous one. A later tick tries again."""
        self._busy, self._file = False, None
        if error is not None and not may_pass(error):
            self._broken(error)
        elif self.closed:
            file.close()
        else:
            self._jobs.run(file.discard, self._on_discarded)

    def _on_discarded(self, _: None, error: Exception | None) -> None:
        self._look_at(error)

    # -- the stop ---------------------------------------------------------------------------------

    def write_last(self) -> None:
        """Write the cache at a clean stop, when everything is durable and nothing runs any more.

        Nothing is written if there is too little space or a deletion is not logged. The cache is
        durable on return. This blocks and may raise `OSError`. The previous cache is then kept.
        """
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
