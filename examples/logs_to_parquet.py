"""Ship a stream of log lines to Parquet files.

    quire stream write logs --create < app.log
    python logs_to_parquet.py logs DIRECTORY

Each file is named after the sequence of its first record, and is complete as soon as it has this
name. Run the program again, for instance every minute: it continues after the last record that it
shipped. Each record is in the files exactly once, also after a crash. QUIRE_METADATA names the
cluster. It needs the extra `arrow`: `pip install '.[arrow]'` in the directory of the source.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import quire
from quire.errors import QuireError
from quire.streams import EARLIEST, Record

NAMESPACE = os.environ.get("QUIRE_NAMESPACE", "/streams")
ROWS_PER_FILE = 100_000
SCHEMA = pa.schema(
    [("sequence", pa.int64()), ("time", pa.timestamp("ms", "UTC")), ("line", pa.string())]
)


def write(records: list[Record], directory: Path) -> None:
    columns = [
        [record.sequence for record in records],
        [record.txid for record in records],  # the time in ms, as txids=time is the default
        [record.payload.decode(errors="replace") for record in records],
    ]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, SCHEMA.types)]
    path = directory / f"{records[0].sequence:012}.parquet"
    scratch = path.with_suffix(".tmp")
    with scratch.open("wb") as file:
        pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), file)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    # The name must be durable, too, before the position is committed.
    folder = os.open(directory, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    print(f"{path.name}: records {records[0].sequence} to {records[-1].sequence}")


def ship(stream: str, directory: Path) -> None:
    with (
        quire.blocking.connect(os.environ["QUIRE_METADATA"]) as client,
        client.namespace(NAMESPACE) as streams,
    ):
        # If an earlier run was killed between a file and its commit, this run starts at the same
        # record, and replaces the file of the same name. So no record is in two files.
        subscription = streams.subscription(stream, "parquet")
        records: list[Record] = []
        for record in streams.open_reader(stream, start=subscription.position() or EARLIEST):
            records.append(record)
            if len(records) == ROWS_PER_FILE:
                write(records, directory)
                subscription.commit(record.position.next_slot())
                records = []
        if records:
            write(records, directory)
            subscription.commit(records[-1].position.next_slot())


if __name__ == "__main__":
    Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    try:
        ship(sys.argv[1], Path(sys.argv[2]))
    except QuireError as error:
        sys.exit(f"not everything was shipped, run it again: {error}")
