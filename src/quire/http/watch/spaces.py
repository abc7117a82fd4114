"""The free space of bookies' disks, asked for while somebody looks at a page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from quire._runtime.tasks import each
from quire.client import Client
from quire.errors import QuireError
from quire.http.watch.background import LOOK_WAIT_S, Background

ASK_INTERVAL_S = 1.0
"""Bookies are not asked more often than this."""
ASK_TIMEOUT_S = 2.0
"""A bookie that does not tell its space within this does not answer."""
BOOKIES_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Space:
    free_bytes: int
    total_bytes: int
    """Of all its data directories."""


class Spaces(Background):
    """Of a cluster's bookies."""

    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, ASK_INTERVAL_S, wait_s)
        self._found: dict[str, Space | None] = {}

    async def of(self, client: Client, bookies: Collection[str]) -> Mapping[str, Space | None]:
        """By bookie; None: it did not answer. Those that are missing were not asked yet: the first
        who looks does not wait for all of them."""
        names = sorted(bookies)
        await self.refresh(lambda: self._ask_all(client, names))
        return self._found

    async def _ask_all(self, client: Client, names: list[str]) -> None:
        answers = await each(names, lambda one: space_of(client, one), BOOKIES_AT_ONCE)
        self._found = dict(zip(names, answers, strict=True))


async def space_of(client: Client, bookie: str) -> Space | None:
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            info = await client.bookie_info(bookie)
    except (QuireError, TimeoutError):
        return None
    return Space(info.free_bytes, info.total_bytes)
