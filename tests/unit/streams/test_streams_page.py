"""Pages of stream names are the same as the whole list, and read less."""

from __future__ import annotations

import random

from quire.streams.namespace.tree_search import streams_page
from tests.support.streams import Bench, run

NAMES = [
    "a", "a-b", "a/b", "a/b/c", "a0", "b/c", "b.c", "b/c-d", "c", "orders", "orders/eu",
    "orders-eu", "z/y/x", "é", "<b>", "日本",
]  # fmt: skip


async def made(b: Bench) -> list[str]:
    rng = random.Random(3)
    more = {f"{rng.choice('abcz')}{rng.choice('-/.')}{rng.randrange(40)}" for _ in range(60)}
    for name in {*NAMES, *more} - {"<b>"}:
        await b.streams.create_stream(name)
    return await b.streams.streams()


def test_every_page_size() -> None:
    async def scene(b: Bench) -> None:
        names = await made(b)
        for limit in (1, 2, 7, 16, 17, len(names), 1_000):
            found: list[str] = []
            after: str | None = ""
            while after is not None:
                page, after = await streams_page(b.streams, after=after, limit=limit)
                assert len(page) <= limit
                assert after is None or len(page) == limit
                found += page
            assert found == names
        for after in ("a", "a-", "a/b", "a/zzz", "b", "orders", "zzz"):
            page, following = await streams_page(b.streams, after=after, limit=1_000)
            assert (page, following) == ([name for name in names if name > after], None)

    run(scene)


def test_a_search() -> None:
    async def scene(b: Bench) -> None:
        names = await made(b)
        for part in ("order", "/", "-", "nothing", "日"):
            page, _ = await streams_page(b.streams, limit=1_000, part=part)
            assert page == [name for name in names if part in name]

    run(scene)


def test_a_search_that_takes_long_goes_on_later() -> None:
    async def scene(b: Bench) -> None:
        names = await made(b)
        found: list[str] = []
        after: str | None = ""
        rounds = 0
        while after is not None:
            page, after = await streams_page(
                b.streams, after=after, limit=1_000, part="e", is_late=lambda: True
            )
            found += page
            rounds += 1
        assert found == [name for name in names if "e" in name]
        assert rounds > 2

    run(scene)
