"""Reading from one bookie while connections to it break."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.client import Client
from quire.client.client import pool_of
from quire.core.replicas import Bad, Copies, Kind
from quire.errors import BookieTimeoutError, BookieUnavailableError
from quire.net.channel import BookieChannel
from quire.replication.repair.replica_reader import (
    ATTEMPTS,
    LOST_ATTEMPTS,
    PATIENCE_ROUNDS,
    ReplicaReader,
    answers,
)
from tests.support.bookies.fake_bookies import (
    CONFIG,
    LEDGER,
    FakeCluster,
    FakeLink,
    payload,
    simulated,
)


class Stale(FakeLink):
    """A connection from before the bookie's restart, which nobody notices until it is used."""

    async def read(self, *how: Any, **more: Any) -> bytes:
        self.lose()
        raise BookieUnavailableError("stale")

    batch_read = read

    async def read_many(self, *how: Any, **more: Any) -> list[bytes | BaseException]:
        return [await self.read()]


async def reading(cluster: FakeCluster, client: Client) -> list[Copies | Bad]:
    metadata = await cluster.stored()
    reader = ReplicaReader(client, LEDGER, metadata, cluster.codec, "b0")
    return [part async for part in reader.parts(0, 0, 4)]


def stale(cluster: FakeCluster, client: Client, count: int) -> None:
    for _ in range(count):
        pool_of(client)._channels.add(Stale(cluster["b0"]))


@pytest.mark.parametrize("shape", [(3, 3, 2), (5, 3, 2)])
@pytest.mark.parametrize("failed_before", [False, True])
@pytest.mark.parametrize("count", range(LOST_ATTEMPTS))
def test_connections_from_before_a_restart_do_not_hide_the_bookie(
    count: int, failed_before: bool, shape: tuple[int, int, int]
) -> None:
    """Reads work in batches, and entry by entry."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(5))
        async with cluster.client() as client:
            if failed_before:
                pool_of(client).mark_failed("b0")
            stale(cluster, client, count)
            found = await reading(cluster, client)
            assert all(isinstance(part, Copies) for part in found), found
            copies = [pair for part in found for pair in zip(part.ids, part.payloads)]  # type: ignore[union-attr]
            assert copies == [(k, payload(k)) for k in range(5) if k in cluster["b0"].entries]
            stale(cluster, client, count)
            assert await answers(client, "b0") == ""

    simulated(main)


def test_connections_that_break_for_ever_end_it() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5))
        async with cluster.client() as client:
            stale(cluster, client, 100)
            [bad] = await reading(cluster, client)
            assert isinstance(bad, Bad)
            assert (bad.kind, bad.first, bad.last) == (Kind.UNREACHABLE, 0, 4)
            assert await answers(client, "b0") == "", "a new connection works"
            assert len(cluster["b0"].links) == 101

    simulated(main)


def test_a_silent_bookie_is_not_asked_as_often() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5))
        cluster["b0"].says = cluster["b0"].silent
        async with cluster.client() as client:
            began = asyncio.get_running_loop().time()
            [bad] = await reading(cluster, client)
            assert isinstance(bad, Bad)
            assert bad.kind is Kind.UNREACHABLE
            waited_s = asyncio.get_running_loop().time() - began
            assert waited_s <= ATTEMPTS * CONFIG.read_timeout_s + 1

    simulated(main)


@pytest.mark.parametrize(
    ("sends_for", "answers_after", "ends_after"),
    [
        (0.0, 0.9, 0.9),
        (0.0, 1.5, 1.0),  # nothing comes
        (99.0, 3.5, 3.5),  # a large answer comes in pieces
        (2.5, 99.0, 4.0),  # And then no more: noticed at the next check but one.
        (99.0, 99.0, PATIENCE_ROUNDS),  # no more time than that
    ],
)
def test_while_a_bookie_sends_it_has_more_time(
    monkeypatch: pytest.MonkeyPatch, sends_for: float, answers_after: float, ends_after: float
) -> None:
    """The time limit is extended in units of `read_timeout_s`."""

    async def main() -> None:
        loop, limit = asyncio.get_running_loop(), CONFIG.read_timeout_s
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5))
        async with cluster.client() as client:
            began = loop.time()

            def received_bytes(bookie: str) -> int:
                return int(1e6 * min(loop.time() - began, sends_for * limit))

            async def ask(channel: BookieChannel) -> str:
                await asyncio.sleep(answers_after * limit)
                return "here"

            monkeypatch.setattr(pool_of(client), "received_bytes", received_bytes)
            reader = ReplicaReader(client, LEDGER, await cluster.stored(), cluster.codec, "b0")
            if ends_after == answers_after:
                assert await reader._in_time(ask) == "here"
            else:
                waited = rf"b0 did not answer a read of a replica within {ends_after * limit:g} s"
                with pytest.raises(BookieTimeoutError, match=waited):
                    await reader._in_time(ask)
            assert loop.time() - began == pytest.approx(ends_after * limit, abs=0.1 * limit)

    simulated(main)
