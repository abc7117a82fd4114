"""Jobs that are paused and resumed, on simulated bookies."""

from __future__ import annotations

import asyncio
import random

import pytest

from quire.client import Client
from quire.errors import MetadataUnavailableError, UsageError
from quire.replication.marks.locks import ReplicationLocks
from quire.replication.marks.pauses import CLUSTER, LOOK_INTERVAL_S, Pause, PauseGate, Pauses
from quire.replication.moves.rebalance import RebalanceOptions, rebalance
from quire.replication.moves.recover import MoveOptions, NoProgress, recover_bookie
from quire_simulator.world.world import World, bookie_id
from tests.support.sim.jobs import filled, names
from tests.support.sim.replication import audited, locks_of, simulated, start

ONE_AT_A_TIME = MoveOptions(open_grace_s=1.0, parallel=1)
LONG_S = 100 * LOOK_INTERVAL_S


class Gated(NoProgress):
    """The progress of a job that can be paused. `at` is set after this number of ledgers."""

    def __init__(self, client: Client, kind: str, target: str) -> None:
        self.told: list[Pause | None] = []
        self.gate = PauseGate(client.metadata, kind, target, self.told.append)
        self.ledgers = 0

    def done(self, ledgers: int, size_bytes: int) -> None:
        self.ledgers += ledgers

    async def may_go_on(self) -> None:
        await self.gate.passes()


def test_a_paused_job_starts_no_ledger_until_it_is_resumed() -> None:
    """This includes a job that is started while paused. Nothing is locked meanwhile."""

    async def scenario(world: World) -> None:
        await start(world, 5)
        client, other = world.client("client"), world.client("operator")
        lost = bookie_id("bookie-1")
        ids = await filled(client, lost)
        world.crash("bookie-1")
        before = await names(client, lost)
        pauses = Pauses(other.metadata)
        order = Pause("recover", lost, "operator", 7)
        assert await pauses.pause(order)
        assert not await pauses.pause(order)
        progress = Gated(client, "recover", lost)
        job = asyncio.ensure_future(
            recover_bookie(
                client, locks_of(world, client), lost, options=ONE_AT_A_TIME, progress=progress
            )
        )
        await asyncio.sleep(LONG_S)
        assert not job.done()
        assert await names(client, lost) == before
        assert progress.told == [order]
        for ledger_id in before:
            assert await ReplicationLocks(client.metadata, "x", client.clock).held_by(
                ledger_id
            ) is None  # fmt: skip
        assert await pauses.all() == [order]
        assert await pauses.resume("recover", lost)
        assert (await job).complete
        assert progress.told == [order, None]
        assert await names(client, lost) == []
        assert await audited(client, ids) == []
        for one in (client, other):
            await one.close()

    simulated(scenario)


def test_a_running_job_can_be_paused() -> None:
    async def scenario(world: World) -> None:
        await start(world, 5)
        client = world.client("client")
        lost = bookie_id("bookie-1")
        await filled(client, lost)
        world.crash("bookie-1")
        before = await names(client, lost)
        pauses = Pauses(client.metadata)

        class Pausing(Gated):
            async def may_go_on(self) -> None:
                if self.ledgers == 1:
                    await pauses.pause(Pause("recover", lost, "operator", 7))
                    await asyncio.sleep(LOOK_INTERVAL_S)
                await super().may_go_on()

            def done(self, ledgers: int, size_bytes: int) -> None:
                self.ledgers += ledgers if self.copying else 0

            copying = False

            def begin(self, what: str, ledgers: int, size_bytes: int) -> None:
                self.copying = what == "replicating"

        progress = Pausing(client, "recover", lost)
        job = asyncio.ensure_future(
            recover_bookie(
                client, locks_of(world, client), lost, options=ONE_AT_A_TIME, progress=progress
            )
        )
        await asyncio.sleep(LONG_S)
        assert len(await names(client, lost)) == len(before) - 1
        assert not job.done()
        progress.ledgers = 2  # it pauses nothing any more
        await pauses.resume("recover", lost)
        assert (await job).complete
        await client.close()

    simulated(scenario)


def test_a_rebalance_can_be_paused() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        await filled(client, bookie_id("bookie-1"))
        await world.start("bookie-3")
        await Pauses(client.metadata).pause(Pause("rebalance", CLUSTER, "operator", 7))
        progress = Gated(client, "rebalance", CLUSTER)
        job = asyncio.ensure_future(
            rebalance(
                client, locks_of(world, client), random.Random(1),
                allowed=lambda *_: True, options=RebalanceOptions(), progress=progress,
            )
        )  # fmt: skip
        await asyncio.sleep(LONG_S)
        assert not job.done()
        assert await names(client, bookie_id("bookie-3")) == []
        await Pauses(client.metadata).resume("rebalance", CLUSTER)
        assert (await job).moved > 0
        await client.close()

    simulated(scenario)


def test_invalid_pauses_are_refused() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        store = client.metadata
        pauses = Pauses(store)
        with pytest.raises(UsageError, match="use one of recover"):
            await pauses.pause(Pause("dance", "x", "", 0))
        for kind, target in (("recover", "a b"), ("decommission", "."), ("recover", "")):
            with pytest.raises(UsageError, match="cannot be a bookie id"):
                await pauses.pause(Pause(kind, target, "", 0))
        with pytest.raises(UsageError, match="only be paused for the whole 'cluster'"):
            await pauses.pause(Pause("rebalance", "b:1", "", 0))
        assert not await pauses.resume("recover", "x")
        await pauses.pause(Pause("recover", "other", "", 0))
        await PauseGate(store, "recover", "x").passes()
        # An unparsable value also pauses the job, because somebody wanted a pause.
        await store.write_value(("jobs", "paused", "recover x"), b"?", None)
        assert await pauses.of("recover", "x") == Pause("recover", "x", "", 0)
        await client.close()

    simulated(scenario)


def test_a_cancelled_pause_check_lets_no_other_task_pass() -> None:
    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        await Pauses(client.metadata).pause(Pause("recover", "x", "", 0))
        gate = PauseGate(client.metadata, "recover", "x")
        first, second = (asyncio.ensure_future(gate.passes()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(LONG_S)
        assert first.cancelled()
        assert not second.done()
        second.cancel()
        await client.close()

    simulated(scenario)


def test_an_unreachable_store_keeps_the_last_known_pause() -> None:
    """A running job continues, and a paused one stays paused."""

    async def scenario(world: World) -> None:
        await start(world, 3)
        client = world.client("client")
        store = client.metadata
        gate = PauseGate(store, "recover", "x")
        read_value = store.read_value

        async def fails(key: object) -> object:
            raise MetadataUnavailableError("no")

        store.read_value = fails  # type: ignore[assignment, method-assign]
        await gate.passes()
        store.read_value = read_value  # type: ignore[method-assign]
        await Pauses(store).pause(Pause("recover", "x", "", 0))
        await asyncio.sleep(LOOK_INTERVAL_S)
        waiting = asyncio.ensure_future(gate.passes())
        await asyncio.sleep(LONG_S)
        store.read_value = fails  # type: ignore[assignment, method-assign]
        await asyncio.sleep(LONG_S)
        assert not waiting.done()
        waiting.cancel()
        store.read_value = read_value  # type: ignore[method-assign]
        await client.close()

    simulated(scenario)
