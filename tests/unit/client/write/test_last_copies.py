"""At the end of a writer or a recovery, every reachable member is sent all that it must store.

The ack quorum that confirmed an entry is not enough.
"""

from __future__ import annotations

import asyncio

import pytest

from quire.client.write.add_session import REACH_S
from tests.support.bookies.fake_bookies import (
    LEDGER,
    PASSWORD,
    FakeCluster,
    created,
    payload,
    simulated,
)
from tests.support.waiting import until

SLOW_S = REACH_S / 2
SHAPES = [(3, 3, 2), (4, 3, 2)]


async def written(cluster: FakeCluster, shape: tuple[int, int, int], entries: int) -> None:
    async with cluster.client() as client:
        writer = await created(client, shape)
        for entry in range(entries):
            writer.submit(payload(entry))
        await writer.close()


def copies(cluster: FakeCluster, entry: int) -> list[str]:
    return [name for name, bookie in cluster.bookies.items() if entry in bookie.entries]


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_a_member_that_connects_late_receives_all_entries_before_the_close(
    shape: tuple[int, int, int],
) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(shape[0])
        cluster["b2"].connects_in_s = SLOW_S
        await written(cluster, shape, 8)
        assert [len(copies(cluster, entry)) for entry in range(8)] == [3] * 8

    simulated(main)


def test_a_close_does_not_wait_for_a_member_that_stores_nothing() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await created(client, (3, 1, 1))
            members = writer.metadata.last_segment.ensemble
            for name in members[1:]:
                cluster[name].connects_in_s = SLOW_S
            start = asyncio.get_running_loop().time()
            await writer.append(payload(0))
            await writer.close()
            assert asyncio.get_running_loop().time() - start < SLOW_S

    simulated(main)


@pytest.mark.parametrize("how", ["never connected", "dies while it is waited for"])
def test_a_close_continues_without_an_unreachable_member(how: str) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        late = cluster["b2"]
        late.connects_in_s = REACH_S * 3 if how == "never connected" else SLOW_S
        late.down = how != "never connected"
        start = asyncio.get_running_loop().time()
        await written(cluster, (3, 3, 2), 3)
        took = asyncio.get_running_loop().time() - start
        closed = await cluster.stored()
        assert (closed.last_entry_id, len(closed.segments)) == (2, 1)
        assert took == pytest.approx(REACH_S if how == "never connected" else SLOW_S, rel=0.1)

    simulated(main)


def test_a_replacement_chosen_by_a_recovery_receives_the_written_back_entries() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(5), on=lambda entry: ["b0", "b1"])
        cluster["b2"].down = True
        cluster["b3"].connects_in_s = SLOW_S
        cluster["b1"].holds_acks = True
        async with cluster.client() as client:
            opening = asyncio.ensure_future(
                client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            )
            # The change of the ensemble comes first, then the acknowledgement that confirms.
            await until(lambda: cluster["b1"].added)
            await asyncio.sleep(SLOW_S / 10)
            cluster["b1"].release()
            await opening
        closed = await cluster.stored()
        assert closed.last_segment.ensemble == ("b0", "b1", "b3")
        behind = range(closed.last_segment.first_entry_id, 5)
        assert behind
        assert all("b3" in copies(cluster, entry) for entry in behind)

    simulated(main)
