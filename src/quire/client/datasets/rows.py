"""Rows as entries: each entry is one Arrow IPC stream with many rows. It needs the extra `arrow`.

An entry is complete in itself: any Arrow library opens it, and it can be read even if the dataset's
head is lost. The metadata of its Arrow schema has the key `quire.rows` with the version of this
encoding, which is 1. The bodies may be compressed with LZ4 or Zstandard; the Arrow message says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from quire.client.read.arrow import import_pyarrow
from quire.errors import LaterRowsError, ReadError, UsageError, written_later

if TYPE_CHECKING:
    import pyarrow as pa

VERSION_KEY = b"quire.rows"
"""The key in the metadata of an entry's Arrow schema that marks rows, with their version."""
VERSION = b"1"
COMPRESSIONS = ("lz4", "zstd", "none")
ENTRY_BYTES = 1024 * 1024
"""The size of the rows of one entry, in bytes before compression, at which the next one begins."""
ENTRY_BYTES_MAX = 4 * 1024 * 1024
"""The size in bytes of an encoded entry above which its rows are divided. A frame has 5 MiB."""


def check_compression(text: str) -> str:
    """Return the name of a compression in lower case. Raises UsageError if it is not one."""
    if text.lower() not in COMPRESSIONS:
        raise UsageError(f"{text!r} is not a compression: use one of {', '.join(COMPRESSIONS)}")
    return text.lower()


def encode_rows(rows: pa.Table, compression: str = "lz4") -> Iterator[tuple[bytes, int]]:
    """Yield entries that hold these rows in order, each with the number of its rows.

    An entry has about `ENTRY_BYTES` before compression. One row is never divided, so an entry with
    a single row may be larger than a frame. Raises UsageError if pyarrow is not installed.
    """
    arrow = import_pyarrow()
    kind = None if compression == "none" else compression
    options = arrow.ipc.IpcWriteOptions(compression=kind)
    count = -(-rows.nbytes // ENTRY_BYTES) or 1
    step = max(1, -(-rows.num_rows // count))
    for at in range(0, rows.num_rows, step):
        yield from _entries(rows.slice(at, step), options)


def _entries(rows: pa.Table, options: pa.ipc.IpcWriteOptions) -> Iterator[tuple[bytes, int]]:
    arrow = import_pyarrow()
    schema = rows.schema.with_metadata({VERSION_KEY: VERSION})
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in rows.combine_chunks().to_batches():
            writer.write_batch(batch)
    encoded = sink.getvalue()
    if encoded.size > ENTRY_BYTES_MAX and rows.num_rows > 1:
        half = rows.num_rows // 2
        yield from _entries(rows.slice(0, half), options)
        yield from _entries(rows.slice(half), options)
    else:
        yield encoded.to_pybytes(), rows.num_rows


def decode_rows(
    payload: bytes, ledger_id: int, entry_id: int, columns: Sequence[str]
) -> Iterable[pa.RecordBatch]:
    """Return the rows of an entry, with these columns in this order.

    Only these columns are decompressed.

    Raises:
        LaterRowsError: A later version wrote the entry.
        ReadError: The entry cannot be decoded as rows, or lacks a column.
        UsageError: pyarrow is not installed.
    """
    arrow = import_pyarrow()
    what = f"entry {entry_id} of ledger {ledger_id}"
    try:
        schema = arrow.ipc.read_schema(arrow.py_buffer(payload))
        version = (schema.metadata or {}).get(VERSION_KEY)
    except (arrow.ArrowException, OSError) as error:
        raise _no_rows(what, str(error), ledger_id) from error
    if version is None:
        raise _no_rows(what, "its Arrow schema does not say that it has rows", ledger_id)
    if version != VERSION:
        found = f"rows of version {version.decode(errors='replace')}"
        raise LaterRowsError(written_later(what, found, "version 1"), ledger_id=ledger_id)
    if missing := [name for name in columns if schema.get_field_index(name) < 0]:
        raise _no_rows(what, f"it has no column {missing[0]!r}", ledger_id)
    places = sorted(schema.get_field_index(name) for name in columns)
    options = arrow.ipc.IpcReadOptions(included_fields=places)
    try:
        with arrow.ipc.open_stream(arrow.py_buffer(payload), options=options) as stream:
            return [batch.select(list(columns)) for batch in stream]
    except (arrow.ArrowException, OSError) as error:
        raise _no_rows(what, str(error), ledger_id) from error


def _no_rows(what: str, why: str, ledger_id: int) -> ReadError:
    return ReadError(
        f"{what} cannot be decoded as rows of a dataset: {why}",
        ledger_id=ledger_id,
        remedy="If another program wrote the ledger, read it with the option 'ledger', which "
        "returns the entries as they are",
    )
