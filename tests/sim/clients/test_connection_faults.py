"""Faults of connections: frames that overtake each other, silence, and bookies that move."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from quire.client import Client
from quire.config import ClientConfig
from quire_simulator import simulate
from quire_simulator.faults.disorder import Disorder
from quire_simulator.faults.nemesis import Nemesis
from quire_simulator.machine.network import SimNetwork
from quire_simulator.plans.faults import DISORDER_KINDS, FLOW_KINDS, MOVE_KINDS, Fault
from quire_simulator.world.world import BOOKIE_CONFIG, PORT, World

SEEDS = range(6)
SHAPE = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what really happens to connections."""
    counts: Counter[str] = Counter()
    silence, move, others = SimNetwork.silence, World.move, Nemesis._others
    made: list[Disorder] = []
    init = Disorder.__init__

    def counted_silence(self: SimNetwork, *names: str, **how: Any) -> int:
        died = silence(self, *names, **how)
        one_way = how.get("sent", True) is not how.get("received", True)
        counts["one way" if one_way else "both ways"] += died
        return died

    def counted_move(self: World, name: str, *, silently: bool) -> None:
        counts["moved"] += 1
        move(self, name, silently=silently)

    async def counted_others(self: Nemesis, fault: Fault) -> None:
        counts[fault.kind] += 1
        await others(self, fault)
        counts["overtaken"] = sum(one.overtaken for one in made)

    def noted_init(self: Disorder, *how: Any) -> None:
        init(self, *how)
        made.append(self)

    monkeypatch.setattr(SimNetwork, "silence", counted_silence)
    monkeypatch.setattr(World, "move", counted_move)
    monkeypatch.setattr(Nemesis, "_others", counted_others)
    monkeypatch.setattr(Disorder, "__init__", noted_init)
    return counts


@pytest.mark.long
def test_frames_are_reordered_in_whole_runs(struck: Counter[str]) -> None:
    for seed in SEEDS:
        assert simulate(seed, "disorder").failure is None
    assert all(struck[kind] for kind in DISORDER_KINDS)
    assert struck["overtaken"] > 50 * len(SEEDS)


@pytest.mark.long
def test_connections_die_and_bookies_move_in_whole_runs(struck: Counter[str]) -> None:
    for seed in SEEDS:
        assert simulate(seed, "silent").failure is None
    assert all(struck[kind] for kind in FLOW_KINDS)
    assert struck["one way"] > len(SEEDS)
    assert struck["moved"] >= len(SEEDS)
    assert MOVE_KINDS == ("move bookie",)


def run(scenario: Any, seed: int = 0, bookies: int = 3) -> World:
    world = World.make(seed, bookies)

    async def whole() -> None:
        for name in world.disks:
            await world.start(name)
        client = world.client("client", ClientConfig(add_timeout_s=1.0, read_timeout_s=1.0))
        await scenario(world, client)
        await client.close()
        for bookie in list(world.bookies.values()):
            await bookie.stop()

    world.loop.run(whole())
    return world


@pytest.mark.parametrize("what", ["answers_s", "requests_s"])
def test_no_entry_is_lost_when_frames_are_reordered(what: str) -> None:
    async def scenario(world: World, client: Client) -> None:
        disorder = world.network.disorder = Disorder(PORT, world.loop.derive("disorder"))
        getattr(disorder, what).update(dict.fromkeys(world.disks, 0.2))
        writer = await client.create_ledger(**SHAPE)
        payloads = [b"%d" % number for number in range(300)]
        for at in range(0, 300, 3):
            last = await writer.append_many(payloads[at : at + 3])
        assert last == 299
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert [entry.payload async for entry in reader.read()] == payloads
        assert disorder.overtaken > 10
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert len(metadata.segments) == 1, "no bookie had to be replaced"

    run(scenario)


def test_lost_answers_alone_lose_no_entry() -> None:
    async def scenario(world: World, client: Client) -> None:
        writer = await client.create_ledger(**SHAPE)
        await writer.append(b"before")
        for name in world.disks:
            assert world.network.silence("client", name, sent=False) >= 1
        before = {name: world.bookies[name].service.counters.adds for name in world.disks}
        await writer.append(b"after")
        added = [world.bookies[name].service.counters.adds - before[name] for name in world.disks]
        assert max(added) >= 2, "the entry arrived, and was sent again over another connection"
        assert not [end for end in world.network.silenced() if end.remote[1] == PORT], (
            "the client has left the silent connections"
        )

    run(scenario)


@pytest.mark.parametrize("silently", [False, True])
def test_clients_find_a_bookie_at_a_new_address_and_at_its_first_one(silently: bool) -> None:
    async def scenario(world: World, client: Client) -> None:
        writer = await client.create_ledger(**SHAPE)
        await writer.append(b"0")
        for entry in range(1, 4):
            world.network.silence("bookie-0", *world.network.others("bookie-0"))
            world.crash("bookie-0")
            world.move("bookie-0", silently=silently)
            await world.start("bookie-0", BOOKIE_CONFIG)
            await writer.append(b"%d" % entry)
        await writer.close()
        registered = await client.metadata.bookies()
        address = registered.find("bookie-0:3181")
        assert address is not None
        assert address.host == "bookie-0 elsewhere"
        reader = await client.open_ledger(writer.ledger_id)
        assert [entry.payload async for entry in reader.read()] == [b"0", b"1", b"2", b"3"]

    run(scenario)
