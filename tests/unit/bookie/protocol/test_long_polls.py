"""Readers that wait for a new LAC are answered when there is one, and not before."""

from __future__ import annotations

import asyncio

import pytest

from quire.bookie.protocol.long_polls import LongPolls


class Reader:
    def __init__(self) -> None:
        self.told: list[bool] = []

    def ready(self, moved: bool) -> None:
        self.told.append(moved)


@pytest.mark.parametrize("lac", [2, 3])
async def test_an_add_that_repeats_a_lac_wakes_no_reader(lac: int) -> None:
    """Otherwise each add of a writer that does not advance would answer all its readers."""
    polls, same, behind, other = LongPolls(10), Reader(), Reader(), Reader()
    polls.wait(7, 3, 60.0, same)
    polls.wait(7, lac - 1, 60.0, behind)
    polls.wait(8, 0, 60.0, other)
    polls.wake(7, lac)
    assert behind.told == []  # The entries that came with it can be read only later.
    polls.tell()
    assert (same.told, behind.told, other.told, polls.count) == ([], [True], [], 2)
    polls.wake(7, 4)
    polls.tell()
    assert (same.told, behind.told, other.told) == ([True], [True], [])
    polls.release_all()
    assert (other.told, polls.count, polls.ledger_ids()) == ([False], 0, [])


async def test_a_reader_is_answered_once() -> None:
    polls, reader = LongPolls(1), Reader()
    poll = polls.wait(7, 3, 0.0, reader)
    assert polls.full
    polls.wake(7, 4)
    await asyncio.sleep(0.01)  # Its time is up as well.
    polls.tell()
    polls.release(7)
    poll.cancel()
    assert (reader.told, polls.full, len(polls)) == ([True], False, 0)
