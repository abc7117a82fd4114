"""Parquet files of offloaded records: tasks write them from ledgers, and read them back.

The columns are those of `quire.streams.read.arrow`. The columns for keys, headers and event times
are only in files in which a record has one of them. A file holds records of whole segments, or of a
part of one. What is written is digested on the way (`Digest`). When the file is on disk, it is read
back completely and digested again, and both digests must be equal. The bytes of the file must be
equal as well, because filters use values that are in no column (the least and the greatest value of
a row group).
"""

from __future__ import annotations

import datetime
import operator
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, Any

import crc32c

from quire import blocking
from quire.errors import (
    HistoryDamagedError,
    HistoryError,
    NoSuchLedgerError,
    QuireError,
    StreamDamagedError,
    StreamGapError,
)
from quire.spark.jobs.archive.manifest import DATA, DATE, NO_DATE, HistoryFile, OffloadHistory
from quire.spark.jobs.tasks import ClusterOptions, Piece
from quire.streams import DLSN, StreamSegment
from quire.streams.read.arrow import (
    ALL_COLUMNS,
    COLUMNS,
    KEYED_COLUMNS,
    NO_TIME,
    Origin,
    RecordColumns,
    schema,
)

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 128 * 1024
BATCH_BYTES = 16 * 1024 * 1024
"""The number of payload bytes at which a row group is full. `BATCH_ROWS` is the limit in rows."""
READ_ROWS = 64 * 1024
NUMBERS = ("segment", "ledger", "entry", "slot", "txid", "time", "sequence", "size")
DICTIONARY = ["stream", "segment", "ledger"]
DELTA = ("entry", "slot", "txid", "time", "sequence", "size")
"""The columns whose numbers do not decrease, so that differences are stored instead."""
COMPRESSIONS = ("zstd", "lz4", "snappy", "gzip", "none")
FILE_VERSION = "2.6"
DAY_US = 24 * 60 * 60 * 1_000_000
"""The number of microseconds of a day."""
EPOCH = datetime.date(1970, 1, 1)
_COUNT = struct.Struct(">q")


# -- the parts of a file ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """The entries from `first` to `last` of a completed segment."""

    segment: StreamSegment
    first: int
    last: int
    size_bytes: int = 0
    """The approximate number of payload bytes in the entries from `first` to `last`."""

    def as_json(self) -> list[Any]:
        """Return the part as JSON values: the segment, the first entry and the last entry."""
        return [self.segment.to_bytes().decode("ascii"), self.first, self.last]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> SegmentPart:
        """Return the part that `as_json` has represented."""
        segment, first, last = value
        return cls(StreamSegment.from_bytes(str(segment).encode("ascii")), int(first), int(last))

    @property
    def start(self) -> DLSN | None:
        """The first position that was not truncated, or None if the segment was not truncated."""
        at = self.segment.min_active_dlsn
        return at if at > self.segment.first_dlsn else None


# -- digests ----------------------------------------------------------------------------------


