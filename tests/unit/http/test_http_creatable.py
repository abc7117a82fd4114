"""Whether new ledgers can be created, as the placement policy of a client says."""

from __future__ import annotations

from pathlib import Path

from quire.http.views.creatable import Creatable, creatable
from tests.support.objects import object_bench


async def test_the_default_shape_and_smaller_ones(tmp_path: Path) -> None:
    async with object_bench(tmp_path) as bench:
        client = await bench.client()
        bookies = sorted((await client.bookies()).writable)
        assert len(bookies) >= 3
        assert await creatable(client) == Creatable(True)
        spare = len(bookies) - 2
        two = await creatable(client, bookies[:spare])
        assert (two.default, two.smaller) == (False, (2, 2, 2))
        assert "wanted" in two.why_not
        one = await creatable(client, bookies[: spare + 1])
        assert (one.default, one.smaller) == (False, (1, 1, 1))
        none = await creatable(client, bookies)
        assert (none.default, none.smaller) == (False, None)
        # Nothing was created, and nothing is remembered.
        assert [ledger_id async for ledger_id in client.list_ledgers()] == []
        assert await creatable(client) == Creatable(True)
