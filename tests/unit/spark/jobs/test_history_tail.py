"""The live part of a history whose ledger is gone when a task reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import StreamGapError
from quire.spark.jobs.archive.manifest import Manifest, OffloadHistory
from quire.spark.jobs.history import LiveTail
from quire.spark.jobs.tasks import ClusterOptions
from quire.spark.streams.plan import StreamSplit
from quire.streams import DLSN, Gap
from quire.streams.read.arrow import COLUMNS, Origin

pytest.importorskip("pyarrow")

SEGMENT = StreamSegment(3, 17, 1, record_count=10, last_entry_id=9)
START, BEHIND = DLSN(3, 0, 0), DLSN(4, 0, 0)


def read(
    tmp_path: Path, start: DLSN, *gaps: Gap, owner: tuple[str, str] = ("c", "a-1"),
    fail_on_data_loss: bool = True,
) -> list[Any]:  # fmt: skip
    """Read the whole segment, of which the files have nothing."""
    history = OffloadHistory(str(tmp_path), "orders")
    made = Manifest("c", "/n", "orders", "/lives/a-1", start, DLSN(9, 0, 0), gaps=gaps)
    history.claim().settle(made)
    tail = LiveTail(ClusterOptions("sqlite:///unused"), str(tmp_path), COLUMNS, *owner)
    tail = replace(tail, fail_on_data_loss=fail_on_data_loss)
    split = StreamSplit(Origin("orders", SEGMENT), 0, 9)
    return list(tail._offloaded(split))


@pytest.mark.parametrize(
    ("start", "gaps"),
    [
        (BEHIND, ()),
        (DLSN(3, 5, 0), ()),
        (START, (Gap("lost", START, BEHIND),)),
        (DLSN(1, 0, 0), (Gap("truncated", DLSN(2, 0, 0), DLSN(3, 1, 0)),)),
    ],
)
def test_records_that_were_never_offloaded_are_a_gap(
    start: DLSN, gaps: tuple[Gap, ...], tmp_path: Path
) -> None:
    """The stream was truncated, and offloaded from there on, after the read was planned."""
    with pytest.raises(StreamGapError, match="were not offloaded before"):
        read(tmp_path, start, *gaps)
    assert read(tmp_path, start, *gaps, fail_on_data_loss=False) == []


def test_gaps_elsewhere_do_not_matter(tmp_path: Path) -> None:
    gaps = (Gap("lost", DLSN(2, 0, 0), START), Gap("lost", BEHIND, DLSN(5, 0, 0)))
    assert read(tmp_path, DLSN(1, 0, 0), *gaps) == []


@pytest.mark.parametrize("owner", [("c", "b-1"), ("d", "a-1")])
def test_records_of_another_stream_of_the_name_are_not_read(
    owner: tuple[str, str], tmp_path: Path
) -> None:
    """The stream was deleted after the read was planned, and its successor was offloaded."""
    with pytest.raises(StreamGapError, match="were not offloaded before"):
        read(tmp_path, DLSN(1, 0, 0), owner=owner)
    assert read(tmp_path, DLSN(1, 0, 0), owner=owner, fail_on_data_loss=False) == []


def test_a_life_that_the_client_may_not_read_is_not_compared(tmp_path: Path) -> None:
    assert read(tmp_path, DLSN(1, 0, 0), owner=("c", "")) == []