class Digest:
    """The digest of ordered records, however they are divided into batches.

    It is the CRC-32C of the values of each column, laid end to end. The digest also checks that the
    records are consecutive: positions ascend, and in each segment sequence ids grow by one. No
    record is therefore missing or duplicated.
    """

    def __init__(self, stream: str, keyed: bool = False) -> None:
        """Begin without records. `keyed` says whether they have keys, headers and event times."""
        self.keyed = keyed
        self.rows = 0
        self.segments: dict[int, list[int]] = {}
        """The number of rows, and the first and the last sequence id, by segment number."""
        self.first = self.last = DLSN(-1, -1, -1)
        self.txids: tuple[int, int] | None = None
        self.times_us: tuple[int, int] | None = None
        self._stream = stream
        more = KEYED_COLUMNS if keyed else ()
        self._crcs = dict.fromkeys((*NUMBERS, "value", *more), 0)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add records. Raises StreamDamagedError if they are not consecutive."""
        if not len(batch):
            return
        columns = {name: _numbers(batch.column(name)) for name in NUMBERS}
        self._follow(batch, columns)
        for name, values in columns.items():
            self._crcs[name] = crc32c.crc32c(values, self._crcs[name])
        payloads, sizes = _payloads(batch.column("value"))
        if (sizes != columns["size"]).any():
            raise self._wrong("the column 'size' of a record differs from the size of its value")
        self._crcs["value"] = crc32c.crc32c(payloads, self._crcs["value"])
        if self.keyed:
            times_us = _numbers(batch.column("event_time"))
            self._crcs["event_time"] = crc32c.crc32c(times_us, self._crcs["event_time"])
            for name in ("key", "headers"):
                self._crcs[name] = crc32c.crc32c(_joined(batch.column(name)), self._crcs[name])
        self.txids = _wider(self.txids, columns["txid"])
        times = columns["time"]
        self.times_us = _wider(self.times_us, times[times != NO_TIME])

    def _follow(self, batch: pa.RecordBatch, columns: Mapping[str, Any]) -> None:
        import numpy

        names = batch.column("stream").unique().to_pylist()
        if names != [self._stream]:
            raise self._wrong(f"a batch holds records of {names}, not only of this stream")
        segments, sequences = columns["segment"], columns["sequence"]
        cuts = numpy.flatnonzero(numpy.diff(segments)) + 1
        bounds = [0, *cuts.tolist(), len(segments)]
        positions = [columns["entry"], columns["slot"]]
        for first, end in pairwise(bounds):
            here = sequences[first:end]
            entry, slot = (values[first:end] for values in positions)
            steps, slots = numpy.diff(entry), numpy.diff(slot)
            start = DLSN(int(segments[first]), int(entry[0]), int(slot[0]))
            ascending = ((steps > 0) | ((steps == 0) & (slots > 0))).all() and start > self.last
            known = self.segments.get(start.lssn)
            counted = (numpy.diff(here) == 1).all() and (
                known is None or int(here[0]) == known[2] + 1
            )
            if not ascending or not counted:
                raise self._wrong(
                    f"the records after position {max(self.last, start)} are not consecutive"
                )
            self.last = DLSN(start.lssn, int(entry[-1]), int(slot[-1]))
            rows, since = (known[0], known[1]) if known else (0, int(here[0]))
            self.segments[start.lssn] = [rows + end - first, since, int(here[-1])]
            if not self.rows:
                self.first = start
            self.rows += end - first

    def _wrong(self, why: str) -> StreamDamagedError:
        return StreamDamagedError(
            f"records of stream {self._stream} are not as expected: {why}",
            remedy="Run the job again. If the error returns, report it",
        )

    def texts(self) -> dict[str, str]:
        """Return the digest of each column in hexadecimal digits."""
        return {name: f"{crc:08x}" for name, crc in self._crcs.items()}

    def as_file(self, name: str, size_bytes: int, crc: int) -> HistoryFile:
        """Return the file that holds these records."""
        assert self.rows
        assert self.txids is not None
        tallies = list(self.segments.values())
        return HistoryFile(
            name=name,
            size_bytes=size_bytes,
            rows=self.rows,
            first=self.first,
            last=self.last,
            sequences=(tallies[0][1], tallies[-1][2]),
            txids=self.txids,
            times_us=self.times_us,
            digests=self.texts(),
            crc=crc,
            keyed=self.keyed,
        )


def _joined(column: pa.Array) -> bytes:
    """Return the bytes of all keys or headers in a column, each after its length.

    Different columns therefore never have the same bytes.
    """
    parts: list[bytes] = []
    for row in column.to_pylist():
        texts = () if row is None else (row,) if isinstance(row, bytes) else _flat(row)
        parts.append(_COUNT.pack(-1 if row is None else len(texts)))
        for text in texts:
            parts += (_COUNT.pack(len(text)), text)
    return b"".join(parts)


def _flat(headers: Sequence[tuple[str, bytes]]) -> list[bytes]:
    return [text for name, value in headers for text in (name.encode(), value)]


def _numbers(column: pa.Array) -> Any:
    """Return a numeric or time column as one int64 array, with NO_TIME for nulls."""
    import numpy
    import pyarrow as pa

    values = column if column.type == pa.int64() else column.cast(pa.int64())
    if values.null_count:
        values = values.fill_null(NO_TIME)
    return numpy.ascontiguousarray(values.to_numpy(zero_copy_only=False))


def _payloads(column: pa.Array) -> tuple[Any, Any]:
    """Return the bytes of all values of a column, laid end to end, and the size of each."""
    import numpy

    _, offsets, data = column.buffers()
    cuts = numpy.frombuffer(offsets, numpy.int32, len(column) + 1, 4 * column.offset)
    first, end = int(cuts[0]), int(cuts[-1])
    payloads = memoryview(data)[first:end] if data is not None else b""
    return payloads, numpy.diff(cuts)


def _wider(known: tuple[int, int] | None, values: Any) -> tuple[int, int] | None:
    if not len(values):
        return known
    least, greatest = int(values.min()), int(values.max())
    return (least, greatest) if known is None else (min(known[0], least), max(known[1], greatest))


# -- writing ----------------------------------------------------------------------------------


def write_piece(cluster: ClusterOptions, piece: Piece) -> Piece:
    """Write and verify the file of a piece, in a task.

    There are several files if the piece has `by_date` and records of several dates, and none if
    there are no records. For each one, the answer (`files`) has the file (`file`), and for each
    segment the number of records, and the first and the last sequence id (`segments`). The next job
    removes what a failed attempt leaves. Raises HistoryError if the directory cannot be used,
    HistoryDamagedError if a file that was written differs from its records, StreamDamagedError, and
    the errors of reading a ledger.
    """
    history = OffloadHistory(piece["directory"], piece["stream"])
    parts = [SegmentPart.from_json(part) for part in piece["parts"]]
    attempt = uuid.uuid4().int
    with cluster.client() as client:
        try:
            batches = _batches(client, cluster.password, piece, parts, COLUMNS)
            groups = _by_date(batches, bool(piece["by_date"]))
            made = write_files(history, groups, piece, attempt, keyed=False)
        except _KeyedFoundError:
            # Streams without keys are the rule, and their files keep their columns. This piece
            # needs more columns, so its files are written again, under the same names.
            batches = _batches(client, cluster.password, piece, parts, ALL_COLUMNS)
            groups = _by_date(batches, bool(piece["by_date"]))
            made = write_files(history, groups, piece, attempt, keyed=True)
    return {"files": made}


def write_files(
    history: OffloadHistory,
    groups: Iterator[tuple[str | None, Iterator[pa.RecordBatch]]],
    piece: Piece,
    attempt: int,
    *,
    keyed: bool,
) -> list[Piece]:
    """Write each group of records to a file, and verify it. See `write_piece` for what is returned.

    A group has a date, or None for a file that is in no directory of a date, and its records, at
    least one. `attempt` distinguishes the names of the files from those of other attempts. `keyed`
    says whether the batches have the columns for keys, headers and event times. Raises HistoryError
    if the directory cannot be used, and HistoryDamagedError if a file differs from its records.
    """
    made = []
    for number, (date, group) in enumerate(groups):
        first = next(group)
        segment, entry = (first.column(name)[0].as_py() for name in ("segment", "entry"))
        unique = f"{(attempt + number) % 2**32:08x}"
        name = f"{segment:010d}-{entry:010d}-{piece['label']}-{unique}.parquet"
        if date is not None:
            history.store.make(f"{DATA}/{DATE}={date}")
            name = f"{DATE}={date}/{name}"
        written = Digest(piece["stream"], keyed)
        size_bytes, crc = _write(history, name, chain((first,), group), written, piece)
        history.store.settle(f"{DATA}/{name}")
        made.append((written, replace(written.as_file(name, size_bytes, crc), date=date)))
    answers: list[Piece] = []
    for written, file in made:
        verify_file(history, file)
        tallies = {str(number): tally for number, tally in written.segments.items()}
        answers.append({"file": file.as_json(), "segments": tallies})
    return answers


def _by_date(
    batches: Iterator[pa.RecordBatch], divide: bool
) -> Iterator[tuple[str | None, Iterator[pa.RecordBatch]]]:
    """Yield consecutive records of one date and this date. Without `divide` it is None for all."""
    dated = _dated(batches) if divide else ((None, batch) for batch in batches if len(batch))
    for date, group in groupby(dated, operator.itemgetter(0)):
        yield date, map(operator.itemgetter(1), group)


def _dated(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    import numpy

    for batch in batches:
        days = _numbers(batch.column("time")) // DAY_US
        cuts = (numpy.flatnonzero(numpy.diff(days)) + 1).tolist()
        for first, end in pairwise([0, *cuts, len(batch)]):
            if end > first:
                yield _date(int(days[first])), batch.slice(first, end - first)


def _date(day: int) -> str:
    """Return the date that is this number of days after 1970-01-01."""
    try:
        return (EPOCH + datetime.timedelta(days=day)).isoformat()
    except OverflowError:  # no time, or one before the year 1
        return NO_DATE


class _KeyedFoundError(Exception):
    """Raised when a record has a key, headers or an event time, and there are no columns for it."""


def _batches(
    client: blocking.Client,
    password: bytes,
    piece: Piece,
    parts: Sequence[SegmentPart],
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    gathered = RecordColumns(columns)
    for part in parts:
        origin = Origin(piece["stream"], part.segment, bool(piece["txid_is_time"]))
        try:
            with open_completed(client, part.segment.ledger_id, password) as ledger:
                for run in ledger.read_runs(part.first, part.last):
                    gathered.add(origin, run, part.start)
                    if gathered.keyed and columns is COLUMNS:
                        raise _KeyedFoundError
                    if gathered.rows >= BATCH_ROWS or gathered.size_bytes >= BATCH_BYTES:
                        yield gathered.batch()
        except NoSuchLedgerError:
            raise StreamGapError(
                f"segment {part.segment.lssn} of stream {origin.stream} (ledger "
                f"{part.segment.ledger_id}) was truncated or deleted while it was offloaded",
                remedy="Run the job again. If records were lost before they were offloaded, it "
                "says which, and --skip-lost (fail_on_data_loss=False) continues after them",
            ) from None
    if gathered.rows:
        yield gathered.batch()


def open_completed(
    client: blocking.Client, ledger_id: int, password: bytes
) -> blocking.LedgerReader:
    """Open a completed segment's ledger.

    It is recovered if the writer of the segment died before it closed the ledger. Raises the errors
    of `Client.open_ledger`.
    """
    ledger = client.open_ledger(ledger_id, password=password)
    if not ledger.ledger_closed:
        ledger.close()
        ledger = client.open_ledger(ledger_id, password=password, recover=True)
    return ledger


class _Told:
    """A file that counts and digests the bytes that are written to it."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self.stream = stream
        self.size_bytes = 0
        self.crc = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        self.crc = crc32c.crc32c(data, self.crc)
        self.size_bytes += len(data)
        self.stream.write(data)
        return len(data)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        self.stream.flush()

    def close(self) -> None:
        self.closed = True
        self.stream.close()


