"""docs/reference/spark-options.md lists the options that the data source accepts, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quire.client.read.arrow import COLUMNS as LEDGER_COLUMNS
from quire.spark.options import (
    BATCH_ONLY,
    MIN_PARTITIONS_MAX,
    PARTITION_BYTES,
    QUERY_ONLY,
    READING,
    SHARED,
    STREAM_READING,
    STREAM_SHARED,
    STREAM_WRITING,
    TABLE_READING,
    WRITING,
)
from quire.spark.streams.options import MAX_TRIGGER_DELAY_S, STREAMS_MAX, TABLES
from quire.streams.read.arrow import ALL_COLUMNS as STREAM_COLUMNS
from quire.streams.read.arrow import PARTITION_COLUMN

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "spark-options.md"
EVERYWHERE = {*SHARED} & {*STREAM_SHARED}


def section(title: str) -> str:
    """Return the text below a heading, up to the next heading of any level."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"the page has no section {title!r}"
    return found[1]


def first_cells(title: str) -> list[str]:
    """Return the names in the first column of the tables of a section."""
    rows = re.findall(r"^\| (`[^|]*`) \|", section(title), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


@pytest.mark.parametrize(
    ("titles", "known"),
    [
        (("All reads and writes",), EVERYWHERE),
        (("Reading streams", "Streaming queries"), {*STREAM_READING} - EVERYWHERE),
        (("Writing streams",), {*STREAM_WRITING, *BATCH_ONLY, *QUERY_ONLY} - EVERYWHERE),
        (("Reading datasets and ledgers",), {*READING} - EVERYWHERE),
        (("Writing datasets",), {*WRITING} - EVERYWHERE),
        (("Metadata tables",), ({*TABLE_READING} - EVERYWHERE) | {*TABLES}),
        (("Columns",), {*STREAM_COLUMNS, PARTITION_COLUMN}),
    ],
)
def test_the_page_lists_every_option(titles: tuple[str, ...], known: set[str]) -> None:
    listed = [name for title in titles for name in first_cells(title)]
    assert sorted(listed) == sorted(known)


def test_the_page_has_the_defaults_of_the_code() -> None:
    assert PARTITION_BYTES == 64 << 20
    assert MAX_TRIGGER_DELAY_S == 15 * 60
    reading, ledgers = section("Reading streams"), section("Reading datasets and ledgers")
    for text in (reading, ledgers):
        assert "| `partitionBytes` | `64m` |" in text
    for limit in (STREAMS_MAX, MIN_PARTITIONS_MAX):
        assert f"at most {limit:,}" in reading
    assert "| `maxTriggerDelay` | `15m` |" in section("Streaming queries")
    for column in LEDGER_COLUMNS:
        assert f"`{column}`" in ledgers
