"""The results of `quire bench rereplicate` on simulated bookies."""

from __future__ import annotations

from typing import Any

import pytest

from quire.cli.bench import rereplicate as benchmark
from quire.cli.bench.core import Load, Shape
from quire.cli.bench.rereplicate import rereplicate
from quire.errors import NoSuchLedgerError, ReadError
from quire.replication.repair.bookie_removal import take_out
from quire_simulator.world.world import World

LEDGERS, LOAD = 6, Load(entries=50, size_bytes=100, outstanding=10)


async def bookies(world: World, count: int) -> None:
    for number in range(count):
        await world.start(f"bookie-{number}")


async def stop(world: World) -> None:
    for bookie in list(world.bookies.values()):
        await bookie.stop()


def test_the_benchmark_rereplicates_every_ledger_of_a_bookie() -> None:
    world = World.make(1, 4)

    async def scenario() -> None:
        await bookies(world, 4)
        client, other = world.client("client"), world.client("other")
        result = await rereplicate(client, other, Shape(), LOAD, LEDGERS, keep=True)
        kept = [ledger async for ledger in client.list_ledgers()]
        ensembles = [
            set((await client.ledger_metadata(ledger)).last_segment.ensemble) for ledger in kept
        ]
        assert len(kept) == LEDGERS
        everywhere = set.union(*ensembles)
        assert len(everywhere) == 3, "one of four bookies was removed from all ledgers"
        copied, rest = divmod(result.operations, LOAD.entries)
        # Of six ensembles of three out of four some bookie is in five at least.
        assert (copied in (5, 6), rest) == (True, 0)
        assert result.payload_bytes == result.operations * LOAD.size_bytes
        again = await rereplicate(client, other, Shape(), LOAD, 1)
        assert again.operations == LOAD.entries
        with pytest.raises(NoSuchLedgerError):
            await client.ledger_metadata(max(kept) + 1)
        await client.close()
        await other.close()
        await stop(world)

    world.loop.run(scenario())


def test_the_benchmark_fails_without_a_spare_bookie() -> None:
    world = World.make(2, 3)

    async def scenario() -> None:
        await bookies(world, 3)
        client, other = world.client("client"), world.client("other")
        with pytest.raises(ExceptionGroup) as raised:
            await rereplicate(client, other, Shape(), LOAD, 1)
        assert raised.group_contains(ReadError, match="still names bookie")
        await client.close()
        await other.close()
        await stop(world)

    world.loop.run(scenario())


def test_the_benchmark_reports_a_ledger_that_another_client_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World.make(3, 4)

    async def after_deletion(client: Any, locks: Any, ledger_id: int, lost: Any) -> Any:
        await client.delete_ledger(ledger_id)
        return await take_out(client, locks, ledger_id, lost)

    monkeypatch.setattr(benchmark, "take_out", after_deletion)

    async def scenario() -> None:
        await bookies(world, 4)
        client, other = world.client("client"), world.client("other")
        with pytest.raises(ExceptionGroup) as raised:
            await rereplicate(client, other, Shape(), LOAD, 1)
        assert raised.group_contains(ReadError, match="because another client deleted it")
        await client.close()
        await other.close()
        await stop(world)

    world.loop.run(scenario())
