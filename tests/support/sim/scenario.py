"""A small simulated program that uses every feature of the simulator, for tests of determinism.

It has a store with a worker and a disk on two nodes, clients with timeouts, and faults. It prints
nothing, and returns values that must be the same in every run of a seed.
"""

from __future__ import annotations

import asyncio

from quire_simulator.machine import (
    PowerLossError,
    SimClock,
    SimDisk,
    SimNetwork,
    SimulatedLoop,
    SimWorker,
    Trace,
)

PORT = 3181


class Store(asyncio.Protocol):
    """A server that writes what it receives to a file and syncs it.

    Its answer after the sync has as many bytes.
    """

    def __init__(self, file, worker) -> None:
        self.file, self.worker = file, worker
        self.queue: list[bytes] = []
        self.end = file.size()

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.queue.append(data)
        self.worker.wake()

    def step(self) -> None:
        data, self.queue = b"".join(self.queue), []
        self.file.write([data], self.end)
        self.file.sync()
        self.end += len(data)
        self.worker.post(lambda: self.transport.write(b"." * len(data)))


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.answered = 0
        self.changed = asyncio.Event()
        self.lost = False

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.answered += len(data)
        self.changed.set()

    def connection_lost(self, exc) -> None:
        self.lost = True
        self.changed.set()


async def serve(host, loop, disk) -> None:
    file = disk.open("log") if disk.exists("log") else disk.create("log")
    disk.sync_directory()

    def accept() -> Store:
        worker = SimWorker(loop, loop.derive(f"worker {host.name} {loop.time()}"), disk)
        store = Store(file, worker)
        worker.start(store.step)
        return store

    await host.bind("", PORT).listen(accept)
    await asyncio.Event().wait()


async def talk(host, servers, trace, number) -> None:
    """Send to all servers, and cancel the slow ones in the order that a TaskGroup chooses."""

    async def one(server: str) -> None:
        try:
            client = await host.connect(server, PORT, Client)
            for size in (3, 700, 40):
                client.transport.write(bytes([number]) * size)
                await asyncio.sleep(0.002)
            while client.answered < 743 and not client.lost:
                client.changed.clear()
                await client.changed.wait()
            trace.record(host.name, "answered", server=server, count=client.answered)
            client.transport.close()
        except OSError as error:
            trace.record(host.name, "failed", server=server, error=type(error).__name__)
        finally:
            trace.record(host.name, "end", server=server, number=number)

    try:
        async with asyncio.timeout(0.05), asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(one(server))
    except TimeoutError:
        trace.record(host.name, "timeout", number=number)


def play(seed: int) -> tuple[str, str]:
    loop = SimulatedLoop(seed)
    trace = Trace(loop.time)
    network = SimNetwork(loop, loop.derive("network"), trace=trace)
    clock = SimClock(loop, skew_ms=-5)
    disks = {name: SimDisk(loop.derive(name), name) for name in ("a", "b", "c", "d")}

    def start(name: str) -> None:
        host = network.node(name)
        host.node.create_task(serve(host, loop, disks[name]))

    def die(name: str) -> None:
        network.kill(name)
        trace.record(name, "crashed", at=clock.now_ms())

    async def main() -> None:
        rng = loop.derive("faults")
        for name in disks:
            start(name)
        hosts = [network.node(f"client-{i}") for i in range(3)]
        disks["a"].crash_after(rng.randrange(3, 40), lambda: die("a"))
        for turn in range(5):
            tasks = [h.node.create_task(talk(h, disks, trace, turn)) for h in hosts]
            await asyncio.sleep(rng.random() * 0.02)
            if turn == 1:
                network.partition("client-0", "b", one_way=rng.random() < 0.5)
            elif turn == 2:
                network.stop("c")
            elif turn == 3:
                network.heal()
                network.cont("c")
                network.kill("d")
                disks["d"].crash()
                start("d")
            await asyncio.wait(tasks)
        for name, disk in disks.items():
            disk.crash()
            data = disk.open("log").read(0, 1 << 20) if disk.exists("log") else b""
            trace.record(name, "left", size=len(data), sum=sum(data))

    loop.run(main())
    assert PowerLossError is not None
    return trace.hexdigest(), loop.fingerprint()
