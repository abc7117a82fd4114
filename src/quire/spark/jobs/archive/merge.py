"""The merge of small neighbouring files of an archive into larger ones.

A task writes the records of neighbours into one file, and verifies both what it reads and what it
has written. One manifest then names the new files instead of the old ones. The old files stay for a
day, because readers may have planned to read them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quire.errors import HistoryDamagedError, UsageError
from quire.spark.jobs.archive.manifest import HistoryFile, Manifest, OffloadHistory
from quire.spark.jobs.archive.parquet_files import (
    BATCH_BYTES,
    BATCH_ROWS,
    read_verified,
    write_files,
)
from quire.spark.jobs.tasks import Piece
from quire.streams.read.arrow import ALL_COLUMNS, COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

FILES_MIN = 32
"""The number of small files at the end of an archive that is enough to merge them, although they
fill no group yet."""
FULL = 2
"""A merge is full at this multiple of the size below which files are small.

The new file is then rarely small itself. If it is, its next merge adds more bytes than it has.
"""
KEEP_MERGED_MS = 24 * 60 * 60 * 1_000
"""The milliseconds for which merged files are kept. Readers may have planned to read them."""


def merges(files: Sequence[HistoryFile], below_bytes: int) -> list[tuple[HistoryFile, ...]]:
    """Return the groups of neighbours, each of at least two small files, to merge into one file.

    A group has files of one date. It ends when it is full, or when a file follows that cannot join
    it. Small files at the end of the archive that fill no group are merged only if there are at
    least `FILES_MIN`. The first of them is left out while it is larger than the others together,
    so that a record is rewritten only if its file at least doubles.
    """
    groups: list[tuple[HistoryFile, ...]] = []
    group: list[HistoryFile] = []

    def end() -> None:
        if len(group) > 1:
            groups.append(tuple(group))
        group.clear()

    for file in files:
        small = file.size_bytes < below_bytes
        if not small or (group and file.date != group[-1].date):
            end()
        if small:
            group.append(file)
        if bytes_of(group) >= FULL * below_bytes:
            end()
    if len(group) >= FILES_MIN:
        while group[0].size_bytes > bytes_of(group[1:]):
            del group[0]
        end()
    return groups


def bytes_of(group: Sequence[HistoryFile]) -> int:
    """Return the size of all files of a group in bytes."""
    return sum(file.size_bytes for file in group)


def require_no_table(history: OffloadHistory) -> None:
    """Raise UsageError if a Delta or Iceberg table names the files of the history."""
    kind = history.table_kind()
    if kind is not None:
        raise UsageError(
            f"the files of stream {history.stream} in {history.store.location()} are also those "
            f"of a table ({kind}), so they cannot be merged. Nothing was changed",
            remedy="Compact the table by its own means, such as OPTIMIZE or rewrite_data_files",
        )


def merge_piece(piece: Piece) -> Piece:
    """Write the records of neighbouring files into one file, verify it, and return it as `file`.

    This runs in a task. The next job removes what a failed attempt leaves. Raises
    HistoryDamagedError if a file is not as it was written, and HistoryError if the directory cannot
    be used.
    """
    history = OffloadHistory(piece["directory"], piece["stream"])
    files = [HistoryFile.from_json(file) for file in piece["files"]]
    keyed = any(file.keyed for file in files)
    batches = _batches(history, files, ALL_COLUMNS if keyed else COLUMNS)
    groups = iter([(files[0].date, batches)])
    [made] = write_files(history, groups, piece, uuid.uuid4().int, keyed=keyed)
    file = HistoryFile.from_json(made["file"])
    rows = sum(one.rows for one in files)
    if (file.first, file.last, file.rows) != (files[0].first, files[-1].last, rows):
        raise HistoryDamagedError(
            f"file {history.location(file.name)} has other records than the {len(files)} files "
            "that were merged into it. It is not used",
            remedy="Run the job again. If the error returns, report it",
        )
    return {"file": file.as_json()}


def _batches(
    history: OffloadHistory, files: Sequence[HistoryFile], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the files in batches of the size of a row group."""
    import pyarrow as pa

    gathered: list[pa.RecordBatch] = []

    def joined() -> pa.RecordBatch:
        [batch] = pa.Table.from_batches(gathered).combine_chunks().to_batches()
        gathered.clear()
        return batch

    for file in files:
        for batch in read_verified(history, file, columns):
            gathered.append(batch)
            if (
                sum(one.num_rows for one in gathered) >= BATCH_ROWS
                or sum(one.get_total_buffer_size() for one in gathered) >= BATCH_BYTES
            ):
                yield joined()
    if gathered:
        yield joined()


def with_merged(
    manifest: Manifest,
    groups: Sequence[tuple[HistoryFile, ...]],
    files: Sequence[HistoryFile],
    now_ms: int,
) -> Manifest:
    """Return the manifest in which each of `files` replaces a group of files.

    A new file belongs to the newest commit of its group, so that commits still ascend.
    """
    instead = {
        group[0].name: replace(file, commit=group[-1].commit) for group, file in zip(groups, files)
    }
    gone = [file.name for group in groups for file in group]
    left = set(gone) - set(instead)
    return replace(
        manifest,
        files=tuple(instead.get(f.name, f) for f in manifest.files if f.name not in left),
        merged=(*manifest.merged, *[(name, now_ms) for name in gone]),
    )


def without_expired(manifest: Manifest, now_ms: int) -> Manifest:
    """Return the manifest without those merged files that no reader needs any more."""
    kept = [one for one in manifest.merged if now_ms - one[1] < KEEP_MERGED_MS]
    return replace(manifest, merged=tuple(kept))
