"""The state of the replicas of streams and topics, as their pages show it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import click
import pytest

from quire.cli.stream.explain import _explained, _lines, _replica_problems
from quire.errors import ReadError
from quire.http.views.ledger_list import Replication
from quire.http.watch import stream_replicas
from quire.http.watch.stream_replicas import (
    AGE_MAX_S,
    REPLICAS_INTERVAL_S,
    STATES,
    ReplicaWatch,
    StreamReplicas,
    together,
)
from quire.replication.marks.locks import ReplicationLocks
from tests.support.streams import Bench, run

TOPIC = ("visits/0", "visits/1")


async def look(b: Bench, watch: ReplicaWatch, names: Sequence[str], topic: str = "") -> Any:
    """Return the state of the replicas as it is now."""
    await watch.of(b.client, b.streams.path, names, topic=topic)
    await asyncio.sleep(REPLICAS_INTERVAL_S + 1)
    await watch.of(b.client, b.streams.path, names, topic=topic)
    await asyncio.sleep(REPLICAS_INTERVAL_S + 1)
    return await watch.of(b.client, b.streams.path, names, topic=topic)


def counts(found: dict[str, Any]) -> dict[str, int]:
    return {state: found[state] for state in STATES if found[state]}


async def fill(b: Bench) -> list[int]:
    """Write one segment to each partition of a topic. Returns the ledgers."""
    await b.streams.create_topic("visits", 2)
    for name in TOPIC:
        async with await b.streams.open_writer(name) as writer:
            await writer.append_many([b"0123456789"] * 3)
    return [(await b.streams.segments(name))[0].ledger_id for name in TOPIC]


def test_each_ledger_of_a_topic_counts_once_in_its_worst_state() -> None:
    async def scene(b: Bench) -> None:
        first, second = await fill(b)
        watch = ReplicaWatch(b.client.clock.monotonic)
        locks = ReplicationLocks(b.client.metadata, "healer", b.client.clock)
        try:
            whole = await look(b, watch, TOPIC, "visits")
            assert [counts(one) for one in whole.values()] == [{}, {}, {}]
            assert (whole["visits"]["ledgers"], whole["visits"]["whole"]) == (2, True)
            await locks.mark(first, [next(iter(b.world.disks))])
            marked = await look(b, watch, TOPIC, "visits")
            assert counts(marked["visits/0"]) == counts(marked["visits"]) == {"marked": 1}
            assert marked["visits"]["named"] == {"marked": [first]}
            assert counts(marked["visits/1"]) == {}
            async with locks.hold(first):
                repaired = await look(b, watch, TOPIC, "visits")
            assert counts(repaired["visits/0"]) == {"repairing": 1}
            await b.client.delete_ledger(second)
            lost = await look(b, watch, TOPIC, "visits")
            assert counts(lost["visits/1"]) == {"lost": 1}
            assert lost["visits"]["named"] == {"marked": [first], "lost": [second]}
        finally:
            await watch.close()

    run(scene)


def test_ledgers_on_lost_bookies_lack_copies_or_cannot_be_read() -> None:
    async def scene(b: Bench) -> None:
        await fill(b)
        watch = ReplicaWatch(b.client.clock.monotonic)
        names = list(b.world.bookies)
        try:
            await b.world.stop(names[0])
            found = await look(b, watch, TOPIC, "visits")
            assert counts(found["visits"]) == {"lacking": 2}
            for name in names[1:]:
                await b.world.stop(name)
            found = await look(b, watch, TOPIC, "visits")
            assert counts(found["visits"]) == {"unreadable": 2}
        finally:
            await watch.close()

    run(scene)


def test_a_stream_that_was_not_looked_at_yet_leaves_the_sum_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        await fill(b)
        watch = ReplicaWatch(b.client.clock.monotonic)
        asked = (*TOPIC, "nothing")
        try:
            found = await look(b, watch, asked, "visits")
            assert (found["visits"], found["nothing"]) == (None, None)
            assert found["visits/0"]["ledgers"] == 1

            async def broken(*args: object) -> StreamReplicas:
                raise ReadError("no answer")

            monkeypatch.setattr(stream_replicas, "replicas_of", broken)
            found = await look(b, watch, TOPIC, "visits")
            assert found["visits/1"]["error"] == "no answer"
            assert found["visits"]["error"] == "partition 0: no answer; partition 1: no answer"
        finally:
            await watch.close()

    run(scene)


def test_at_most_five_ledgers_of_a_state_are_named() -> None:
    one = StreamReplicas(9, False, {"marked": range(9)})
    found = together([one, StreamReplicas(1, True, {"marked": [4]})]).as_json()
    assert (found["marked"], found["ledgers"], found["whole"]) == (10, 10, False)
    assert found["named"] == {"marked": [0, 1, 2, 3, 4]}


def test_explain_stream_reports_the_ledgers_that_lack_copies() -> None:
    found = StreamReplicas(
        9, True,
        {"unreadable": [3], "unknown": [4], "lacking": [5, 6], "marked": [1], "repairing": [9]},
    )  # fmt: skip
    assert list(_replica_problems(found)) == [
        ("bad", "Some entries of ledger 3 have no copy on a registered bookie, so they cannot be "
         "read now", 3),
        ("bad", "The metadata of ledger 4 cannot be read", 4),
        ("warn", "4 ledgers (1, 5, 6, 9) lack copies: 2 are not marked for repair yet, 1 is "
         "waiting for repair, 1 is being repaired", 1),
    ]  # fmt: skip
    assert list(_replica_problems(StreamReplicas(1, True, {"lost": [7]}))) == []
    ((_, what, _),) = _replica_problems(StreamReplicas(1, True, {"marked": [7]}))
    assert what == "Ledger 7 lacks copies: it is waiting for repair"


def test_the_previous_state_is_shown_until_the_next_one_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page said "reading ..." at each look, once for each partition."""

    async def scene(b: Bench) -> None:
        await fill(b)
        watch, going = ReplicaWatch(b.client.clock.monotonic), asyncio.Event()
        before = stream_replicas.replicas_of

        async def slow(*args: Any) -> StreamReplicas:
            await going.wait()
            return await before(*args)

        try:
            await look(b, watch, TOPIC)
            monkeypatch.setattr(stream_replicas, "replicas_of", slow)
            for _ in range(2):
                await asyncio.sleep(REPLICAS_INTERVAL_S + 1)
                found = await watch.of(b.client, b.streams.path, TOPIC)
                assert [one["ledgers"] for one in found.values()] == [1, 1]
            await asyncio.sleep(AGE_MAX_S)
            found = await watch.of(b.client, b.streams.path, TOPIC)
            assert list(found.values()) == [None, None], "it is too old"
            going.set()
        finally:
            await watch.close()

    run(scene)


def test_a_stream_that_cannot_be_read_is_explained_by_the_state_of_its_ledgers() -> None:
    """`quire explain stream` failed, and did not say that all bookies of a ledger are gone."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("orders")
        writer = await b.streams.open_writer("orders")
        await writer.append(b"x")
        for name in list(b.world.bookies):
            b.world.crash(name)
        await asyncio.sleep(60)
        replication = await Replication.of(b.client)
        found = await _explained(b.streams, "orders", b"", [], replication)
        first, second = found["problems"]
        assert first["what"].startswith("Some entries of ledger ")
        assert second["what"].startswith("The stream cannot be read: ")
        assert (found["records"], found["replicas"]["unreadable"]) == (None, 1)
        with click.Context(click.Command("explain")):
            assert _lines(found)[0] == "stream orders of /acme/test: its size is not known"

    run(scene)
