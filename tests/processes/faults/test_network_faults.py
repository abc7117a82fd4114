"""Networks are cut in one or both directions, or are slow and lossy.

No acknowledged entry is lost, no writer succeeds after a fence, and everything recovers after the
fault. Machines are network namespaces (`tests/support/network/netns.py`). If the kernel refuses
them, tests marked `namespaces` are deselected, and the end of the run says so.
QUIRE_NETWORK_FAULTS=all tries every member of an ensemble, every direction and more faults, in some
minutes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import quire
from quire._runtime.clock import SystemClock
from quire.errors import LedgerFencedError, QuireError
from quire.metadata import open_metadata
from quire.replication import ReplicationLocks, repair_ledger
from quire.testing._process import quire_command
from quire.testing.cluster import BookieProcess, ServerProcess, free_ports
from tests.support.network.fault_proxy import Fault, FaultProxy
from tests.support.network.netns import Net
from tests.support.replication import audited

pytestmark = pytest.mark.slow

ALL = os.environ.get("QUIRE_NETWORK_FAULTS") == "all"
PATIENCE_S = 90.0
STEP = 300
"""The entries that must be acknowledged and read before a test continues."""
PIECE = 20
PORT = 3181
ZOOKEEPER_PORT = 2181
BOOKIES = 5
SESSION_MS = 4_000
"""The shortest that a ZooKeeper grants whose tick is 2 s."""
PLAIN, STRIPED = (3, 3, 2), (4, 2, 2)
CONFIG = quire.ClientConfig(
    add_timeout_s=1.0,
    read_timeout_s=1.0,
    speculative_read_s=0.5,
    connect_timeout_s=1.0,
    long_poll_s=0.5,
    explicit_lac_interval_s=0.02,
    bookies_wait_s=PATIENCE_S,
)
CLIENT, OTHER, ZOOKEEPER = "client", "other", "zookeeper"


def payload(entry_id: int) -> bytes:
    return b"%d;" % entry_id * (1 + entry_id % 23)


# -- one writer, and one reader that follows --------------------------------------------------


@dataclass
class Work:
    writer: quire.LedgerWriter
    acked: int = -1
    seen: int = -1
    failure: QuireError | None = None
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ledger_id(self) -> int:
        return self.writer.ledger_id

    async def write(self) -> None:
        """Append until told to end, or until the writer fails for good."""
        try:
            while not self.ending.is_set():
                first = self.acked + 1
                await self.writer.append_many([payload(e) for e in range(first, first + PIECE)])
                self.acked = first + PIECE - 1
        except QuireError as error:
            self.failure = error

    async def follow(self, reader: quire.LedgerReader) -> None:
        async for entry in reader.tail(0):
            assert (entry.entry_id, entry.payload) == (self.seen + 1, payload(entry.entry_id))
            self.seen = entry.entry_id

    async def progress(self, step: int = STEP, *, read: bool = True) -> None:
        """Wait until this number of further entries is acknowledged and read."""
        target = self.acked + step
        async with asyncio.timeout(PATIENCE_S):
            while self.acked < target or (read and self.seen < target):
                assert self.failure is None, self.failure
                await asyncio.sleep(0.01)


@asynccontextmanager
async def working(
    uri: str,
    quorums: tuple[int, int, int],
    *,
    follow: bool = True,
    config: quire.ClientConfig = CONFIG,
) -> AsyncIterator[Work]:
    """Run a writer with `config` and a reader.

    At the end the ledger is closed, unless its writer failed, and the reader has all entries.
    """
    async with (
        quire.connect(uri, config=config) as client,
        quire.connect(uri, config=CONFIG) as reading,
    ):
        size, write_quorum, ack_quorum = quorums
        writer = await client.create_ledger(
            ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum
        )
        work = Work(writer)
        async with asyncio.TaskGroup() as group:
            if follow:
                reader = await reading.open_ledger(writer.ledger_id)
                group.create_task(work.follow(reader))
            writing = group.create_task(work.write())
            yield work
            work.ending.set()
            async with asyncio.timeout(PATIENCE_S):
                await writing
                if work.failure is None:
                    await writer.close()
        if follow:
            assert work.seen >= work.acked


# -- what has to be true in the end -----------------------------------------------------------


async def healed(uri: str, work: Work) -> None:
    """Check that every acknowledged entry exists, finally on every bookie that the metadata names.

    A member that was unreachable gets missing entries from a repair.
    """
    async with quire.connect(uri, config=replace(CONFIG, read_timeout_s=PATIENCE_S)) as client:
        async with asyncio.timeout(PATIENCE_S):
            reader = await client.open_ledger(work.ledger_id, recover=True)
            found = [entry.payload async for entry in reader.read()]
            locks = ReplicationLocks(client.metadata, "test", SystemClock())
            while wrong := await audited(client, [work.ledger_id]):
                await repair_ledger(client, locks, work.ledger_id, wrong)
    assert len(found) > work.acked, "an acknowledged entry is missing"
    assert found == [payload(entry) for entry in range(len(found))]


async def all_registered(uri: str, bookies: set[str]) -> None:
    async with quire.connect(uri, config=CONFIG) as client, asyncio.timeout(PATIENCE_S):
        while set((await client.bookies()).writable) != bookies:
            await asyncio.sleep(0.05)


async def initialise(uri: str) -> None:
    store = await open_metadata(uri, create=True)
    await store.initialise()
    await store.close()


# -- machines ---------------------------------------------------------------------------------


class RemoteBookie(BookieProcess):
    """A bookie on its own machine."""

    def __init__(self, net: Net, name: str, directory: Path, uri: str) -> None:
        machine = net[name]
        more = ["--advertise", machine.address, "--set", f"session_timeout_s={SESSION_MS / 1000}"]
        super().__init__(int(name.removeprefix("bookie-")), PORT, directory, uri, more)
        self.id = f"{machine.address}:{PORT}"
        self.machine = name
        self._command[1:1] = machine.prefix


@dataclass(frozen=True)
class Place:
    net: Net
    uri: str
    bookies: dict[str, RemoteBookie]
    """The bookies by id."""

    def machines(self, work: Work) -> list[str]:
        """Return the machines of the members of its ensemble."""
        ensemble = work.writer.metadata.last_segment.ensemble
        return [self.bookies[bookie].machine for bookie in ensemble]

    def run(self, scenario: Coroutine[Any, Any, Work]) -> None:
        """On the client's machine; then see whether all is well again."""

        async def whole() -> None:
            work = await scenario
            self.net.heal()
            await all_registered(self.uri, set(self.bookies))
            await healed(self.uri, work)

        try:
            self.net[CLIENT].run(whole)
        finally:
            self.net.heal()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("machines")
    names = [f"bookie-{number}" for number in range(1, BOOKIES + 1)]
    with ExitStack() as stack:
        net = stack.enter_context(Net([ZOOKEEPER, CLIENT, OTHER, *names]))
        host = net[ZOOKEEPER].address
        command = quire_command(
            "zookeeper", "--dir", str(directory / "zookeeper"),
            "--host", host, "--port", str(ZOOKEEPER_PORT),
        )  # fmt: skip
        zookeeper = ServerProcess(
            "ZooKeeper", [*net[ZOOKEEPER].prefix, *command], directory / "zookeeper.log"
        )
        stack.callback(zookeeper.stop)
        zookeeper.launch()
        zookeeper.wait_ready(time.monotonic() + PATIENCE_S)
        uri = f"zk+hierarchical://{host}:{ZOOKEEPER_PORT}/ledgers"

        net[CLIENT].run(lambda: initialise(uri))
        bookies = [RemoteBookie(net, name, directory, uri) for name in names]
        for bookie in bookies:
            stack.callback(bookie.stop)
            bookie.launch()
        for bookie in bookies:
            bookie.wait_ready(time.monotonic() + PATIENCE_S)
        yield Place(net, uri, {bookie.id: bookie for bookie in bookies})


