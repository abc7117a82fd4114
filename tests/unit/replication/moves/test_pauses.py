"""The pauses of jobs: which are accepted, and the gate at which a paused job waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from quire.errors import MetadataUnavailableError, UsageError, VersionConflictError
from quire.metadata.interface import Versioned
from quire.replication.marks.pauses import CLUSTER, LOOK_INTERVAL_S, Pause, PauseGate, Pauses
from quire_simulator.world.world import World
from tests.support.sim.replication import simulated

PAUSE = Pause("recover", "b:1", "operator", 7)
LONG_S = 10 * LOOK_INTERVAL_S


def test_each_kind_of_job_is_paused_once_and_resumed_once() -> None:
    async def scenario(world: World) -> None:
        client = world.client("client")
        pauses = Pauses(client.metadata)
        wanted = [
            Pause("decommission", "b:1", "x", 1),
            Pause("rebalance", CLUSTER, "y", 2),
            PAUSE,
        ]
        for one in wanted:
            assert await pauses.of(one.kind, one.target) is None
            assert await pauses.pause(one)
            assert not await pauses.pause(one)
            assert await pauses.of(one.kind, one.target) == one
        assert sorted(await pauses.all(), key=lambda one: one.by) == [PAUSE, *wanted[:2]]
        for one in wanted:
            assert await pauses.resume(one.kind, one.target)
            assert not await pauses.resume(one.kind, one.target)
        assert await pauses.all() == []
        await client.close()

    simulated(scenario, bookies=0)


def test_a_later_pause_is_not_deleted_by_an_earlier_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another operator resumes and pauses the job between the look and the deletion."""
    later = Pause(PAUSE.kind, PAUSE.target, "another operator", 8)

    async def scenario(world: World) -> None:
        client, other = world.client("client"), world.client("other")
        assert await Pauses(other.metadata).pause(PAUSE)
        read_value = client.metadata.read_value

        async def overtaken(key: Sequence[str]) -> Versioned[bytes]:
            monkeypatch.setattr(client.metadata, "read_value", read_value)
            found = await read_value(key)
            assert await Pauses(other.metadata).resume(PAUSE.kind, PAUSE.target)
            assert await Pauses(other.metadata).pause(later)
            return found

        monkeypatch.setattr(client.metadata, "read_value", overtaken)
        with pytest.raises(VersionConflictError, match="recover b:1 is still paused: another op"):
            await Pauses(client.metadata).resume(PAUSE.kind, PAUSE.target)
        assert await Pauses(other.metadata).of(PAUSE.kind, PAUSE.target) == later
        await client.close()
        await other.close()

    simulated(scenario, bookies=0)


@pytest.mark.parametrize(
    ("kind", "target", "why"),
    [
        ("dance", "b:1", "use one of recover, decommission, rebalance"),
        ("recover", "a b", "cannot be a bookie id"),
        ("decommission", "", "cannot be a bookie id"),
        ("rebalance", "b:1", "only be paused for the whole 'cluster'"),
    ],
)
def test_a_pause_of_an_unknown_job_is_refused(kind: str, target: str, why: str) -> None:
    async def scenario(world: World) -> None:
        client = world.client("client")
        with pytest.raises(UsageError, match=why):
            await Pauses(client.metadata).pause(Pause(kind, target, "", 0))
        assert await Pauses(client.metadata).all() == []
        await client.close()

    simulated(scenario, bookies=0)


def test_a_pause_that_cannot_be_decoded_pauses_the_job() -> None:
    async def scenario(world: World) -> None:
        client = world.client("client")
        for value in (b"?", b"{}", b"[1]"):
            key = ("jobs", "paused", "recover x")
            await client.metadata.write_value(key, value, None)
            pauses = Pauses(client.metadata)
            assert await pauses.of("recover", "x") == Pause("recover", "x", "", 0)
            assert await pauses.resume("recover", "x")
        await client.close()

    simulated(scenario, bookies=0)


def test_a_paused_job_waits_until_it_is_resumed() -> None:
    async def scenario(world: World) -> None:
        client = world.client("client")
        pauses = Pauses(client.metadata)
        told: list[Pause | None] = []
        gate = PauseGate(client.metadata, "recover", "b:1", told.append)
        await gate.passes()
        await pauses.pause(PAUSE)
        await gate.passes()  # It asked the store less than `LOOK_INTERVAL_S` ago.
        await asyncio.sleep(LOOK_INTERVAL_S)
        waiting = [asyncio.ensure_future(gate.passes()) for _ in range(2)]
        await asyncio.sleep(LONG_S)
        assert not any(one.done() for one in waiting)
        assert told == [PAUSE]
        await pauses.resume("recover", "b:1")
        await asyncio.wait_for(asyncio.gather(*waiting), 2 * LOOK_INTERVAL_S + 1)
        assert told == [PAUSE, None]
        await client.close()

    simulated(scenario, bookies=0)


def test_the_last_known_state_applies_while_the_store_does_not_answer() -> None:
    async def scenario(world: World) -> None:
        client = world.client("client")
        store = client.metadata
        read_value = store.read_value
        gate = PauseGate(store, "recover", "b:1")

        async def fails(key: object) -> object:
            raise MetadataUnavailableError("no")

        store.read_value = fails  # type: ignore[assignment, method-assign]
        await gate.passes()
        store.read_value = read_value  # type: ignore[method-assign]
        await Pauses(store).pause(PAUSE)
        await asyncio.sleep(LOOK_INTERVAL_S)
        waiting = asyncio.ensure_future(gate.passes())
        await asyncio.sleep(1)
        store.read_value = fails  # type: ignore[assignment, method-assign]
        await asyncio.sleep(LONG_S)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        await client.close()

    simulated(scenario, bookies=0)


@pytest.mark.parametrize("paused_before", [False, True])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_cancelled_look_does_not_count(others: int, paused_before: bool) -> None:
    """Another part of the job looks itself, and does not believe what was known before."""

    async def scenario(world: World) -> None:
        client = world.client("client")
        store, pauses = client.metadata, Pauses(client.metadata)
        read_value, looking = store.read_value, asyncio.Event()
        gate = PauseGate(store, "recover", "b:1")
        if paused_before:
            await pauses.pause(PAUSE)
            known = asyncio.ensure_future(gate.passes())
            await asyncio.sleep(1)
            known.cancel()
            await asyncio.wait([known])
            await pauses.resume("recover", "b:1")
        else:
            await gate.passes()
            await pauses.pause(PAUSE)
        await asyncio.sleep(LOOK_INTERVAL_S)

        async def hangs(key: object) -> object:
            looking.set()
            return await asyncio.Event().wait()

        store.read_value = hangs  # type: ignore[assignment, method-assign]
        first = asyncio.ensure_future(gate.passes())
        await looking.wait()
        parts = [asyncio.ensure_future(gate.passes()) for _ in range(others)]
        await asyncio.sleep(0)
        store.read_value = read_value  # type: ignore[method-assign]
        first.cancel()
        await asyncio.wait([first])
        parts.append(asyncio.ensure_future(gate.passes()))
        await asyncio.sleep(LOOK_INTERVAL_S / 2)
        assert [one.done() for one in parts] == [paused_before] * len(parts)
        for one in parts:
            one.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await client.close()

    simulated(scenario, bookies=0)
