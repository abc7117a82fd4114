"""A client that opens thousands of ledgers at once waits in its own queue, outside its time-outs.

5,000 opens at once ended in 1,965 ReadErrors, because all of them were sent together, and bookies
that answered one after the other did not reach the last ones within `read_timeout_s`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, cast

import pytest

from quire.client import Client
from quire.client.cluster.pool import OPENS_AT_ONCE_MAX, RECOVERIES_AT_ONCE_MAX
from quire.errors import ClientClosedError, QuireError
from quire.metadata.zookeeper.root import OPERATIONS_AT_ONCE_MAX, ZooKeeperRoot
from tests.support.bookies.fake_bookies import (
    LEDGER,
    PASSWORD,
    FakeCluster,
    FakeLink,
    payload,
    simulated,
)

MANY = 1_000


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each bookie answer reads one after the other, each after 10 ms."""
    locks: dict[int, asyncio.Lock] = {}
    read = FakeLink.read

    async def slowly(link: FakeLink, *what: Any, **how: Any) -> bytes:
        async with locks.setdefault(id(link.bookie), asyncio.Lock()):
            await asyncio.sleep(0.01)
        return await read(link, *what, **how)

    monkeypatch.setattr(FakeLink, "read", slowly)


async def opened(client: Client, *, recover: bool) -> str:
    try:
        reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=recover)
    except QuireError as error:
        return repr(error)
    return f"last entry {reader.last_add_confirmed}"


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("recover", [False, True], ids=["open", "recover"])
def test_a_thousand_concurrent_opens_do_not_time_out(recover: bool) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(4))
        async with cluster.client() as client:
            calls = [opened(client, recover=recover) for _ in range(MANY)]
            answers = await asyncio.gather(*calls)
        kinds = Counter(answer.split("(")[0] for answer in answers)
        assert all(kind.startswith("last entry ") for kind in kinds), kinds

    simulated(main)


@pytest.mark.usefixtures("one_by_one")
def test_a_thousand_concurrent_requests_for_the_last_entry_do_not_time_out() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(4))
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            found = await asyncio.gather(*(reader.refresh() for _ in range(MANY)))
        assert set(found) == {reader.last_add_confirmed}

    simulated(main)


@pytest.mark.parametrize(
    ("recover", "limit", "metric"),
    [
        (False, OPENS_AT_ONCE_MAX, "quire_client_opens_waiting"),
        (True, RECOVERIES_AT_ONCE_MAX, "quire_client_recoveries_waiting"),
    ],
    ids=["open", "recover"],
)
def test_waiting_opens_are_counted_and_can_be_cancelled(
    recover: bool, limit: int, metric: str
) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(4))
        for bookie in cluster.bookies.values():
            bookie.answers_in_s = 1
        client = cluster.client()

        def waiting() -> int:
            return int(client.metrics().split(f"\n{metric} ")[1].split()[0])

        calls = [asyncio.ensure_future(opened(client, recover=recover)) for _ in range(limit + 10)]
        await asyncio.sleep(0.1)
        assert waiting() == 10
        for call in calls[-4:]:
            call.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waiting() == 6
        answers = await asyncio.gather(*calls[:-4])
        assert all(answer.startswith("last entry ") for answer in answers)
        assert waiting() == 0
        await client.close()

    simulated(main)


def test_recoveries_that_wait_for_bookies_do_not_delay_readers() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(4))
        async with cluster.client() as client:
            for bookie in cluster.bookies.values():
                bookie.answers_in_s = 4
            calls = [
                asyncio.ensure_future(opened(client, recover=True))
                for _ in range(RECOVERIES_AT_ONCE_MAX + 1)
            ]
            await asyncio.sleep(0.1)
            for bookie in cluster.bookies.values():
                bookie.answers_in_s = 0
            async with asyncio.timeout(1):
                assert (await opened(client, recover=False)).startswith("last entry ")
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    simulated(main)


def test_closing_the_client_ends_the_waiting_opens() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(4))
        client = cluster.client()
        for bookie in cluster.bookies.values():
            bookie.answers_in_s = 1
        calls = [
            asyncio.ensure_future(client.open_ledger(LEDGER, password=PASSWORD))
            for _ in range(OPENS_AT_ONCE_MAX + 10)
        ]
        await asyncio.sleep(0.1)
        await client.close()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(one, ClientClosedError) for one in ended[OPENS_AT_ONCE_MAX:])

    simulated(main)


class Connected:
    """A connection to ZooKeeper that is always there."""

    servers = "zk"

    async def wait_connected(self) -> None: ...


def test_the_time_out_of_zookeeper_does_not_count_the_wait_for_earlier_operations() -> None:
    async def main() -> None:
        root = ZooKeeperRoot(
            cast(Any, Connected()), "/ledgers", random.Random(1), operation_timeout_s=1
        )
        server = asyncio.Lock()

        async def work(again: bool) -> bytes:
            async with server:
                await asyncio.sleep(0.5 / OPERATIONS_AT_ONCE_MAX)
            return payload(1)

        calls = [root.do("read", work, check=False) for _ in range(8 * OPERATIONS_AT_ONCE_MAX)]
        assert set(await asyncio.gather(*calls)) == {payload(1)}

    simulated(main)