# -- clients and bookies ----------------------------------------------------------------------


@pytest.mark.namespaces
@pytest.mark.parametrize("way", ["both", "answers", *(["requests"] if ALL else [])])
@pytest.mark.parametrize("quorums", [PLAIN, STRIPED] if ALL else [PLAIN])
@pytest.mark.parametrize("index", range(4) if ALL else [1])
def test_a_writer_continues_or_replaces_an_unreachable_member(
    place: Place, index: int, quorums: tuple[int, int, int], way: str
) -> None:
    """The reader cannot reach it either.

    With an ack quorum the writer continues at once, otherwise after the member has been replaced.
    """

    async def scenario() -> Work:
        async with working(place.uri, quorums) as work:
            await work.progress()
            machine = place.machines(work)[index % quorums[0]]
            if way == "both":
                place.net.cut(CLIENT, machine)
            elif way == "answers":
                place.net.cut_way(machine, CLIENT)
            else:
                place.net.cut_way(CLIENT, machine)
            await work.progress()
            async with asyncio.timeout(PATIENCE_S):
                while machine in place.machines(work):
                    await asyncio.sleep(0.05)
            await work.progress()
            place.net.heal()
            await work.progress()
        return work

    place.run(scenario())


@pytest.mark.namespaces
def test_a_partitioned_writer_acknowledges_nothing_after_it_was_fenced(place: Place) -> None:
    """The writer has lost the metadata store and one member, and another client closes the ledger.

    Nothing is acknowledged after that, during or after the fault.
    """

    # Otherwise it would wait for the metadata store to replace the member, and send nothing.
    patient = replace(CONFIG, add_timeout_s=PATIENCE_S)

    async def scenario() -> Work:
        async with working(place.uri, PLAIN, follow=False, config=patient) as work:
            await work.progress(read=False)
            place.net.cut(CLIENT, ZOOKEEPER)
            place.net.cut(CLIENT, place.machines(work)[0])
            await work.progress(read=False)
            opened = place.net[OTHER].start(lambda: opened_by_another(place.uri, work.ledger_id))
            async with asyncio.timeout(PATIENCE_S):
                last = await asyncio.wrap_future(opened)
                while work.failure is None:  # the members that it reaches say so
                    await asyncio.sleep(0.01)
        place.net.heal()
        assert isinstance(work.failure, LedgerFencedError), work.failure
        assert work.acked <= last
        with pytest.raises(QuireError):
            await work.writer.append(b"behind the fence")
        return work

    place.run(scenario())