def _write(
    history: OffloadHistory,
    name: str,
    batches: Iterator[pa.RecordBatch],
    digest: Digest,
    piece: Piece,
) -> tuple[int, int]:
    """Write a file, and return its size and the CRC-32C that it should have."""
    from pyarrow import parquet

    about = {"quire.stream": piece["stream"], "quire.written": piece["label"]}
    compression = piece["compression"]
    columns = ALL_COLUMNS if digest.keyed else COLUMNS
    try:
        told = _Told(
            history.store.filesystem.open_output_stream(history.store.path(f"{DATA}/{name}"))
        )
        with (
            told.stream,
            parquet.ParquetWriter(
                told,
                schema(columns).with_metadata(about),
                version=FILE_VERSION,
                compression=compression,
                compression_level=1 if compression == "zstd" else None,
                use_dictionary=DICTIONARY,
                column_encoding=dict.fromkeys(DELTA, "DELTA_BINARY_PACKED"),
                write_statistics=[
                    name for name in columns if name not in ("value", "key", "headers")
                ],
                write_page_checksum=True,
            ) as writer,
        ):
            for batch in batches:
                digest.add(batch)
                writer.write_batch(batch, row_group_size=BATCH_ROWS)
            writer.add_key_value_metadata({"quire.digests": str(digest.texts())})
        return told.size_bytes, told.crc
    except QuireError:
        raise
    except OSError as error:
        raise HistoryError(
            f"file {history.location(name)} of the offloaded history of stream "
            f"{history.stream} cannot be written: {history.store.text_of(error)}",
            remedy="Check the directory and its space, and run the job again: it continues "
            "after what it has committed",
        ) from history.store.cause(error)


