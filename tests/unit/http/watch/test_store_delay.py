"""A metadata store that is silent for seconds is noticed by one look at the cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from quire.errors import MetadataUnavailableError
from quire.http.views.cluster_view import ClusterView
from quire.http.views.problems.metadata_store import SLOW_S, metadata_slow
from quire.http.watch.store_delay import StoreDelay
from quire.metadata.interface import MetadataStore
from tests.support.bookies.fake_bookies import FakeCluster, simulated

URI = "zk+hierarchical://zk-1:2181;zk-2:2181/ledgers"


async def no_answer(*_: object) -> Any:
    raise ConnectionError


def test_a_store_that_answers_in_time_is_no_problem() -> None:
    assert metadata_slow(URI, SLOW_S - 0.1) == []


def test_a_slow_answer_names_the_store_and_the_commands_that_ask_it() -> None:
    (one,) = metadata_slow(URI, 6.34)
    assert (one.severity, one.what) == (
        "warn",
        f"The metadata store {URI} answers slowly: a small request waited 6.3 s for its answer",
    )
    assert "whether its process is paused" in one.next
    assert "echo srvr | curl -sm 3 telnet://zk-1:2181; echo srvr" in one.next
    assert one.next.endswith("quire explain --server http://HOST:8080")
    assert "session timeout" in one.risk


def paused(store: MetadataStore, seconds: float) -> None:
    """Make the store answer nothing for the next seconds of simulated time."""
    loop = asyncio.get_running_loop()
    until_s, asked = loop.time() + seconds, store.instance_id

    async def instance_id() -> str:
        await asyncio.sleep(max(0.0, until_s - loop.time()))
        return await asked()

    store.instance_id = instance_id  # type: ignore[method-assign]


def test_a_look_at_the_cluster_reports_a_store_that_was_silent_meanwhile() -> None:
    """It said that no problems were found, although the store was paused half of the time."""

    async def main() -> None:
        cluster = await FakeCluster.made(0)
        async with cluster.client() as client:
            view = ClusterView(asyncio.get_running_loop().time, no_answer)
            try:
                before = await view.look(client)
                paused(client.metadata, 6)
                during = await view.look(client)
                after = await view.look(client)
            finally:
                await view.close()
        slow = [one.what for one in during.problems if "answers slowly" in one.what]
        assert len(slow) == 1
        assert not [one for one in (*before.problems, *after.problems) if "slowly" in one.what]

    simulated(main)


def test_what_was_measured_before_a_look_counts_as_well() -> None:
    """The connection to the store waits first if the store is paused."""

    async def main() -> None:
        cluster = await FakeCluster.made(0)
        async with cluster.client() as client:
            clock = asyncio.get_running_loop().time
            view, delay = ClusterView(clock, no_answer), StoreDelay(clock)
            paused(client.metadata, 2)
            await delay.of(client.metadata.instance_id())
            try:
                found = await view.look(client, delay)
            finally:
                await view.close()
        assert any("answers slowly" in one.what for one in found.problems)

    simulated(main)


def test_a_busy_process_is_not_taken_for_a_slow_store() -> None:
    """The clock jumps, as it does if the process itself was stopped for a minute."""

    async def main() -> None:
        jumps = iter([0.0, 60.0, 60.1])
        delay = StoreDelay(lambda: next(jumps))
        answer = asyncio.get_running_loop().create_future()
        answer.set_result("id")
        assert await delay.of(answer) == "id"
        assert delay.longest_s < SLOW_S
        busy = StoreDelay(lambda: next(jumps, 120.0))
        await busy.of(asyncio.sleep(0.05))
        assert busy.longest_s < SLOW_S

    simulated(main)


def test_an_unanswered_request_counts_and_errors_are_left_to_other_requests() -> None:
    async def main() -> None:
        clock = asyncio.get_running_loop().time
        delay = StoreDelay(clock)

        async def never() -> None:
            await asyncio.Event().wait()

        async with delay.watched(never):
            await asyncio.sleep(5)
        assert delay.longest_s > SLOW_S

        async def fails() -> None:
            raise MetadataUnavailableError("the store does not answer")

        failing = StoreDelay(clock)
        async with failing.watched(fails):
            await asyncio.sleep(5)
        assert failing.longest_s < SLOW_S

    simulated(main)