async def opened_by_another(uri: str, ledger_id: int) -> int:
    async with quire.connect(uri, config=CONFIG) as client, asyncio.timeout(PATIENCE_S):
        while True:
            try:
                reader = await client.open_ledger(ledger_id, recover=True)
            except quire.errors.RecoveryError:
                continue  # too few bookies answer yet
            assert reader.ledger_closed
            return reader.last_add_confirmed


@pytest.mark.namespaces
@pytest.mark.parametrize("index", range(3) if ALL else [1])
def test_a_recovery_without_one_member_fences_the_others(place: Place, index: int) -> None:
    """The writer reaches all of them, and still gets no ack quorum any more."""

    async def scenario() -> Work:
        async with working(place.uri, PLAIN) as work:
            await work.progress()
            place.net.cut(OTHER, place.machines(work)[index])
            opened = place.net[OTHER].start(lambda: opened_by_another(place.uri, work.ledger_id))
            async with asyncio.timeout(PATIENCE_S):
                last = await asyncio.wrap_future(opened)
                while work.failure is None:
                    await asyncio.sleep(0.01)
            assert work.acked <= last
        assert work.seen == last
        return work

    place.run(scenario())


# -- bookies, clients and the metadata store --------------------------------------------------


@pytest.mark.namespaces
def test_a_bookie_that_loses_its_registration_registers_again(place: Place) -> None:
    """Clients can reach it all the time, and it continues to store their entries."""

    async def scenario() -> Work:
        async with working(place.uri, PLAIN) as work:
            await work.progress()
            ensemble = work.writer.metadata.last_segment.ensemble
            lost = ensemble[1]
            place.net.cut(place.bookies[lost].machine, ZOOKEEPER)
            await all_registered(place.uri, set(place.bookies) - {lost})
            await work.progress()
            place.net.heal()
            await all_registered(place.uri, set(place.bookies))
            await work.progress()
        return work

    place.run(scenario())


