"""Conversion of entries to Arrow tables and Polars data frames, without Spark.

The columns are `ledger_id` (int64), `entry_id` (int64), `length` (int64, payload bytes of the
entry) and `value` (binary). This needs the extra `arrow`, and for Polars the extra `all`.

No object is made per entry. The buffer of a run, cut at the beginning and the end of each payload,
is an Arrow array whose odd elements are the headers in between. A gather of the even elements
copies the payloads and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from quire._runtime.names.extras import install_extra
from quire.codec.entry.entry import EntryRun
from quire.codec.wire.v2 import Buffer
from quire.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("ledger_id", "entry_id", "length", "value")
OFFSET_MAX = 2**31 - 1
"""The largest byte offset in an Arrow `binary` array, which has 32-bit signed offsets."""


def import_pyarrow() -> Any:
    """Return the module pyarrow. Raises UsageError if it or numpy is not installed."""
    try:
        import numpy  # noqa: F401 - pyarrow can do without, this module cannot
        import pyarrow
    except ImportError:
        raise UsageError(
            "Arrow tables need the Python packages pyarrow and numpy, which are not installed",
            remedy=install_extra("arrow"),
        ) from None
    return pyarrow


def schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the Arrow schema of a table of entries with these columns, a part of `COLUMNS`.

    Raises UsageError if pyarrow or numpy is not installed.
    """
    arrow = import_pyarrow()
    return arrow.schema(
        [
            arrow.field(name, arrow.binary() if name == "value" else arrow.int64(), nullable=False)
            for name in columns
        ]
    )


def record_batch(run: EntryRun, columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
    """Return one run of entries as an Arrow record batch with one row for each entry.

    Raises UsageError if pyarrow or numpy is not installed, or if `value` is among the columns and
    the payloads of the run end beyond 2 GiB in its buffer.
    """
    arrow = import_pyarrow()
    arrays = {
        "ledger_id": ledger_ids,
        "entry_id": entry_ids,
        "length": lengths,
        "value": values,
    }
    return arrow.RecordBatch.from_arrays(
        [arrays[name](run) for name in columns], schema=schema(columns)
    )


def ledger_ids(run: EntryRun) -> pa.Array:
    arrow = import_pyarrow()
    return arrow.repeat(arrow.scalar(run.ledger_id, arrow.int64()), len(run))


def entry_ids(run: EntryRun) -> pa.Array:
    import numpy

    return import_pyarrow().array(numpy.arange(run.first, run.first + len(run), dtype=numpy.int64))


def lengths(run: EntryRun) -> pa.Array:
    return import_pyarrow().array(_numbers(run.ends) - _numbers(run.offsets))


def values(run: EntryRun) -> pa.Array:
    """Return the payloads of a run as an Arrow `binary` array.

    The array has a buffer of its own, so that the buffer of the run can be freed. Raises UsageError
    if a payload ends beyond `OFFSET_MAX` in the buffer of the run.
    """
    if not run:
        arrow = import_pyarrow()
        return arrow.array([], arrow.binary())
    if run.ends[-1] > OFFSET_MAX:
        raise UsageError(
            f"entries {run.first}..{run.last} of ledger {run.ledger_id} are too large for one "
            "Arrow array",
            remedy="Read them in smaller ranges",
        )
    return gather(_numbers(run.offsets), _numbers(run.ends), run.data)


def gather(starts: Any, ends: Any, buffer: Buffer) -> pa.Array:
    """Return several parts of a buffer as one Arrow `binary` array with a buffer of its own.

    Part i is buffer[starts[i]:ends[i]]. `starts` and `ends` are numpy arrays of ascending
    positions. Raises UsageError if pyarrow is not installed.
    """
    import numpy

    arrow, count = import_pyarrow(), len(starts)
    cuts = numpy.empty(2 * count, numpy.int32)
    cuts[0::2] = starts
    cuts[1::2] = ends
    pieces = arrow.Array.from_buffers(
        arrow.binary(), 2 * count - 1, [None, arrow.py_buffer(cuts), arrow.py_buffer(buffer)]
    )
    return pieces.take(arrow.array(numpy.arange(0, 2 * count, 2, dtype=numpy.int32)))


def table(runs: Iterable[EntryRun], columns: Sequence[str] = COLUMNS) -> pa.Table:
    """Return the entries of all runs, in order, as one Arrow table with one row for each entry.

    Raises the errors of `record_batch`.
    """
    arrow = import_pyarrow()
    return arrow.Table.from_batches(
        [record_batch(run, columns) for run in runs], schema=schema(columns)
    )


def _numbers(values: Sequence[int]) -> Any:
    """Return the values as a numpy array of 64-bit integers."""
    import numpy

    if isinstance(values, range):
        return numpy.arange(values.start, values.stop, values.step, dtype=numpy.int64)
    return numpy.array(values, numpy.int64)


def to_pandas(entries: pa.Table) -> Any:
    """Return a table as a pandas data frame. Raises UsageError if pandas is not installed."""
    try:
        import pandas  # noqa: F401 - pyarrow needs it
    except ImportError:
        raise UsageError(
            "pandas data frames need the Python package pandas, which is not installed",
            remedy=install_extra("arrow"),
        ) from None
    return entries.to_pandas()


def to_polars(entries: pa.Table) -> Any:
    """Return a table as a Polars data frame. Raises UsageError if Polars is not installed."""
    try:
        import polars
    except ImportError:
        raise UsageError(
            "Polars frames need the Python package polars, which is not installed",
            remedy=install_extra("all"),
        ) from None
    return polars.from_arrow(entries)
