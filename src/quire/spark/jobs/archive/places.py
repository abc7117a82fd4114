"""The search for a place of a stream in its offloaded files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import UsageError
from quire.spark.jobs.archive.manifest import HistoryFile, OffloadHistory
from quire.spark.jobs.archive.parquet_files import read_file
from quire.streams import DLSN, AtSequence, AtTime, AtTxid
from quire.streams.read.positions import TIME_TXID_MIN, Start

if TYPE_CHECKING:
    import pyarrow as pa

POSITION = ("segment", "entry", "slot")


@dataclass(frozen=True, slots=True)
class FoundPlace:
    """The result of a search for a place in the files."""

    position: DLSN | None = None
    """The first record that is certainly not before the place, or None if there is none."""
    unsure: DLSN | None = None
    """The first of the records just before `position`, or at the end of the files, of which the
    files do not say whether they are before the place. None if there are none.
    """


def in_files(history: OffloadHistory, files: Iterable[HistoryFile], place: Start) -> FoundPlace:
    """Search the files for the first record that is not before `place`.

    The time of a record is unknown if it is not stored and the txid is too low for a time. Such a
    record was appended before the next one whose time is known. If that one is not before `place`,
    or if there is none, the record may be on either side of it.

    Raises UsageError if `place` is no place in a stream, and HistoryDamagedError if a file cannot
    be read.
    """
    if isinstance(place, AtTime):
        return _at_time(history, files, place.time_ms)
    for file in files:
        if isinstance(place, AtTxid):
            column, wanted, (least, greatest) = "txid", place.txid, file.txids
        elif isinstance(place, AtSequence):
            column, wanted, (least, greatest) = "sequence", place.sequence, file.sequences
        else:
            raise UsageError(
                f"{place!r} is not a place in a stream",
                remedy="Use a DLSN, AtTxid, AtSequence, AtTime, EARLIEST or LATEST",
            )
        if greatest < wanted:
            continue
        if least >= wanted:
            return FoundPlace(file.first)
        for batch in read_file(history, file.name, [*POSITION, column]):
            if (at := _first(batch.column(column), wanted)) is not None:
                return FoundPlace(_position(batch, at))
    return FoundPlace()


def _at_time(history: OffloadHistory, files: Iterable[HistoryFile], time_ms: int) -> FoundPlace:
    search = _TimeSearch(history, time_ms)
    for file in files:
        if search.passes(file):
            continue
        if (found := search.within(file)) is not None:
            return found
    return search.end()


@dataclass(slots=True)
class _TimeSearch:
    """The search for the first record that was appended at a time or later."""

    history: OffloadHistory
    time_ms: int
    unsure: DLSN | None = None
    """The first record whose time is unknown after the last one that is before the time."""
    passed: HistoryFile | None = None
    """The last file that was passed, if its last records may have no time. It was not read yet."""

    def passes(self, file: HistoryFile) -> bool:
        """Return whether no record of the file is known to be of the time or later.

        Nothing is known of a file that has no known time: it is not passed.
        """
        times = _times(file)
        known = [at for at in times if at >= TIME_TXID_MIN]
        if not known or max(known) >= self.time_ms:
            return False
        self.unsure = None
        self.passed = file if min(times) < TIME_TXID_MIN else None
        return True

    def within(self, file: HistoryFile) -> FoundPlace | None:
        """Return the place if a record of this file is certainly not before the time."""
        self._read_passed()
        if min(_times(file)) >= max(self.time_ms, TIME_TXID_MIN):
            return FoundPlace(file.first, self.unsure)  # so the file need not be read
        for batch in self._batches(file):
            if (at := self._add(batch)) is not None:
                return FoundPlace(_position(batch, at), self.unsure)
        return None

    def end(self) -> FoundPlace:
        """Return what is known if no record is certainly not before the time."""
        self._read_passed()
        return FoundPlace(None, self.unsure)

    def _read_passed(self) -> None:
        file, self.passed = self.passed, None
        if file is not None:
            for batch in self._batches(file):
                self._add(batch)

    def _batches(self, file: HistoryFile) -> Iterator[pa.RecordBatch]:
        return read_file(self.history, file.name, [*POSITION, "txid", "time"])

    def _add(self, batch: pa.RecordBatch) -> int | None:
        """Return the index of the first record that is of the time or later, or None."""
        import pyarrow.compute as pc

        stored = pc.divide(batch.column("time").cast("int64"), 1_000)
        times = pc.coalesce(stored, batch.column("txid"))
        end = _first(times, max(self.time_ms, TIME_TXID_MIN))
        before = times if end is None else times.slice(0, end)
        known = pc.indices_nonzero(pc.greater_equal(before, TIME_TXID_MIN))
        upcoming = known[-1].as_py() + 1 if len(known) else 0
        if upcoming:
            self.unsure = None
        if self.unsure is None and upcoming < len(before):
            self.unsure = _position(batch, upcoming)
        return end


def _times(file: HistoryFile) -> list[int]:
    """Return times between which are those of all records. Times below TIME_TXID_MIN are none."""
    return [*(at // 1_000 for at in file.times_us or ()), *file.txids]


def _first(values: Any, wanted: int) -> int | None:
    """Return the index of the first value that is not less than `wanted`, or None."""
    import pyarrow.compute as pc

    at: int = pc.index(pc.greater_equal(values, wanted), True).as_py()
    return at if at >= 0 else None


def _position(batch: pa.RecordBatch, at: int) -> DLSN:
    return DLSN(*(batch.column(name)[at].as_py() for name in POSITION))