if ALL:

    @pytest.mark.namespaces
    @pytest.mark.parametrize("quorums", [PLAIN, STRIPED])
    def test_a_client_that_loses_the_metadata_store_continues(
        place: Place, quorums: tuple[int, int, int]
    ) -> None:
        async def scenario() -> Work:
            async with working(place.uri, quorums) as work:
                await work.progress()
                place.net.cut(CLIENT, ZOOKEEPER)
                for _ in range(5):
                    await work.progress()
                place.net.heal()
                await work.progress()
            return work

        place.run(scenario())

    @pytest.mark.namespaces
    @pytest.mark.parametrize("with_client", [False, True])
    def test_a_ledger_survives_a_long_outage_of_the_metadata_store(
        place: Place, with_client: bool
    ) -> None:
        """The store is unreachable until every registration has expired."""

        async def scenario() -> Work:
            async with working(place.uri, PLAIN) as work:
                await work.progress()
                for bookie in place.bookies.values():
                    place.net.cut(bookie.machine, ZOOKEEPER)
                if with_client:
                    place.net.cut(CLIENT, ZOOKEEPER)
                await asyncio.wrap_future(
                    place.net[OTHER].start(lambda: all_registered(place.uri, set()))
                )
                await work.progress()
                place.net.heal()
                await all_registered(place.uri, set(place.bookies))
                await work.progress()
            return work

        place.run(scenario())

    @pytest.mark.namespaces
    def test_an_isolated_writer_is_fenced(place: Place) -> None:
        async def scenario() -> Work:
            async with working(place.uri, PLAIN, follow=False) as work:
                await work.progress(read=False)
                for bookie in place.bookies.values():
                    place.net.cut(CLIENT, bookie.machine)
                place.net.cut(CLIENT, ZOOKEEPER)
                opened = place.net[OTHER].start(
                    lambda: opened_by_another(place.uri, work.ledger_id)
                )
                async with asyncio.timeout(PATIENCE_S):
                    last = await asyncio.wrap_future(opened)
                    place.net.heal()
                    while work.failure is None:
                        await asyncio.sleep(0.01)
            assert work.acked <= last
            return work

        place.run(scenario())


# -- slow and lossy, by proxies ---------------------------------------------------------------

JITTER = Fault(delay_s=(0.0, 0.1))
FAULTS = {
    "stalls": Fault(stall_share=0.05),
    "resets": Fault(reset_share=0.05),
    "jitter": JITTER,
    "all": replace(JITTER, stall_share=0.05, reset_share=0.02),
}
PROXY_HOST = "127.0.0.2"


@pytest.mark.parametrize("quorums", [PLAIN, STRIPED] if ALL else [PLAIN])
@pytest.mark.parametrize("name", FAULTS if ALL else ["all"])
async def test_a_ledger_survives_stalling_breaking_and_slow_connections(
    tmp_path: Path, name: str, quorums: tuple[int, int, int]
) -> None:
    """Chunks between all clients and bookies are affected.

    There are twice as many bookies as in an ensemble, because several members may fail at once and
    are avoided for a while.
    """
    with ExitStack() as stack:
        uri = f"sqlite:///{tmp_path / 'metadata.db'}"
        await initialise(uri)
        bookies, proxies = [], []
        for number, port in enumerate(free_ports(2 * quorums[0]), start=1):
            more = ["--bind", "127.0.0.1", "--advertise", PROXY_HOST]
            bookie = BookieProcess(number, port, tmp_path, uri, more)
            stack.callback(bookie.stop)
            bookie.launch()
            bookies.append(bookie)
            proxy = FaultProxy((PROXY_HOST, port), ("127.0.0.1", port), seed=port)
            proxies.append(stack.enter_context(proxy))
        for bookie in bookies:
            await asyncio.to_thread(bookie.wait_ready, time.monotonic() + PATIENCE_S)
        await all_registered(uri, {f"{PROXY_HOST}:{bookie.port}" for bookie in bookies})
        async with working(uri, quorums) as work:
            await work.progress()
            for proxy in proxies:
                proxy.fault = FAULTS[name]
            fault = FAULTS[name]
            async with asyncio.timeout(PATIENCE_S):
                while (fault.stall_share and sum(proxy.stalled for proxy in proxies) < 5) or (
                    fault.reset_share and sum(proxy.resets for proxy in proxies) < 2
                ):
                    assert work.failure is None, work.failure
                    await asyncio.sleep(0.01)
            await work.progress(2 * PIECE)
            for proxy in proxies:
                proxy.fault = Fault()
            await work.progress()
        await healed(uri, work)
