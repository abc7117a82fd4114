"""Flows between machines die silently (apache/bookkeeper 2482, 2382, 4683, 3268).

The hub drops what established connections carry, notifies nobody, and lets new connections pass.
Each actor must continue within `CONTINUE_S`, nothing is copied that is not lost, and no bookie
keeps a dead client for more than a minute. The seconds of each actor are printed (pytest -s).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import quire
from quire._runtime.clock import SystemClock
from quire.client.client import pool_of
from quire.metadata import open_metadata
from quire.replication import Autorecovery, AutorecoverySettings, ReplicationLocks
from quire.testing.cluster import BookieProcess
from tests.support.long import long_after
from tests.support.network.netns import Net
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.namespaces]

CONTINUE_S = 10.0
DEAD_CLIENT_S = 60.0
OPEN_GRACE_S = 3_600.0
"""Ledgers that other tests left open are not recovered here, however slow the machine is."""
PATIENCE_S = 90.0
IDLE_S = 14.0
"""Longer than `silent_link_s` and `idle_link_s` together."""
PORT = 3181
CLIENT, OTHER = "client", "other"
BOOKIES = [f"bookie-{number}" for number in range(1, 6)]
SHAPE = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
ENTRIES = 100


class RemoteBookie(BookieProcess):
    """A bookie on its own machine."""

    def __init__(self, net: Net, name: str, directory: Path, uri: str) -> None:
        machine = net[name]
        more = ["--advertise", machine.address]
        super().__init__(int(name.removeprefix("bookie-")), PORT, directory, uri, more)
        self.id = f"{machine.address}:{PORT}"
        self._command[1:1] = machine.prefix


@dataclass(frozen=True)
class Place:
    net: Net
    uri: str
    bookies: dict[str, RemoteBookie]
    """The bookies by the names of their machines."""

    def silence(self) -> None:
        assert self.net.silence(CLIENT, *BOOKIES), "there is no connection to silence"

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            self.net[CLIENT].run(work)
        finally:
            self.net.heal()

    def connections_from(self, machine: str) -> int:
        """Return the number of connections that bookies have from this machine."""
        address = self.net[machine].address
        return sum(peer == address for name in BOOKIES for _, _, peer, _ in self.net[name].flows())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("machines")
    uri = f"sqlite:///{directory / 'metadata.db'}"

    async def initialise() -> None:
        store = await open_metadata(uri, create=True)
        await store.initialise()
        await store.close()

    asyncio.run(initialise())
    with ExitStack() as stack:
        net = stack.enter_context(Net([CLIENT, OTHER, *BOOKIES]))
        bookies = {name: RemoteBookie(net, name, directory, uri) for name in BOOKIES}
        for bookie in bookies.values():
            stack.callback(bookie.stop)
            bookie.launch()
        for bookie in bookies.values():
            bookie.wait_ready(time.monotonic() + PATIENCE_S)
        yield Place(net, uri, bookies)


async def timed(actor: str, work: Awaitable[Any], limit_s: float = CONTINUE_S) -> Any:
    """Do it, print how long it took, and fail if that was too long."""
    begun = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        result = await work
    took_s = time.monotonic() - begun
    print(f"{actor}: {took_s:.2f} s")
    assert took_s < limit_s, f"{actor} continued after {took_s:.1f} s"
    return result


async def written(client: quire.Client, *, close: bool = True) -> quire.LedgerWriter:
    writer = await client.create_ledger(**SHAPE)
    await writer.append_many([b"%d" % entry for entry in range(ENTRIES)])
    if close:
        await writer.close()
    return writer


async def read(client: quire.Client, ledger_id: int) -> int:
    reader = await client.open_ledger(ledger_id)
    return len([entry async for entry in reader.read()])


async def warmed(client: quire.Client) -> None:
    """Make connections to all bookies, of both protocols."""
    for bookie in (await client.bookies()).writable:
        await client.bookie_info(bookie)
        await pool_of(client).ask(bookie, lambda channel: channel.probe())


async def segments(client: quire.Client, ledger_id: int) -> int:
    return len((await client.ledger_metadata(ledger_id)).segments)


@pytest.mark.parametrize("idle_s", long_after(1, [0.0, IDLE_S]), ids=["busy", "idle"])
def test_writers_continue_with_the_same_bookies(place: Place, idle_s: float) -> None:
    async def scenario() -> None:
        async with quire.connect(place.uri) as client:
            await warmed(client)
            writer = await written(client, close=False)
            await asyncio.sleep(idle_s)
            place.silence()
            how = "idle" if idle_s else "busy"
            first = client.create_ledger(**SHAPE)
            other = await first
            async with asyncio.TaskGroup() as group:
                group.create_task(timed(f"append, {how}", writer.append(b"after")))
                group.create_task(timed(f"first append of a ledger, {how}", other.append(b"0")))
            for one in (writer, other):
                await one.close()
                assert await segments(client, one.ledger_id) == 1, "no bookie was replaced"

    place.run(scenario)


@pytest.mark.parametrize("idle_s", long_after(1, [0.0, IDLE_S]), ids=["busy", "idle"])
def test_readers_and_recoveries_continue_over_new_connections(place: Place, idle_s: float) -> None:
    async def scenario() -> None:
        async with (
            quire.connect(place.uri) as writing,
            quire.connect(place.uri) as reading,
            quire.connect(place.uri) as recovering,
        ):
            closed = await written(writing)
            left = await written(writing, close=False)
            for client in (reading, recovering):
                await warmed(client)
                await read(client, closed.ledger_id)
            await asyncio.sleep(idle_s)
            place.silence()
            how = "idle" if idle_s else "busy"
            async with asyncio.TaskGroup() as group:
                reads = group.create_task(
                    timed(f"reader of a closed ledger, {how}", read(reading, closed.ledger_id))
                )
                recovery = group.create_task(
                    timed(f"recovery, {how}", recovering.open_ledger(left.ledger_id, recover=True))
                )
            assert reads.result() == ENTRIES
            assert recovery.result().last_add_confirmed == ENTRIES - 1
            assert await segments(recovering, left.ledger_id) == 1

    place.run(scenario)


def test_a_tailing_reader_continues_over_new_connections(place: Place) -> None:
    async def scenario() -> None:
        config = quire.ClientConfig(explicit_lac_interval_s=0.02)
        async with (
            quire.connect(place.uri, config=config) as writing,
            quire.connect(place.uri) as reading,
        ):
            writer = await writing.create_ledger(**SHAPE)
            await writer.append(b"0")
            seen = -1

            async def follow() -> None:
                nonlocal seen
                reader = await reading.open_ledger(writer.ledger_id)
                async for entry in reader.tail(0):
                    seen = entry.entry_id

            following = asyncio.ensure_future(follow())
            try:
                for entry in range(1, 30):
                    await writer.append(b"%d" % entry)
                    await asyncio.sleep(0.1)
                await until(lambda: seen, right=lambda now: now >= 29, limit_s=CONTINUE_S)
                place.silence()
                news = until(
                    lambda: seen, right=lambda now: now >= 30, limit_s=PATIENCE_S, poll_s=0.01
                )
                async with asyncio.TaskGroup() as group:
                    group.create_task(timed("append beside a tail", writer.append(b"30")))
                    group.create_task(timed("tailing reader", news))
            finally:
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following

    place.run(scenario)


def test_autorecovery_continues_and_copies_only_lost_entries(place: Place) -> None:
    """Nothing is copied at first. Then one bookie stops, and only its ledgers are copied.

    The connections to the other bookies die as well.
    """

    async def scenario() -> None:
        async with (
            quire.connect(place.uri) as client,
            quire.connect(place.uri) as auditing,
            quire.connect(place.uri) as working,
        ):
            ids = [(await written(client)).ledger_id for _ in range(6)]
            every = [ledger async for ledger in client.list_ledgers()]
            before = {ledger: await client.ledger_metadata(ledger) for ledger in every}
            locks = ReplicationLocks(client.metadata, "tester", SystemClock())
            how = AutorecoverySettings(
                ledger_check_interval_s=1.0, poll_s=0.5, backoff_s=0.5, open_grace_s=OPEN_GRACE_S
            )
            auditor = Autorecovery(auditing, "auditor", settings=how, worker=False)
            worker = Autorecovery(working, "worker", settings=how, auditor=False)
            jobs = [asyncio.ensure_future(one.run()) for one in (auditor, worker)]

            async def audited() -> None:
                checks = auditor.stats.ledger_checks  # one may be under way
                await until(
                    lambda: auditor.stats.ledger_checks,
                    right=lambda now: now >= checks + 2, limit_s=PATIENCE_S,
                )  # fmt: skip

            async def worked() -> None:
                for ledger in ids:
                    await locks.mark(ledger, [before[ledger].segments[0].ensemble[0]])
                for ledger in ids:
                    await until(
                        lambda ledger=ledger: locks.marked(ledger),
                        right=lambda mark: mark is None, limit_s=PATIENCE_S,
                    )  # fmt: skip

            try:
                await audited()
                await worked()
                place.silence()
                async with asyncio.TaskGroup() as group:
                    group.create_task(timed("auditor, two checks", audited()))
                    group.create_task(timed(f"worker, {len(ids)} marked ledgers", worked()))
                assert worker.stats.entries_copied == 0
                assert before == {one: await client.ledger_metadata(one) for one in every}

                lost = place.bookies[BOOKIES[0]]
                theirs = [
                    one for one in every
                    if before[one].closed and lost.id in before[one].segments[0].ensemble
                ]  # fmt: skip
                lost.stop()
                place.silence()
                await until(
                    lambda: worker.stats.fragments,
                    right=lambda now: now >= len(theirs), limit_s=PATIENCE_S,
                )  # fmt: skip
                await audited()
                for ledger in every:
                    if ledger not in theirs:
                        assert await client.ledger_metadata(ledger) == before[ledger]
                lost_entries = sum(before[one].last_entry_id + 1 for one in theirs)
                # A copy whose connection died silently is made once more.
                assert worker.stats.entries_copied >= lost_entries > 0
            finally:
                for job in jobs:
                    job.cancel()
                await asyncio.gather(*jobs, return_exceptions=True)

    try:
        place.run(scenario)
    finally:
        place.bookies[BOOKIES[0]].start()


def test_no_bookie_keeps_the_connection_of_a_dead_client(place: Place) -> None:
    """A client's machine loses its power: nothing comes from it any more, not even a reset."""
    gone = asyncio.Event()

    async def client() -> None:
        async with quire.connect(place.uri) as one:
            await warmed(one)
            await written(one)
            there.set_result(None)
            while not gone.is_set():
                await asyncio.sleep(0.05)

    async def watch() -> None:
        await asyncio.wrap_future(there)
        assert place.connections_from(OTHER) >= len(BOOKIES)
        for name in BOOKIES:
            place.net.cut(OTHER, name)
        begun = time.monotonic()
        await until(
            lambda: place.connections_from(OTHER), right=lambda now: now == 0, limit_s=PATIENCE_S,
            poll_s=0.2,
        )  # fmt: skip
        took_s = time.monotonic() - begun
        print(f"the last bookie let go of a dead client: {took_s:.2f} s")
        assert took_s < DEAD_CLIENT_S

    from concurrent.futures import Future

    there: Future[None] = Future()
    living = place.net[OTHER].start(client)
    try:
        place.run(watch)
    finally:
        gone.set()
        with suppress(Exception):
            living.result(PATIENCE_S)
