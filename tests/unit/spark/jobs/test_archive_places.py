"""The search for a time in offloaded files, some of whose records have no known time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from quire.spark.jobs.archive.manifest import DATA, HistoryFile, OffloadHistory
from quire.spark.jobs.archive.parquet_files import write_files
from quire.spark.jobs.archive.places import FoundPlace, in_files
from quire.streams import DLSN, AtTime
from quire.streams.read.arrow import COLUMNS, schema

pa = pytest.importorskip("pyarrow")

BEGIN_MS = 1_700_000_000_000
PIECE = {"stream": "orders", "label": "00000001-0123456789ab", "compression": "none"}

Record = tuple[int, int | None]
"""The txid and the stored time of a record, in milliseconds."""


def written(history: OffloadHistory, lssn: int, records: list[Record]) -> HistoryFile:
    rows = [
        {
            "stream": "orders", "segment": lssn, "ledger": lssn, "entry": at, "slot": 0,
            "txid": txid, "time": None if ms is None else ms * 1_000,
            "sequence": 100 * lssn + at, "size": 1, "value": b"x",
        }
        for at, (txid, ms) in enumerate(records)
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema=schema(COLUMNS))
    [made] = write_files(history, iter([(None, iter([batch]))]), PIECE, lssn, keyed=False)
    return HistoryFile.from_json(made["file"])


def place_of(files: list[list[Record]], time_ms: int) -> FoundPlace:
    """Return the place by looking at one record after the other."""
    unsure = None
    for lssn, records in enumerate(files):
        for at, (txid, stored) in enumerate(records):
            known = txid if stored is None else stored
            if known < 10**12:
                unsure = DLSN(lssn, at, 0) if unsure is None else unsure
            elif known < time_ms:
                unsure = None
            else:
                return FoundPlace(DLSN(lssn, at, 0), unsure)
    return FoundPlace(None, unsure)


@pytest.mark.parametrize("seed", range(20))
def test_a_time_is_found_among_records_without_one(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    now, files = BEGIN_MS, []
    for _ in range(4):
        kinds = chance.choice(["known", "unknown", "mixed", "txid", "1970"])
        records: list[Record] = []
        for _ in range(chance.randint(1, 5)):
            now += chance.choice([-1, 0, 1, 5])
            kind = chance.choice(["known", "unknown", "txid"]) if kinds == "mixed" else kinds
            # "1970": a txid that counts as a time, because the stream's setting says so.
            choices: dict[str, Any] = {
                "known": (17, now), "unknown": (17, None), "txid": (now, None), "1970": (17, 17),
            }  # fmt: skip
            records.append(choices[kind])
        files.append(records)
    history = OffloadHistory(str(tmp_path), "orders")
    history.store.make(DATA)
    made = [written(history, lssn, records) for lssn, records in enumerate(files)]
    for time_ms in (1_000, *range(BEGIN_MS - 3, now + 8)):
        assert in_files(history, made, AtTime(time_ms)) == place_of(files, time_ms), time_ms
