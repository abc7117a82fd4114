"""The keys, headers and event times of rows that the sink writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from quire.errors import UsageError
from quire.streams.write.envelopes import seal

HEADERS_TYPES = "map<string, binary> or array<struct<key: string, value: binary>>"
"""The types of a column with headers. A value may be a string as well."""


def check_headers_type(field: StructField) -> None:
    """Raise UsageError unless a column can be the headers of records."""
    kind = field.dataType
    if isinstance(kind, MapType):
        fits = isinstance(kind.keyType, StringType) and _is_bytes(kind.valueType)
    else:
        item = kind.elementType if isinstance(kind, ArrayType) else None
        fits = (
            isinstance(item, StructType)
            and item.names == ["key", "value"]
            and isinstance(item.fields[0].dataType, StringType)
            and _is_bytes(item.fields[1].dataType)
        )
    if not fits:
        raise UsageError(
            f"option 'headersColumn': column {field.name!r} has type {kind.simpleString()}, but it "
            f"must be {HEADERS_TYPES}"
        )


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, BinaryType | StringType)


def sealed_rows(
    values: Sequence[bytes],
    rows: pa.RecordBatch,
    key: int | None,
    headers: int | None,
    time: int | None,
) -> tuple[Sequence[bytes], bytes]:
    """Return the values with their envelopes, and which of them have one (see `sealed`).

    Args:
        values: The value of each row.
        rows: The rows.
        key: The index of the column with the keys, or None.
        headers: The index of the column with the headers, or None.
        time: The index of the column with the event times, or None.

    Raises:
        UsageError: Two headers of a row have the same name, or a header has no name or value.
    """
    nothing = (None,) * len(values)
    keys: Sequence[bytes | None] = nothing
    named: Sequence[dict[str, bytes] | None] = nothing
    times_us: Sequence[int | None] = nothing
    if key is not None:
        keys = rows.column(key).cast(pa.binary()).to_pylist()
    if headers is not None:
        named = [_headers(row) for row in rows.column(headers).to_pylist()]
    if time is not None:
        times_us = rows.column(time).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return seal(values, keys, named, times_us)


def _headers(row: Iterable[Any] | None) -> dict[str, bytes] | None:
    if row is None:
        return None
    found: dict[str, bytes] = {}
    for one in row:
        name, value = (one["key"], one["value"]) if isinstance(one, dict) else one or (None, None)
        if name is None or value is None:
            raise UsageError(
                f"a header of a row has no {'name' if name is None else 'value'}, but each needs "
                "both",
                remedy="Filter such headers, or replace the nulls",
            )
        if name in found:
            raise UsageError(
                f"a row has two headers with the name {name!r}, but the headers of a record have "
                "different names",
                remedy="Join their values, or give them different names",
            )
        found[name] = value.encode() if isinstance(value, str) else value
    return found
