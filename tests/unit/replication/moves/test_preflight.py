"""The space that a job needs is compared with what bookies report, before anything is copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from quire.client import Client
from quire.errors import BookieUnavailableError
from quire.replication.moves.preflight import free_bytes, no_space, no_space_together


@dataclass
class Info:
    free_bytes: int


class Bookies:
    """A client of which only the question for free space is asked."""

    def __init__(self, **free: int) -> None:
        self._free = free

    async def bookie_info(self, bookie_id: str) -> Info:
        if bookie_id not in self._free:
            raise BookieUnavailableError(f"bookie {bookie_id} cannot be reached")
        return Info(self._free[bookie_id])


def client(**free: int) -> Client:
    return cast(Any, Bookies(**free))


async def test_free_space_is_known_for_bookies_that_answer() -> None:
    assert await free_bytes(client(a=5, b=7), ["a", "b", "gone"]) == {"a": 5, "b": 7}


async def test_a_bookie_with_too_little_space_is_named() -> None:
    assert await no_space(client(a=5, b=7), {"a": 5, "b": 7}) == ""
    said = await no_space(client(a=5000, b=7), {"a": 5, "b": 8})
    assert said == "8 bytes would be copied to bookie b, which has 7 bytes of free space"
    assert await no_space(client(a=5), {"gone": 10**18}) == ""


@pytest.mark.parametrize(
    ("needed", "said"),
    [
        (12, ""),
        (13, "13 bytes would be copied, and the 2 bookies that are writable have 12 bytes of free "
             "space"),
    ],
)  # fmt: skip
async def test_bookies_with_too_little_space_in_total_are_named(needed: int, said: str) -> None:
    assert await no_space_together(client(a=5, b=7), {"a", "b"}, needed) == said


async def test_a_bookie_that_does_not_answer_may_have_enough_space() -> None:
    assert await no_space_together(client(a=5), {"a", "gone"}, 10**18) == ""
    assert await no_space_together(client(), set(), 10**18) == ""
