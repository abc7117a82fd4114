"""The check of what the pieces of an offload have read."""

from __future__ import annotations

import pytest

from quire.errors import StreamDamagedError
from quire.spark.jobs.archive.offload_plan import check_answers
from quire.spark.jobs.archive.parquet_files import SegmentPart
from quire.streams import StreamSegment

SEGMENT = StreamSegment(3, 17, 1).completed(
    last_txid=6,
    record_count=6,
    last_entry_id=5,
    last_slot_id=0,
    completion_time_ms=1,
    start_sequence_id=100,
)


def refusal(*tallies: list[int]) -> str:
    """Return the message about a segment of six records from which the pieces read these."""
    parts = [SegmentPart(SEGMENT, 0, 5)]
    with pytest.raises(StreamDamagedError) as refused:
        check_answers("orders", parts, [{"segments": {"3": tally}} for tally in tallies])
    assert "ledger 17 --deep" in str(refused.value.remedy)
    return str(refused.value)


def test_records_that_follow_each_other_are_accepted() -> None:
    parts = [SegmentPart(SEGMENT, 0, 2), SegmentPart(SEGMENT, 3, 5)]
    check_answers(
        "orders", parts, [{"segments": {"3": [3, 100, 102]}}, {"segments": {"3": [3, 103, 105]}}]
    )


def test_missing_records_are_reported_with_both_numbers() -> None:
    assert "read 5 records from it, but its metadata says 6. " in refusal([5, 100, 104])


def test_gaps_between_records_are_not_reported_as_a_difference_of_the_number() -> None:
    for tallies in ([[3, 100, 102], [3, 104, 106]], [[6, 101, 106]]):
        message = refusal(*tallies)
        assert "metadata says 6" not in message
        assert (
            "the sequences of the 6 records that the job read from it have gaps, or do not end at "
            "105 as its metadata says"
        ) in message
