"""Numbers that no two calls in one process share."""

from __future__ import annotations

import asyncio

from quire._runtime.names.process_numbers import numbers_from_one, process_number


def test_no_two_calls_return_the_same_number() -> None:
    async def one() -> int:
        return process_number()

    numbers = [process_number(), asyncio.run(one()), asyncio.run(one()), process_number()]
    assert len(set(numbers)) == len(numbers)


def test_a_block_counts_from_one_and_disturbs_nothing_outside() -> None:
    before = process_number()
    with numbers_from_one():
        assert [process_number(), process_number()] == [1, 2]
    assert process_number() == before + 1