# -- reading ----------------------------------------------------------------------------------


def read_file(
    history: OffloadHistory, name: str, columns: Sequence[str] = COLUMNS, filters: Any = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file in order, or only those that match `filters`.

    `filters` is an expression of pyarrow. Keys, headers and event times are null if the file has no
    columns for them. Raises HistoryDamagedError if the file cannot be read.
    """
    import pyarrow as pa

    try:
        yield from _read_file(history, name, columns, filters)
    except (OSError, pa.ArrowException) as error:
        raise HistoryDamagedError(
            f"file {history.location(name)} of the offloaded history cannot be read: "
            f"{history.store.text_of(error)}",
            remedy=(
                "If the storage does not answer, try again. If the file is missing or "
                "damaged, restore it from a backup"
            ),
        ) from history.store.cause(error)


def _read_file(
    history: OffloadHistory, name: str, columns: Sequence[str], filters: Any
) -> Iterator[pa.RecordBatch]:
    from pyarrow import dataset, parquet

    path = history.store.path(f"{DATA}/{name}")
    filesystem = history.store.filesystem
    if filters is None:
        with parquet.ParquetFile(
            path, filesystem=filesystem, page_checksum_verification=True
        ) as file:
            stored = _stored(columns, file.schema_arrow.names)
            for batch in file.iter_batches(READ_ROWS, columns=stored):
                yield _with_nulls(batch, columns)
        return
    verifying = dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
    kind = dataset.ParquetFileFormat(default_fragment_scan_options=verifying)
    found = dataset.dataset(path, filesystem=filesystem, format=kind)
    stored = _stored(columns, found.schema.names)
    scanner = found.scanner(columns=stored, filter=filters, batch_size=READ_ROWS)
    for batch in scanner.to_batches():
        yield _with_nulls(batch, columns)


def _stored(columns: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return the columns to read from a file: `columns` without keyed ones that it lacks.

    `there` are the columns of the file.
    """
    return [name for name in columns if name in there or name not in KEYED_COLUMNS]


def _with_nulls(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return the batch with all columns. Those that it lacks are null."""
    import pyarrow as pa

    if len(batch.schema) == len(columns):
        return batch
    wanted, there = schema(columns), set(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in there else pa.nulls(len(batch), field.type)
        for field in wanted
    ]
    fields = [batch.schema.field(one.name) if one.name in there else one for one in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def verify_file(history: OffloadHistory, file: HistoryFile) -> None:
    """Read a whole file, and compare it with its description.

    Raises HistoryDamagedError if they differ, and this error or HistoryError if the file cannot be
    read.
    """
    if history.store.crc(f"{DATA}/{file.name}") != file.crc:
        raise _changed(history, file, "its bytes differ")
    found = Digest(history.stream, file.keyed)
    try:
        for batch in read_file(history, file.name, ALL_COLUMNS if file.keyed else COLUMNS):
            found.add(batch)
    except StreamDamagedError as error:
        raise _changed(history, file, str(error)) from error
    if not found.rows:
        raise _changed(history, file, "it has no records")
    again = found.as_file(file.name, file.size_bytes, file.crc)
    if again.digests != file.digests:
        columns = [name for name in file.digests if again.digests[name] != file.digests[name]]
        raise _changed(history, file, f"the values in {', '.join(columns)} differ")
    facts = (file.rows, file.first, file.last, file.sequences, file.txids, file.times_us)
    if facts != (
        again.rows, again.first, again.last, again.sequences, again.txids, again.times_us
    ):  # fmt: skip
        raise _changed(history, file, "its records differ")


def read_verified(
    history: OffloadHistory, file: HistoryFile, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file. Raise HistoryDamagedError at its end if they are others.

    `columns` are those of all files, or of files with keys, which this file may lack.
    """
    found = Digest(history.stream, file.keyed)
    try:
        for batch in read_file(history, file.name, columns):
            found.add(batch)
            yield batch
    except StreamDamagedError as error:
        raise _changed(history, file, str(error)) from error
    if (found.rows, found.texts()) != (file.rows, dict(file.digests)):
        raise _changed(history, file, "its records differ")


def _changed(history: OffloadHistory, file: HistoryFile, why: str) -> HistoryDamagedError:
    return HistoryDamagedError(
        f"file {history.location(file.name)} of the offloaded history is "
        f"not as it was written: {why}",
        remedy="If the bookies still have the records, offload them again. Otherwise restore the "
        "file from a backup",
    )


def verify_piece(piece: Piece) -> Piece:
    """Verify one file of a manifest, in a task.

    The answer's key `wrong` describes the damage, or is None. Raises HistoryError if the store
    fails.
    """
    history = OffloadHistory(piece["directory"], piece["stream"])
    try:
        verify_file(history, HistoryFile.from_json(piece["file"]))
    except HistoryDamagedError as error:
        return {"wrong": str(error)}
    return {"wrong": None}
