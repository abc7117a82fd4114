"""Ranges of entries as Arrow tables, pandas or Polars frames, without Spark.

Columns: `ledger_id` (int64), `entry_id` (int64), `length` (int64, payload bytes of the entry) and
`value` (binary). Needs the extra `arrow` (Polars: `polars`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quire.codec.entry import EntryRun
from quire.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa


def import_pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise UsageError(
            "Arrow tables need pyarrow", remedy='Install it with: pip install "quire[arrow]"'
        ) from None
    return pyarrow


def schema(with_value: bool = True) -> pa.Schema:
    """The schema of `record_batch`."""
    arrow = import_pyarrow()
    fields = [
        arrow.field(name, arrow.int64(), nullable=False)
        for name in ("ledger_id", "entry_id", "length")
    ]
    if with_value:
        fields.append(arrow.field("value", arrow.binary(), nullable=False))
    return arrow.schema(fields)


def record_batch(run: EntryRun, with_value: bool = True) -> pa.RecordBatch:
    """One run of entries as a record batch."""
    arrow = import_pyarrow()
    count = len(run)
    columns = [
        arrow.repeat(arrow.scalar(run.ledger_id, arrow.int64()), count),
        arrow.array(range(run.first, run.first + count), arrow.int64()),
        arrow.array([b - a for a, b in zip(run.offsets, run.ends)], arrow.int64()),
    ]
    if with_value:
        columns.append(arrow.array(run.payloads(), arrow.binary()))
    return arrow.RecordBatch.from_arrays(columns, schema=schema(with_value))


def table(runs: Iterable[EntryRun]) -> pa.Table:
    """Runs, one behind the other, as one table."""
    arrow = import_pyarrow()
    return arrow.Table.from_batches([record_batch(run) for run in runs], schema=schema())


def to_polars(entries: pa.Table) -> Any:
    try:
        import polars
    except ImportError:
        raise UsageError(
            "Polars frames need polars", remedy='Install it with: pip install "quire[all]"'
        ) from None
    return polars.from_arrow(entries)
