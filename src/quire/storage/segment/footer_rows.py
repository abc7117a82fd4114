"""Build the tables of a footer: the runs of each ledger (its rows), and a summary of all ledgers.

A segment may have a few entries of each of tens of thousands of ledgers, interleaved. Such ledgers
are encoded many at a time, column by column. All others are encoded one by one. `footer` writes the
result to the disk.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, groupby, islice, repeat
from operator import add, eq, mul, sub

from quire.codec.entry.digest import crc32c_of
from quire.codec.log.footer import (
    DISJOINT,
    PLAIN_ROWS_MAX,
    Summary,
    encode_each_singles,
    encode_ledger_rows,
    encode_plain_rows,
    summary_columns,
)
from quire.storage.segment.batch import Run
from quire.storage.segment.segment import LedgerPart, LogSegment

LEDGERS_AT_ONCE = 500
"""The number of ledgers that are encoded at once. Each call that does this keeps the interpreter
lock for about 0.1 ms."""

Described = tuple[int, LedgerPart, int]
"""The id of a ledger, its runs in the segment, and the greatest known LAC."""
_Rows = tuple[bytes, int, int, int, int, int]
"""The encoded rows of one ledger, its first and last entry, the bytes of its frames, its span, and
the number of rows."""


class FooterRows:
    """The tables of one segment's footer: the rows of each ledger, and the summary.

    Add the ledgers in the order of their ids.
    """

    def __init__(self, segment: LogSegment) -> None:
        self._frame_size = segment.columnar.frame_size
        """The size in bytes of each interleaved frame, or 0 if the sizes differ or there are
        none."""
        self._offset_of = segment.columnar.offsets().__getitem__
        self._columns = summary_columns()
        self._rows_bytes = 0
        self.pieces: list[bytes] = []
        """The encoded rows of all ledgers added so far."""

    @property
    def summary(self) -> Summary:
        """The summary of all ledgers added so far."""
        return Summary(*self._columns)

    def add(self, ledgers: Iterable[Described]) -> None:
        """Encode the rows of these ledgers, which are sorted by id."""
        for in_turn, group in groupby(ledgers, key=self._came_in_turn):
            if not in_turn:
                for one in group:
                    self._add_one(one)
                continue
            while some := list(islice(group, LEDGERS_AT_ONCE)):
                if not self._add_in_turn(some):
                    for one in some:
                        self._add_one(one)

    def _came_in_turn(self, described: Described) -> bool:
        """Return whether the ledger can be encoded together with others.

        It can if all its entries are interleaved with those of other ledgers, all such frames have
        one size, and there are not too many entries.
        """
        part = described[1]
        return self._frame_size > 0 and part.listed is None and 0 < len(part.rows) <= PLAIN_ROWS_MAX

    def _add_in_turn(self, some: Sequence[Described]) -> bool:
        """Encode ledgers whose entries are all interleaved with those of other ledgers.

        Return False, and add nothing, if two adjacent entries of one ledger could become one run.
        """
        ledger_ids, parts, lacs = zip(*some)
        size = self._frame_size
        rows = array("I", b"".join([part.rows for part in parts]))
        offsets = array("q", map(self._offset_of, rows))
        counts = [len(part.rows) for part in parts]
        if size in map(sub, offsets[1:], offsets):
            starts = {0, *accumulate(counts)}
            ends = [at for at, gap in enumerate(map(sub, offsets[1:], offsets), 1) if gap == size]
            if not starts.issuperset(ends):
                return False
        firsts = array("q", chain.from_iterable([part.ids for part in parts]))
        self._append(
            ledger_ids,
            [part.first for part in parts],
            [part.last for part in parts],
            lacs,
            [count * size for count in counts],
            repeat(DISJOINT, len(some)),
            encode_each_singles(firsts, offsets, counts, size),
            counts,
        )
        return True

    def _add_one(self, described: Described) -> None:
        ledger_id, part, last_add_confirmed = described
        rows = _plain(part) or _any(part)
        if rows is not None:
            encoded, first, last, size, span, count = rows
            self._append(
                (ledger_id,), (first,), (last,), (last_add_confirmed,), (size,), (span,),
                (encoded,), (count,),
            )  # fmt: skip

    def _append(
        self,
        ledger_ids: Iterable[int],
        firsts: Iterable[int],
        lasts: Iterable[int],
        last_add_confirmeds: Iterable[int],
        size_bytes: Iterable[int],
        spans: Iterable[int],
        encoded: Sequence[bytes],
        counts: Iterable[int],
    ) -> None:
        """Add ledgers, given as columns, to the summary, and their encoded rows to the pieces."""
        lengths = list(map(len, encoded))
        *places, end = accumulate(lengths, initial=self._rows_bytes)
        known = (ledger_ids, firsts, lasts, last_add_confirmeds, size_bytes, spans)
        for column, more in zip(
            self._columns, (*known, places, lengths, counts, map(crc32c_of, encoded))
        ):
            column.extend(more)
        self._rows_bytes = end
        self.pieces.append(b"".join(encoded))


def _joined(runs: Sequence[Run]) -> tuple[Sequence[Run], list[int]]:
    """Join runs that continue each other in the file, and return them with their offsets there."""
    offsets = [run.batch.file_offset + run.offset for run in runs]
    ends = [offset + run.frame_size * run.count for run, offset in zip(runs, offsets)]
    if not set(ends).intersection(offsets):
        return runs, offsets
    joined: list[Run] = []
    places, offsets = offsets, []
    for run, offset in zip(runs, places):
        if joined and run.ids is None and run.frame_size:
            before = joined[-1]
            if (
                before.ids is None
                and before.frame_size == run.frame_size
                and before.first + before.count == run.first
                and offsets[-1] + before.count * before.frame_size == offset
            ):
                joined[-1] = Run(
                    run.ledger_id, before.first, before.count + run.count, 0, run.frame_size
                )
                continue
        joined.append(run)
        offsets.append(offset)
    return joined, offsets


def _arrived(run: Run) -> tuple[int, int]:
    return run.first, run.batch.file_offset + run.offset


def _any(part: LedgerPart) -> _Rows | None:
    """Encode the rows of a ledger, whatever runs it has. Return None if it has none."""
    runs, span = part.runs, part.span
    if not runs:
        return None
    size = sum([run.size_bytes for run in runs])
    if span == DISJOINT:
        joined, offsets = _joined(runs)
        last = joined[-1].last
    else:
        joined = sorted(runs, key=_arrived)
        offsets = [run.batch.file_offset + run.offset for run in joined]
        span = max(run.last - run.first for run in joined)
        last = max(run.last for run in joined)
    encoded = encode_ledger_rows(joined, offsets)
    return encoded, joined[0].first, last, size, span, len(joined)


def _plain(part: LedgerPart) -> _Rows | None:
    """Encode the rows of a simple ledger as columns, or return None if it is not simple.

    A ledger is simple if its runs have consecutive ids and equal frame sizes, do not overlap, and
    cannot be joined. A segment may have tens of thousands of such ledgers.
    """
    rows = part.plain_rows()
    if rows is None or not 0 < len(rows[0]) <= PLAIN_ROWS_MAX:
        return None
    firsts, offsets, counts, frame_sizes = rows
    sizes = tuple(map(mul, counts, frame_sizes))
    if True in map(eq, map(add, offsets, sizes), offsets[1:]):
        return None  # One run ends where the next one begins, so they may become one.
    last = firsts[-1] + counts[-1] - 1
    return encode_plain_rows(*rows), firsts[0], last, sum(sizes), DISJOINT, len(firsts)
