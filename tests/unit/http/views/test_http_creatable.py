"""Whether new ledgers can be created, as the placement policy of a client says."""

from __future__ import annotations

from pathlib import Path

from quire.config import ClientConfig, PlacementConfig
from quire.http.views.creatable import Creatable, creatable
from tests.support.objects import object_bench


async def test_the_default_and_smaller_ensembles_can_be_created(tmp_path: Path) -> None:
    async with object_bench(tmp_path) as bench:
        client = await bench.client()
        bookies = sorted((await client.bookies()).writable)
        assert len(bookies) >= 3
        well = Creatable(True, answering=len(bookies))
        assert await creatable(client) == well
        # Bookies that do not answer are chosen if there are no others.
        spare = len(bookies) - 2
        two = await creatable(client, bookies[:spare])
        assert two == Creatable(True, silent=tuple(bookies[:spare]), answering=2)
        none = await creatable(client, bookies)
        assert none == Creatable(True, silent=tuple(bookies), answering=0)
        # Nothing was created, and nothing is remembered.
        assert [ledger_id async for ledger_id in client.list_ledgers()] == []
        assert await creatable(client) == well


async def test_a_smaller_ensemble_is_offered_for_too_few_bookies(tmp_path: Path) -> None:
    for number, smaller in ((2, (2, 2, 2)), (1, None)):
        async with object_bench(tmp_path / str(number), bookies=number) as bench:
            client = await bench.client()
            assert len((await client.bookies()).writable) == number
            found = await creatable(client)
            assert (found.default, found.smaller) == (False, smaller), "one copy is never offered"
            assert "wanted" in found.why_not
            assert not found.places


async def test_enough_bookies_in_one_rack_are_not_creatable(tmp_path: Path) -> None:
    async with object_bench(tmp_path) as bench:
        bookies = (await (await bench.client()).bookies()).writable
        racks = PlacementConfig(locations=dict.fromkeys(bookies, "/r1"), enforce_racks=True)
        client = await bench.client(config=ClientConfig(placement=racks))
        await client.bookies()
        found = await creatable(client)
        assert (found.default, found.smaller, found.places) == (False, None, True)
        assert found.movable == min(bookies)
