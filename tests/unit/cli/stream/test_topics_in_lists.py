"""The values that `quire stream list --long` shows of a topic."""

from __future__ import annotations

from typing import Any

import pytest

from quire.cli.stream.show import _together, _topic_lines


def partition(*, ended: bool) -> dict[str, Any]:
    return {
        "ended": ended, "segments": 1, "records": 2, "bytes": 3, "first_time": None,
        "last_time": "2026-01-31T12:00:00.000Z",
    }  # fmt: skip


@pytest.mark.parametrize("others", [[], [partition(ended=True)]])
def test_a_topic_with_a_partition_that_cannot_be_read_has_not_ended(
    others: list[dict[str, Any]],
) -> None:
    """The list said that it had, so a program took the records that it had for all of them."""
    found = _together("t", [*others, None])
    assert (found["ended"], found["records"]) == (False, 2 * len(others))


def test_a_topic_ends_with_all_of_its_partitions() -> None:
    found = _together("t", [partition(ended=True), partition(ended=True)])
    assert (found["ended"], found["partitions"], found["bytes"]) == (True, 2, 6)
    assert not _together("t", [partition(ended=True), partition(ended=False)])["ended"]


def test_a_topic_names_the_lost_segments_of_its_partitions() -> None:
    """`quire stream show` named them for a stream, and not for a topic."""
    lost = [{"number": 3, "ledger_id": 6, "what": "segment 3"}]
    streams = [
        {**partition(ended=False), "name": f"t/{at}", "first": None, "last": None, "lost": found}
        for at, found in enumerate([[], lost])
    ]
    described = {"namespace": "/shop", **_together("t", streams), "streams": streams}
    assert "lost       t/1: segment 3: ledger 6 no longer exists" in _topic_lines(described)
